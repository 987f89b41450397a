"""What can go wrong with a request: faults that pass, and errors that a retry does not help."""

from vitlab.data.images.refusals import BadImage, Reason
from vitlab.errors import RemoteRefused

PASSING = {408, 425, 429}  # and all from 500 on
HINTS = {
    "s3": "check the AWS_* variables or ~/.aws, and the bucket's policy; FSSPEC_S3_ANON=true reads public buckets",
    "gs": "check the account that gcsfs uses (GOOGLE_APPLICATION_CREDENTIALS)",
    "hf": "log in with `hf auth login` or set HF_TOKEN, and accept the terms of the data set on its page",
}


class Passing(Exception):  # noqa: N818 - says what it is
    """A fault that may be gone at the next attempt; `wait` is how many seconds the server asks for."""

    def __init__(self, what: str, wait: float = 0.0) -> None:
        super().__init__(what)
        self.wait = wait


class Missing(RemoteRefused):
    """There is no such file."""


def changed(address: object) -> BadImage:
    """The error for a file whose content is not what it was when the data was opened."""
    return BadImage(Reason.changed, "changed since the data was opened; open or index the data again", str(address))


def seconds_to_wait(text: str | None) -> float:
    """The seconds of a Retry-After header; 0 without one, and for dates."""
    return float(text) if text and text.isascii() and text.isdigit() and len(text) < 6 else 0.0


def failed(address: object, status: int, wait: float = 0.0, code: str = "") -> Exception:
    """The error for an HTTP status that is not a success."""
    said = f"status {status}{f', {code}' if code and code != str(status) else ''}"
    scheme = str(address).partition(":")[0]
    if status in PASSING or status >= 500:
        return Passing(said, wait)
    if status in (404, 410):
        return Missing(f"{address} does not exist ({said}); check the address")
    if status in (412, 416):
        return changed(address)
    if status in (401, 403):
        hint = HINTS.get(scheme, "check that the file is public")
        return RemoteRefused(f"{address} may not be read ({said}); {hint}")
    return RemoteRefused(f"{address} cannot be read ({said}); check the address and the settings of the store")
