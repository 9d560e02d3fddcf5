"""Checks of communication: what is declared is sent, and data stays with its client."""

from __future__ import annotations

from typing import Any

import torch

from fedtune.conformance.check import Note, Violation, check
from fedtune.conformance.subject import Subject, WatchedRun, differences, in_words
from fedtune.core.trees import named
from fedtune.experiment.algorithm import Algorithm
from fedtune.user_code import sources

ROUNDS = 4


@check("messages", "clients receive and send what is declared, with the client axis in front", needs=("finite",))
def messages(s: Subject) -> Violation | Note | None:
    """Every message of four rounds in which three of four clients take part."""
    run = s.run(s.cases.holders, ROUNDS, "loop")
    alg, tape = run.sim.setup.algorithm, run.tape
    declared, sent = {*alg.sends, *(["shared"] if alg.shared else [])}, set().union(*(m.content for m in tape.down))
    if extra := sorted(sent - declared):
        place = sources.of_hook(s.cls, "broadcast")
        return Violation(place, f"`broadcast` sends {extra[0]}, which is not declared", f"name it: sends = {extra}")
    if unsent := sorted(declared - sent):
        what = f"{unsent[0]} is declared in `sends`, but no client receives it"
        return Violation(sources.of_name(s.cls, "sends"), what, "remove it from `sends`, or send it in `broadcast`")
    for hook, exchanges in (("broadcast", tape.down), ("upload", tape.up)):
        for message, name, t in ((m, n, t) for m in exchanges for n, t in named(m.content).items()):
            if t.shape[:1] != (len(message.ids),):
                what = f"{name} has shape {tuple(t.shape)} for {len(message.ids)} clients"
                advice = "the first axis of every message must be the client axis: see `to_all` in fedtune.core.trees"
                return Violation(sources.of_hook(s.cls, hook), what, advice)
    return None


@check(
    "rows stay home",
    "no message contains a client's data, and validation and test data train nothing",
    needs=("finite", "seed"),
)
def rows_stay_home(s: Subject) -> Violation | Note | None:
    """Search messages for rows; then run with other validation and test rows, and other clients' rows."""
    run = s.run(s.cases.holders, ROUNDS, "loop")
    if name := _rows_in(run):
        what = f"`upload` sends the client's own rows in {name}"
        return Violation(sources.of_hook(s.cls, "upload"), what, "send statistics instead")
    sender = run.tape.up[0].ids[0] if run.tape.up else 0
    if _first_message(run) != _first_message(_with_other_rows(s, ("train",), sender)):
        place = sources.of_hook(s.cls, "upload", "loss")
        return Violation(place, "a client's first message depends on another client's rows", "use its own rows only")
    splits = ("test",) if s.cls.observe is not Algorithm.observe else ("val", "test")
    if moved := differences(_with_other_rows(s, splits).states[-1], run.states[2]):
        advice = "train on `batch` and `data` only; the server gets validation scores in `observe`"
        what = f"{in_words(min(moved))} depends on validation or test rows"
        return Violation(sources.of_hook(s.cls, "predict", "deployed"), what, advice)
    return None


def _rows_in(run: WatchedRun) -> str:
    """The first entry of an upload that holds a row of its client; "" if none does."""
    f = run.sim.setup.federation
    if not f.x.is_floating_point():
        return ""  # tokens are small whole numbers, as counts are
    for message in run.tape.up:
        for name, leaf in named(message.content).items():
            if not leaf.is_floating_point():
                continue
            for k, mine in zip(message.ids, leaf, strict=True):
                rows = f.x[f.train.rows[k, : int(f.train.counts[k])]].flatten(1)
                n = rows.shape[1]
                if mine.numel() >= n and int(torch.isin(mine, rows[rows != 0]).sum()) >= max(2, n // 2):
                    return name
    return ""


def _with_other_rows(s: Subject, splits: tuple[str, ...], but: int = -1) -> WatchedRun:
    """Two rounds with other rows in these splits, except those of one client."""
    case = s.cases.holders

    def make(scenario: Any, seed: int) -> Any:
        f = case.make(scenario, seed)
        x = f.x.copy()
        for split in splits:
            table = getattr(f, split)
            for k in set(range(f.clients)) - {but}:
                rows = table.rows[k, : table.counts[k]]
                x[rows] = x[rows][..., ::-1]
        return f._replace(x=x)

    words = f"{case.words}, other {' and '.join(splits)} rows"
    return s.run(case._replace(words=words, make=make), 2, "loop")


def _first_message(run: WatchedRun) -> list[bytes]:
    """What a client sent before any other message, bit for bit."""
    first = next((message.content for message in run.tape.up if message.t <= 2), {})
    return [t[0].contiguous().numpy().tobytes() for t in named(first).values()]
