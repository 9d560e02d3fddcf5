"""Checks of reproducibility: how clients are run, grouped or interrupted changes no number."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fedtune import tracing
from fedtune.conformance.cases import CheckedScenario, alike
from fedtune.conformance.check import Note, RunFailed, Violation, check
from fedtune.conformance.subject import Subject, WatchedRun, differences, in_words, numbers
from fedtune.conformance.watching import MessageLog
from fedtune.core import randomness
from fedtune.core.errors import Diverged, UserError
from fedtune.core.hyper import Hyperparameter, hyperparameters
from fedtune.core.trees import Executor, named, take
from fedtune.engine import stacked_code
from fedtune.engine.simulation import STATE
from fedtune.experiment import refusals
from fedtune.user_code import sources

HALVES, SHUFFLED = ((0, 1, 2), (3, 4)), ((1, 4), (0, 3), (2,))
EXECUTORS: tuple[Executor, ...] = ("stack", "loop")
BASE = ("finite", "inputs", "draws", "own state", "seed")
MEAN = 'use clients\' models through their plain mean alone, or write releases = "single"'


@check(
    "one program",
    "torch.func.vmap runs client code for all clients at once: no .item(), no `if tensor`, no boolean index",
    needs=("finite", "messages"),
)
def one_program(s: Subject) -> Violation | Note | None:
    """If it cannot, later checks run one client after the other."""
    if s.executor == "loop":
        return Note("not checked, because vmap cannot run the model")
    try:
        s.run(s.cases.few, executor="stack")
    except RunFailed:
        s.executor = "loop"
        raise
    return None


@check(
    "recorded",
    "steps that are recorded and run again give the same bits as the code, whatever ran in between",
    needs=(*BASE, "one program"),
)
def recorded_steps(s: Subject) -> Violation | Note | None:
    """Rounds under the defaults, under other values of every hyperparameter, and under the defaults once more."""
    if s.executor == "loop":
        return Note("not checked, because the model cannot be stacked")
    own, place = hyperparameters(s.cls), sources.of_class(s.cls)
    free = {n: _near(hp) for n, hp in own.items() if n not in (*s.values, *s.cls.structural)}
    changed = {n: value for n, value in free.items() if value is not None}
    tracing.forget()
    with tracing.eager():
        eager = [_trained(s, config) for config in ({}, changed)]
    for config, direct in (({}, eager[0]), (changed, eager[1]), ({}, eager[0])):
        recorded = _trained(s, config)
        if isinstance(recorded, UserError) or isinstance(direct, UserError):
            if not config:
                return Violation(place, str(recorded), PURE)
            continue  # these values cannot be combined
        if len(recorded.rows) != len(direct.rows):
            return Violation(place, "it diverges only when steps are recorded and run again", PURE)
        if difference := s.difference(recorded, direct, exact=True):
            return Violation(place, f"when steps are recorded and run again, {difference}", PURE)
        if reasons := [reason for g in recorded.sim.state.groups for reason in stacked_code.reasons(g.net)]:
            return Note(f"runs eagerly, as {reasons[0]}")
    return None


def _near(hp: Hyperparameter) -> Any:
    """Another value that costs about as much as the default: the next choice, one more, or a number a little larger."""
    if hp.choices:
        return next((v for v in hp.choices if v != hp.default), None)
    if hp.low is None or hp.high is None:
        return None
    start = hp.low if hp.default is None else hp.default
    larger = start + 1 if hp.integer else start * 1.5 or hp.low or (hp.low + hp.high) / 2
    return hp.check(larger if hp.low <= larger <= hp.high else hp.low)


PURE = "make client code depend only on its arguments and fields and change nothing, or remove pure = True"


def _trained(s: Subject, config: Mapping[str, Any]) -> WatchedRun | UserError:
    """A run of a few rounds, or until it diverges; the error, if its values cannot be combined."""
    try:
        run = WatchedRun(s.begin(s.cases.everyone, "stack", config=config), MessageLog(), s.cases.everyone)
        with suppress(Diverged):
            run.train(2)
    except UserError as error:
        return error
    return run


@check(
    "stack = loop",
    "clients that run stacked give the same numbers as clients that run one after the other",
    needs=(*BASE, "scores", "one program"),
)
def stack_equals_loop(s: Subject) -> Violation | Note | None:
    """In every case: optimisers, different sizes, BatchNorm, one client, different architectures."""
    if s.executor == "loop":
        return Note("not checked, because the model cannot be stacked")
    cases: list[tuple[CheckedScenario, Mapping[str, Any]]] = [
        (case, {}) for name, case in s.cases._asdict().items() if case and name not in ("mixed", "effects")
    ]
    if s.cases.mixed and s.fits_mixed():
        cases.append((s.cases.mixed, s.cls.for_mixed_models))
    for case, config in cases:
        stack, loop = (s.run(case, executor=executor, config=config) for executor in EXECUTORS)
        if overwritten := stack.spoiled | loop.spoiled:
            what = f"with {case.words}, a round changes {in_words(min(overwritten))} in the previous state"
            return Violation("", what, "copy it first")
        if difference := s.difference(stack, loop):
            place = sources.of_hook(s.cls, "upload", "loss", "predict")
            advice = "exclude padded rows with data.mask, and let no client's numbers depend on another client's"
            return Violation(place, f"with {case.words}, {difference}", advice)
    return None


@check("grouping", "the grouping of clients changes no number", needs=(*BASE, "stack = loop"))
def grouping(s: Subject) -> Violation | Note | None:
    """Clients in three shuffled groups, and in two, against all in one group."""
    for case, groups in ((s.cases.few, SHUFFLED), (s.cases.everyone, SHUFFLED), (s.cases.chance, HALVES)):
        one_group, regrouped = s.run(case), s.run(case, groups=groups)
        assert len(regrouped.sim.state.groups) == len(groups)
        if difference := s.difference(regrouped, one_group):
            place = sources.of_hook(s.cls, "broadcast", "deployed", "aggregate")
            what = f"with clients in {len(groups)} groups instead of one, {difference}"
            advice = "index the server's entries by `ids` and up['ids'], never by a client's position in the message"
            return Violation(place, what, advice)
    return None


@check("checkpoint", "a run resumed from its checkpoint equals the uninterrupted run, bit for bit", needs=BASE)
def checkpoint(s: Subject) -> Violation | Note | None:
    """Resumed after one round and after two; with unlike architectures after one."""
    cuts: list[tuple[CheckedScenario, Mapping[str, Any], int]] = [
        *((s.cases.few, {}, cut) for cut in (1, 2)),
        (s.cases.chance, {}, 1),
    ]
    if s.cases.mixed and s.fits_mixed():
        cuts.append((s.cases.mixed, s.cls.for_mixed_models, 1))
    for case, config, cut in cuts:
        whole = s.run(case, case.rounds + (case is s.cases.few), config=config)
        if difference := _resumed_difference(s, case, config, whole, cut):
            advice = "everything that changes must be a tensor in the server's entries or a client's"
            place = sources.of_hook(s.cls, "init", "aggregate")
            return Violation(place, f"resumed after round {cut}, {difference}", advice)
    return None


def _resumed_difference(
    s: Subject, case: CheckedScenario, config: Mapping[str, Any], whole: WatchedRun, cut: int
) -> str:
    """What differs in a fresh run that continues from another's checkpoint; "" if nothing."""
    sim = s.begin(case, config=config)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / STATE).write_bytes(whole.saved[cut - 1])
        try:
            sim.load(Path(folder))
        except Exception as error:
            text = " ".join(str(error).split())
            class_name = next((w for w in text.split() if "." in w and not w.startswith("(")), "")
            return f"the checkpoint does not load without running code: {class_name or text[:200]}"
    resumed = WatchedRun(sim, MessageLog(), case)
    if differing := differences(resumed.states[0], whole.states[cut]):
        return f"{in_words(min(differing))} differs from what was saved"
    resumed.train(len(whole.rows) - cut)
    remainder = WatchedRun(sim, resumed.tape, case)
    remainder.rows, remainder.states = whole.rows[cut:], whole.states[cut:]
    counted, wanted = sim.state.bytes, whole.sim.state.bytes
    counting = f"{counted} bytes are counted instead of {wanted}" if counted != wanted else ""
    return s.difference(resumed, remainder, exact=True) or counting


