"""Small programs of the tests' own, and their program files."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedtune.core.workload import Place
from fedtune.programs import program_file
from fedtune.programs.program_file import Program
from fedtune.programs.run import ProgramRun

HEAD = """
command = {command}
rounds = {rounds}
[metrics.val_acc]
pattern = 'acc: ([0-9.]+)'
"""


def toml(folder: Path, text: str) -> Path:
    """A program file of this text."""
    file = folder / "own.toml"
    file.write_text(text)
    return file


def python(folder: Path, script: str, more: str = "", rounds: int = 3, words: str = "") -> Program:
    """A program of Python's that runs this script; `more`: what else its file says, in place of the usual metric."""
    (folder / "own.py").write_text(script)
    return made(folder, f"{sys.executable} -S own.py {words}", more, rounds)


def made(folder: Path, command: str | list[str], more: str = "", rounds: int = 3) -> Program:
    """A program of this command."""
    top, bar, tables = more.partition("[")
    metrics = "" if "metrics." in more else "[metrics.val_acc]\npattern = 'acc: ([0-9.]+)'\n"
    text = f"command = {command!r}\nrounds = {rounds}\nseed = {'{seed}' in str(command) and '{seed}' or 'none'!r}\n"
    return program_file.read(toml(folder, f"{text}{top}\n{metrics}{bar}{tables}"))


def processes(folder: Path) -> list[int]:
    """The processes of a trial in this folder that are alive, by the mark in their environment."""
    found, mark = [], f"FEDTUNE_ROWS={folder.resolve()}/trial".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            alive = (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            if alive and mark in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def start(program: Program, folder: Path, config: dict[str, Any] | None = None, **more: Any) -> ProgramRun:
    """A trial of a program in a folder of its own.  more: its seed, or entries of its place."""
    return ProgramRun(program, config or {}, more.pop("seed", 0), folder / "trial", at=Place(**more))


def finish(run: ProgramRun) -> list[dict[str, Any]]:
    """All rows that are left."""
    rows = []
    while run.round < run.rounds:
        rows.append(run.step())
    return rows
