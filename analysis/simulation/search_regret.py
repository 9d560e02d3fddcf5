"""The regret of simulated searches against the best configuration of a table, by rounds of training.

A search selects on one seed of the table and is judged on the others, as if its choice were trained on fresh
partitions.  Its regret is the accuracy of the best configuration on those seeds minus that of its choice.  With two
objectives it is the share of the hypervolume under the table's front that the front of all its rounds lacks, on the
same seeds; the reference point is an accuracy of 0 at the most megabytes of any run.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import optuna
import pandas as pd

from fedtune.analysis.simulation.simulated_search import SimulatedRound, SimulatedSearch
from fedtune.analysis.simulation.tabulated import COST, Place, Tabulated
from fedtune.core import interrupting, processors, statistics
from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.metrics import METRIC
from fedtune.core.objectives import BY_ACCURACY, Goal
from fedtune.core.terminal import progress, several
from fedtune.runs import pareto
from fedtune.runs.choice import TOP, standing, usual_runs
from fedtune.tuning import schedulers, searchers
from fedtune.tuning.space_types import Config

SHARES = (0.125, 0.25, 0.5, 1.0)  # shares of the budget after which a search's choice is recorded
TRIALS = 100_000  # more than any budget lets begin


class Strategy(NamedTuple):
    """A search strategy."""

    searcher: str
    scheduler: str
    grace: int  # rounds before a trial is judged; 0: as a search on the table's space would have it
    seeds: int = 1  # seeds of each trial
    choose_seeds: int = 1  # seeds that decide between the best finished trials, their own included

    def __str__(self) -> str:
        """The strategy in words, as in tables."""
        extra = f", best {TOP} chosen by {self.choose_seeds} seeds" if self.choose_seeds > 1 else ""
        each = f", {several(self.seeds, 'seed')} a trial" if self.seeds > 1 else ""
        judged = ", first rung" if schedulers.find(self.scheduler).has_rungs else ", from round"
        judged = f"{judged} {self.grace}" if self.grace else ""
        return f"{self.searcher}, {self.scheduler}{judged}{each}{extra}"

    def on(self, table: Tabulated) -> Strategy:
        """With the first rung that it has on a table."""
        unjudged = self.grace or self.scheduler == "none"
        return self if unjudged else self._replace(grace=table.grace)

    @property
    def seeds_used(self) -> int:
        """Seeds of the table that it selects on; the others judge it."""
        return self.seeds + self.choose_seeds - 1


class Choice(NamedTuple):
    """A search's choice after some rounds, and its regret."""

    rounds: float  # in trials of full length
    regret: float
    trials: int  # begun so far


def choices(
    table: Tabulated, strategy: Strategy, budget: float, slots: int, seed: int, goal: Goal = BY_ACCURACY
) -> list[Choice]:
    """One simulated search: its choice at each share of the budget (in trials of full length)."""
    if len(goal.objectives) > 1:
        return _fronts(table, strategy, budget, slots, seed, goal)
    order = _order(table, seed)
    worth = table.final_means(order[strategy.seeds_used :])
    best = worth[np.unravel_index(table.final_means(order).argmax(), worth.shape)]
    found = []
    for rounds, ledger in play(table, strategy, budget, slots, seed, SHARES):
        config = ledger.choice()
        regret = float(best - worth[table.place(config)]) if config else float(best)
        found.append(Choice(rounds / table.rounds, regret, len(ledger.last)))
    return found


def _fronts(table: Tabulated, strategy: Strategy, budget: float, slots: int, seed: int, goal: Goal) -> list[Choice]:
    """What its front lacks at each share of the budget: found on its own seeds, judged on the others."""
    assert table.costs is not None
    order = _order(table, seed)
    own, others = (_points(table, of) for of in (order[: strategy.seeds_used], order[strategy.seeds_used :]))
    volume = partial(pareto.hypervolume, objectives=goal.objectives, reference=(0.0, float(np.nanmax(table.costs))))
    best, found = volume(others), []
    for rounds, ledger in play(table, strategy, budget, slots, seed, SHARES, goal):
        front = pareto.front(own.loc[ledger.trained], goal.objectives)
        found.append(Choice(rounds / table.rounds, 1 - volume(others.loc[front["at"]]) / best, len(ledger.last)))
    return found


def _points(table: Tabulated, seeds: Sequence[int]) -> pd.DataFrame:
    """Every round of every configuration, in the order of the table, as means over seeds (their places)."""
    of = {METRIC: table.values, COST: table.costs}
    means = {name: values[..., list(seeds), :].mean(-2).ravel() for name, values in of.items() if values is not None}
    return pd.DataFrame(means).assign(at=lambda frame: frame.index)


def chosen_place(table: Tabulated, strategy: Strategy, budget: float, slots: int, seed: int) -> Place | None:
    """The place of one simulated search's choice after the whole budget; None if all that it tried diverged."""
    for _, ledger in play(table, strategy, budget, slots, seed, [1.0]):
        config = ledger.choice()
    return table.place(config) if config else None


