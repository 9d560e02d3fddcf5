"""Who may read the pages: those that bring the token, and only by names of this machine (no DNS rebinding)."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (  # no script but ours, from here; Plotly needs inline styles
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
DAYS = 30  # a browser keeps the token so long


class Access:
    """Lets a request through that comes by a name of ours and has the token, in its address once or in its cookie."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        """port: where it listens."""
        self._app, self._token = app, token.encode()
        self._cookie = f"fedtune-watch-{port}"  # browsers share cookies between the ports of a machine
        self._names = {"localhost", socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            return  # no web sockets
        answer = self._refusal(Request(scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that goes no further; None for others."""
        if not self._is_ours(request.headers.get("host", "")):
            return PlainTextResponse("This address does not name the machine that it leads to.", 421)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("Pages can only be read.", 405)
        given = request.query_params.get("token")
        if given is not None and self._is_token(given):
            rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
            location = "/" + quote(request.scope["path"].lstrip("/")) + (f"?{urlencode(rest)}" if rest else "")
            answer = RedirectResponse(location, 303)
            seconds = DAYS * 24 * 3600
            answer.set_cookie(self._cookie, self._token.decode(), max_age=seconds, httponly=True, samesite="lax")
            return answer
        if given is None and self._is_token(request.cookies.get(self._cookie, "")):
            return None
        return PlainTextResponse("This needs the token: open the whole address that fedtune watch printed.", 401)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self._token)

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header names this machine: a page elsewhere can make a name of its own lead here."""
        name = ""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            ipaddress.ip_address(name)
        except ValueError:
            return name.rstrip(".") in self._names
        return True
