"""Checks of reproducibility: how clients are run, grouped or interrupted changes no number."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtune import tracing
from fedtune.conformance.check import Note, RunFailed, Violation, check
from fedtune.conformance.settings import CheckedScenario
from fedtune.conformance.subject import CLOCK, Subject, WatchedRun, apart, copied, in_words, numbers
from fedtune.conformance.watching import MessageLog
from fedtune.core.errors import Diverged, UserError
from fedtune.core.hyper import Hyperparameter, hyperparameters
from fedtune.core.trees import Executor
from fedtune.engine import stacked_step
from fedtune.user_code import sources

HALVES, SHUFFLED = ((0, 1, 2), (3, 4)), ((1, 4), (0, 3), (2,))
EXECUTORS: tuple[Executor, ...] = ("stack", "loop")
BASE = ("finite", "inputs", "draws", "own state", "seed")


@check(
    "one program",
    "torch.func.vmap runs client code for all clients at once: no .item(), no `if tensor`, no boolean index",
    needs=("finite", "messages"),
)
def one_program(s: Subject) -> Violation | Note | None:
    """torch.func.vmap runs it, or says where it cannot; later checks then run one client after the other."""
    if s.executor == "loop":
        return Note("not checked, because vmap cannot run the model")
    try:
        s.run(s.settings.few, executor="stack")
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
    others: dict[str, Any] = {}
    for name, hp in hyperparameters(s.cls).items():
        if name not in (*s.values, *s.cls.structural) and (value := _near(hp)) is not None:
            others[name] = value
    tracing.forget()
    with tracing.eager():
        eager = _trained(s, {})[0], _trained(s, others)[0]
    for config, plain in (({}, eager[0]), (others, eager[1]), ({}, eager[0])):
        recorded, why = _trained(s, config)
        if isinstance(recorded, UserError) or isinstance(plain, UserError):
            if not config:
                return Violation(sources.of_class(s.cls), str(recorded), PURE)
            continue  # hyperparameters that do not go together
        if len(recorded) != len(plain):
            return Violation(sources.of_class(s.cls), "it diverges only when steps are recorded and run again", PURE)
        if moved := [t for t, (a, b) in enumerate(zip(recorded, plain, strict=True), 1) if apart(a, b)]:
            what = f"in round {moved[0]} {in_words(min(apart(recorded[moved[0] - 1], plain[moved[0] - 1])))} differs"
            return Violation(sources.of_class(s.cls), f"{what} when steps are recorded and run again", PURE)
        if why:
            return Note(f"runs eagerly, as {why}")
    return None


def _near(hp: Hyperparameter) -> Any:
    """Another value that costs about as much as the default: the next choice, one more, or a number a little larger."""
    if hp.choices:
        return next((v for v in hp.choices if v != hp.default), None)
    if hp.low is None or hp.high is None:
        return None
    start = hp.low if hp.default is None else hp.default
    more = start + 1 if hp.integer else start * 1.5 or hp.low or (hp.low + hp.high) / 2
    return hp.check(more if hp.low <= more <= hp.high else hp.low)


PURE = "make client code depend only on its arguments and fields and change nothing, or remove pure = True"


def _trained(s: Subject, config: Mapping[str, Any]) -> tuple[list[dict[str, Tensor]] | UserError, str]:
    """The states after each of a few rounds with their rows' metrics, and why steps ran eagerly."""
    states: list[dict[str, Tensor]] = []
    try:
        sim = s.begin(s.settings.everyone, executor="stack", config=config)
        for _ in range(2):
            row = sim.step()
            told = {f"row/{n}": torch.tensor(v) for n, v in row.items() if n not in CLOCK and v is not None}
            states.append(copied(numbers(sim.state)) | told)
    except Diverged:
        return states, ""
    except UserError as error:
        return error, ""
    why = [why for group in sim.state.groups for why in stacked_step.reasons(group.net)]
    return states, why[0] if why else ""


