"""The server of the live page: it reads runs' folders and answers on one address of this machine.

What a page shows is read, and the reports are drawn in another process (`drawing`), each at most once in a while,
whoever asks.  A browser asks again and again for what a page shows, and gets it if it has changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedtune.core.errors import UserError
from fedtune.reporting import templates
from fedtune.reporting.watch import connection, pages
from fedtune.reporting.watch.access import Access
from fedtune.reporting.watch.drawing import Artist
from fedtune.reporting.watch.history import StudyFolders
from fedtune.reporting.watch.pages import Page
from fedtune.runs.overview import Reader

READ, READ_SHARE = 0.9, 0.05  # seconds between two looks at a run, at least; the share of the time for it, at most
REDRAW, DRAWN_SHARE = 5.0, 0.1  # the same for drawing a report; share of a processor
PATIENCE = 0.3  # seconds that a page's first picture waits for its run to be read
KEPT = 32  # parts of pages in memory
FILES = {"report.js": "text/javascript", "watch.js": "text/javascript", "report.css": "text/css"}
Part = tuple[str, str]  # a version and the HTML


class Looks:
    """What was last seen of parts of pages.  It is looked for anew, one at a time, but leaves time for other work."""

    def __init__(self, least: float, share: float) -> None:
        """least: seconds between two looks at a part.  share: the largest share of the time that looking takes."""
        self._least, self._share, self._lock = least, share, asyncio.Lock()
        self._seen: OrderedDict[str, tuple[float, Part]] = OrderedDict()

    async def at(self, key: str, look: Callable[[Part], Awaitable[tuple[Part, float]]]) -> Part:
        """The part of this key.  look: of what was seen last, returns what is seen now and the seconds it took."""
        if time.monotonic() >= self._seen.get(key, (0.0,))[0]:
            async with self._lock:
                again, last = self._seen.get(key, (0.0, ("", "")))
                if time.monotonic() >= again:  # nobody else has looked meanwhile
                    part, took = await look(last)
                    self._seen[key] = time.monotonic() + max(self._least, took / self._share), part
        self._seen.move_to_end(key)
        part = self._seen[key][1]
        while len(self._seen) > KEPT:
            self._seen.popitem(last=False)
        return part


class WatchPages:
    """The pages' routes."""

    def __init__(self, runs: StudyFolders) -> None:
        """Nothing has been read."""
        self._runs, self._reader, self._artist = runs, Reader(), Artist()
        self._read, self._drawings = Looks(READ, READ_SHARE), Looks(REDRAW, DRAWN_SHARE)

    def app(self, token: str, port: int) -> Access:
        """The application."""
        shown = ("/", "/run/{run:path}", "/trial/{run:path}", "/together")
        routes = [
            Route("/static/{name}", _static),
            *(Route(f"/top{path}", self._top) for path in shown),
            *(Route(f"/drawn{path}", self._drawn) for path in shown),
            *(Route(path, self._whole) for path in shown),
        ]
        missing: Any = {
            404: lambda *_: _missing("there is no such page"),
            KeyError: lambda *_: _missing("there is no such run or trial"),
            UserError: lambda _, error: _missing(str(error)),
            OSError: lambda _, error: _missing(str(error)),
        }
        return Access(
            GZipMiddleware(Starlette(routes=routes, exception_handlers=missing), compresslevel=5), token, port
        )

    def close(self) -> None:
        """End the processes that draw."""
        self._artist.close()

    def _page(self, request: Request) -> Page:
        kind, name = _address(request).split("/")[1].partition("?")[0], request.path_params.get("run")
        if kind == "together":
            names = dict.fromkeys(request.query_params.getlist("run"))
            return pages.of_several({name: self._runs.folder(name) for name in names})
        if name is None:
            return pages.of_history(self._runs, self._reader)
        run = self._runs.folder(name)
        if kind == "trial":
            return pages.of_trial(name, run, request.query_params.get("trial", ""))
        return pages.of_run(name, run, self._reader)

    async def _whole(self, request: Request) -> Response:
        page = await asyncio.to_thread(self._page, request)
        look = asyncio.ensure_future(self._look(page, _address(request)))
        done, _ = await asyncio.wait({look}, timeout=PATIENCE)
        top = look.result()[1] if done else templates.part("waiting")
        return HTMLResponse(pages.html(page, top, _address(request)))

    async def _top(self, request: Request) -> Response:
        page = await asyncio.to_thread(self._page, request)
        return _unless_known(request, await self._look(page, _address(request)))

    async def _look(self, page: Page, address: str) -> Part:
        async def look(_: Part) -> tuple[Part, float]:
            began = time.monotonic()
            try:
                html = await asyncio.to_thread(page.top)
            except (UserError, OSError, KeyError, TypeError, ValueError) as error:
                html = pages.problem(error)
            version = hashlib.blake2s(html.encode(), digest_size=8).hexdigest()
            return (version, html), time.monotonic() - began

        return await self._read.at(address, look)

    async def _drawn(self, request: Request) -> Response:
        """The report below a page's top, if it has changed."""
        page = await asyncio.to_thread(self._page, request)

        async def draw(last: Part) -> tuple[Part, float]:
            version = await asyncio.to_thread(pages.signature, page)
            if version == last[0] or not page.runs:
                return last, 0.0
            try:
                html, took = await self._artist.draw(page.runs)
            except (UserError, OSError) as error:
                html, took = pages.problem(error), 0.0
            return (version, html), took

        return _unless_known(request, await self._drawings.at(_address(request), draw))


