"""Access: who may read the page: those who show the token, or, where there is none, whoever reaches it by its name."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

COOKIE = "zellige_page"
PARAMETER = "token"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Verdict:
    """status: 200 when the request may go on, 303 when the cookie shall be set first, else 401 or 403 with a reason."""

    status: int
    reason: str = ""


class Access:
    """The rule of one page. token: what a reader must show; None where the cluster knows no tokens.

    A reader shows it in a header (`Authorization: Bearer ...`), or once as `?token=...`, which is answered with a
    cookie that holds a secret of this page and not the token. All comparisons take the same time for every input.
    Without a token, a page on loopback answers only requests for a loopback name: a foreign site whose name was
    pointed at this machine gets nothing.
    """

    def __init__(self, token: str | None, host: str) -> None:
        self._token, self._host = token, host
        self.cookie = secrets.token_urlsafe(32)

    @property
    def needs_token(self) -> bool:
        return self._token is not None

    def check(self, headers: Mapping[str, str], cookies: Mapping[str, str], query: Mapping[str, str]) -> Verdict:
        """What to do with a request."""
        if self._token is None:
            return self._by_name(headers.get("Host", ""))
        if PARAMETER in query:
            good = _same(query[PARAMETER], self._token)
            return Verdict(303) if good else Verdict(401, "the token in the address is not this cluster's")
        kind, _, shown = headers.get("Authorization", "").partition(" ")
        bearer = shown.strip() if kind.lower() == "bearer" else ""
        if _same(bearer, self._token) or _same(cookies.get(COOKIE, ""), self.cookie):
            return Verdict(200)
        return Verdict(
            401, "this cluster uses tokens: add ?token=... to the address once, or send it as a bearer token"
        )

    def _by_name(self, host: str) -> Verdict:
        if self._host not in LOOPBACK:
            return Verdict(200)
        name = urlsplit(f"//{host}").hostname or ""
        if name in LOOPBACK or name.endswith(".localhost"):
            return Verdict(200)
        return Verdict(403, f"this page answers to localhost, not to {name!r}: set page.host to serve it further")


def _same(shown: str, secret: str) -> bool:
    return hmac.compare_digest(shown.encode(), secret.encode())
