"""A comparison's results, as they are made or as its folder has them: tables for every reader, and what they say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.metrics import label
from fedtune.core.objectives import BY_ACCURACY, Goal, Objective
from fedtune.core.statistics import number
from fedtune.core.terminal import command_line, few, several
from fedtune.experiment.scenarios import in_words
from fedtune.runs import reading
from fedtune.runs.choice import TOP
from fedtune.runs.files import COMPARISON, RunFiles
from fedtune.studies.comparison import budgets, tables, text
from fedtune.studies.comparison.tables import BORROWED_COLUMNS, COLUMNS, FAILED_COLUMNS, OBJECTIVE_COLUMNS
from fedtune.studies.options import variant

SEARCHED = "searched"  # an entry of a record as it is read: the hyperparameters that some search goes over
TEXTS = ("algorithm", "other", "published", "configuration", "metric", "lost", "verdict", "lender")
PAIRS = ("algorithm", "other", "difference", "half", "p", "p_holm")
UNLIKE = 0.05  # share by which megabytes of a run may differ before a table has them
OF_PAIRS, OF_TUNED = "Pairs", "Configurations, budget and cost"  # headings of a report


class Titled(NamedTuple):
    """A table as text."""

    title: str
    text: pd.DataFrame
    under: str = ""  # the heading that it stands under in a report; "" for the one that opens it


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a comparison found; a table without rows has not been made yet.

    record       its compare.json
    evaluations  the runs on fresh seeds
    twice        how far the control is from the algorithm that it is
    """

    record: Mapping[str, Any]
    evaluations: pd.DataFrame
    table: pd.DataFrame
    pairs: pd.DataFrame
    against: pd.DataFrame
    twice: pd.DataFrame
    by_budget: pd.DataFrame

    @classmethod
    def read(cls, run: Path) -> Results:
        """Those in a folder, as far as they are there; UserError if it is damaged."""
        files = RunFiles(run, COMPARISON)
        record = files.record_with("algorithms", "trials", "budget", "seeds") | {SEARCHED: searched_in(run)}
        control, objective = record.get("control", []), Goal.from_record(record).first

        def made(file: Path, read: Callable[[Path], pd.DataFrame]) -> pd.DataFrame:
            return read(file) if file.exists() else pd.DataFrame()

        runs = made(files.evaluations_file, lambda file: reading.table(file, ("algorithm", "configuration", "seed")))
        return cls(
            record=record,
            evaluations=runs,
            table=made(files.table_file, lambda file: tables.control_last(table(file), control)),
            pairs=made(files.pairs_file, _pairs),
            against=made(files.against_file, _pairs),
            twice=tables.control(runs, control, objective, record.get("margin", 0.0)) if len(runs) else runs,
            by_budget=made(files.budget_file, lambda file: _read(file, budgets.COLUMNS)),
        )

    @property
    def goal(self) -> Goal:
        """What was searched for."""
        return Goal.from_record(self.record)

    @property
    def objective(self) -> Objective:
        """The first objective."""
        return self.goal.first

    @property
    def reported(self) -> str:
        """The metric of runs on fresh seeds that is compared."""
        return self.objective.reported(self.evaluations)

    @property
    def searches(self) -> int:
        """Searches of each algorithm."""
        return int(self.record.get("searches", 1))

    @property
    def margin(self) -> float:
        """The difference that matters."""
        return float(self.record.get("margin", 0.0))

    @property
    def control(self) -> list[str]:
        """The algorithm that took part twice, and its second name; or nothing."""
        return list(self.record.get("control", ()))

    @property
    def compared(self) -> pd.DataFrame:
        """The runs on fresh seeds of all but the control."""
        runs = self.evaluations
        return runs if runs.empty else runs[~runs["algorithm"].isin(self.control[1:])]

    @property
    def title(self) -> str:
        """Which algorithms were compared, and where."""
        return f"{few(reading.compared_in(self.record))} on {scenario_words(self.record)}"

    @property
    def outcome(self) -> str:
        """The result: who is the best on fresh seeds, and whom tuning helps; "" before there is one."""
        if self.table.empty or self.pairs.columns.empty or self.against.columns.empty:
            return ""
        sign, is_control = self.objective.sign_of(self.reported), self.table["algorithm"].isin(self.control[1:])
        said = text.outcome(self.table, self.pairs, self.against, sign)
        return f"{said} {text.gains(self.table[~is_control], sign)}".strip() if said else ""

    @property
    def best(self) -> tuple[str, str]:
        """The best algorithm with its tuned figure, and that of its default; "" without any."""
        if self.table.empty or not (best := text.leader(self.table)):
            return "", ""
        return f"{best} {text.of_first(self.table, 'tuned')}", text.of_first(self.table, "default")

    def caveats(self, records: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """What to know before you trust it.  records: of each algorithm's first search."""
        preset = self.record.get("options", {}).get("preset")
        lines = [f"not alike in all algorithms, by --preset {preset}: {line}" for line in self.record.get("unlike", [])]
        lines += [f"ranges were widened: {why}" for why in self.record.get("widened", [])]
        lines += self.record.get("unborrowed", [])
        if self.evaluations.empty:
            return lines
        return [*text.control(self.twice), *text.caveats(records, int(self.record["trials"]), self.compared), *lines]

    @property
    def titled(self) -> list[Titled]:
        """The tables as text, each under its title; without those that are empty, and pairs that cannot be told."""
        if self.table.empty:
            return []
        figures, in_percent = text.shown(self.table), ", in %" * text.in_percent(self.table)
        more = figures.drop(columns=list(figures)[1 : text.OPENING])
        found = self.table[["algorithm", "configuration"]].rename(columns={"configuration": "tuned hyperparameters"})
        how = f"± of each pair by itself, {text.paired(self.pairs, self.searches, self.margin)}"
        whom = f" against {text.listed([*dict.fromkeys(self.against.get('other', ()))])}"
        titled = [
            Titled(self._figures_title(), figures.iloc[:, : text.OPENING].assign(**self._sent())),
            self._titled_pairs("", f"{how}; p corrected by Holm for all pairs", self.pairs),
            self._titled_pairs(whom, "p corrected by Holm for these", self.against),
            Titled(f"more of the tuned configurations{in_percent}", more, OF_TUNED),
            Titled(self._cost_title(), text.costs(self.table), OF_TUNED),
            Titled("what the searches found", found, OF_TUNED),
        ]
        return [of for of in titled if len(of.text) and of.text.shape[1] > 1]

    def _sent(self) -> dict[str, list[str]]:
        """The column of megabytes that a tuned run sends, where those that send differ by it, or by their codec."""
        runs = self.evaluations
        sent = runs[runs["chosen"]].groupby("algorithm")["comm_mb"].mean() if "comm_mb" in runs else pd.Series()
        some, variants = sent[sent > 0], any(variant(str(name))[1] for name in self.table["algorithm"])
        told = len(some) and (variants or some.max() > (1 + UNLIKE) * some.min())
        return {"MB a run": [number(mb, ".3g") for mb in sent.reindex(self.table["algorithm"])]} if told else {}

    def _titled_pairs(self, whom: str, how: str, pairs: pd.DataFrame) -> Titled:
        told, which = text.told(pairs), "can be told" if text.judged(pairs) else "with p (Holm) below 5 %"
        count = f"{len(told)} of {several(len(pairs), 'pair')}{whom} {which}"
        return Titled(f"{count} ({how})", text.shown_pairs(told) if len(told) else told, OF_PAIRS)

    def _figures_title(self) -> str:
        own = " with their own partitions" if "scenario" in self.record else ""
        over = f"{several(self.record['seeds'], 'fresh seed')}{own}"
        over = over if self.searches == 1 else f"{self.searches} searches (each the mean over {over})"
        unit = " in %" * text.in_percent(self.table)
        what = f"{metric_on(self.table, self.goal)} {scenario_words(self.record)}"
        return f"{what}{unit}, mean ± 95 % interval over {over}"

    def _cost_title(self) -> str:
        budget, more = self.record["budget"], self.record.get("choose_seeds", 1) - 1
        most = Budget(budget["unit"], budget["limit"]).text
        choice = f", and trained the best {TOP} on {several(more, 'more seed')}" if more else ""
        return f"cost; each search had {several(self.record['trials'], 'trial')} of at most {most} each{choice}"


def searched_in(run: Path) -> list[str]:
    """The hyperparameters that a comparison's searches go over, as far as they have begun."""
    return sorted({n for file in run.glob("*/run.json") for n in RunFiles(file.parent).record.get("space") or ()})


def scenario_words(record: Mapping[str, Any]) -> str:
    """Where a comparison's algorithms train: its scenario by name, with the fields that were changed for all."""
    scenario = record.get("scenario")
    if not scenario:
        return "their own data"
    changed = (record.get("options") or {}).get("fields") or {}
    fixed = {n: value for n, value in scenario.items() if n not in record.get(SEARCHED, ())}
    return in_words(record.get("scenario_name") or scenario["dataset"], fixed, changed)


def metric_on(table: pd.DataFrame, goal: Goal) -> str:
    """What a comparison's first table shows: test accuracy only where programs report it."""
    metric = label(str(table["metric"].iloc[0])) if "metric" in table and len(table) else "test accuracy"
    return f"{metric} on" if goal == BY_ACCURACY else f"{metric} (searched for {goal.in_words}) on"


def table(file: Path) -> pd.DataFrame:
    """A table.csv; UserError that names it if it is damaged."""
    return _read(file, COLUMNS, (*OBJECTIVE_COLUMNS, *FAILED_COLUMNS, *BORROWED_COLUMNS))


def _pairs(file: Path) -> pd.DataFrame:
    return _read(file, PAIRS, ("freedom", "verdict"))


def by_budget(run: str | Path) -> pd.DataFrame:
    """What a comparison's searches had found after 1, 2, 3, … trials: the mean over searches, interval, rank, rounds.

    It is the score that searches select by, as a rule of validation rows.  UserError for a folder without such a table.

    >>> from fedtune.analysis import frames
    >>> found = frames.by_budget("runs/COMPARISON")
    >>> list(found)
    ['algorithm', 'trials', 'score', 'half', 'rank', 'rounds', 'searches', 'metric']
    """
    files = RunFiles(run, COMPARISON)
    _ = files.record
    if not files.budget_file.exists():
        raise UserError(
            f"a comparison has its table by budget when it has ended, but {files.budget_file} is missing; "
            f"{command_line('resume', files.path)} makes it"
        )
    return _read(files.budget_file, budgets.COLUMNS)


def _read(file: Path, needed: Collection[str], more: Collection[str] = ()) -> pd.DataFrame:
    kinds = {name: reading.TEXT if name in TEXTS else reading.NUMBER for name in (*needed, *more)}
    return reading.text_table(file, needed, kinds)
