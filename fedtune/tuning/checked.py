"""The final check of a search: its best configuration against the default one, on fresh seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from fedtune.core import statistics
from fedtune.core.metrics import label
from fedtune.core.objectives import ACCURACY, Objective
from fedtune.core.statistics import figure, gained, number, unit_of
from fedtune.core.terminal import several
from fedtune.runs import trial_states

Table = tuple[str, list[str], list[list[str]]]  # a title, columns, and rows of text, whose first cell is a name

SPREAD = {  # of test accuracy, beside its mean over clients
    "test_acc_std": "std over clients",
    "test_acc_worst10": "worst tenth",
    "test_acc_lowest": "worst client",
    "test_acc_all": "all classes",
    "test_acc_foreign": "foreign classes",
    "test_acc_rows": "mean over rows",
    "test_acc_balanced": "balanced",
    "test_f1": "macro F1",
}
LOWEST = "test_acc_lowest"
COSTS = {"comm_mb": ("MB a run", ".2f"), "epsilon": ("ε", ".4f"), "sim_seconds": ("device seconds", ".1f")}


@dataclass(frozen=True)
class FinalCheck:
    """The final check: figures of the best and the default configuration on fresh seeds."""

    runs: pd.DataFrame  # configuration, seed, test_acc, val_acc, comm_mb, reason and other metrics
    objective: Objective = ACCURACY  # what was searched for
    repeatable: bool = True  # whether runs have seeds; otherwise they are repetitions

    @property
    def column(self) -> str:
        """The test metric that configurations are compared by: the objective's."""
        return self.objective.reported(self.runs)

    @property
    def what(self) -> str:
        """The metric that the check compares, in words."""
        return label(self.column)

    def of(self, name: str, column: str = "") -> pd.Series:
        """A configuration's values of a metric by seed; NaN where it diverged.  column: by default, the objective's."""
        column = column or self.column
        return self.runs[self.runs["configuration"] == name].set_index("seed")[column].astype(float).sort_index()

    def ends(self, *names: str) -> pd.Series:
        """In a word, for each seed, how these configurations' runs without a figure ended."""
        some = self.runs[self.runs["configuration"].isin(names)]
        return some.groupby("seed")["reason"].agg(trial_states.loss_word).sort_index()

    @property
    def names(self) -> list[str]:
        """The configurations that were checked: the best, and the default unless that is the best."""
        return [n for n in ("best", "default") if n in set(self.runs["configuration"])]

    @property
    def seeds(self) -> int:
        """How many fresh seeds there were."""
        return int(self.runs["seed"].nunique())

    @property
    def each(self) -> pd.Series:
        """Best minus default on each seed; not a number where either diverged."""
        return self.of("best") - self.of("default").reindex(self.of("best").index)

    def text(self, name: str, column: str = "") -> str:
        """The mean with its interval, in words; where runs have no figure, how many: the mean of others is too good."""
        mean = figure(column or self.column, *statistics.mean(self.of(name, column)))
        return mean if column else self.lost(name) or mean

    def lost(self, name: str) -> str:
        """How many runs of a configuration have no figure, in words; "" if all have one."""
        return trial_states.lost(self.runs[self.runs["configuration"] == name], self.column)

    @property
    def paired(self) -> statistics.Difference:
        """Best minus default, paired by seed; not a number if a run diverged, as the rest would be the luckier ones."""
        return statistics.paired(self.each, 0 * self.each)

    def difference(self) -> str:
        """The paired difference with its interval, in words."""
        return gained(self.column, self.paired.mean, self.paired.half)

    def verdict(self) -> str:
        """What was gained and how sure that is, as the first half of a sentence."""
        lost = [f"the {n} {text} runs" for n in self.names if (text := self.lost(n))]
        if len(self.names) < 2:
            return f"The tuned configuration is the default one{f', and {self.where_text} {lost[0]}' if lost else ''}"
        if lost:
            why = f"{self.where_text.capitalize()} {' and '.join(lost)}"
            return f"{why}, so whether tuning gained anything over the default is unknown"
        gain, by = self.paired, f"{self.difference()} in {self.what}"
        start = f"{self.on_all.capitalize()} the tuned configuration"
        if math.isnan(gain.half):
            return f"{start} differs from the default by {by}; how much of that is chance is unknown"
        how = "beats" if gain.mean * self.objective.sign_of(self.column) > 0 else "is worse than"
        how = "does not differ significantly from" if abs(gain.mean) <= gain.half else how
        return f"{start} {how} the default ({by}, 95 % interval)"

    @property
    def on_all(self) -> str:
        """On how many seeds its figures were found, in words."""
        each = several(self.seeds, "fresh seed" if self.repeatable else "repetition")
        return f"on {each}" if self.repeatable else f"in {each}"

    @property
    def where_text(self) -> str:
        """Where its figures were found, in words."""
        return "on fresh seeds" if self.repeatable else "when repeated"

    def spread(self) -> Table:
        """Means over seeds of how test accuracy is spread over clients; without rows where that is not known."""
        columns = {c: text for c, text in SPREAD.items() if c in self.runs and "test_acc_std" in self.runs}
        if LOWEST in columns and self.runs[LOWEST].equals(self.runs.get("test_acc_worst10")):  # of ten clients at most
            del columns[LOWEST]
        of = {n: [self.of(n, c).mean() for c in columns] for n in self.names if columns}
        rows = [[n, *(figure(*v) for v in zip(columns, of[n], strict=True))] for n in of]
        caption = "Test accuracy over clients and classes, means of the same runs"
        return caption, ["configuration", *columns.values()], rows

    def table(self) -> Table:
        """Mean with interval, each seed, and what a run costs: of each configuration, and of their difference."""
        costs = {column: of for column, of in COSTS.items() if column in self.runs}
        spent = {n: [number(self.of(n, c).mean(), form) for c, (_, form) in costs.items()] for n in self.names}
        rows = [[n, self.text(n), self._listed(self.of(n), self.ends(n)), *spent[n]] for n in self.names]
        for n in self.names if self.column != "test_acc" and "test_acc" in self.runs else ():
            each = self._listed(self.of(n, "test_acc"), self.ends(n), "test_acc")
            rows.append([f"{n}: test accuracy", self.text(n, "test_acc"), each, *[""] * len(costs)])
        if len(self.names) > 1:
            how = "best − default, by seed" if self.repeatable else "best − default"
            rows.append(
                [how, self.difference(), self._listed(self.each, self.ends(*self.names), sign="+")] + [""] * len(costs)
            )
        columns = ["configuration", "mean ± 95 % interval", f"each {'seed' if self.repeatable else 'repetition'}"]
        columns += [title for title, _ in costs.values()]
        title = f"{self.what} {self.on_all}, last round"
        return title[:1].upper() + title[1:], columns, rows

    def _listed(self, values: pd.Series, ends: pd.Series, column: str = "", sign: str = "") -> str:
        scale, form, _ = unit_of(column or self.column)
        each = ((scale * v, ends.get(seed)) for seed, v in values.items())
        return "  ".join(str(how) if math.isnan(v) else number(v, f"{sign}{form}") for v, how in each)
