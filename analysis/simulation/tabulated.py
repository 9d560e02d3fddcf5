"""A tabular benchmark: the results of every configuration of a grid, by round and seed, to simulate searches on.

One file: a row per configuration, seed and round; the file's metadata says where its numbers come from.  Similar to
FedHPO-Bench (Wang et al., ICML 2023, arXiv:2206.03966) for FederatedScope.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from ray import tune

from fedtune.core.errors import UserError
from fedtune.core.metrics import METRIC
from fedtune.core.terminal import say, several
from fedtune.runs import reading
from fedtune.tuning import schedulers
from fedtune.tuning.space_types import Config, Space

SEED, ROUND, ABOUT = "seed", "round", "fedtune"
COST = "comm_mb"
NEEDED = (SEED, ROUND, METRIC)
Place = tuple[int, ...]  # a configuration's indices on the grid


@dataclass(frozen=True, kw_only=True)
class Tabulated:
    """What every configuration of a full grid reached.

    levels   each hyperparameter's values, in order; numbers ascend
    seeds    the seeds that every configuration was trained on
    values   validation accuracy [levels of the first, of the second, …, seed, round], float64; not a number after a
             run diverged
    costs    megabytes so far, of the same shape; None if the table has none
    default  the place of the default configuration, or of the nearest on the grid
    about    algorithm, scenario, command, commit and the like
    first_effect  the round in which the last of the hyperparameters begins to matter, anywhere on the grid
    """

    levels: Mapping[str, Sequence[Any]]
    seeds: Sequence[int]
    values: np.ndarray
    default: tuple[int, ...]
    about: Mapping[str, Any]
    first_effect: int = 1
    costs: np.ndarray | None = None

    @property
    def rounds(self) -> int:
        """Rounds of a run."""
        return int(self.values.shape[-1])

    @property
    def configurations(self) -> int:
        """How many configurations there are."""
        return math.prod(self.values.shape[:-2])

    @property
    def repeated(self) -> int:
        """How many configurations have the same results as an earlier one in every round and on every seed.

        Configurations that diverged on every seed do not count, as later effects could not show.
        """
        curves = self.values.reshape(self.configurations, *self.values.shape[-2:])
        results = np.nan_to_num(curves[~np.isnan(curves[..., -1]).all(1)], nan=-1.0)
        return len(results) - len(np.unique(results.reshape(len(results), -1), axis=0))

    @property
    def grace(self) -> int:
        """The default grace period of a search over the grid, in rounds."""
        return schedulers.default_grace(self.rounds, self.first_effect)

    @property
    def name(self) -> str:
        """Algorithm and scenario; of a program its name alone."""
        return " on ".join(filter(None, (self.about["algorithm"], self.about["scenario_name"])))

    def space(self) -> Space:
        """The grid as a search sees it: the place among the levels of what has an order, else a choice of them."""
        domains: dict[str, Any] = {
            n: tune.randint(0, len(of)) if ordered(of) else tune.choice(list(range(len(of))))
            for n, of in self.levels.items()
        }
        return Space(domains, [])

    def place(self, config: Config) -> tuple[int, ...]:
        """Where a suggestion of a search over `space` stands in `values`."""
        return tuple(int(config[n]) for n in self.levels)

    def first(self) -> Config:
        """The default configuration, or the nearest there is, as a point of `space`."""
        return dict(zip(self.levels, self.default, strict=True))

    def curve(self, config: Config, seeds: Sequence[int]) -> np.ndarray:
        """The mean over seeds (their places) after each round, up to the first round in which one of them diverged."""
        mean = self.values[self.place(config)][list(seeds)].mean(0)
        lost = np.flatnonzero(np.isnan(mean))
        return mean[: lost[0]] if len(lost) else mean

    def final_means(self, seeds: Sequence[int]) -> np.ndarray:
        """The mean over seeds (their places) after the last round, of every configuration; what diverged has 0."""
        return np.nan_to_num(self.values[..., list(seeds), -1], nan=0.0).mean(-1)

    def write(self, file: Path) -> None:
        """Write the table, whole or not at all."""
        shape = self.values.shape
        places = np.indices(shape).reshape(len(shape), -1)
        columns: dict[str, Any] = {n: np.array(of)[i] for (n, of), i in zip(self.levels.items(), places, strict=False)}
        columns |= {SEED: np.array(self.seeds, np.int32)[places[-2]], ROUND: places[-1].astype(np.int16) + 1}
        columns |= {METRIC: self.values.ravel().astype(np.float32)}
        columns |= {} if self.costs is None else {COST: self.costs.ravel().astype(np.float32)}
        frame = pd.DataFrame(columns)
        made = {"default": list(self.default), "first_effect": self.first_effect}
        frame.attrs = {ABOUT: json.dumps(made | dict(self.about))}
        reading.write_table(frame, file)


@dataclass(frozen=True)
class Fresh:
    """Runs of some configurations of a grid on more seeds, made by `fedtune.analysis.tabulate` of a list of points.

    frame: a row per configuration, seed and round.
    """

    file: Path
    frame: pd.DataFrame

    def of(self, table: Tabulated) -> dict[Place, np.ndarray]:
        """What each place reached on the seeds that the table has not, [F]; not a number where its run diverged.

        UserError unless both are one experiment: they need a seed in common, on which at least half of the places
        agree.  If sums are rounded otherwise, as on another machine, some classify a few rows otherwise.
        """
        names = list(table.levels)
        if [n for n in self.frame if n not in (*NEEDED, COST)] != names or self.frame[ROUND].max() != table.rounds:
            raise UserError(
                f"fresh seeds are of the table's experiment, which varies {', '.join(names)} over "
                f"{several(table.rounds, 'round')}, but {self.file.name} is of another"
            )
        at_end = self.frame[self.frame[ROUND] == table.rounds]
        seeds = sorted(set(at_end[SEED]))
        common, rest = ([s for s in seeds if (s in table.seeds) == in_table] for in_table in (True, False))
        if not common or not rest:
            raise UserError(
                "fresh seeds and one of the table's are needed, which shows that both are one experiment, but "
                f"{self.file.name} has the seeds {', '.join(map(str, seeds))}; see fedtune.analysis.tabulate --more-of"
            )
        by_place: dict[Place, np.ndarray] = {}
        unlike: list[str] = []
        for key, runs in at_end.groupby(names):
            values = key if isinstance(key, tuple) else (key,)
            row = runs.set_index(SEED)[METRIC]
            if sorted(row.index) != seeds or any(v not in table.levels[n] for n, v in zip(names, values, strict=True)):
                raise reading.damaged(self.file, f"{values} was not trained on every seed, or is not on the grid")
            place = tuple(table.levels[n].index(v) for n, v in zip(names, values, strict=True))
            was = table.values[place][[table.seeds.index(seed) for seed in common], -1]
            if not np.allclose(was, row[common].to_numpy(float), rtol=0, atol=1e-6, equal_nan=True):
                point = ", ".join(f"{n} = {v}" for n, v in zip(names, values, strict=True))
                unlike.append(f"{point} reached {was[0]:.4f} in the table and {row[common[0]]:.4f} in {self.file.name}")
            by_place[place] = row[rest].to_numpy(float)
        share = f"{len(unlike)} of {several(len(by_place), 'configuration')}"
        if len(unlike) > len(by_place) / 2:
            raise UserError(
                f"fresh seeds are of the table's experiment, but on seed {common[0]} {share} differ: {unlike[0]}; "
                "take one version for both"
            )
        if unlike:
            say(
                f"note: on seed {common[0]}, which both have, {share} differ, as where sums are rounded otherwise, and "
                f"the others are the same: {unlike[0]}"
            )
        return by_place


def write_list(file: Path, rows: pd.DataFrame, about: Mapping[str, Any]) -> None:
    """Write runs of a list of configurations: a row per configuration, seed and round."""
    frame = rows.astype({SEED: np.int32, ROUND: np.int16, METRIC: np.float32})
    frame.attrs = {ABOUT: json.dumps(dict(about))}
    reading.write_table(frame, file)


def read_fresh(file: Path) -> Fresh:
    """Runs of a list of configurations; UserError if the file has none."""
    return Fresh(file, reading.table(file, NEEDED, dict.fromkeys(NEEDED, reading.NUMBER)))


def ordered(levels: Sequence[Any]) -> bool:
    """Whether a hyperparameter's values are numbers, which have an order."""
    return len(levels) > 2 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in levels)


