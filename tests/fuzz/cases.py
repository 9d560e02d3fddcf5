"""What is asked of the commands: argument lines, records, damaged files, spaces, partitions and code of one's own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st

from fuzz import strategies
from fuzz.rule import SECONDS, Answer, ask
from fuzz.world import STATES

OF_SEARCH = (
    "status run",
    "report run -o r.html",
    "resume run",
    "extend run --trials 2",
    "extend run --rounds 2",
    "replay run",
    "run --config run/best.yaml",
)
OF_COMPARISON = ("status comparison", "report comparison -o r.html", "resume comparison")
RECORDS = {
    "run/run.json": OF_SEARCH,
    "run/best.yaml": ("run --config run/best.yaml", "report run -o r.html"),
    "comparison/compare.json": OF_COMPARISON,
    "reproduction/reproduce.json": (
        "reproduce gfpl-fig6 --dataset digits --quick --storage-path . --name reproduction",
    ),
    "old/run.json": ("status old", "report old -o r.html", "replay old", "resume old"),
}


@contextmanager
def kept(file: Path) -> Iterator[bytes]:
    """The file's content, which it has again afterwards."""
    content = file.read_bytes()
    try:
        yield content
    finally:
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink(missing_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def answer(line: str | list[str], world: Path) -> Answer:
    """What a command says; its report is removed."""
    words = line.split() if isinstance(line, str) else line
    try:
        return ask(words, world, 4 * SECONDS if words[:1] == ["report"] else SECONDS)  # its figures take seconds
    finally:
        for made in ("r.html",):
            (world / made).unlink(missing_ok=True)


def command(data: st.DataObject, known: Sequence[str]) -> str:
    """One of the lines; a report, whose figures take a second or two, more seldom than the others."""
    reports = [line for line in known if line.startswith("report")]
    others = [line for line in known if line not in reports]
    return data.draw(st.sampled_from([*others * 8, *reports]))


def lines(world: Path, data: st.DataObject) -> tuple[str, Answer]:
    """Arguments of every command."""
    words = data.draw(strategies.command_lines())
    found = answer(words, world)
    if found.status == 0:
        tidy(world)
    return repr(words), found


def tidy(world: Path) -> None:
    """Remove what an accepted command may make."""
    for made in world.iterdir():
        if made.suffix in (".html", ".npz", ".pt", ".jsonl") and made.name != "numbers.npz":
            made.unlink()


def records(world: Path, data: st.DataObject) -> tuple[str, Answer]:
    """Records with entries that are gone, added or of another value."""
    name = data.draw(st.sampled_from(sorted(RECORDS)))
    line = command(data, RECORDS[name])
    file = world / name
    with kept(file) as content:
        loads: Callable[[bytes], Any] = yaml.safe_load if name.endswith("yaml") else json.loads
        good = loads(content)
        if "state" in good:
            good["state"] = data.draw(st.sampled_from(STATES))
        changed = data.draw(strategies.mutated(good))
        text = yaml.safe_dump(changed) if name.endswith("yaml") else strategies.dumped(changed)
        file.write_text(text, errors="surrogatepass" if name.endswith("yaml") else "strict")
        found = answer(line, world)
    return f"{line} with {name}: {_difference(good, changed)}", found


def _difference(good: Any, changed: Any) -> str:
    if not isinstance(good, dict) or not isinstance(changed, dict):
        return repr(changed)[:300]
    return repr({k: changed.get(k, "gone") for k in good | changed if good.get(k) != changed.get(k, "gone")})[:600]


def damage(world: Path, data: st.DataObject) -> tuple[str, Answer]:
    """Files of a run that are cut, overwritten, gone, or something else; what can be answered is as before."""
    files = sorted(
        str(f.relative_to(world))
        for top in ("run", "comparison")
        for f in (world / top).rglob("*")
        if f.is_file() and f.suffix != ".lock"
    )
    name = data.draw(st.sampled_from([f for f in files if not f.endswith((".pt", ".lock"))]))
    line = command(data, OF_SEARCH if name.startswith("run") else OF_COMPARISON)
    how, at, noise = data.draw(strategies.damages)
    file = world / name
    with kept(file) as content:
        _damage(file, how, at, noise, content, world / data.draw(st.sampled_from(files)))
        found = answer(line, world)
    return f"{line} with {name} {how} ({at}, {noise!r})", found


def _damage(file: Path, how: str, at: int, noise: bytes, content: bytes, other: Path) -> None:
    if how in strategies.DAMAGE:
        file.write_bytes(strategies.DAMAGE[how](content, at, noise))
        return
    another = other.read_bytes()
    file.unlink()
    if how == "a folder":
        file.mkdir()
    elif how == "a broken link":
        os.symlink("nowhere", file)
    elif how == "another file":
        file.write_bytes(another)


HEAD = """from ray import tune
from fedtune.tuning.space import when
inf, nan = float("inf"), float("nan")
"""


def spaces(world: Path, data: st.DataObject) -> tuple[str, Answer]:
    """Search spaces in files."""
    text = data.draw(strategies.space_files)
    file = world / "mine.py"
    try:
        file.write_text(HEAD + text + "\n", errors="surrogatepass")
        more = data.draw(
            st.sampled_from(["", " --searcher grid", " --scheduler pbt", " --algo fedprox", " --set lr=0.1"])
        )
        found = answer(f"search --algo gfpl --space mine.py{more}", world)
    finally:
        file.unlink(missing_ok=True)
    return text + more, found


def partitions(world: Path, data: st.DataObject) -> tuple[str, Answer]:
    """Partitions of one's own: arrays of other types, lengths and values, and damaged files."""
    file = world / "mine.npz"
    rows = np.arange(240)
    arrays: dict[str, Any] = {"row": rows, "client": rows % 4, "split": rows // 4 % 3}
    name = data.draw(st.sampled_from([*arrays, "x"]))
    odd = data.draw(
        st.sampled_from(
            ["float", "text", "object", "short", "matrix", "huge", "negative", "empty", "nan", "scalar", "bool", "gone"]
        )
    )
    made = {
        "float": rows / 2,
        "text": np.array(["a"] * 240),
        "object": np.array([None] * 240),
        "short": rows[:9],
        "matrix": rows.reshape(2, -1),
        "huge": rows + 10**15,
        "negative": rows - 9,
        "empty": rows[:0],
        "nan": np.full(240, np.nan),
        "scalar": np.array(3),
        "bool": rows > 3,
    }
    arrays = {n: v for n, v in arrays.items() if n != name} | ({} if odd == "gone" else {name: made[odd]})
    how, at, noise = data.draw(strategies.damages)
    try:
        np.savez(file, **arrays)
        if data.draw(st.booleans()) and how in strategies.DAMAGE:
            file.write_bytes(strategies.DAMAGE[how](file.read_bytes(), at, noise))
            odd += f", {how} ({at}, {noise!r})"
        found = answer(
            data.draw(
                st.sampled_from(
                    [
                        "partition --partition mine.npz",
                        "partition --dataset mine.npz",
                        "search --algo local --partition mine.npz",
                    ]
                )
            ),
            world,
        )
    finally:
        file.unlink(missing_ok=True)
    return f"{name} {odd}", found


CODE = (
    "import sys; sys.exit()",
    "1/0",
    "x = [",
    "\0",
    "raise KeyboardInterrupt",
    "class A: pass",
    "from fedtune import Algorithm\nclass A(Algorithm): pass",
    "from fedtune import Algorithm\nclass A(Algorithm):\n    lam: float = 'x'",
    "from fedtune import Algorithm, hyper\nfrom dataclasses import dataclass\n"
    "@dataclass(frozen=True)\nclass A(Algorithm):\n    lam: float = hyper(1.0, 2.0, 0.5)",
    "def A(): return 1",
    "def A(shape, classes): return 3",
    "def A(shape, classes): return A(shape, classes)",
    "A = 3",
    "A = None",
    "def A(*x): raise BaseException('x')",
    "import nothing_here",
    "A = A",
    "é = 'ü'",
    "def A(scores, labels): return 'x'",
    "def A(): return {'x': 1}",
    "def A(): return [[1]*3], [2]",
    "raise MemoryError",
    "def A(n=1): import sys; sys.exit(0)",
    "def A(*x): raise StopIteration",
    "def A(*x): raise KeyboardInterrupt",
    "def A(*x): raise ValueError('\\x1b[2J\\u202e' + 'a ' * 10**5)",
    "class A(Exception):\n    def __str__(self): raise A\nraise A",
    "import os; os._exit(99)",
    "import os; os.abort()",
    "import os; os.fork()",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "import sys, os; sys.stdout.close(); os.close(1); os.close(2); print(3)",
    "import os; os.chdir('/'); os.environ.clear()",
    "import sys; sys.stdout = sys.stderr = sys.path = None",
    "print('\\x1b[31m', 'a' * 10**5); import warnings; warnings.warn('\\x07')",
    "import torch; torch.set_default_dtype(torch.float64)",
    "async def A(*x): pass\nA()",
    "class B:\n    def __del__(self): 1 / 0\ndef A(*x): B()",
)


def code(world: Path, data: st.DataObject) -> tuple[str, Answer]:
    """Algorithms, models, data and metrics of one's own that are none."""
    text = data.draw(st.one_of(st.sampled_from(CODE), st.text(max_size=60)))
    line = data.draw(
        st.sampled_from(
            [
                "search --algo mine.py",
                "search --algo mine.py:A",
                "search --algo gfpl --model mine.py:A",
                "run --algo fedavg --dataset mine.py:A",
                "run --algo fedavg --metric mine.py:A",
                "check mine.py",
                "check --model mine.py:A",
                "list mine.py",
                "partition --dataset mine.py:A",
                "search --algo gfpl --space mine.py:A",
                "compare --algos mine.py,gfpl",
                "run --algo fedavg --start-from mine.py",
            ]
        )
    )
    file = world / "mine.py"
    try:
        file.write_text(text, errors="surrogatepass")
        found = answer(line, world)
    finally:
        file.unlink(missing_ok=True)
    return f"{line} with {text!r}", found


def _sparse(file: Path) -> None:
    file.touch()
    os.truncate(file, 3 * 2**40)


def _socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(file))


def _lying(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as packed, packed.open("x.npy", "w") as member:
        about = {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
        np.lib.format.write_array_header_1_0(member, about)


ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda file: file.symlink_to("/dev/zero"),
    "noise without end": lambda file: file.symlink_to("/dev/urandom"),
    "a socket": _socket,
    "terabytes": _sparse,
    "a folder": Path.mkdir,
    "the disk": lambda file: file.symlink_to("/"),
    "processes": lambda file: file.symlink_to("/proc"),
    "a loop": lambda file: file.symlink_to(file.name),
    "a lying array": _lying,
    "noughts": lambda file: np.savez_compressed(file.open("wb"), x=np.zeros(10**7, np.int8), y=np.zeros(9, np.int8)),
    "repeated weights": lambda file: torch.save({"w": torch.zeros(1).expand(10**7, 10**7)}, file),
    "keys": lambda file: file.write_text("\n".join(f"k{i}: 1" for i in range(10**5))),
    "references": lambda file: file.write_text("a: &a [x, x]\n" + "b: &a [*a, *a]\n" * 99),
    "depth": lambda file: file.write_text("[" * 10**5),
    "statements": lambda file: file.write_text("x = 1;" * 10**6),
    "brackets": lambda file: file.write_text("x = " + "(" * 10**4),
    "one line": lambda file: file.write_text("{" + " " * 10**7),
}
TAKING = (
    "search --algo odd.py",
    "search --algo gfpl --model odd.py:A",
    "search --algo gfpl --space odd.py",
    "run --algo fedavg --dataset ./odd",
    "run --algo fedavg --dataset odd.npz",
    "run --algo fedavg --metric odd.py:A",
    "run --algo fedavg --partition odd.npz",
    "run --algo fedavg --start-from odd.pt",
    "run --config odd.yaml",
    "partition --dataset odd.npz",
    "partition --partition odd.npz",
    "compare --algos odd.py,gfpl",
    "list odd.py",
    "list ./odd",
    "check odd.py",
    "check --model odd.py:A",
    "simulate odd.parquet",
    "status odd",
    "report odd -o r.html",
    "status odd --watch 1",
    "resume odd",
)


def files(world: Path, data: st.DataObject) -> tuple[str, Answer]:
    """Files that never end, wait, or are far larger than they look, wherever one is taken."""
    line, kind = data.draw(st.sampled_from(TAKING)), data.draw(st.sampled_from(sorted(ODD)))
    name = next(word for word in line.replace(":A", "").replace(",gfpl", "").split() if "odd" in word)
    before, file = Path.cwd(), world / name
    try:
        os.chdir(world)
        ODD[kind](file)
        found = answer(line, world)
    finally:
        os.chdir(before)
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)
    return f"{line} with {kind}", found


KINDS: dict[str, Callable[[Path, st.DataObject], tuple[str, Answer]]] = {
    "lines": lines,
    "records": records,
    "damage": damage,
    "spaces": spaces,
    "partitions": partitions,
    "code": code,
    "files": files,
}
