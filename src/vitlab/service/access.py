"""Who may talk to the service: the Host header, pages of other sites, the token; and headers that protect the page."""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from vitlab.page.policy import policy
from vitlab.require import require
from vitlab.service.refusals import Refused

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
OPEN_TO_ALL = ("/health", "/ready")  # for monitoring: they say nothing about models
COOKIE = "vitlab-token"
SHORTEST_TOKEN = 16  # characters
PROTECTION = {
    "content-security-policy": policy(),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Access rules: `hosts` are the allowed Host headers, `token` is the token that clients must send."""

    def __init__(self, host: str, token: str, hosts: Iterable[str] = ()) -> None:
        reachable = f"host={host!r} can be reached from other machines; give a token, with token= or VITLAB_TOKEN"
        require(bool(token) or is_loopback(host), reachable)
        is_strong = not token or (len(token) >= SHORTEST_TOKEN and token.isascii() and token.isprintable())
        require(is_strong, f"token= must be {SHORTEST_TOKEN} printable ASCII characters or more")
        self.names = {name.lower() for name in (*LOOPBACK_NAMES, host, *hosts)}
        self._token = token.encode()
        self._cookie = hmac.new(self._token, b"the page of vitlab", hashlib.sha256).hexdigest()

    @property
    def needs_token(self) -> bool:
        """Whether clients must show a token."""
        return bool(self._token)

    def check_host(self, host: str | None) -> None:
        """Raise Refused unless the Host header names this service: another name may be that of a hostile page."""
        if host is None or self._name(host) not in self.names:
            raise Refused(
                "unknown_host", "the Host header does not name this service; vitlab serve --hosts names further ones"
            )

    def check_origin(self, origin: str | None) -> None:
        """Raise Refused for a request that a page of another site makes."""
        if origin is None:
            return
        try:
            name = (urlsplit(origin).hostname or "").lower()
        except ValueError:
            name = ""
        if name not in self.names:
            raise Refused("foreign_origin", "a page of another site may not use this service")

    def check_token(self, path: str, authorization: str, cookies: str) -> None:
        """Raise Refused unless a token is not needed or is shown, as `Authorization: Bearer` or the page's cookie."""
        if not self._token or path in OPEN_TO_ALL:
            return
        scheme, _, given = authorization.partition(" ")
        is_bearer = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)
        if not is_bearer and not self._has_cookie(cookies):
            raise Refused("unauthorized", "give the token: Authorization: Bearer TOKEN, or open /?token=TOKEN")

    def cookie_for(self, query: str) -> str:
        """The Set-Cookie header for a page that is opened as /?token=TOKEN; empty without the right token."""
        given = parse_qs(query).get("token", [""])[0].encode()
        if not self._token or not hmac.compare_digest(given, self._token):
            return ""
        return f"{COOKIE}={self._cookie}; HttpOnly; SameSite=Strict; Path=/"

    def _has_cookie(self, cookies: str) -> bool:
        try:
            found = SimpleCookie(cookies).get(COOKIE)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._cookie.encode())

    @staticmethod
    def _name(host: str) -> str:
        found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+))(?::\d{1,5})?", host.strip())
        return (found[1] or found[2]).lower() if found else ""