@check(
    "stack = loop",
    "clients that run stacked give the same numbers as clients that run one after the other",
    needs=(*BASE, "scores", "one program"),
)
def stack_equals_loop(s: Subject) -> Violation | Note | None:
    """In settings of every kind: optimisers, different sizes, BatchNorm, one client, different architectures."""
    if s.executor == "loop":
        return Note("not checked, because the model cannot be stacked")
    settings: list[tuple[CheckedScenario, Mapping[str, Any]]] = [
        (setting, {}) for name, setting in s.settings._asdict().items() if setting and name not in ("mixed", "effects")
    ]
    if s.settings.mixed and s.fits_mixed():
        settings.append((s.settings.mixed, s.cls.for_mixed_models))
    for setting, config in settings:
        stack, loop = (s.run(setting, executor=how, config=config) for how in EXECUTORS)
        if spoiled := stack.spoiled | loop.spoiled:
            what = f"with {setting.words}, a round changes {in_words(min(spoiled))} in the previous state"
            return Violation("", what, "copy it first")
        if said := s.difference(stack, loop):
            return Violation(
                sources.of_hook(s.cls, "upload", "loss", "predict"),
                f"with {setting.words}, {said}",
                "exclude padded rows with data.mask, and let no client's numbers depend on another client's",
            )
    return None


@check("grouping", "the grouping of clients changes no number", needs=(*BASE, "stack = loop"))
def grouping(s: Subject) -> Violation | Note | None:
    """Clients in three shuffled groups, and in two, against all in one group."""
    for setting, groups in ((s.settings.few, SHUFFLED), (s.settings.everyone, SHUFFLED), (s.settings.chance, HALVES)):
        whole, split = s.run(setting), s.run(setting, groups=groups)
        assert len(split.sim.state.groups) == len(groups)
        if said := s.difference(split, whole):
            return Violation(
                sources.of_hook(s.cls, "broadcast", "deployed", "aggregate"),
                f"with clients in {len(groups)} groups instead of one, {said}",
                "index the server's entries by `ids` and up['ids'], never by a client's position in the message",
            )
    return None


@check("checkpoint", "a run resumed from its checkpoint equals the uninterrupted run, bit for bit", needs=BASE)
def checkpoint(s: Subject) -> Violation | Note | None:
    """Resumed after one round and after two; with unlike architectures after one."""
    cuts: list[tuple[CheckedScenario, Mapping[str, Any], int]] = [
        (s.settings.few, {}, 1),
        (s.settings.few, {}, 2),
        (s.settings.chance, {}, 1),
    ]
    if s.settings.mixed and s.fits_mixed():
        cuts.append((s.settings.mixed, s.cls.for_mixed_models, 1))
    for setting, config, cut in cuts:
        whole = s.run(setting, setting.rounds + (setting is s.settings.few), config=config)
        rest, said = _resumed(s, setting, config, whole, cut)
        if not said:
            rest.train(len(whole.rows) - cut)
            tail = WatchedRun(rest.sim, rest.tape, setting)
            tail.rows, tail.states = whole.rows[cut:], whole.states[cut:]
            said = s.difference(rest, tail, exact=True)
            if not said and rest.sim.state.bytes != whole.sim.state.bytes:
                said = f"{rest.sim.state.bytes} bytes are counted instead of {whole.sim.state.bytes}"
        if said:
            return Violation(
                sources.of_hook(s.cls, "init", "aggregate"),
                f"resumed after round {cut}, {said}",
                "everything that changes must be a tensor in the server's entries or a client's",
            )
    return None


def _resumed(
    s: Subject, setting: CheckedScenario, config: Mapping[str, Any], whole: WatchedRun, cut: int
) -> tuple[WatchedRun, str]:
    """A fresh run that continues from another's checkpoint, and any error at loading."""
    sim = s.begin(setting, config=config)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.pt"
        file.write_bytes(whole.saved[cut - 1])
        try:
            torch.load(file, weights_only=True)
            sim.load(file)
        except Exception as error:
            said = " ".join(str(error).split())
            kind = next((w for w in said.split() if "." in w and not w.startswith("(")), "")
            return WatchedRun(
                sim, MessageLog(), setting
            ), f"the checkpoint does not load without running code: {kind or said[:200]}"
    run = WatchedRun(sim, MessageLog(), setting)
    run.states = [copied(numbers(sim.state))]
    lost = apart(run.states[0], whole.states[cut])
    return run, f"{in_words(min(lost))} differs from what was saved" if lost else ""
