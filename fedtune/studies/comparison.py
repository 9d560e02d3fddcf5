"""A comparison of algorithms: searches with equal budgets on one setting, then runs on fresh seeds."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from fedtune import arguments, search
from fedtune.cluster import gpu_share, ray_start
from fedtune.core import terminal
from fedtune.core.errors import UserError
from fedtune.core.hyper import knobs
from fedtune.core.terminal import say
from fedtune.data import datasets
from fedtune.federated import registry
from fedtune.federated.experiment import fitting
from fedtune.federated.scenario import Scenario
from fedtune.federated.scenarios import find as find_scenario
from fedtune.federated.scenarios import said
from fedtune.runs import disk, tables
from fedtune.studies import comparison_tables, fresh_seeds, published, search_study
from fedtune.studies.ray_tasks import Outcome
from fedtune.tuning import plan
from fedtune.tuning import space as spaces
from fedtune.tuning.options import SearchOptions
from fedtune.tuning.plan import Plan

RECORD = "compare.json"
OURS = ("--algo", "--final-seeds")  # of a search's arguments: here each search's are given by the comparison


@dataclasses.dataclass(frozen=True)
class Contest:
    """A comparison that has been checked and can start.

    plans   of every search, by algorithm, in the order of --algos; they are alike but for algorithm and space.
    """

    folder: Path
    plans: dict[str, Plan]
    seeds: int
    top: int

    @property
    def first(self) -> Plan:
        """Any search's plan, for what they have in common."""
        return next(iter(self.plans.values()))

    @property
    def scenario(self) -> Scenario:
        """What all play, before a preset moves an algorithm's own defaults."""
        return dataclasses.replace(self.first.experiment, preset="").resolve({})[1]

    @property
    def where(self) -> str:
        """The same by name, with what was changed."""
        return said(self.first.scenario, dataclasses.asdict(self.scenario))

    def told(self) -> dict[str, Any]:
        """What compare.json says of it."""
        p = self.first
        return {
            "algorithms": list(self.plans), "scenario_name": p.scenario,
            "scenario": dataclasses.asdict(self.scenario), "pinned": p.experiment.pinned,
            "preset": p.experiment.preset, "seed": p.experiment.seed, "trials": p.trials,
            "seeds": self.seeds, "top_k": self.top, "grace": p.grace, "budget": p.budget._asdict(),
            "scheduler": p.scheduler, "seeds_per_trial": p.seeds,
        }  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The arguments that are not a search's."""
    p = arguments.Parser(
        prog="fedtune compare", allow_abbrev=False,
        description="Search several algorithms with the same budget, then play what was found on fresh seeds.",
        epilog=f"All other arguments are those of fedtune search, but {' and '.join(OURS)}, and every search has the "
        "same: --scenario, --trials, --rounds, --budget-unit, --space and the rest; see fedtune search --help.",
    )  # fmt: skip
    p.add_argument("--algos", metavar="A,B,…", help="algorithms, or all that run on the scenario's models")
    p.add_argument(
        "--seeds", type=arguments.positive, default=5, metavar="N", help="fresh seeds and partitions (default 5)"
    )
    p.add_argument(
        "--top-k", type=arguments.positive, default=3, metavar="N", help="of a search, played again (default 3)"
    )
    p.add_argument("--name", help="of the comparison's folder (default: scenario and time)")
    p.add_argument("--storage-path", default="runs", metavar="DIR", help="where that folder goes (default runs)")
    return p


