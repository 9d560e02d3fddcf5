"""One configuration played from its first round to its last: what a trial, `fedtune run` and the final check share."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedtune.core import randomness
from fedtune.core.errors import UserError, unknown
from fedtune.core.hyper import Knob, knobs
from fedtune.core.metrics import over_seeds
from fedtune.data import federation
from fedtune.data.datasets import describe
from fedtune.federated import engine, executors, registry
from fedtune.federated.algorithm import Algorithm, Task
from fedtune.federated.scenario import Scenario
from fedtune.nn import architectures, catalogue


@dataclass(frozen=True)
class Experiment:
    """Everything that a run is, but for the configuration that is being tuned."""

    algorithm: str
    scenario: Scenario
    seed: int = 0
    executor: str = "auto"
    device: str = "cpu"
    pinned: dict[str, Any] = field(default_factory=dict)  # --set: hyperparameters held fixed
    preset: str = ""  # --preset: other defaults, by name
    given: tuple[str, ...] = ()  # scenario fields that were asked for by themselves: a preset leaves them alone

    def knobs(self) -> dict[str, Knob]:
        """All hyperparameters: the algorithm's and the scenario's."""
        return knobs(Scenario) | knobs(registry.find(self.algorithm))

    def resolve(self, config: dict[str, Any]) -> tuple[Algorithm, Scenario]:
        """The algorithm and scenario under a configuration; UserError for unknown names and bad values."""
        cls, known = registry.find(self.algorithm), self.knobs()
        values = self._base(cls) | self.pinned | config
        for name in values:
            if name not in known:
                raise unknown(f"hyperparameter of {self.algorithm}", name, known)
        own = knobs(cls)
        scenario = self.scenario.override(**{n: v for n, v in values.items() if n not in own})
        return cls(**{n: v for n, v in values.items() if n in own}), scenario

    def _base(self, cls: type[Algorithm]) -> dict[str, Any]:
        if self.preset in ("", "as_text"):  # the defaults are the paper's text
            return {}
        if self.preset not in cls.presets:
            raise unknown(f"preset of {self.algorithm}", self.preset, ["as_text", *cls.presets])
        return {n: v for n, v in cls.presets[self.preset].items() if n not in self.given}

    def configuration(self, config: dict[str, Any]) -> dict[str, Any]:
        """Every hyperparameter with its value under a configuration."""
        alg, scenario = self.resolve(config)
        return {n: getattr(alg if hasattr(alg, n) else scenario, n) for n in self.knobs()}

    def validate(self, config: dict[str, Any] | None = None) -> str:
        """UserError for whatever would stop this experiment after it has started, found without loading data.

        Returns which model the evaluation scores, in words.
        """
        alg, scenario = self.resolve(config or {})
        forms = _forms(scenario)
        nets = [_built(alg, scenario, form) for form in forms]
        for net in nets:
            engine.require_evaluation(alg, scenario.evaluation, net, self.algorithm)
        if not _alike(alg, nets):
            raise UserError(
                f"{self.algorithm} averages {' and '.join(alg.shared)}, so every client needs the same there, but the "
                f"architectures of {scenario.model} differ in it; give --model one architecture, or run there "
                f"{', '.join(_fitting(scenario, forms))}"
            )
        return engine.scored(alg, scenario, nets[0])


def fitting(scenario: Scenario) -> list[str]:
    """The algorithms that run on a scenario's architectures: what they share is alike in all, perhaps after a --set."""
    return _fitting(scenario, _forms(scenario))


def _fitting(scenario: Scenario, forms: list[architectures.Net]) -> list[str]:
    found = []
    for name in registry.names():
        cls = registry.find(name)
        for values in ({}, dict(cls.mixed)):
            alg = cls(**values)
            try:
                fits = _alike(alg, [_built(alg, scenario, form) for form in forms])
            except UserError:  # it asks for something else of the model: a wider feature, say
                continue
            if fits:
                found.append(" ".join([name, *(f"--set {n}={v}" for n, v in values.items())]))
                break
    return found


def _forms(scenario: Scenario) -> list[architectures.Net]:
    shape, classes = _shape(scenario)
    width, names = catalogue.width(scenario.model, scenario.features), catalogue.members(scenario.model)
    return [architectures.build(n, shape, classes, width) for n in names[: scenario.clients]]


def _built(alg: Algorithm, scenario: Scenario, form: architectures.Net) -> nn.Module:
    """An architecture with the algorithm's own parts, for their shapes; the form stays as it was."""
    shape, classes = _shape(scenario)
    net = copy.copy(form)
    net._modules = dict(form._modules)  # large nets are built once for all algorithms
    with torch.random.fork_rng(devices=[]):
        return alg.build(net, _task(scenario, classes, shape, 0))


def _shape(scenario: Scenario) -> tuple[architectures.Shape, int]:
    *shape, classes = describe(scenario.dataset)
    return (shape[0], shape[1], shape[2]), classes