def play(
    table: Tabulated,
    strategy: Strategy,
    budget: float,
    slots: int,
    seed: int,
    shares: Sequence[float],
    goal: Goal = BY_ACCURACY,
) -> Iterator[tuple[float, _Ledger]]:
    """One simulated search: at each share of the budget the rounds until then, and what it has trained."""
    ledger = _Ledger(table, strategy, _order(table, seed)[: strategy.seeds_used])
    due = [share * budget * table.rounds for share in shares]
    reserved = usual_runs(strategy.choose_seeds) * table.rounds  # rounds that are left for the end of the search
    state = np.random.get_state()  # Ray's hyperband draws a trial's bracket there
    np.random.seed(seed)
    try:
        for report in _search(table, strategy, slots, seed, ledger, goal).run():
            while due and ledger.spent + strategy.seeds > due[0] - reserved:  # with this round
                yield due.pop(0), ledger
            if not due:
                return
            ledger.take(report)
    finally:
        np.random.set_state(state)
    for rounds in due:
        yield rounds, ledger


def _order(table: Tabulated, search: int) -> list[int]:
    """The places of seeds in the order in which a search uses them: first those that it selects on."""
    turn = _turn(table, search)
    return [*range(turn, len(table.seeds)), *range(turn)]


def regret_of_whole_grid(table: Tabulated) -> float:
    """The mean regret of training every configuration on one seed and choosing the best, or one of several best."""
    places = range(len(table.seeds))
    best = table.final_means(places).argmax()
    regrets = []
    for seed in places:
        worth, seen = (table.final_means(of).ravel() for of in ([s for s in places if s != seed], [seed]))
        regrets.append(worth[best] - worth[seen == seen.max()].mean())
    return float(np.mean(regrets))


def _turn(table: Tabulated, search: int) -> int:
    return search % len(table.seeds)


def _search(
    table: Tabulated, strategy: Strategy, slots: int, seed: int, ledger: _Ledger, goal: Goal
) -> SimulatedSearch:
    space, budget = table.space(), Budget("rounds", table.rounds)
    searcher = searchers.searcher(strategy.searcher, space, [table.first()], [{}], seed, "simulated", goal=goal)
    scheduler = schedulers.scheduler(strategy.scheduler, budget, strategy.grace, space, goal)
    return SimulatedSearch(
        searcher=searcher,  # type: ignore[arg-type]
        scheduler=scheduler,
        curve=ledger.curve,  # type: ignore[arg-type]
        costs=ledger.costs,  # type: ignore[arg-type]
        rounds=table.rounds,
        trials=TRIALS,
        slots=slots,
    )


class _Ledger:
    """What a simulated search has trained so far, and its present choice."""

    def __init__(self, table: Tabulated, strategy: Strategy, used: Sequence[int]) -> None:
        self.table, self.strategy = table, strategy
        self.first, self.more = used[: strategy.seeds], used[strategy.seeds :]
        self.spent = 0.0  # rounds of single runs
        self.last: dict[int, SimulatedRound] = {}  # by trial
        self.trained: list[int] = []  # the numbers of its rounds in the table that did not diverge

    def curve(self, config: Config) -> np.ndarray:
        """What a trial reports."""
        return self.table.curve(config, self.first)

    def costs(self, config: Config) -> dict[str, np.ndarray]:
        """What a trial reports of its costs."""
        of = self.table.costs
        return {} if of is None else {COST: of[self.table.place(config)][list(self.first)].mean(0)}

    def take(self, report: SimulatedRound) -> None:
        """Note a round."""
        self.spent += self.strategy.seeds
        self.last[report.trial] = report
        if report.status != "diverged":
            grid = (*self.table.values.shape[:-2], self.table.rounds)
            self.trained.append(int(np.ravel_multi_index((*self.table.place(report.config), report.round - 1), grid)))

    def choice(self) -> Config | None:
        """The best of the finished trials, else of those that went furthest; as `runs.tables` chooses."""
        fine = [r for r in self.last.values() if r.status != "diverged"]
        finished = [r for r in fine if r.status == "finished"]
        furthest = max((r.round for r in fine), default=0)
        among = sorted(finished or [r for r in fine if r.round == furthest], key=lambda r: -r.value)
        if self.strategy.choose_seeds > 1 and finished:
            best = standing(among, lambda some: [self._mean(r) for r in some])
            return best and best.config
        return among[0].config if among else None

    def _mean(self, report: SimulatedRound) -> float:
        """A finished trial's figure over all seeds that select; not a number if it diverged on one of them."""
        several = [*self.first, *self.more]
        return float(self.table.values[self.table.place(report.config)][several, -1].mean())


def strategies(
    searcher_names: Sequence[str],
    scheduler_names: Sequence[str],
    graces: Sequence[int],
    seeds: Sequence[int],
    more: Sequence[int],
) -> list[Strategy]:
    """All combinations that make sense, each once; UserError for a searcher or scheduler that cannot be simulated."""
    for name in searcher_names:
        if searchers.find(name).is_grid:
            raise UserError(
                f"a simulated search samples its configurations, but the searcher is {name!r}; leave it out"
            )
    for name in scheduler_names:
        if schedulers.find(name).moves_hyperparameters:
            raise UserError(
                f"a table has no trials that change their configuration, but the scheduler is {name!r}; leave it out"
            )
    plans = []
    for searcher, scheduler, grace, k, extra in itertools.product(searcher_names, scheduler_names, graces, seeds, more):
        unjudged = scheduler == "none"
        plans.append(Strategy(searcher, scheduler, 0 if unjudged else grace, k, extra))
    return list(dict.fromkeys(plans))