def make(words: list[str], folder: Path | None = None) -> Contest:
    """Check everything that can be told before anything starts; UserError otherwise.

    folder: of a comparison that is gone on with; its searches that have begun are planned as they were.
    """
    own, given, rest = read(words)
    if given.gpus_per_trial == gpu_share.AUTO:
        raise UserError("a comparison needs one share of a GPU for all, but got --gpus-per-trial auto; give a number")
    if given.scheduler == "pbt":
        raise UserError(
            "a comparison plays what was found again, but --scheduler pbt moves hyperparameters in training; take "
            "asha, promote, hyperband, median or none"
        )
    names = _algorithms(own.algos, given)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = own.name or f"compare-{given.scenario}-{stamp}"
    if folder is None:
        plan.require_folder(Path(own.storage_path), name)
        folder = Path(own.storage_path).absolute() / name
    words_of = {algo: [*rest, "--algo", algo, "--name", algo, "--storage-path", str(folder), "--final-seeds", "0"]
                for algo in names}  # fmt: skip
    with terminal.silent():  # the same is planned below, and says it then
        spaces_of = {algo: _planned(words, folder / algo).space for algo, words in words_of.items()}
    plans = {}
    for algo in names:
        if also := _also(algo, spaces_of, given):
            words_of[algo] += ["--also", ",".join([given.also] * bool(given.also) + also)]
            say(f"note: {algo} also searches {', '.join(a.partition('=')[0] for a in also)}, as others here do")
        plans[algo] = _planned(words_of[algo], folder / algo)
    if len({p.trials for p in plans.values()}) > 1:
        raise UserError(
            "a fair comparison gives every algorithm as many trials, but their grids have "
            f"{', '.join(f'{n} {p.trials}' for n, p in plans.items())} points; give spaces with ranges, or --trials"
        )
    # nobody is judged before the slowest hyperparameter of anybody has had its effect
    grace, since = (max(of) for of in zip(*((p.grace, p.budget.since) for p in plans.values()), strict=True))
    plans = {
        n: dataclasses.replace(
            p, options=dataclasses.replace(p.options, grace=grace), grace=grace, budget=p.budget._replace(since=since)
        )
        for n, p in plans.items()
    }
    return Contest(folder, plans, own.seeds, own.top_k)


def read(words: list[str]) -> tuple[argparse.Namespace, SearchOptions, list[str]]:
    """A comparison's own arguments, and those of its searches, as options and as words."""
    own, rest = parser().parse_known_args(words)
    if refused := [w for w in rest if w.split("=")[0] in OURS]:
        raise UserError(f"a comparison gives each search its {refused[0]} itself, but it came too; leave it out")
    return own, _options([*rest, "--algo", "local"]), rest


def _options(words: list[str]) -> SearchOptions:
    return SearchOptions(**arguments.given(search.parser("fedtune compare").parse_args(words), SearchOptions))


def _planned(words: list[str], run: Path) -> Plan:
    """A search's plan; one that has begun is planned as it was."""
    options = _options(words)
    return plan.make(dataclasses.replace(options, space=spaces.kept(options.space, run)), resumed=run.exists())


def _also(algo: str, spaces_of: dict[str, spaces.Space], given: SearchOptions) -> list[str]:
    """The scenario's hyperparameters that others search and this one does not: all tune them, or nobody does.

    An algorithm whose own space leaves out the learning rate would be held to its default against others that are not.
    """
    shared = {n: d for s in spaces_of.values() for n, d in s.domains.items() if n in knobs(Scenario)}
    if spaces_of[algo].is_grid:
        return []
    idle = dataclasses.replace(given, algo=algo).experiment().scenario.idle()
    return [spaces.also_text(n, d) for n, d in shared.items() if n not in spaces_of[algo].domains and n not in idle]


def _algorithms(text: str | None, given: SearchOptions) -> list[str]:
    """The algorithms that were asked for; UserError unless they are at least one, each once."""
    if not text:
        raise UserError("--algos is needed, but none was given; for instance --algos gfpl,fedproto,fedavg,local")
    if text == "all":
        scenario = dataclasses.replace(given, algo="local", set={}).experiment().scenario
        return [n for n in fitting(scenario) if " " not in n]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        registry.find(name)
    if len(set(names)) < len(names):
        raise UserError(f"--algos names each algorithm once, but got {text}")
    return names


