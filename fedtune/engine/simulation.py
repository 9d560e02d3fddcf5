"""Train a configuration from its first round to its last: shared by trials, `fedtune run` and the final check."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtune.core import process, randomness
from fedtune.core.errors import Diverged, UserError
from fedtune.core.trees import is_shared, named, tree_map
from fedtune.core.workload import Run, Runs
from fedtune.data import federation
from fedtune.engine import client_errors, engine, evaluation, executors, polling, seed_stack, wire
from fedtune.engine.seed_stack import SeedStack
from fedtune.engine.state import RunSetup, State, start, with_shapes
from fedtune.experiment import hooks, partitioning, privacy, refusals
from fedtune.experiment.experiment import Experiment, task_of
from fedtune.nn import architectures
from fedtune.user_code import user_errors, user_files

STATE = "state.pt"  # the file of a checkpoint


class Round(NamedTuple):
    """A finished round."""

    row: dict[str, Any]  # its metrics; test metrics only if test rows were scored
    clients: dict[str, Tensor]  # the table of clients, as `evaluation.Scored` has it
    state: State  # the scored state; the next round may overwrite it

    def kept(self) -> Round:
        """The same round with a copy of its state that no later round overwrites."""
        old = self.state.groups
        groups = tuple(g._replace(tensors=tree_map(_copy, g.tensors), kept=tree_map(_copy, g.kept)) for g in old)
        return self._replace(state=self.state._replace(groups=groups))


@contextmanager
def _at_work() -> Iterator[None]:
    """Run while no other run works in this process; an error in a user's line becomes a UserError that names it."""
    with process.at_work(), user_errors.reported(passing=client_errors.PASSING):
        yield


def _copy(t: Tensor) -> Tensor:
    return t if is_shared(t) else t.clone()


class Simulation(Run):
    """A configuration in training.  The state is all that changes; save and load are a checkpoint."""

    def __init__(
        self,
        experiment: Experiment,
        config: dict[str, Any],
        data: federation.Federation,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """data: the federation as made for the experiment's scenario and seed, as arrays or tensors."""
        self._code = user_files.Execution()  # a user's files begin anew: nothing that they keep outlives a run
        with _at_work(), self._code.used():
            self._start(experiment, config, data, dtype)

    def _start(
        self, experiment: Experiment, config: dict[str, Any], data: federation.Federation, dtype: torch.dtype
    ) -> None:
        if experiment.executor == "auto":
            experiment = settled(experiment, config, data)
        alg, scenario = experiment.resolve(config)
        arrays = data.to(experiment.device, dtype)
        task = task_of(scenario, arrays.classes, arrays.shape, experiment.seed, arrays.x.dtype)
        seed, nets = randomness.number(experiment.seed, "net"), []
        for i, member in enumerate(task.models[: arrays.clients]):
            net = architectures.build(member, arrays.shape, arrays.classes, task.features, seed)
            executor = executors.choose(experiment.executor, net, experiment.device)
            nets.append((net, list(range(i, arrays.clients, len(task.models))), executor))
        everywhere = None
        if scenario.all_classes:
            draws = randomness.stream(experiment.seed, "all classes")
            everywhere = federation.of_all_classes(arrays, scenario.all_classes, draws)
        self.test_every = experiment.test_every
        found = scenario.devices_of(arrays.owners, experiment.seed) if scenario.timed else None
        setup = RunSetup(alg, arrays, scenario, task, everywhere, dtype, metrics=experiment.own_metrics, devices=found)
        setup = setup._replace(draws=experiment.draws(config))
        self.state = start(experiment, setup, nets)
        self.setup = with_shapes(setup, self.state.groups[0].net)
        wire.require_room(self.setup, self.state.server.get("shared", {}))

    def step(self) -> dict[str, Any]:
        """Train and score a round: its row of metrics.  Diverged, or UserError for errors in the user's own code."""
        (row,) = step_all(SeedStack((self.setup,)), {0: self}).values()
        if isinstance(row, Exception):
            raise row
        return row

    def due(self, t: int) -> bool:
        """Whether test rows are scored at the end of round t."""
        return t % self.test_every == 0 or t == self.setup.scenario.rounds

    def take(self, state: State, row: dict[str, Any], scored: evaluation.Scored, seconds: float) -> dict[str, Any]:
        """Continue from a round's result; returns its row, including the evaluation and its seconds."""
        row, task = {"round": state.round} | row | scored.row, self.setup.task_in(state.round)
        alg = self.setup.algorithm
        row |= privacy.spent(refusals.releases(type(alg)), self.setup.scenario, state.round)
        server = hooks.entries(alg, "observe", alg.observe(state.server, row["val_acc"], task), state.server)
        self.state = state._replace(server=server)
        self.last = Round(row | {"eval_seconds": seconds}, scored.clients, state)
        return self.last.row

    def test(self) -> dict[str, Any]:
        """The last round's row with test metrics, which are computed now if they are missing."""
        self.last = self.tested(self.last)
        return self.last.row

    def tested(self, trained: Round) -> Round:
        """The row, with test metrics, of any round whose state was kept."""
        if "test_acc" in trained.row:
            return trained
        began = time.perf_counter()
        with _at_work():
            scored = evaluation.score(self.setup, trained.state, ("test",))
        row = {name: value for name, value in trained.row.items() if name != "eval_seconds"} | scored.row
        seconds = trained.row["eval_seconds"] + time.perf_counter() - began
        return Round(row | {"eval_seconds": seconds}, trained.clients | scored.clients, trained.state)

    @property
    def round(self) -> int:
        """The rounds that are done."""
        return self.state.round

    @property
    def rounds(self) -> int:
        """The rounds of a whole run."""
        return self.setup.scenario.rounds

    def kept(self) -> Round:
        """The last round with a copy of its state, so that `clients` can score it later."""
        return self.last.kept()

    def clients(self, best: Round) -> list[tuple[str, int, Mapping[str, Any], Callable[[int], str]]]:
        """Each client's results in the last and in the best round: which, its number, columns, owner of a client."""
        owner, rounds = self.setup.federation.owner, {"last": self.last, "best": self.tested(best)}
        return [(which, trained.row["round"], trained.clients, owner) for which, trained in rounds.items()]

    def save(self, folder: Path) -> None:
        """Write the state to a file that loads without running code."""
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), folder / STATE)

    def load(self, folder: Path) -> None:
        """Continue from a saved state; ValueError if it is damaged, or does not belong to this configuration."""
        with zipfile.ZipFile(folder / STATE) as archive:  # PyTorch writes checksums and does not look at them
            if damaged := archive.testzip():
                raise ValueError(f"the checksum of {damaged} is wrong")
        before, device = self.state, self.setup.federation.x.device
        self.load_state_dict(torch.load(folder / STATE, weights_only=True, map_location=device))
        if _form(self.state) != _form(before) or not before.server.keys() <= self.state.server.keys():
            raise ValueError("it holds other clients or models")

    def state_dict(self) -> dict[str, Any]:
        """The state as plain dictionaries, lists and tensors."""
        state = self.state
        groups = [{"ids": g.ids, "tensors": g.tensors, "kept": g.kept, "wire": g.wire} for g in state.groups]
        saved = {"server": state.server, "groups": groups, "round": state.round, "bytes": state.bytes}
        return saved | {"extra": state.extra}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from a state as `state_dict` gave it."""
        groups = tuple(
            g._replace(ids=k["ids"], tensors=k["tensors"], kept=k["kept"], wire=k.get("wire", {}))
            for g, k in zip(self.state.groups, saved["groups"], strict=True)
        )
        # files of before 0.4 have no `wire` and no `extra`
        self.state = State(saved["server"], groups, saved["round"], saved["bytes"], saved.get("extra", {}))


def settled(experiment: Experiment, config: dict[str, Any], data: federation.Federation) -> Experiment:
    """The experiment with the executor that the user's code, if it has any, will run with: see `executor_choice`."""
    if not experiment.has_own_code:
        return experiment
    from fedtune.engine.executor_choice import choose_executor

    return choose_executor(experiment, config, data, Simulation)