def of_points(points: Sequence[Config]) -> dict[str, list[Any]]:
    """The levels of a grid's hyperparameters; UserError unless its points are all combinations of them."""
    levels: dict[str, list[Any]] = {}
    for point in points:
        for name, value in point.items():
            if value not in levels.setdefault(name, []):
                levels[name].append(value)
    count = math.prod(map(len, levels.values()))
    if len(points) != count or any(point.keys() != levels.keys() for point in points):
        raise UserError(
            f"a table needs a full grid, but the space has {len(points):,} points where all combinations are "
            f"{count:,}; give a dict whose values are all tune.grid_search([...]) or tune.choice([...])"
        )
    return {n: sorted(of) if ordered(of) else of for n, of in levels.items()}


def nearest(levels: Mapping[str, Sequence[Any]], config: Config) -> tuple[int, ...]:
    """The place of a configuration on a grid, or of the nearest: of numbers by their ratio where all are positive."""
    return tuple(_nearest(list(of), config.get(n)) for n, of in levels.items())


def _nearest(levels: list[Any], value: Any) -> int:
    if value in levels or not ordered(levels) or not isinstance(value, int | float):
        return levels.index(value) if value in levels else 0
    if value > 0 and min(levels) > 0:
        return min(range(len(levels)), key=lambda i: abs(math.log(levels[i] / value)))
    return min(range(len(levels)), key=lambda i: abs(levels[i] - value))