def conduct(c: Contest, record: dict[str, Any]) -> int:
    """Search whatever has not been searched, play what was found, write and show the tables; the exit status."""
    p = c.first
    with ExitStack() as held:
        if (c.folder / RECORD).exists():
            held.enter_context(tables.sole_driver(c.folder))
        data = datasets.load(p.experiment.scenario.dataset, p.options.data_dir, p.options.download)
        dealt = search_study.partition(p, data, c.seeds)
        disk.require_room(c.folder)
        ray_here = ray_start.connected(p.address, p.cpus, p.gpus, p.options.dashboard, p.options.dashboard_host)
        fits = held.enter_context(ray_here)
        noted = tables.Record(c.folder, tables.origin(tables.command_line()) | c.told() | record, RECORD)
        if not (c.folder / RECORD).exists():
            tables.make_folder(c.folder)
            held.enter_context(tables.sole_driver(c.folder))
        noted.write("running")
        began, earlier = time.monotonic(), noted.content.get("seconds", 0.0)

        def ended(state: str, **more: Any) -> None:
            noted.add(seconds=round(earlier + time.monotonic() - began, 1))
            noted.write(state, **more)

        try:
            if _searched_all(c, data, dealt, fits):
                unequal = _evaluated(c, data, noted.content)
                ended("finished", unequal=unequal)
                return 0
            ended("interrupted")
            say(f"interrupted; fedtune resume {c.folder} goes on")
            return 130
        except BaseException as error:
            ended("interrupted", reason=f"{type(error).__name__}: {error}")
            say(f"note: fedtune resume {c.folder} goes on")
            raise


def _searched_all(c: Contest, data: datasets.Dataset, dealt: list[Any], fits: int) -> bool:
    """Whether every algorithm's search is over: one that was interrupted ends this."""
    for i, p in enumerate(c.plans.values()):
        say(f"\n{i + 1} of {len(c.plans)} searches")
        if _searched(p, data, dealt, fits) == 130:
            return False
    return True


def _evaluated(c: Contest, data: datasets.Dataset, record: dict[str, Any]) -> list[str]:
    """Play what was found on fresh seeds, write and show the tables; where budgets were not equal."""
    frame, rounds, outcomes = fresh_seeds.play(list(c.plans.values()), data, c.seeds, c.top, c.folder / "evaluations")
    frame.to_parquet(c.folder / "evaluations.parquet", index=False)
    rounds.to_parquet(c.folder / "evaluation_rounds.parquet", index=False)
    runs = {n: p.folder for n, p in c.plans.items()}
    unequal = comparison_tables.unequal(runs, c.first.trials, c.first.budget)
    cells = {n: _published(c, n) for n in runs}
    texts = {n: "; ".join(f"({v.text})" if v.stands_in else v.text for v in found) for n, found in cells.items()}
    table = comparison_tables.table(frame, {n: comparison_tables.spent(run) for n, run in runs.items()}, texts)
    notes = dict.fromkeys(published.note(v) for found in cells.values() for v in found)
    made = _made(record, runs.values(), outcomes, table["search_seconds"].sum())
    warnings = [f"warning: budgets were not equal: {u}" for u in unequal]
    report(c, table, comparison_tables.pairs(frame), warnings, list(notes), made)
    return unequal


def _made(record: dict[str, Any], searches: Iterable[Path], fresh: Sequence[Outcome], searched: float) -> str:
    """Which command made it, with what code, and how long that took."""
    of_searches = [json.loads((run / "run.json").read_text()) for run in searches]
    commits = [c for r in of_searches for c in (*r.get("earlier_commits", []), r["git_commit"])]
    told = tables.told(record, [*commits, *(o.commit for o in fresh)])
    spent = sum(fresh_seeds.seconds(o) for o in fresh)
    return f"{told}, {searched:.0f} s of searches and {spent:.0f} s of runs on fresh seeds, all processes together"


def _published(c: Contest, name: str) -> list[published.Cell]:
    """What a paper prints for an algorithm in this setting; nothing if a field of the setting was changed."""
    return published.of(c.first.scenario, name) if c.scenario == find_scenario(c.first.scenario) else []