def step_all(seeds: SeedStack, runs: Mapping[int, Simulation]) -> dict[int, dict[str, Any] | Diverged | UserError]:
    """Run a round of several runs, by their positions: for each what `Simulation.step` returns or raises.

    The time is divided evenly: a run's seconds are those that it adds, not those that it waits.
    """
    with _at_work():
        choosy = [i for i, run in runs.items() if run.setup.scenario.selection != "uniform"]
        polls = {i: polling.asked(seeds.setups[i], runs[i].state) for i in choosy}
        trained = engine.run_rounds(seeds, {i: run.state for i, run in runs.items()}, polls)
        began = time.perf_counter()
        states = {i: d[0] for i, d in trained.items() if not isinstance(d, Diverged)}
        tests_due = any(runs[i].due(state.round) for i, state in states.items())
        scored = evaluation.score_all(seeds, states, ("val", "test") if tests_due else ("val",)) if states else {}
        seconds = (time.perf_counter() - began) / len(runs)
        rows: dict[int, dict[str, Any] | Diverged | UserError] = {}
        for i, run in runs.items():
            result, scores = trained[i], scored.get(i)
            if isinstance(result, Diverged):
                rows[i] = result
            elif isinstance(scores, Diverged):
                rows[i] = scores
            elif scores:
                rows[i] = run.take(*result, scores, seconds)
    return rows


class Seeds(Runs):
    """Runs of one experiment and configuration with several seeds, which train as one stack if that is faster."""

    runs: list[Simulation]

    def __init__(
        self,
        experiment: Experiment,
        config: dict[str, Any],
        data: Mapping[int, federation.Federation],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """data: the federation of every seed, by seed."""
        if experiment.executor == "auto":
            experiment = settled(experiment, config, next(iter(data.values())))  # one for all seeds
        super().__init__([Simulation(experiment.with_seed(seed), config, d, dtype) for seed, d in data.items()])
        self._stack = seed_stack.stacked([r.setup for r in self.runs], [r.state for r in self.runs])
        for run, setup in zip(self.runs, self._stack.setups, strict=True):
            run.setup = setup

    def steps(self, positions: Iterable[int] | None = None) -> dict[int, dict[str, Any] | Diverged | UserError]:
        """A round of runs that have trained the same number of rounds."""
        positions = range(len(self.runs)) if positions is None else positions
        return step_all(self._stack, {i: self.runs[i] for i in positions})


def _form(state: State) -> list[Any]:
    """What stays as it is from round to round, as the server's entries need not: clients, and their tensors' shapes."""
    return [(g.ids.tolist(), {n: t.shape for n, t in named((g.tensors, g.kept)).items()}) for g in state.groups]


def train(
    experiment: Experiment,
    config: dict[str, Any],
    data: federation.Federation | None = None,
    dtype: torch.dtype = torch.float32,
    data_dir: str | None = None,
) -> Iterator[dict[str, Any]]:
    """The rows of all rounds of one configuration; raises UserError or Diverged if it has to stop."""
    if data is None:
        data = partitioning.make(experiment.scenario, experiment.seed, data_dir)
    simulation = Simulation(experiment, config, data, dtype)
    for _ in range(simulation.setup.scenario.rounds):
        yield simulation.step()