def read(file: Path) -> Tabulated:
    """The table in a file; UserError if it is none."""
    frame = reading.table(file, NEEDED, dict.fromkeys(NEEDED, reading.NUMBER))
    try:
        about = json.loads(frame.attrs[ABOUT])
        default, first_effect = tuple(map(int, about.pop("default"))), int(about.pop("first_effect", 1))
        about = {"algorithm": str(about["algorithm"]), "scenario_name": str(about["scenario_name"])} | about
    except (KeyError, TypeError, ValueError) as error:
        raise reading.damaged(file, f"its description is missing or damaged: {error}") from error
    names = [n for n in frame if n not in (*NEEDED, COST)]
    keys = [list(dict.fromkeys(frame[n].tolist())) for n in (*names, SEED, ROUND)]
    shape = tuple(map(len, keys))
    if len(frame) != math.prod(shape) or len(default) != len(names) or not names:
        raise reading.damaged(file, f"it has {len(frame):,} rows, where a full grid has {math.prod(shape):,}")
    if any(not 0 <= i < n for i, n in zip(default, shape, strict=False)):
        raise reading.damaged(file, "its default lies outside the grid")
    codes = [pd.Categorical(frame[n], categories=of).codes for n, of in zip((*names, SEED, ROUND), keys, strict=True)]
    of = {name: np.full(shape, np.nan) for name in (METRIC, COST) if name in frame}
    for name, values in of.items():
        values[tuple(codes)] = frame[name].to_numpy(float)
    return Tabulated(
        levels=dict(zip(names, keys, strict=False)),
        seeds=keys[-2],
        values=of[METRIC],
        costs=of.get(COST),
        default=default,
        about=about,
        first_effect=first_effect,
    )
