"""Addresses of remote files: which ones are allowed, and how messages show them.

An address stands in a data spec, which is written into run folders and messages, so it never carries a secret: user
names, passwords and query strings (signed URLs) are refused. Credentials and endpoints come from the environment.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from vitlab.require import require

SCHEMES = ("s3", "gs", "hf", "https")
ALLOWED = "s3://, gs://, hf:// and https:// addresses are read"
MARK = "://"
CREDENTIALS = "credentials belong in the environment (see docs/howto/remote-data.md), never in an address"
SCHEME = re.compile(r"[^/]*://")


@dataclass(frozen=True)
class Address:
    """An allowed address: of a file, or of a folder of files."""

    scheme: str
    rest: str  # what follows "://", without a slash at its end

    def __str__(self) -> str:
        return f"{self.scheme}{MARK}{self.rest}"

    def __truediv__(self, name: str) -> "Address":
        return Address(self.scheme, f"{self.rest}/{name}")

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.rest.rpartition("/")[2]

    @property
    def has_listing(self) -> bool:
        """Whether the files of a folder can be listed; web servers have no common way."""
        return self.scheme in ("s3", "gs", "hf")


def is_address(text: str) -> bool:
    """Whether a string has the form of a URL, allowed or not; no absolute path has it."""
    return SCHEME.match(text) is not None


def parse_address(text: str) -> Address:
    """Check an address; the errors do not repeat what may be a secret."""
    scheme, _, rest = text.partition(MARK)
    scheme, rest = scheme.lower(), rest.rstrip("/")
    shown = f"{scheme:.20}{MARK}..."
    require("@" not in rest.partition("/")[0], f"{shown} has a user name or a password in it; {CREDENTIALS}")
    require(
        not set(rest) & set("?#"), f"{shown} has a query or a fragment (? or #), as signed URLs have; {CREDENTIALS}"
    )
    is_local = scheme == "http" and is_loopback(text)
    require(scheme in SCHEMES or is_local, f"{text!r:.200} cannot be read; {ALLOWED}")
    plain = rest.isprintable() and "\\" not in rest and not set(rest.split("/")) & {"", ".", ".."}
    require(plain, f"{text!r:.200} is not a valid address; it needs a name between all slashes, and no '..'")
    if scheme == "hf":
        kinds = f"{text!r:.200} does not name a data set of a hub; give hf://datasets/OWNER/NAME"
        require(re.match(r"datasets/[^/]+/[^/]+", rest) is not None, kinds)
    return Address(scheme, rest)


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine by its number, such as http://127.0.0.1:8000/file; names may lead elsewhere."""
    try:
        return ipaddress.ip_address(urlsplit(url).hostname or "").is_loopback
    except ValueError:
        return False
