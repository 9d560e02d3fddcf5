"""Every change that a command and its children make below a folder, as strace tells it, in its order.

Ray copies much with C++ code of its own and in many processes, so what is patched into Python would see half of it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

CALLS = (
    "openat,open,creat,write,pwrite64,writev,pwritev,truncate,ftruncate,rename,renameat,renameat2,unlink,unlinkat,"
    "mkdir,mkdirat,rmdir,link,linkat,symlink,symlinkat,sendfile,copy_file_range"
)
LONGEST = 10**8  # bytes of a written text that are told
OUTRIGHT = "import shutil\nshutil._USE_CP_SENDFILE = False\n"  # copies are read and written, which strace shows
HEX = re.compile(r"(?:\\x[0-9a-f]{2})+")
CALL = re.compile(r"^(\d+) +(\w+)\((.*)\) += (\S+)")
UNFINISHED = re.compile(r"^(\d+) +(\w+)\((.*?),? *<unfinished \.\.\.>$")
RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
NUMBERED = re.compile(r"^-?\w+<(.*)>(?:\(deleted\))?$")


class Change(NamedTuple):
    """A change: make, open (a new file), cut, write, move, link or remove."""

    kind: str
    path: str  # below the folder
    data: bytes = b""  # that is written
    at: int = -1  # where; -1: at the end
    target: str = ""  # the name that a file is moved to, or what a link says


def available() -> bool:
    """Whether strace is here and may look on."""
    return bool(shutil.which("strace")) and subprocess.run(["strace", "-o", os.devnull, "true"]).returncode == 0


def record(words: Sequence[str], folder: Path, log: Path) -> tuple[subprocess.CompletedProcess[str], list[Change]]:
    """Run a command; how it ended, and what it changed below the folder, which is to be named absolutely."""
    env = {name: value for name, value in os.environ.items() if name != "FEDTUNE_FORKS"}  # forks would not be children
    told = log.with_suffix(".python")
    told.mkdir()
    (told / "sitecustomize.py").write_text(OUTRIGHT)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(told), env.get("PYTHONPATH")]))
    traced = ["strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", str(LONGEST), "-e", f"trace={CALLS}", "-o", str(log)]
    ended = subprocess.run([*traced, *words], env=env, capture_output=True, text=True)
    with log.open(errors="replace") as lines:
        return ended, list(changes(lines, folder))


def changes(lines: Iterator[str], folder: Path) -> Iterator[Change]:
    """The changes below the folder in a log of strace's.

    Calls of two processes at the same time count in the order in which they ended.
    """
    told = Told(str(folder))
    open_calls: dict[str, str] = {}
    for line in lines:
        if begun := UNFINISHED.match(line):
            open_calls[begun[1]] = f"{begun[1]} {begun[2]}({begun[3]}"
            continue
        if resumed := RESUMED.match(line):
            rest = resumed[3]
            line = open_calls.pop(resumed[1], "") + ("" if rest.lstrip().startswith(")") else ", ") + rest.lstrip(", ")
        if (call := CALL.match(line)) and not call[4].startswith("-1"):
            yield from told.by(call[2], [text(word) for word in call[3].split(", ")], text(call[4]))


def text(word: str) -> str:
    """An argument, of which strace writes every letter as a number; bytes are latin-1."""
    return HEX.sub(lambda found: bytes.fromhex(found[0].replace("\\x", "")).decode("latin-1"), word)


class Told:
    """What calls say of a folder; knows where each open file is written to next."""

    def __init__(self, folder: str) -> None:
        self.folder = folder + "/"
        self.next: dict[str, int] = {}  # number and path of an open file -> where it is written to next, -1: the end

    def below(self, path: str) -> str | None:
        """A path as seen from the folder; None for one that is not below."""
        named = NUMBERED.match(path)
        path = named[1] if named else path.strip('"')
        known = path.startswith(self.folder) and not path.startswith(f"{self.folder}#")  # a file that has no name
        return path.removeprefix(self.folder) if known else None

    def by(self, call: str, words: list[str], result: str) -> Iterator[Change]:
        """The changes of one call."""
        if call in ("open", "openat", "creat"):
            yield from self._opened(words[call == "openat" :], result)
        elif call in ("write", "pwrite64", "writev", "pwritev", "sendfile", "copy_file_range"):
            yield from self._written(call, words, int(result))
        elif call in ("truncate", "ftruncate"):
            if path := self.below(words[0]):
                yield Change("cut", path, at=int(words[1]))
        elif call.startswith(("rename", "link")):
            source, target = (words[1], words[3]) if "at" in call else (words[0], words[1])
            yield from self._moved(call, self.below(source), self.below(target))
        elif call.startswith("symlink"):
            if path := self.below(words[-1]):
                yield Change("link", path, target=words[0].strip('"'))
        elif call.startswith(("mkdir", "unlink", "rmdir")) and (path := self._named(words)):
            yield Change("make" if call.startswith("mkdir") else "remove", path)

    def _named(self, words: list[str]) -> str | None:
        """The path of a call that has one, perhaps from an open folder on."""
        if words[0].startswith('"') or len(words) < 2:
            return self.below(words[0])
        name = words[1].strip('"')
        if name.startswith("/"):
            return self.below(name)
        parent = NUMBERED.match(words[0])
        return self.below(f"{parent[1]}/{name}") if parent else None

    def _opened(self, words: list[str], result: str) -> Iterator[Change]:
        path = self.below(result)
        if path and not words[1].startswith("O_RDONLY"):
            self.next[result] = -1 if "O_APPEND" in words[1] else 0
            if "O_TRUNC" in words[1] or "O_EXCL" in words[1]:
                yield Change("open", path)
            elif "O_CREAT" in words[1]:
                yield Change("touch", path)

    def _written(self, call: str, words: list[str], count: int) -> Iterator[Change]:
        path = self.below(words[0] if call != "copy_file_range" else words[2])
        if path is None:
            return
        if call not in ("write", "pwrite64"):
            raise ValueError(f"{call} to {path}: what it wrote is not told")
        data = words[1][1:-1].encode("latin-1")
        at = int(words[-1]) if call == "pwrite64" else self.next.get(words[0], 0)
        assert len(data) == count, (path, len(data), count)
        if call != "pwrite64" and at >= 0:
            self.next[words[0]] = at + count
        yield Change("write", path, data, at)

    def _moved(self, call: str, source: str | None, target: str | None) -> Iterator[Change]:
        if source and target:
            yield Change("copy" if call.startswith("link") else "move", source, target=target)
        elif source and not call.startswith("link"):
            yield Change("remove", source)
        elif target:
            raise ValueError(f"{target} came from elsewhere: what it holds is not told")


class Disk:
    """A folder's files in memory, as changes leave them."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray | str | None] = {}  # path -> bytes, what a link says, None for a folder

    @classmethod
    def of(cls, folder: Path) -> Disk:
        """What a folder holds now."""
        disk = cls()
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):  # it was moved meanwhile
                disk.files[str(path.relative_to(folder))] = None if path.is_dir() else bytearray(path.read_bytes())
        return disk

    def apply(self, change: Change) -> None:
        """Make a change."""
        kind, path, data, at, target = change
        found = self.files.get(path)
        if kind == "make":
            self.files[path] = None
        elif kind == "link":
            self.files[path] = target
        elif kind == "remove":
            self.files.pop(path, None)
        elif kind in ("move", "copy"):
            for name in [n for n in self.files if n == path or n.startswith(path + "/")]:
                content = self.files[name] if kind == "copy" else self.files.pop(name)
                self.files[target + name.removeprefix(path)] = content
        elif kind == "open" or not isinstance(found, bytearray):
            self.files[path] = bytearray()
        elif kind == "cut":
            found[:] = found[:at].ljust(at, b"\0")
        if kind == "write":
            content = self.files[path]
            assert isinstance(content, bytearray)
            at = len(content) if at < 0 else at
            content[at : at + len(data)] = data

    def put(self, folder: Path, but: Sequence[str] = ()) -> None:
        """Write the files into a new folder; those named `but` with nothing in them, of the same size."""
        folder.mkdir(parents=True)
        for path, content in sorted(self.files.items(), key=lambda item: item[0].count("/")):
            file = folder / path
            if content is None:
                file.mkdir(exist_ok=True)
            elif isinstance(content, str):
                os.symlink(content, file)
            elif file.name in but:
                file.touch()
                os.truncate(file, len(content))
            else:
                file.write_bytes(content)

    def differs(self, folder: Path) -> list[str]:
        """The paths at which a folder holds something else than this."""
        there = {str(f.relative_to(folder)) for f in folder.rglob("*")}
        mine = {p for p, c in self.files.items() if not isinstance(c, bytearray) or (folder / p).is_file()}
        unlike = [
            p for p in mine & there if isinstance(c := self.files[p], bytearray) and (folder / p).read_bytes() != c
        ]
        return sorted((there ^ set(self.files)) | set(unlike))