def _searched(p: Plan, data: datasets.Dataset, dealt: list[Any], fits: int) -> int:
    """Search, go on with a search, or leave one that is over alone; its exit status."""
    file = p.folder / "run.json"
    before = json.loads(file.read_text()) if file.exists() else None
    if before and before["state"] in ("finished", "nothing found"):
        say(f"{p.experiment.algorithm}: was searched already")
        return 0
    with ExitStack() as held:
        if before:
            held.enter_context(tables.sole_driver(p.folder))
            disk.require_state(p.folder)
        record = tables.kept(before) if before else {}
        return search_study.run_search(p, record, data, dealt, fits, resumed=bool(before))


def report(
    c: Contest, table: pd.DataFrame, pairs: pd.DataFrame, warnings: list[str], notes: list[str], made: str
) -> None:
    """Write the tables down and show them.  notes: on the published figures.  made: by what and how long."""
    table.to_csv(c.folder / "table.csv", index=False)
    pairs.to_csv(c.folder / "pairs.csv", index=False)
    p, texts = c.first, []
    over = f"{c.seeds} fresh seeds, each with its own partition"
    few = f"; those with {pairs['algorithm'].iloc[0]} of {len(pairs)}" if len(pairs) > comparison_tables.MANY else ""
    for title, frame in (
        (f"test accuracy on {c.where} in %, mean ± 95 % interval over {over}", comparison_tables.shown(table)),
        (f"tuned, paired by seed{few}: ± of each pair by itself, p corrected by Holm for all pairs",
         comparison_tables.shown_pairs(pairs)),
        (f"what that cost; the searches had {p.trials} trials of at most {_most(p)} each",
         comparison_tables.costs(table)),
        ("what the searches found", comparison_tables.searched(table)),
    ):  # fmt: skip
        if frame.empty:
            continue
        texts.append((title, frame))
        shown = Table(title=title, title_justify="left")
        for i, column in enumerate(frame):
            whole = "hyper" in column
            shown.add_column(column, justify="left" if i == 0 or whole else "right", no_wrap=i == 0)
        for row in frame.itertuples(index=False):
            shown.add_row(*row)
        terminal.console().print(shown)
    if notes:
        say("published, in brackets for other data, where it is no target:\n" + "\n".join(f"- {n}" for n in notes))
    parts = [f"**{t}**\n\n{comparison_tables.markdown(f)}" for t, f in texts] + [
        f"- {n}\n" for n in (*warnings, *notes)
    ]
    heading = f"# {', '.join(c.plans)} on {c.where}\n\n{made}.\n"
    (c.folder / "table.md").write_text("\n".join([heading, *parts]))
    marked = [f"% {line}\n" for line in (*warnings, *notes, made)]
    (c.folder / "table.tex").write_text(
        "\n".join([*(f"% {t}\n{comparison_tables.latex(f)}" for t, f in texts), *marked])
    )
    for line in warnings:
        say(line)
    say(f"folder: {c.folder}")


def _most(p: Plan) -> str:
    unit = {"mb": "MB", "seconds": "s"}.get(p.budget.unit, "rounds")
    return f"{p.budget.limit:g} {unit}"


def go_on(args: argparse.Namespace) -> int:
    """What fedtune resume does with a comparison's folder."""
    try:
        record = json.loads((args.run / RECORD).read_text())
        words = list(map(str, record["arguments"]))
        words += ["--algos", ",".join(record["algorithms"])]  # as they were when `all` was asked for
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"a comparison is gone on with from its {RECORD}, but that of {args.run} is not fit: {error}"
        ) from error
    for name, value in arguments.given(args, SearchOptions, "data_dir", "address", "max_concurrent").items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    if "dashboard" in args:
        words.append("--no-dashboard")
    kept = tables.kept(record) | {n: record[n] for n in ("arguments", "seconds") if n in record}
    return conduct(make(words, args.run.absolute()), kept)


