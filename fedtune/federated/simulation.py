"""One configuration trained from its first round to its last: what a trial, `fedtune run` and the final check share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtune.core import own_files, randomness
from fedtune.core.errors import Diverged
from fedtune.core.metrics import over_seeds
from fedtune.core.trees import alike, tree_map
from fedtune.data import federation
from fedtune.federated import engine, evaluation, executors, own_metrics, partitioning, starting
from fedtune.federated.experiment import Experiment, task_of, with_seed
from fedtune.federated.settling import settle
from fedtune.federated.state import Setting, State, with_shapes
from fedtune.nn import architectures

# what is no fault in a line of code: training that leaves the finite numbers, a full memory or disk
PASSING = (Diverged, torch.OutOfMemoryError, MemoryError, OSError)


class Round(NamedTuple):
    """A round that is over."""

    row: dict[str, Any]  # its metrics; those on test rows only where these were scored
    clients: dict[str, Tensor]  # the table of clients, as `evaluation.Scored` has it
    state: State  # that was scored; the next round may overwrite it

    def kept(self) -> Round:
        """The same with a state that no round overwrites."""
        groups = (g._replace(tensors=tree_map(_own, g.tensors), kept=tree_map(_own, g.kept)) for g in self.state.groups)
        return self._replace(state=self.state._replace(groups=tuple(groups)))


def _own(t: Tensor) -> Tensor:
    """A copy, but of what is one for all clients."""
    return t if alike(t) else t.clone()


class Simulation:
    """A configuration at work.  The state is all that changes; save and load are a checkpoint."""

    def __init__(
        self,
        experiment: Experiment,
        config: dict[str, Any],
        data: federation.Federation,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """data: the federation as made for the experiment's scenario and seed, as arrays or tensors."""
        with own_files.blamed(*PASSING):
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
        own = own_metrics.load(experiment.metrics)
        setting = Setting(alg, arrays, scenario, task, everywhere, dtype, own)
        self.state = starting.start(experiment, setting, nets)
        self.setting = with_shapes(setting, self.state.groups[0].net)

    def step(self) -> dict[str, Any]:
        """Run a round and score it on validation rows, and where test rows are due on these: its row of metrics.

        Raises Diverged; UserError for the user's own code.
        """
        with own_files.blamed(*PASSING):
            return self._step()

    def _step(self) -> dict[str, Any]:
        state, row = engine.run_round(self.setting, self.state)
        began = time.perf_counter()
        due = state.round % self.test_every == 0 or state.round == self.setting.scenario.rounds
        found = evaluation.score(self.setting, state, ("val", "test") if due else ("val",))
        row, task = {"round": state.round} | row | found.row, self.setting.task_in(state.round)
        self.state = state._replace(server=self.setting.algorithm.observe(state.server, row["val_acc"], task))
        self.last = Round(row | {"eval_seconds": time.perf_counter() - began}, found.clients, state)
        return self.last.row

    def test(self) -> dict[str, Any]:
        """The last round's row with the figures on test rows, which are found now unless they are there."""
        self.last = self.tested(self.last)
        return self.last.row

    def tested(self, done: Round) -> Round:
        """The same of any round whose state was kept."""
        if "test_acc" in done.row:
            return done
        began = time.perf_counter()
        with own_files.blamed(*PASSING):
            found = evaluation.score(self.setting, done.state, ("test",))
        row = {name: value for name, value in done.row.items() if name != "eval_seconds"} | found.row
        seconds = done.row["eval_seconds"] + time.perf_counter() - began
        return Round(row | {"eval_seconds": seconds}, done.clients | found.clients, done.state)

    def save(self, path: Path) -> None:
        """Write the state to a file that loads without running code."""
        torch.save(self.state_dict(), path)

    def load(self, path: Path) -> None:
        """Continue from a saved state."""
        self.load_state_dict(torch.load(path, weights_only=True, map_location=self.setting.federation.x.device))

    def state_dict(self) -> dict[str, Any]:
        """The state as plain dictionaries, lists and tensors."""
        now = self.state
        groups = [{"ids": g.ids, "tensors": g.tensors, "kept": g.kept} for g in now.groups]
        return {"server": now.server, "groups": groups, "round": now.round, "bytes": now.bytes}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from a state as `state_dict` gave it."""
        groups = tuple(
            g._replace(ids=k["ids"], tensors=k["tensors"], kept=k.get("kept", {}))  # files of old hold none
            for g, k in zip(self.state.groups, saved["groups"], strict=True)
        )
        self.state = State(saved["server"], groups, saved["round"], saved["bytes"])


def settled(experiment: Experiment, config: dict[str, Any], data: federation.Federation) -> Experiment:
    """The experiment with an executor that runs the user's own code, if it has any: see `settling`."""
    return settle(experiment, config, data, Simulation)


class MultiSeedSimulation:
    """One configuration on several seeds, side by side: each has its own partition, initialisation and draws."""

    def __init__(self, experiment: Experiment, config: dict[str, Any], data: Sequence[federation.Federation]) -> None:
        """data: the federations of the experiment's seed and of those that follow it."""
        if experiment.executor == "auto":
            experiment = settled(experiment, config, data[0])  # one for all seeds
        self.runs = [Simulation(with_seed(experiment, experiment.seed + i), config, d) for i, d in enumerate(data)]

    @property
    def rounds(self) -> int:
        """How many rounds there are to train."""
        return self.runs[0].setting.scenario.rounds

    @property
    def round(self) -> int:
        """How many rounds have been trained."""
        return self.runs[0].state.round

    def step(self) -> dict[str, Any]:
        """Run a round on every seed: the mean row.  Raises Diverged if one does."""
        return over_seeds([run.step() for run in self.runs])

    def test(self) -> dict[str, Any]:
        """The mean row of the last round with the figures on test rows, which are scored now if they were not."""
        return over_seeds([run.test() for run in self.runs])

    def save(self, path: Path) -> None:
        """Write all states to a file that loads without running code."""
        torch.save([run.state_dict() for run in self.runs], path)

    def load(self, path: Path) -> None:
        """Continue from saved states, one per seed."""
        kept = torch.load(path, weights_only=True, map_location=self.runs[0].setting.federation.x.device)
        for run, state in zip(self.runs, kept, strict=True):
            run.load_state_dict(state)


def play(
    experiment: Experiment,
    config: dict[str, Any],
    data: federation.Federation | None = None,
    dtype: torch.dtype = torch.float32,
    data_dir: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of all rounds of one configuration; ends with a UserError's or Diverged's exception if it must."""
    if data is None:
        data = partitioning.make(experiment.scenario, experiment.seed, data_dir)
    simulation = Simulation(experiment, config, data, dtype)
    for _ in range(simulation.setting.scenario.rounds):
        yield simulation.step()
