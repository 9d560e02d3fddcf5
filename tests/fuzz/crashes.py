"""Studies whose disk, driver or machine dies: the commands, what is said of a study then, and what it has lost."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedtune.core.errors import UserError
from fedtune.runs import frames, reading
from fedtune.runs.files import RunFiles
from fuzz import rule

TIMES = ("run", "seconds", "eval_seconds")  # what differs between two runs of the same


class Story(NamedTuple):
    """A command that is disturbed: its words, and what goes on with its folder once its driver is dead."""

    name: str
    words: str
    again: str
    before: tuple[str, ...] = ()  # commands that come first, undisturbed


SEARCH = (
    "--algo fedproto --clients 4 --rounds 4 --searcher random --scheduler none --max-concurrent 2 --no-dashboard "
    "--storage-path {at} --name run"
)
RESUME = "resume {at}/run --no-dashboard"
EXTEND = "resume {at}/first --trials 2 --name run --no-dashboard"
REPRODUCE = "reproduce gfpl-fig6 --dataset digits --quick --no-dashboard --storage-path {at} --name run"
OWN = "--algo {at}/fair.py --clients 4 --rounds 3 --trials 3 --searcher random --scheduler none --no-dashboard"
STORIES = {
    s.name: s
    for s in (
        Story("search", f"search {SEARCH} --trials 4 --final-seeds 1", RESUME),
        Story("packed seeds", f"search {SEARCH} --trials 3 --final-seeds 0 --seeds-per-trial 2", RESUME),
        Story("own file", f"search {OWN} --final-seeds 0 --max-concurrent 2 --storage-path {{at}} --name run", RESUME),
        Story("extension", EXTEND, EXTEND, (f"search {SEARCH} --trials 2 --final-seeds 0".replace(" run", " first"),)),
        Story(
            "comparison",
            "compare --algos fedavg,local --clients 4 --rounds 3 --trials 2 --seeds 2 --searcher random "
            "--scheduler none --no-dashboard --storage-path {at} --name run",
            RESUME,
        ),
        Story("reproduction", REPRODUCE, REPRODUCE),
    )
}
FAIR = """from dataclasses import dataclass

from fedtune import Algorithm, hyper


@dataclass(frozen=True)
class Fair(Algorithm):
    q: float = hyper(1.0, 0.1, 5.0)

    shared = ("body", "head")

    def aggregate(self, server, up, task):
        return super().aggregate(server, up | {"rows": up["rows"] ** self.q}, task)
"""


def words(line: str, at: Path) -> list[str]:
    """The words of a story's line, for a folder."""
    return [word.replace("{at}", str(at)) for word in line.split()]


def command(line: str, at: Path) -> list[str]:
    """The same in a process of its own."""
    first, *rest = words(line, at)
    module = [f"fedtune.analysis.{first}"] if first == "reproduce" else ["fedtune", first]
    return [sys.executable, "-m", *module, *rest]


def onward(story: Story, run: Path, name: str = "again") -> str:
    """The line that goes on with what a dead driver left: it begins anew where nothing was written down yet.

    name: of the folder of an extension, which is begun again beside what is left of it.
    """
    if not begun(run):
        return story.words.replace("--name run", f"--name {run.name}")
    return story.again.replace("--name run", f"--name {name}") if story.before else story.again


# ---- what a run says


def rows(run: Path) -> dict[tuple[str, ...], list[str]]:
    """All that a study's folder tells of rounds: (search, configuration, round) -> what was measured, without times.

    UserError for a folder that tells nothing.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    runs = sorted(f.parent for f in run.rglob("run.json")) if not (run / "run.json").exists() else [run]
    for one in runs:
        trials, rounds = frames.load(one)
        configurations = trials.set_index("trial").filter(like=frames.CONFIG)
        named = {t: str(sorted(c.dropna().items())) for t, c in configurations.iterrows()}
        for row in rounds.drop(columns=[*TIMES]).to_dict("records"):
            key = ("" if one == run else one.name, named[row.pop("trial")], str(row.pop("round")))
            found.setdefault(key, []).append(str({n: v for n, v in row.items() if not pd.isna(v)}))
    for name, read, keys in (
        ("evaluation_rounds.parquet", reading.table, ["algorithm", "configuration", "seed", "round"]),
        ("table.csv", reading.text_table, []),
    ):
        for i, row in enumerate(read(run / name).to_dict("records") if (run / name).exists() else []):
            key = (name, *([str(row.pop(k)) for k in keys] or [str(i)]))
            measured = {n: v for n, v in row.items() if "seconds" not in n and n != "trial" and not pd.isna(v)}
            found.setdefault(key, []).append(str(measured))
    return found


class Difference(NamedTuple):
    """How a disturbed run differs from an undisturbed one, in rounds."""

    lost: int
    doubled: int
    different: int


def difference(disturbed: dict[tuple[str, ...], list[str]], whole: dict[tuple[str, ...], list[str]]) -> Difference:
    """Rounds that the disturbed run lacks, has more than once, or has with other figures; others count as different."""
    return Difference(
        lost=len(whole.keys() - disturbed.keys()),
        doubled=sum(len(found) > len(whole.get(key, [0])) for key, found in disturbed.items()),
        different=sum(not set(found) <= set(whole.get(key, [])) for key, found in disturbed.items()),
    )


def judged(run: Path, again: str, whole: dict[tuple[str, ...], list[str]]) -> tuple[str, str]:
    """What is wrong with the answers to a folder that a dead disk left, empty if nothing is; and what `again` says.

    The latter is `accepted` where Ray would start now, or the one line of its refusal.
    """
    answer = rule.ask(["status", "run"], run.parent)
    if answer.broken:
        return f"status: {answer.broken}", ""
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            wrong = difference(rows(run), whole)
    except UserError:
        wrong = Difference(0, 0, 0)
    if wrong.doubled or wrong.different:
        return f"frames: {wrong}", ""
    answer = rule.ask([w.replace("{at}/", "") for w in again.replace("{at} ", ". ").split()], run.parent)
    if answer.broken:
        return f"{again}: {answer.broken}", ""
    return "", "accepted" if answer.status is None else (answer.err or answer.out).strip().splitlines()[-1]


def begun(run: Path) -> bool:
    """Whether a driver got as far as to write what the run is; before, nothing was trained."""
    return any(RunFiles(run, name).record_file.exists() for name in ("run.json", "compare.json", "reproduce.json"))
