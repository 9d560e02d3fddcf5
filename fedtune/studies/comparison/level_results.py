"""What a budget study found, from its folder: each algorithm at each level, and who beats training alone where."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedtune.core.metrics import is_share, label
from fedtune.core.objectives import Goal
from fedtune.core.statistics import figure, gained
from fedtune.core.terminal import few, several
from fedtune.runs.files import LEVELS, RunFiles, levels_of
from fedtune.studies.comparison import tables
from fedtune.studies.comparison.results import SEARCHED, Results, Titled, scenario_words, searched_in
from fedtune.studies.comparison.tables import LARGER, LOCAL
from fedtune.studies.comparison.text import ONE_SEARCH, judged, listed

BUDGETS = {"epsilon": ("ε", f"{LOCAL} (ε = 0)"), "comm_mb": ("MB", f"{LOCAL} (0 MB)")}  # its name, and local's there
BUDGETS |= {"sim_seconds": ("device seconds", LOCAL)}
TOLD = "told"  # the column with a verdict and its direction: above, below, within the margin, …


@dataclass(frozen=True, kw_only=True)
class LevelResults:
    """The results of those comparisons of a budget study that are over.

    record   its levels.json
    table    a row per level and algorithm, tuned: mean on fresh seeds, half its interval, how it is against baselines
    against  a row per level and pair with `local` or the first baseline, corrected for all of them together
    refused  by algorithm and reason, the levels at which it takes no part
    unequal  by level, whose trials used more or less than the budget
    """

    record: Mapping[str, Any]
    table: pd.DataFrame
    against: pd.DataFrame
    refused: Mapping[tuple[str, str], Sequence[str]]
    unequal: Mapping[str, Sequence[str]]

    @classmethod
    def read(cls, folder: Path) -> LevelResults:
        """Those in a folder; UserError if it is damaged."""
        record, refused = RunFiles(folder, LEVELS).record_with("levels", "algorithms"), dict[Any, list[str]]()
        over, whom, unequal = dict[str, Results](), [LOCAL], dict[str, list[str]]()
        record = record | {SEARCHED: [n for of_level in levels_of(folder) for n in searched_in(of_level.path)]}
        for of_level in levels_of(folder):
            told, level = of_level.record, of_level.name.partition("=")[2]
            for who in (told.get("left_out") or {}).items():
                refused.setdefault(who, []).append(level)
            if told["state"] == "finished":
                over[level] = of = Results.read(of_level.path)
                unequal |= {level: told["unequal"]} if told.get("unequal") else {}
                whom.extend(of.against.get("other", [])[:1])
        objective, margin = Goal.from_record(record).first, float(record.get("margin", 0.0))
        against = pd.DataFrame()
        if runs := {level: of.compared for level, of in over.items()}:
            against = tables.against_at(runs, [*dict.fromkeys(whom)], objective, margin)
            metric = next(iter(over.values())).reported
            above = objective.sign_of(metric) * against["difference"] > 0
            told = against["verdict"].mask(against["verdict"] == LARGER, above.map({True: "above", False: "below"}))
            against = against.assign(told=told, metric=metric)
        return cls(record=record, table=_table(over, against), against=against, refused=refused, unequal=unequal)

    @property
    def budget(self) -> str:
        """What the levels are of: epsilon, comm_mb or sim_seconds."""
        return str(self.record["levels"][0].partition("=")[0])

    @property
    def levels(self) -> list[str]:
        """Those that are over, the lowest first."""
        return list(dict.fromkeys(self.table["level"]))

    @property
    def title(self) -> str:
        """What was compared, and at which levels."""
        levels = self.at([level.partition("=")[2] for level in self.record["levels"]])
        return f"{few(self.record['algorithms'])} on {scenario_words(self.record)} at {levels}"

    def at(self, levels: Sequence[str]) -> str:
        """Levels in words: `ε = 1 and 2`, `0.5 MB`."""
        values, name = listed([level.replace("inf", "∞") for level in levels]), BUDGETS[self.budget][0]
        return f"{name} = {values}" if name == "ε" else f"{values} {name}"

    @property
    def outcome(self) -> str:
        """Which federated methods beat training alone at which levels; "" before a comparison is over."""
        if self.table.empty:
            return ""
        of_local = self.against[self.against["other"] == LOCAL]
        if of_local.empty:
            return f"Nothing is known of who beats {LOCAL}: it took no part."
        if not judged(of_local):
            return f"Who beats {LOCAL} at which level is not known. {ONE_SEARCH}"
        first, lost = self._told(of_local, "above"), self._told(of_local, "below")
        every, above = (set(of["algorithm"]) for of in (of_local, of_local[of_local[TOLD] == "above"]))
        said = f"Shown to beat {LOCAL}: {first}" + "; no other is" * bool(above < every)
        said = said if above else f"No federated method is shown to beat {LOCAL} at {self.at(self.levels)}"
        return said + f"; {LOCAL} beats {lost}" * bool(lost) + "."

    def _told(self, of_local: pd.DataFrame, told: str) -> str:
        """`fedavg and fedprox at ε = 4 and 8, moon at ε = 8`: whose verdict against local is this, and where."""
        names: dict[tuple[str, ...], list[str]] = {}
        for name, rows in of_local[of_local[TOLD] == told].groupby("algorithm", sort=False):
            names.setdefault(tuple(rows["level"]), []).append(str(name))
        return ", ".join(f"{listed(of)} at {self.at(levels)}" for levels, of in names.items())

    @property
    def notes(self) -> list[str]:
        """Who takes no part at which levels, and why; and where budgets were not equal."""
        out = [f"{name} takes no part at {self.at(levels)}: {why}" for (name, why), levels in self.refused.items()]
        each = ((self.at([level]), "; ".join(of[:3]) + "; …" * (len(of) > 3)) for level, of in self.unequal.items())
        out = [self.record["at"], *out] if "at" in self.record else out
        return out + [f"budgets were not equal at {level}: {what}" for level, what in each]

    def _changes(self) -> Iterator[tuple[str, str]]:
        """Pairs whose verdict is not the same at every level, and at which it is which."""
        for (name, other), rows in self.against.groupby(["algorithm", "other"], sort=False):
            runs = itertools.groupby(zip(rows[TOLD], rows["level"], strict=True), key=lambda of: of[0])
            *steps, (last, end) = [(told, [level for _, level in of]) for told, of in runs]
            if steps:
                before = "".join(f"{told} at {self.at(levels)}, " for told, levels in steps)
                yield f"{name} − {other}", f"{before}{last} from {self.at(end[:1])} on"

    @property
    def titled(self) -> list[Titled]:
        """The tables as text, a column per level: means of algorithms, and verdicts on pairs."""
        if self.table.empty:
            return []
        t, d, searches = self.table, self.against, int(self.record.get("searches", 1))
        metric, means = t["metric"].iloc[0], map(figure, t["metric"], t["tuned"], t["half"])
        mean = f"{label(metric)} at each level, tuned, mean ± 95 % interval over {several(searches, 'search')}"
        titled = [Titled(mean, self._wide("algorithm", t["algorithm"], t["level"], means))]
        if judged(d):
            differences = pd.Series(map(gained, d["metric"], d["difference"], d["half"])).str.removesuffix(" points")
            pairs = self._wide("pair", d["algorithm"] + " − " + d["other"], d["level"], differences + ", " + d[TOLD])
            unit = " in points" * is_share(metric)
            titled.append(Titled(f"pairs{unit}, with verdicts corrected (Holm) for all pairs and levels", pairs))
            changes = pd.DataFrame(self._changes(), columns=["pair", "verdict"])
            titled += [Titled("verdicts that change with the level", changes)] * bool(len(changes))
        return titled

    def _wide(self, what: str, names: pd.Series, levels: pd.Series, cells: Iterable[str]) -> pd.DataFrame:
        wide = pd.DataFrame({what: names, "level": levels, "cell": [*cells]}).pivot(index=what, columns="level")["cell"]
        wide = wide.reindex(index=names.unique(), columns=self.levels).fillna("–")
        return wide.set_axis([self.at([level]) for level in self.levels], axis=1).reset_index()


def _table(over: Mapping[str, Results], against: pd.DataFrame) -> pd.DataFrame:
    """The rows of each level, the best algorithm first, without the control."""
    columns = ["level", "algorithm", "tuned", "half", "metric"]
    rows = pd.DataFrame(columns=columns)
    for level, of in over.items():
        own = of.table[~of.table["algorithm"].isin(of.control[1:])].rename(columns={"tuned_half": "half"})
        own = own.assign(level=level, metric=of.reported)[columns]
        rows = pd.concat([rows, own], ignore_index=True) if len(rows) else own
    for other, of in against.groupby("other", sort=False) if over else ():
        told = of.rename(columns={TOLD: f"against {other}"})[["level", "algorithm", f"against {other}"]]
        rows = rows.merge(told, "left", ["level", "algorithm"])
    return rows
