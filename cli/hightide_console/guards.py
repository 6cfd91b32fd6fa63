"""Who may ask, and what a page may do: a wall around the whole application.

A browser is a deputy that strangers send: any page may have it ask this port (CSRF), and a name
that an attacker owns may be made to point here (DNS rebinding). So a request must name this host,
and one that changes anything must come from a page of ours and carry its session's token. What a
page of ours may load or run is only what lies here (CSP).
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER = "x-hightide-token"
BODY_BYTES_MAX = 64 << 10
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class Guards:
    """Refuses what comes by another name, from elsewhere, or is too much; an ASGI application."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        """`hosts`: what a Host header may say, with the port."""
        self._app = app
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_HEADERS]}
            await send(message)

        why = self._why_not(Request(scope))
        if why:
            await JSONResponse({"error": why}, 403)(scope, receive, send_guarded)
            return
        await self._app(scope, _limited(receive), send_guarded)

    def _why_not(self, request: Request) -> str:
        host = request.headers.get("host", "").lower()
        if host not in self._hosts or len(request.headers.getlist("host")) != 1:
            return "this console is not served by that name: --host NAME allows one"
        if request.method in ("GET", "HEAD"):
            site = request.headers.get("sec-fetch-site", "none")
            if site not in ("same-origin", "none") and request.url.path.startswith("/api/"):
                return "what is asked comes from another site"
            return ""
        scheme, _, origin = request.headers.get("origin", "").lower().partition("://")
        # Of ours by any name: a proxy that speaks TLS may call this console by another one.
        if scheme not in ("http", "https") or origin not in self._hosts:
            return "a change must come from a page of this console"
        return ""


def check_token(request: Request, token: str) -> bool:
    """Whether a request carries its session's token."""
    said = request.headers.get(TOKEN_HEADER, "")
    return hmac.compare_digest(said.encode(), token.encode())


def _limited(receive: Receive) -> Receive:
    """The body of a request, no more than a page of ours sends."""
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message: dict[str, Any] = dict(await receive())
        taken += len(message.get("body", b""))
        if taken > BODY_BYTES_MAX:
            raise HTTPException(
                413, f"no page of this console sends more than {BODY_BYTES_MAX} bytes"
            )
        return message

    return limited
