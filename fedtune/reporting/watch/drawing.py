"""The figures and tables of a page, drawn in another process: it needs the libraries of a report, and may end.

    python -m fedtune.reporting.watch.drawing        # reads requests from stdin, a JSON line each, until that ends
    python -m fedtune.reporting.watch.drawing RUN    # answers which hyperparameters of RUN mattered, and ends

The answer is its length, in eight bytes, and then JSON: the HTML, or an error.  A process that had to grow for it ends
with its answer, for it would keep the memory.  Which hyperparameters mattered is told by a forest, whose library is as
large as those of the figures: a process of its own grows it, before the one that draws has started.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError
from fedtune.core.importing import Uninstalled, quick_imports
from fedtune.runs.files import RunFiles

NICE = 19  # as low as Ray's dashboard: training comes first
LONGEST = 300.0  # seconds that a drawing may take
GROWN = 190e6  # bytes of memory from which on it ends with its answer; the figures of 200 trials take less
NO_TABLES = "--no-tables"  # the run has no parquet file, so that pyarrow is not loaded


class Artist:
    """The process that draws.  It starts when it is needed, and ends when it has had nothing to do for a while."""

    def __init__(self, idle: float = 20.0) -> None:
        """idle: seconds without work after which it ends, for it needs more memory than the rest."""
        self._idle, self._requests, self._over = idle, 0, False
        self._thread = ThreadPoolExecutor(1, "drawing")
        self._process: subprocess.Popen[bytes] | None = None

    async def draw(self, **request: Any) -> tuple[str, float]:
        """The HTML of a part of a page, and the processor's seconds that it took; UserError if it cannot be drawn."""
        if self._over:
            raise UserError("the page has ended")
        loop = asyncio.get_running_loop()
        self._requests += 1
        number = self._requests
        try:
            answer = await asyncio.wait_for(loop.run_in_executor(self._thread, self._answer, request), LONGEST)
        except (OSError, EOFError, ValueError, TimeoutError) as error:  # ValueError: pipes that were closed meanwhile
            self.end()
            raise UserError("the process that draws has ended: it may have had too little memory") from error
        loop.call_later(self._idle, lambda: self.end() if number == self._requests else None)
        if "error" in answer:
            raise UserError(answer["error"])
        return str(answer["html"]), float(answer["seconds"])

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        [run, *others] = map(Path, request["runs"].values())
        if request["together"] or others or not RunFiles(run).study_file.exists():
            return self._drawn(request)
        self.end()  # the forest needs the memory
        importance = self._read(self._start(str(run)))
        self.end()
        seconds = importance.pop("seconds")
        request = request | importance
        without = not _has_tables(run)
        answer = self._drawn(request, *[NO_TABLES] * without)
        self.end()
        if without and "error" in answer:  # the search may have ended meanwhile, and have tables now
            answer = self._drawn(request)
            self.end()
        return answer | {"seconds": answer["seconds"] + seconds}

    def _drawn(self, request: dict[str, Any], *arguments: str) -> dict[str, Any]:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._start(*arguments)
        assert process.stdin
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        answer = self._read(process)
        if answer["grown"]:
            self.end()
        return answer

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        if self._over:
            raise EOFError
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=_environment(),
        )
        if self._over:  # `close` came too early to see it
            self.end()
            raise EOFError
        return process

    @staticmethod
    def _read(process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout
        size = process.stdout.read(8)
        text = process.stdout.read(int.from_bytes(size, "big"))
        if len(size) < 8 or not text:
            raise EOFError
        return dict(json.loads(text))

    def end(self) -> None:
        """End the process; another starts when it is needed."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # it only reads
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # a request that it has not read
                    if pipe:
                        pipe.close()

    def close(self) -> None:
        """Nothing is drawn any more."""
        self._over = True
        self.end()
        self._thread.shutdown(wait=False)


def _has_tables(run: Path) -> bool:
    """Whether the run has a parquet file, or the comparison that it belongs to; one that goes on has none."""
    return any(run.glob("**/*.parquet")) or (RunFiles(run.parent).is_comparison and any(run.parent.glob("*.parquet")))


def _environment() -> dict[str, str]:
    """One thread; PyArrow without memory in store, which is 7 MB; and fedtune as it is here, wherever that lies."""
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    settings = {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    return os.environ | settings | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(NICE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints

    def write(answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode()
        answers.write(len(text).to_bytes(8, "big") + text)
        answers.flush()

    run = [argument for argument in sys.argv[1:] if argument != NO_TABLES]
    # Optuna and pandas import these where they are installed, which takes 28, 65 and 36 MB
    unused = ["matplotlib", *["pandas"] * bool(run), *["pyarrow"] * (NO_TABLES in sys.argv)]
    sys.meta_path.insert(0, Uninstalled(*unused))
    if run:
        write(_mattered(*run) | {"seconds": time.process_time()})
        return
    with quick_imports():
        from fedtune.reporting import sections  # noqa: F401  # before the first request counts
    counted = 0.0  # the first drawing has to answer for the start, too
    for line in sys.stdin:
        answer: dict[str, Any] = _answer(json.loads(line))
        began, counted = counted, time.process_time()
        write(answer | {"seconds": counted - began, "grown": _most_memory() > GROWN})


def _mattered(run: str) -> dict[str, Any]:
    """The importance of hyperparameters as `mattered`; empty on an error, which drawing then meets and reports."""
    from fedtune.analysis import importances

    try:
        importance = importances.mattered(importances.study(run))
    except Exception:  # a run in any state, as in `_answer`
        return {}
    return {"mattered": importance and importance._asdict()}


def _most_memory() -> int:
    """Bytes of memory that this process has had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _answer(request: dict[str, Any]) -> dict[str, str]:
    try:
        runs = {name: Path(folder) for name, folder in request["runs"].items()}
        if request["together"]:
            from fedtune.reporting.watch import together

            return {"html": together.html(runs)}
        [run] = runs.values()
        return {"html": _of_one(run, request)}
    except Exception as error:  # a run in any state; the page says why
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return {"error": kind + " ".join(str(error).split())[:500]}


def _of_one(run: Path, request: dict[str, Any]) -> str:
    """A run's part of a report.  links: where the trials' logs are.  mattered: which hyperparameters did, if known."""
    from fedtune.analysis.importances import Importance
    from fedtune.reporting import sections, templates

    links, options = request["links"], {}
    if "mattered" in request:
        importance = Importance(**request["mattered"]) if request["mattered"] else None
        options = {"mattered": lambda _: importance}
    part = sections.read(run, "run", with_searches=False, **options)
    if isinstance(part, sections.SearchSection):
        table = json.loads(part.table)
        table["links"] = [links.get(row[0]) for row in table["rows"]]
        part = dataclasses.replace(part, table=templates.embedded_json(table))
    return templates.ENVIRONMENT.get_template("watch/drawn.html").render(part=part, now=time.time())


if __name__ == "__main__":
    main()
