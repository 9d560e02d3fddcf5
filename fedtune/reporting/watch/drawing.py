"""The report below a live page, drawn in a process of its own: it needs the libraries of a report, and ends.

    python -m fedtune.reporting.watch.drawing NAME RUN [NAME RUN …]

It answers with JSON: the HTML, or an error, and the processor's seconds that it took.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path

from fedtune.core.errors import UserError
from fedtune.core.importing import quick_imports

NICE = 19  # as low as Ray's dashboard: training comes first
LONGEST = 300.0  # seconds that a drawing may take


class Artist:
    """Has reports drawn, and ends whoever draws."""

    def __init__(self) -> None:
        """Nobody draws."""
        self._drawing: list[asyncio.subprocess.Process] = []
        self._over = False

    async def draw(self, runs: Mapping[str, Path]) -> tuple[str, float]:
        """The HTML of these runs' reports, and the processor's seconds that it took; UserError if there is none."""
        if self._over:
            raise UserError("the page has ended")
        words = [word for name, run in runs.items() for word in (name, str(run.absolute()))]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", __name__, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=_environment(),
        )
        self._drawing.append(process)
        if self._over:  # the page ended while it started
            _end(process)
        try:
            text, _ = await asyncio.wait_for(process.communicate(), LONGEST)
            answer = json.loads(text)
        except (ValueError, TimeoutError) as error:
            raise UserError("the process that draws has ended: it may have had too little memory") from error
        finally:
            self._drawing.remove(process)
            _end(process)
        if "error" in answer:
            raise UserError(answer["error"])
        return str(answer["html"]), float(answer["seconds"])

    def close(self) -> None:
        """Nothing is drawn any more."""
        self._over = True
        for process in self._drawing:
            _end(process)


def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()  # it only reads


def _environment() -> dict[str, str]:
    """One thread; PyArrow without memory in store, which is 7 MB; and fedtune as it is here, wherever that lies."""
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    settings = {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    return os.environ | settings | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def main() -> None:
    """Draw, and answer."""
    os.nice(NICE)
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # Optuna imports it where it is installed: 28 MB
    runs = dict(zip(sys.argv[1::2], map(Path, sys.argv[2::2]), strict=True))
    with redirect_stdout(sys.stderr):  # whatever a library prints
        try:
            with quick_imports():
                from fedtune.reporting import sections, templates
                from fedtune.reporting.watch import pages
            links = {name: pages.log_links(name, run) for name, run in runs.items()}
            parts = [sections.read(run, f"run{i}", False, links[name]) for i, (name, run) in enumerate(runs.items(), 1)]
            answer = {"html": str(templates.part("drawn", parts, sections.overview(parts), time.time()))}
        except Exception as error:  # a run in any state; the page says why
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            answer = {"error": kind + " ".join(str(error).split())[:500]}
    print(json.dumps(answer | {"seconds": time.process_time()}))


if __name__ == "__main__":
    main()