@check(
    "one mean",
    "if the server uses models through one plain mean, clipping that nobody meets changes no number",
    needs=BASE,
)
def one_mean(s: Subject) -> Violation | Note | None:
    """What `releases` says decides whether privacy of clients takes an algorithm."""
    if refusals.releases(s.cls) != "mean":
        return None
    case = s.cases.effects._replace(words="clients with equally many rows", make=alike)
    clipped = case._replace(scenario=case.scenario.override(privacy="client", update_clip=100.0))
    for executor in dict.fromkeys(("loop", s.executor)):
        plain, private = s.begin(case, executor), s.begin(clipped, executor, config={"update_noise": 0.0})
        for _ in range(case.rounds):
            plain.step(), private.step()
        if moved := differences(numbers(private.state), numbers(plain.state)):
            what = f"with privacy of clients, a bound that nobody reaches and no noise, {in_words(min(moved))} changes"
            return Violation(sources.of_hook(s.cls, "aggregate", "upload"), what, MEAN)
    alg, server, task = private.setup.algorithm, private.state.server, private.setup.task_in(case.rounds + 1)
    draws, ids = randomness.stream("one mean"), torch.arange(task.clients)
    shared = {
        n: torch.stack([t + 0.1 * torch.randn(t.shape, generator=draws).to(t) for _ in ids])
        for n, t in server["shared"].items()
    }
    up = {"shared": shared, "rows": torch.ones_like(ids), "ids": ids}
    mean = {n: t.double().mean(0, keepdim=True).to(t).expand_as(t) for n, t in shared.items()}
    found = [
        named(alg.aggregate(server, u, task)) for u in (up, up | {"shared": mean}, take(up, torch.cat([ids, ids])))
    ]
    for others, of in zip(found[1:], ("each model is replaced by their mean", "each upload comes twice"), strict=True):
        for n, t in found[0].items():
            if n not in others or not s._equal(others[n], t, max(1e-9, s.atol)):
                return Violation(sources.of_hook(s.cls, "aggregate"), f"if {of}, the server's {n} is another", MEAN)
    return None