def require_costs(tables: Sequence[Tabulated], plans: Sequence[Strategy], goal: Goal) -> None:
    """UserError where fronts would need what a table or a searcher has not, or a choice by more seeds is asked for."""
    if len(goal.objectives) == 1:
        return
    for table in (t for t in tables if t.costs is None):
        raise UserError(f"a front needs {COST} of every round, but {table.name} has none; make its table anew")
    for plan in plans:
        if plan.choose_seeds > 1 or "objectives" in searchers.find(plan.searcher).lacks:
            raise UserError(f"a front has no choice by more seeds, nor {plan.searcher} one, but got {plan}")


def require_seeds(tables: Sequence[Tabulated], plans: Sequence[Strategy]) -> None:
    """UserError where a table has no seed left on which a strategy's choice could be judged."""
    for table, strategy in itertools.product(tables, plans):
        if strategy.seeds_used >= len(table.seeds):
            raise UserError(
                f"a search is judged on seeds that it does not select on, but {strategy} selects on "
                f"{strategy.seeds_used} "
                f"and {table.name} has {len(table.seeds)}; give fewer --seeds-per-trial or --choose-seeds"
            )


def simulate(
    tables: Sequence[Tabulated],
    plans: Sequence[Strategy],
    budget: float,
    slots: int,
    searches: int,
    processes: int | None = None,
    goal: Goal = BY_ACCURACY,
) -> Iterator[pd.DataFrame]:
    """For each table and strategy a row per search and share of the budget; searches run in processes of their own."""
    with _workers(tables, processes) as pool, progress("searches") as bar:
        task = bar.add_task("", total=len(tables) * len(plans) * searches)
        for place, planned in itertools.product(range(len(tables)), plans):
            strategy = planned.on(tables[place])
            bar.update(task, description=f"{strategy}; {tables[place].name}")
            one = partial(_on, partial(choices, goal=goal), place, strategy, budget, slots)
            of_each = []
            for of_search in pool.map(one, range(searches), chunksize=max(1, searches // 64)):
                of_each.append(of_search)
                bar.advance(task)
            yield pd.DataFrame(
                [
                    {
                        "table": tables[place].name,
                        "strategy": str(strategy),
                        **strategy._asdict(),
                        "search": i,
                        "turn": _turn(tables[place], i),
                        **choice._asdict(),
                    }
                    for i, of_search in enumerate(of_each)
                    for choice in of_search
                ]
            ).rename(columns={"rounds": "budget"})


def all_chosen(
    table: Tabulated, strategy: Strategy, budget: float, slots: int, searches: int, processes: int | None = None
) -> list[list[Place | None]]:
    """What so many searches of each seed of a table choose, a list for each seed that they select on."""
    turns, count = len(table.seeds), searches * len(table.seeds)
    one = partial(_on, chosen_place, 0, strategy.on(table), budget, slots)
    with _workers([table], processes) as pool, progress("searches") as bar:
        task, places = bar.add_task(f"{strategy.on(table)}; {table.name}", total=count), []
        for place in pool.map(one, range(count), chunksize=max(1, count // 64)):
            places.append(place)
            bar.advance(task)
    return [places[turn::turns] for turn in range(turns)]


def _workers(tables: Sequence[Tabulated], processes: int | None) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")  # a fork would inherit locks of whatever Ray's threads hold
    return ProcessPoolExecutor(processes or processors.usable(), context, _hold, (tables,))


_TABLES: list[Tabulated] = []  # the tables, in a process that simulates


def _hold(tables: Sequence[Tabulated]) -> None:
    interrupting.end_with_parent()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    _TABLES.extend(tables)


def _on(search: Callable[..., Any], place: int, strategy: Strategy, budget: float, slots: int, seed: int) -> Any:
    return search(_TABLES[place], strategy, budget, slots, seed)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean regret in points with its interval, a row per table and strategy, a column per budget; the best first.

    spread: the standard deviation of a single search's regret after the whole budget, among those that select on the
    same seed: what chance in the search itself does.
    """
    rows = []
    for (table, strategy), of in frame.groupby(["table", "strategy"], sort=False):
        end = of[of["budget"] == of["budget"].max()]
        row = {"table": table, "strategy": strategy, "trials": end["trials"].mean()}
        for budget, at in of.groupby("budget"):
            mean = statistics.mean(100 * at["regret"].to_numpy())
            row |= {f"regret {budget:g}": mean.mean, f"± {budget:g}": mean.half}
        rows.append(row | {"spread": 100 * end.groupby("turn")["regret"].var().mean() ** 0.5})
    regrets = pd.DataFrame(rows)
    last = [c for c in regrets if str(c).startswith("regret")][-1]
    return regrets.sort_values(["table", last], kind="stable").reset_index(drop=True)