def _address(request: Request) -> str:
    path: str = request.scope["path"]
    query = request.scope["query_string"].decode("latin-1")
    return quote(path.removeprefix("/top").removeprefix("/drawn")) + (f"?{query}" if query else "")


def _unless_known(request: Request, part: Part) -> Response:
    version, html = part
    known = request.headers.get("if-none-match") == version
    return HTMLResponse("" if known else html, 304 if known else 200, {"ETag": version})


async def _static(request: Request) -> Response:
    """A script or a style: ours, or Plotly's."""
    name = request.path_params["name"]
    if name == "plotly.js":
        spec = importlib.util.find_spec("plotly")
        assert spec and spec.submodule_search_locations
        file = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
        return FileResponse(file, media_type="text/javascript", headers={"Cache-Control": "private, max-age=86400"})
    if name not in FILES:
        return _missing("there is no such file")
    return FileResponse(templates.FOLDER / name, media_type=FILES[name], headers={"Cache-Control": "no-cache"})


def _missing(why: str) -> Response:
    return PlainTextResponse(f"{why}\n", 404)


def listen(host: str, port: int, given: bool) -> socket.socket:
    """A socket that listens; UserError if it cannot.  given: whether the port was asked for, else any will do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for number in (port,) if given else (port, 0):
        try:
            made.bind((host, number))
            made.listen(connection.backlog())
            return made
        except OSError as error:
            why = error.strerror or str(error)
    made.close()
    raise UserError(f"--port and --host must be free to listen on, but {host} and {port} are not ({why}); give another")


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, watch: WatchPages) -> None:
        super().__init__(config)
        self._watch = watch

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._watch.close()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what is cancelled now is no error
        super().handle_exit(sig, frame)


def serve(runs: StudyFolders, listening: socket.socket, token: str) -> None:
    """Answer until Ctrl-C or SIGTERM."""
    watch = WatchPages(runs)
    settings: dict[str, Any] = {"lifespan": "off", "ws": "none", "http": connection.Connection, "loop": "asyncio"}
    quiet: dict[str, Any] = {"access_log": False, "log_config": None, "server_header": False, "proxy_headers": False}
    app: Any = watch.app(token, listening.getsockname()[1])
    config = uvicorn.Config(app, **settings, **quiet, backlog=connection.backlog(), timeout_graceful_shutdown=2)
    _Server(config, watch).run(sockets=[listening])