def _task(scenario: Scenario, classes: int, shape: architectures.Shape, seed: int) -> Task:
    width, members = catalogue.width(scenario.model, scenario.features), catalogue.members(scenario.model)
    return Task(classes, width, scenario.clients, scenario.batch, seed, shape, members, scenario.rounds)


def _alike(alg: Algorithm, nets: list[nn.Module]) -> bool:
    """Whether what is averaged has the same names and shapes in all nets."""
    shapes = [
        {n: t.shape for n, t in net.state_dict().items() if n.split(".")[0] in alg.shared} for net in nets
    ]
    return all(s == shapes[0] for s in shapes)


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
        alg, scenario = experiment.resolve(config)
        arrays = data.to(experiment.device, dtype)
        task = _task(scenario, arrays.classes, arrays.shape, experiment.seed)
        seed, nets = randomness.number(experiment.seed, "net"), []
        for i, member in enumerate(task.models[: arrays.clients]):
            net = architectures.build(member, arrays.shape, arrays.classes, task.features, seed)
            executor = executors.choose(experiment.executor, net, experiment.device)
            nets.append((net, list(range(i, arrays.clients, len(task.models))), executor))
        everywhere = None
        if scenario.all_classes:
            draws = randomness.stream(experiment.seed, "all classes")
            everywhere = federation.of_all_classes(arrays, scenario.all_classes, draws)
        self.setting = engine.Setting(alg, arrays, scenario, task, everywhere)
        self.state = engine.start(self.setting, nets)

    def step(self) -> dict[str, Any]:
        """Play a round and evaluate it: its row of metrics.  Raises Diverged."""
        self.state, row = engine.play_round(self.setting, self.state)
        began = time.perf_counter()
        row |= engine.evaluate(self.setting, self.state)
        server = self.setting.algorithm.observe(self.state.server, row["val_acc"])
        self.state = self.state._replace(server=server)
        return {"round": self.state.round} | row | {"eval_seconds": time.perf_counter() - began}

    def save(self, path: Path) -> None:
        """Write the state to a file that loads without running code."""
        torch.save(self.kept(), path)

    def load(self, path: Path) -> None:
        """Go on from a saved state."""
        self.take(torch.load(path, weights_only=True, map_location=self.setting.federation.x.device))

    def kept(self) -> dict[str, Any]:
        """The state as plain dictionaries, lists and tensors."""
        state = self.state
        groups = [{"ids": g.ids, "tensors": g.tensors} for g in state.groups]
        return {"server": state.server, "groups": groups, "round": state.round, "bytes": state.bytes}

    def take(self, kept: dict[str, Any]) -> None:
        """Go on from a state as `kept` gave it."""
        groups = tuple(
            g._replace(ids=k["ids"], tensors=k["tensors"])
            for g, k in zip(self.state.groups, kept["groups"], strict=True)
        )
        self.state = engine.State(kept["server"], groups, kept["round"], kept["bytes"])


class Repeats:
    """One configuration on several seeds, played side by side: each has its own partition, start and draws."""

    def __init__(self, experiment: Experiment, config: dict[str, Any], data: Sequence[federation.Federation]) -> None:
        """data: the federations of the experiment's seed and of those that follow it."""
        self.runs = [Simulation(with_seed(experiment, experiment.seed + i), config, d) for i, d in enumerate(data)]

    @property
    def rounds(self) -> int:
        """How many rounds there are to play."""
        return self.runs[0].setting.scenario.rounds

    @property
    def round(self) -> int:
        """How many have been played."""
        return self.runs[0].state.round

    def step(self) -> dict[str, Any]:
        """Play a round on every seed: the mean row.  Raises Diverged if one does."""
        return over_seeds([run.step() for run in self.runs])

    def save(self, path: Path) -> None:
        """Write all states to a file that loads without running code."""
        torch.save([run.kept() for run in self.runs], path)

    def load(self, path: Path) -> None:
        """Go on from saved states."""
        kept = torch.load(path, weights_only=True, map_location=self.runs[0].setting.federation.x.device)
        for run, state in zip(self.runs, kept, strict=True):
            run.take(state)


def play(
    experiment: Experiment,
    config: dict[str, Any],
    data: federation.Federation | None = None,
    dtype: torch.dtype = torch.float32,
    data_dir: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of all rounds of one configuration; ends with a UserError's or Diverged's exception if it must."""
    if data is None:
        data = federation.make(experiment.scenario, experiment.seed, data_dir)
    simulation = Simulation(experiment, config, data, dtype)
    for _ in range(simulation.setting.scenario.rounds):
        yield simulation.step()


def with_seed(experiment: Experiment, seed: int) -> Experiment:
    """The same experiment with other draws: partition, start, batches."""
    return replace(experiment, seed=seed)


def require_device(device: str) -> None:
    """UserError unless the device exists."""
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise UserError(f"device must be cpu, or cuda where there is a GPU, but got {device!r}; use --device cpu")
