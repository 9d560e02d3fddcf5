"""The server of the live page: it reads runs' folders and answers on one address of this machine.

What a page shows is read in one thread of its own, and each thing at most once in a while, whoever asks; the figures
are drawn in another process (`drawing`).  A page is told of changes by server-sent events, and fetches them.
"""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedtune.core.errors import UserError
from fedtune.reporting import templates
from fedtune.reporting.watch import connection, pages
from fedtune.reporting.watch.access import Access
from fedtune.reporting.watch.drawing import Artist
from fedtune.reporting.watch.history import StudyFolders
from fedtune.reporting.watch.pages import HistoryPage, Page, RunPage, TogetherPage, TrialPage
from fedtune.runs.overview import Reader

PERIOD = 1.0  # seconds between two looks at a run, at least
SHARE = 0.05  # the largest share of the time that is spent on looking
REDRAW, DRAWN_SHARE = 5.0, 0.1  # seconds between two drawings of a page, at least; share of a processor, at most
PATIENCE = 0.3  # seconds that a page's first picture waits for its run to be read
SLICE = 0.2  # seconds after which a stream sees that the server ends
QUIET = 15.0  # seconds after which a stream says that it lives
KEPT = 8  # drawn pages in memory
SCRIPTS = {"report.js": "text/javascript", "watch.js": "text/javascript", "report.css": "text/css"}
SCRIPTS |= {"watch.css": "text/css", "plotly.js": "text/javascript"}
T = TypeVar("T")


class Seen:
    """Values that are found in a thread, each at most once in a while, however many ask."""

    def __init__(self) -> None:
        """One thread: what is read of runs is kept between two looks, and no two look at once."""
        self._thread = ThreadPoolExecutor(1, "watch")
        self._values: OrderedDict[str, tuple[float, Any]] = OrderedDict()
        self._pending: dict[str, asyncio.Future[Any]] = {}

    async def get(self, key: str, find: Callable[[], T]) -> T:
        """The value; what finding it raises is raised."""
        until, value = self._values.get(key, (0.0, None))
        if time.monotonic() < until:
            return value
        if key not in self._pending:
            self._pending[key] = future = asyncio.ensure_future(self._find(key, find))
            future.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever asked may be gone
        return await asyncio.shield(self._pending[key])

    async def _find(self, key: str, find: Callable[[], T]) -> T:
        try:
            began = time.monotonic()
            value = await asyncio.get_running_loop().run_in_executor(self._thread, find)
            now = time.monotonic()
            self._values[key] = now + max(PERIOD * 0.9, (now - began) / SHARE), value
            self._values.move_to_end(key)
            while len(self._values) > 4 * KEPT:
                self._values.popitem(last=False)
            return value
        finally:
            del self._pending[key]


class Drawings:
    """What was drawn last of each page, packed."""

    def __init__(self, artist: Artist) -> None:
        """Nothing has been drawn."""
        self._artist = artist
        self._drawn: OrderedDict[str, tuple[str, float, bytes]] = OrderedDict()  # version, not again before, HTML

    def due(self, key: str, version: str) -> str:
        """The version of a page that is to be shown now: the one that was drawn, as long as another is too early."""
        drawn, until, _ = self._drawn.get(key, ("", 0.0, b""))
        return drawn if drawn and time.monotonic() < until else version

    async def html(self, key: str, version: str, **request: Any) -> bytes:
        """What is drawn for this version of a page, packed."""
        due = self.due(key, version)
        if due != self._drawn.get(key, ("", 0.0, b""))[0]:
            html, took = await self._artist.draw(**request)
            packed = gzip.compress(html.encode(), 5)
            self._drawn[key] = due, time.monotonic() + max(REDRAW, took / DRAWN_SHARE), packed
        self._drawn.move_to_end(key)
        while len(self._drawn) > KEPT:
            self._drawn.popitem(last=False)
        return self._drawn[key][2]


