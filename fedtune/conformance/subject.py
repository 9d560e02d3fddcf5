"""An algorithm to check: its runs in small cases, each made once and shared by all checks that need it."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedtune import tracing
from fedtune.conformance import hints
from fedtune.conformance.cases import CheckedScenario, cases
from fedtune.conformance.check import RunFailed, Violation
from fedtune.conformance.watching import MessageLog, watched
from fedtune.core import randomness
from fedtune.core.errors import Diverged, UserError, require_known
from fedtune.core.hyper import hyperparameters
from fedtune.core.process import Streams
from fedtune.core.terminal import one_line
from fedtune.core.trees import Executor, named, take
from fedtune.engine.executor_choice import CLOCK as CLOCK
from fedtune.engine.simulation import Simulation
from fedtune.engine.state import State, common_start, with_shapes
from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures
from fedtune.user_code import sources, user_errors


@dataclass(frozen=True, kw_only=True)
class OfClass(Experiment):
    """An experiment whose algorithm is given as a class, so that it need not be registered under a name."""

    cls: type[Algorithm] = field(default=Algorithm)

    def _class(self) -> type[Algorithm]:
        return self.cls

    def resolve(self, config: dict[str, Any]) -> tuple[Algorithm, Scenario]:
        """The algorithm and the scenario under a configuration, which may have any field of the scenario."""
        own = hyperparameters(self.cls)
        scenario = self.scenario.override(**{n: v for n, v in config.items() if n not in own})
        return self.cls(**{n: v for n, v in config.items() if n in own}), scenario


class WatchedRun:
    """A run that several checks look at: its rows, states and messages, round by round."""

    def __init__(self, sim: Simulation, tape: MessageLog, case: CheckedScenario) -> None:
        """The run is ready for its first round."""
        self.sim, self.tape, self.resumes, self.atol = sim, tape, case.resumes, case.atol
        self.rows: list[dict[str, Any]] = []
        self.states = [copied(numbers(sim.state))]
        self.saved: list[bytes] = []  # the checkpoint after round 1, 2, …
        self.spoiled: set[str] = set()  # tensors of a round's input that the round changed
        self.streams_used: set[str] = set()  # the process's random streams that were used
        f = sim.setup.federation
        self.rows_given = {n: (t, t._version) for n, t in (("x", f.x), ("y", f.y), ("rows", f.train.rows))}

    def train(self, rounds: int) -> None:
        """Train until this many rounds are done."""
        while len(self.rows) < rounds:
            sim, old_state, streams = self.sim, self.sim.state, Streams.now()
            row = sim.step()
            self.rows.append({k: v for k, v in row.items() if k not in CLOCK})
            self.streams_used |= set(streams.moved(Streams.now()))
            old_copy = self.states[-1]
            if sim.setup.scenario.participants == sim.setup.task.clients:
                self.spoiled |= differences(numbers(old_state), old_copy)
            self.spoiled |= {f"data/{n}" for n, (t, version) in self.rows_given.items() if t._version != version}
            self.states.append(copied(numbers(sim.state)))
            if self.resumes:
                file = io.BytesIO()
                torch.save(sim.state_dict(), file)
                self.saved.append(file.getvalue())


class Subject:
    """An algorithm to check."""

    def __init__(
        self,
        *,
        cls: type[Algorithm],
        name: str = "",
        base: Scenario | None = None,
        values: Mapping[str, Any] | None = None,
        rtol: float = 1e-9,
    ) -> None:
        """base: use this scenario's data shape and model.  values: hyperparameters to hold fixed."""
        self.cls, self.name, self.cases = cls, name or cls.__name__, cases(base)
        declared = hyperparameters(cls)
        require_known(f"hyperparameter of {self.name}", values or {}, declared | hyperparameters(Scenario))
        self.values = {**cls.checked_with, **(values or {})}
        self.defaults = {n: self.values.get(n, hp.default) for n, hp in declared.items()}
        self.rtol, self.atol = rtol, 0.0
        self.dtype = torch.float64  # checks change this and the executor to what is possible
        self.executor: Executor = "stack"
        self._runs: dict[tuple[Any, ...], WatchedRun | RunFailed] = {}

    def begin(
        self,
        case: CheckedScenario,
        executor: Executor | None = None,
        groups: Sequence[Sequence[int]] = (),
        seed: int = 0,
        config: Mapping[str, Any] | None = None,
        tape: MessageLog | None = None,
        dtype: torch.dtype | None = None,
    ) -> Simulation:
        """A new simulation, ready for its first round."""
        cls = watched(self.cls, tape) if tape else self.cls
        values = {**case.values, **self.values, **(config or {})}
        data = case.make(case.scenario, seed)
        scenario = replace(case.scenario, clients=data.clients)
        how = executor or self.executor
        experiment = OfClass(algorithm=self.name, scenario=scenario, seed=seed, executor=how, cls=cls)
        sim = Simulation(experiment, values, data, dtype or self.dtype)
        if groups or case.dropout:
            s, how = sim.setup, sim.state.groups[0].executor
            form = architectures.build(
                scenario.model, s.federation.shape, data.classes, s.task.features, randomness.number(seed, "net")
            )
            if case.dropout:
                form.body = nn.Sequential(form.body, nn.Dropout(case.dropout))
            sim.state = common_start(s, [(form, list(ids), how) for ids in groups or [range(data.clients)]])
            sim.setup = with_shapes(s, sim.state.groups[0].net)
        return sim

    def run(
        self,
        case: CheckedScenario,
        rounds: int = 0,
        executor: Executor | None = None,
        groups: Sequence[Sequence[int]] = (),
        seed: int = 0,
        config: Mapping[str, Any] | None = None,
    ) -> WatchedRun:
        """A run of at least that many rounds, from the store; RunFailed if it stops with an error."""
        how = executor or self.executor
        config = {n: v for n, v in (config or {}).items() if n not in self.defaults or v != self.defaults[n]}
        key = case.words, how, tuple(map(tuple, groups)), seed, tuple(sorted(config.items()))
        run = self._runs.get(key)
        if isinstance(run, RunFailed):
            raise run
        try:
            if run is None:
                tape = MessageLog()
                sim = self.begin(case, how, groups, seed, config, tape)
                tape.buffers = frozenset(n for g in sim.state.groups for n, _ in g.net.named_buffers())
                tape.in_place = how == "loop"
                tape.down.clear()  # messages from the start
                run = self._runs[key] = WatchedRun(sim, tape, case)
            with tracing.eager():  # what is recorded would serve this run alone; one check is of recordings
                run.train(rounds or case.rounds)
        except Exception as error:
            failure = self._runs[key] = self.failure(error, case)
            raise failure from error
        return run

    def three_rounds(self) -> Diverged | None:
        """The plainest run, in single precision, one client after the other: how it diverged; None if it did not."""
        sim = self.begin(self.cases.few, "loop", dtype=torch.float32)
        try:
            for _ in range(3):
                sim.step()
        except Diverged as error:
            return error
        return None

    @cached_property
    def diverged(self) -> Diverged | None:
        """The same of the first such run.  Other errors are raised."""
        return self.three_rounds()

    def in_single_precision(self) -> None:
        """Run in float32 from now on, with a suitable tolerance."""
        self.dtype, self.rtol, self.atol = torch.float32, 1e-3, 1e-5
        self._runs.clear()

    def failure(self, error: Exception, case: CheckedScenario) -> RunFailed:
        """An error in a run as a violation."""
        # the engine's own messages about client code begin with the place
        text = re.sub(r"^\S+\.py:\d+: ", "", one_line(user_errors.text(error)))[:300]
        kind = "" if isinstance(error, UserError | Diverged) else f"{user_errors.kind(error)}: "
        place, advice = sources.of_error(error, self.cls), hints.of_error(error)
        return RunFailed(Violation(place, f"{kind}{text} (in the scenario: {case.words})", advice), error)

    def fits_mixed(self) -> bool:
        """Whether it runs with different architectures, with its `for_mixed_models` values."""
        try:
            return bool(self.cases.mixed and self.begin(self.cases.mixed, config=self.cls.for_mixed_models))
        except UserError:
            return False

    def difference(self, got: WatchedRun, want: WatchedRun, exact: bool = False) -> str:
        """The first difference between two runs, in words; "" if there is none."""
        tolerance = 0.0 if exact else max(self.atol, want.atol)
        for t, (a, b) in enumerate(zip(got.states, want.states, strict=False)):
            if a.keys() != b.keys():
                return f"after round {t} the state has different entries: {', '.join(sorted(a.keys() ^ b.keys())[:3])}"
            if distances := {n: _distance(a[n], b[n]) for n in b if not self._equal(a[n], b[n], tolerance)}:
                name = max(distances, key=lambda n: distances[n])
                others = f" (and {len(distances) - 1} more)" if len(distances) > 1 else ""
                return f"after round {t} {in_words(name)} differs by {distances[name]:.2g}{others}"
        for a, b in zip(got.rows, want.rows, strict=False):
            if a.keys() != b.keys():
                return f"round {a['round']} reports different metrics: {', '.join(sorted(a.keys() ^ b.keys())[:3])}"
            for n in b:
                if a[n] != b[n] and not (tolerance and abs(a[n] - b[n]) <= tolerance + self.rtol * abs(b[n])):
                    return f"in round {a['round']} the metric {n} is {a[n]} in one run and {b[n]} in the other"
        return ""

    def _equal(self, a: Tensor, b: Tensor, tolerance: float) -> bool:
        """Whether two tensors are the same within a tolerance; 0: bit for bit."""
        if a.shape != b.shape or not tolerance or not a.is_floating_point():
            return torch.equal(a, b)
        return torch.allclose(a, b, rtol=self.rtol, atol=tolerance)


def numbers(state: State) -> dict[str, Tensor]:
    """Every tensor of a state: the server's, and each client's by its number, however clients are grouped."""
    clients = {
        f"client {k}": take({**group.tensors, "kept": group.kept}, row)
        for group in state.groups
        for row, k in enumerate(group.ids.tolist())
    }
    return named({"server": state.server} | clients)


def copied(tree: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of all tensors."""
    return {n: t.clone() for n, t in tree.items()}


def differences(a: dict[str, Tensor], b: dict[str, Tensor]) -> set[str]:
    """The names whose tensors are not bit for bit the same."""
    return {n for n in a.keys() | b.keys() if n not in a or n not in b or not torch.equal(a[n], b[n])}


def in_words(name: str) -> str:
    """A number's path in words: `the server's shared/head.weight`, `client 3's head.bias`."""
    owner, _, path = name.partition("/")
    return f"{'the server' if owner == 'server' else owner}'s {path}"


def _distance(a: Tensor, b: Tensor) -> float:
    return float("inf") if a.shape != b.shape else (a.double() - b.double()).abs().max().item()