def torn(change: Change, part: float) -> Change:
    """A write of which the disk got only a part."""
    return change._replace(data=change.data[: int(part * len(change.data))])


@contextmanager
def before_each_change(folder: Path) -> Iterator[list[Disk]]:
    """What a folder holds before every file that this process opens to write to, moves or removes below it meanwhile.

    Without strace, but of this process's Python alone: whatever others write stands where it had come to.
    """
    found: list[Disk] = []
    root = str(folder)
    _hear(lambda path: found.append(Disk.of(folder)) if path.startswith(root) and folder.exists() else None)
    try:
        yield found
        found.append(Disk.of(folder))
    finally:
        _hear(None)


_heard: list[Callable[[str], None] | None] = []  # a hook of Python's cannot be taken back: it hears nothing then


def _hear(listener: Callable[[str], None] | None) -> None:
    def hook(event: str, args: tuple[Any, ...]) -> None:
        changes = event in ("os.rename", "os.remove", "os.mkdir") or (event == "open" and args[2] & os.O_ACCMODE)
        if changes and (listener := _heard[0]):
            _heard[0] = None  # what it opens itself is only read, and this is not heard
            listener(os.fsdecode(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else "")
            _heard[0] = listener

    if not _heard:
        _heard.append(None)
        sys.addaudithook(hook)
    _heard[0] = listener