class WatchPages:
    """The pages' routes."""

    def __init__(self, runs: StudyFolders, ends: Callable[[], bool] = lambda: False) -> None:
        """ends: whether the server is about to end."""
        self._runs, self._ends, self._reader = runs, ends, Reader()
        self._seen, self._artist = Seen(), Artist()
        self._drawings = Drawings(self._artist)
        self._history = HistoryPage(runs, self._reader)

    def app(self, token: str, port: int) -> Access:
        """The application."""
        shown = ("/", "/run/{run:path}", "/trial/{run:path}", "/together")
        routes = [
            Route("/static/{name}", self._static),
            *(Route(f"/events{path}", self._events) for path in shown),
            *(Route(f"/drawn{path}", self._drawn) for path in shown),
            *(Route(path, self._full_page) for path in shown),
        ]
        missing: Any = {404: lambda *_: _missing("there is no such page")}
        return Access(Starlette(routes=routes, exception_handlers=missing), token, port)

    def close(self) -> None:
        """End the process that draws."""
        self._artist.close()

    def _page(self, request: Request) -> Page:
        """The page that is asked for; KeyError or UserError if there is none."""
        kind = _own_path(request).split("/")[1]
        if kind == "together":
            names = dict.fromkeys(request.query_params.getlist("run"))
            return TogetherPage({name: self._runs.folder(name) for name in names})
        name = request.path_params.get("run")
        if name is None:
            return self._history
        run = self._runs.folder(name)
        if kind == "trial":
            return TrialPage(name, run, request.query_params.get("trial", ""))
        return RunPage(name, run, self._reader)

    async def _find_page(self, request: Request) -> Page | Response:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, self._page, request)
        except KeyError:
            return _missing("there is no such run or trial")
        except (UserError, OSError) as error:
            return _missing(str(error))

    async def _full_page(self, request: Request) -> Response:
        """A page, whole."""
        page, address = await self._find_page(request), _address(request)
        if isinstance(page, Response):
            return page
        top = asyncio.ensure_future(self._top(page, address))
        done, _ = await asyncio.wait({top}, timeout=PATIENCE)
        shown = top.result() if done else await asyncio.get_running_loop().run_in_executor(None, page.first)
        return HTMLResponse(pages.html(page, shown, address, time.time()))

    async def _top(self, page: Page, address: str) -> str:
        """The top of a page, or what is wrong with its run."""
        try:
            return await self._seen.get(f"top {address}", page.top)
        except (UserError, OSError, KeyError, TypeError, ValueError) as error:
            return pages.problem(error)

    async def _drawn(self, request: Request) -> Response:
        """What is drawn below a page's top."""
        page, address = await self._find_page(request), _address(request)
        if isinstance(page, Response):
            return page
        try:
            version = await self._seen.get(f"version {address}", page.version)
            drawing = await self._seen.get(f"drawing {address}", page.drawing)
            packed = await self._unless_over(self._drawings.html(address, version, **drawing)) if drawing else b""
        except (UserError, OSError) as error:
            packed = gzip.compress(pages.problem(error).encode())
        return _packed(packed, "text/html")

    async def _unless_over(self, drawing: Coroutine[Any, Any, bytes]) -> bytes:
        """What is drawn; UserError if the server ends meanwhile, which does not wait for it."""
        task = asyncio.ensure_future(drawing)
        while not task.done():
            if self._ends():
                self._artist.close()
            await asyncio.wait({task}, timeout=SLICE)
        return task.result()

    async def _events(self, request: Request) -> Response:
        """A page's changes, as they come."""
        page, address = await self._find_page(request), _address(request)
        if isinstance(page, Response):
            return page

        async def changes() -> AsyncIterator[str]:
            top = version = ""
            spoke = time.monotonic()
            while not self._ends():
                now = await self._top(page, address)
                if now != top:
                    top, spoke = now, time.monotonic()
                    yield pages.top_event(top, time.time())
                if page.runs:
                    seen = await self._seen.get(f"version {address}", page.version)
                    due = self._drawings.due(address, seen)
                    if due != version:
                        version, spoke = due, time.monotonic()
                        yield pages.event("drawn", version=version)
                if time.monotonic() - spoke > QUIET:
                    spoke = time.monotonic()
                    yield ":\n\n"
                until = time.monotonic() + PERIOD
                while not self._ends() and time.monotonic() < until:
                    await asyncio.sleep(SLICE)

        return StreamingResponse(changes(), media_type="text/event-stream")

    async def _static(self, request: Request) -> Response:
        """A script or a style."""
        name = request.path_params["name"]
        if name not in SCRIPTS:
            return _missing("there is no such file")
        answer = _packed(await asyncio.get_running_loop().run_in_executor(None, _content, name), SCRIPTS[name])
        answer.headers["Cache-Control"] = "private, max-age=86400" if name == "plotly.js" else "no-cache"
        return answer


def _address(request: Request) -> str:
    """A page's own address, also of its events and drawings."""
    query = request.scope["query_string"].decode("latin-1")
    return quote(_own_path(request)) + (f"?{query}" if query else "")


def _own_path(request: Request) -> str:
    path: str = request.scope["path"]
    return path.removeprefix("/events").removeprefix("/drawn")


def _missing(why: str) -> Response:
    return PlainTextResponse(f"{why}\n", 404)


def _packed(content: bytes, kind: str) -> Response:
    return Response(content, media_type=kind, headers={"Content-Encoding": "gzip"} if content else {})


@lru_cache
def _content(name: str) -> bytes:
    """A file of ours, or Plotly's script, packed."""
    if name == "plotly.js":
        spec = importlib.util.find_spec("plotly")
        assert spec and spec.submodule_search_locations
        file = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
        return gzip.compress(file.read_bytes(), 5)
    return gzip.compress(templates.text(name if name.startswith("report") else f"watch/{name}").encode())


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


def serve(runs: StudyFolders, listening: socket.socket, token: str) -> None:
    """Answer until Ctrl-C or SIGTERM."""
    server: uvicorn.Server | None = None
    watch = WatchPages(runs, lambda: bool(server and server.should_exit))
    app: Any = watch.app(token, listening.getsockname()[1])
    settings: dict[str, Any] = {
        "lifespan": "off",
        "ws": "none",
        "http": connection.Connection,
        "loop": "asyncio",
        "access_log": False,
    }
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            **settings,
            backlog=connection.backlog(),
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
    )
    try:
        server.run(sockets=[listening])
    finally:
        watch.close()
