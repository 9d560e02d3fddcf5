"""A federated round: broadcast, local training, upload, aggregate.

State is everything there is: saving it is the checkpoint.  A round is of one run, or of several runs on as many seeds,
whose clients then work as one stack: see `seed_stack`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtune.core.draws import Draws, certain, streams_of
from fedtune.core.errors import Diverged, UserError
from fedtune.core.trees import Tree, for_each_client, named, take, tree_map
from fedtune.federated import client_code, seed_stack
from fedtune.federated.algorithm import DOWN, Algorithm, Client, Data, Model, Phase, draw
from fedtune.federated.chunks import Part, in_chunks, rows_of
from fedtune.federated.local_training import Done, Pool, train
from fedtune.federated.round import RunningRound, participants, require_finite
from fedtune.federated.seed_stack import SeedStack, Work, by_plan
from fedtune.federated.state import Group, Setting, State, start

__all__ = ["Group", "Setting", "State", "participants", "require_finite", "run_round", "run_rounds", "start"]

Address = tuple[str | int, ...]
Found = tuple[State, dict[str, Any]] | Diverged  # the new state and a row of metrics


def run_round(s: Setting, state: State) -> tuple[State, dict[str, Any]]:
    """Run the next round.  Returns the new state and the round's metrics (without evaluation).

    The given state is used up: where only some clients take part, their tensors are overwritten at the round's end.
    Raises Diverged as soon as a loss or a parameter is not finite.
    """
    (done,) = run_rounds(seed_stack.alone(s), {0: state}).values()
    if isinstance(done, Diverged):
        raise done
    return done


def run_rounds(seeds: SeedStack, states: Mapping[int, State]) -> dict[int, Found]:
    """The next round of several runs, whose clients work as one stack: of each run what `run_round` gives or raises.

    states: by the runs' places among the seeds; the runs have as many rounds behind them.
    """
    began = time.perf_counter()
    rounds = [RunningRound(i, seeds.settings[i], state, state.round + 1) for i, state in states.items()]
    plans = {r.run: tuple(r.s.algorithm.round(r.task)) for r in rounds}
    for plan, runs in by_plan(plans):
        for action in plan:
            here = [r for r in rounds if r.run in runs and not r.lost]
            if isinstance(action, Phase):
                _train(seeds, here, action)
            elif action == DOWN:
                for r in here:
                    r.send_down()
            else:
                _send_up(seeds, here)
    found = {r.run: r.end(states[r.run]) for r in rounds}
    seconds = (time.perf_counter() - began) / len(rounds)  # each run's share
    return {i: f if isinstance(f, Diverged) else (f[0], f[1] | {"seconds": seconds}) for i, f in found.items()}


def _train(seeds: SeedStack, rounds: Sequence[RunningRound], phase: Phase) -> None:
    """Local training of all clients that take part."""
    for i in _groups(rounds):
        here = [r for r in rounds if i in r.here and not r.lost]

        def code(s: Setting, g: Group, down: Tree) -> Done:
            return train_group(s, g, down, phase, ("train", rounds[0].t, rounds[0].phase), rounds[0].t)

        works = [Work(r.run, i, r.groups[i], r.down[i]) for r in here]
        for r, done in zip(here, seeds.run(works, code), strict=True):
            r.take_training(i, done)
    for r in rounds:
        r.end_phase()


def train_group(s: Setting, g: Group, down: Tree, phase: Phase, address: Address, t: int) -> Done:
    """One phase of local training of a group's clients in round t, with draws from their streams at the address."""
    cooled = s.scenario.lr_decay ** (t - 1)
    with client_code.running(g.executor):
        args = (phase, pool_of(s, g.ids), s.scenario, g.executor, s.streams(g.ids, *address), cooled, g.kept)
        return train(g.net, g.tensors, down, *args)


class _Known(NamedTuple):
    """What clients received and tallied, and what they know of themselves, with a client axis."""

    down: dict[str, Tree]
    tally: dict[str, Tree]
    client: Client


def _send_up(seeds: SeedStack, rounds: Sequence[RunningRound]) -> None:
    """The clients send and remember, and the servers take it in."""
    for i in _groups(rounds):
        here = [r for r in rounds if i in r.here and not r.lost]
        if not _says_something(rounds[0].s.algorithm):
            continue  # spare the pass over the data

        def code(s: Setting, g: Group, known: _Known) -> Tree:
            with client_code.running(g.executor):
                return _upload(s, g, known, rounds[0].t)

        works = [Work(r.run, i, r.groups[i], _Known(r.down[i], r.tallies[i], r.clients[i])) for r in here]
        for r, found in zip(here, seeds.run(works, code), strict=True):
            r.take_upload(i, found)
    for r in rounds:
        r.take_in()


def _groups(rounds: Sequence[RunningRound]) -> range:
    return range(len(rounds[0].groups) if rounds else 0)


def _says_something(algorithm: Algorithm) -> bool:
    """Whether its clients look at their rows when they send; what they share needs no pass over the data."""
    kind = type(algorithm)
    return kind.upload is not Algorithm.upload or kind.remember is not Algorithm.remember


@torch.no_grad()
def _upload(s: Setting, g: Group, known: _Known, t: int) -> dict[str, Tree]:
    """What the algorithm has the clients of a group send (`up`), and what they keep from now on (`kept`)."""
    g.net.eval()
    (down, tally, clients), alg = known, s.algorithm
    remembers = type(alg).remember is not Algorithm.remember
    streams = s.streams(g.ids, "upload", t)
    noise = [draw(alg.upload_noise(s.task), stream, (), s.dtype) for stream in streams]
    eps = tree_map(lambda *ts: torch.stack(ts).to(s.federation.x.device), noise[0], *noise[1:])

    def one(tensors: dict[str, Tensor], data: Data, received: dict[str, Tree]) -> dict[str, Tree]:
        m = Model(g.net, tensors)
        up = alg.upload(m, data, received) if type(alg).upload is not Algorithm.upload else {}
        return {"up": up, "kept": alg.remember(m, data, received) if remembers else {}}

    draws = Draws(_upload, g.net)

    def run(part: Part) -> dict[str, Tree]:
        draws.begin(lambda: streams_of([streams[i] for i in torch.arange(len(streams))[part]])())
        data = rows_of(s, s.federation.train, g, part)
        data = data._replace(eps=take(eps, part), tally=take(tally, part), client=take(clients, part))
        return for_each_client(one, g.executor, take(g.tensors, part), data, take(down, part), draws=draws)

    found = certain(lambda: in_chunks(g, s.federation.train, run), draws)
    kept = _of_the_form(g.kept, found["kept"], type(alg).__name__) if remembers else g.kept
    return found | {"kept": kept}


def _of_the_form(old: Tree, new: Tree, name: str) -> Tree:
    """What clients remember; UserError unless it has the form of what they kept."""

    def form(tree: Tree) -> list[str]:
        return sorted(f"{n} {str(v.dtype)[6:]} {list(v.shape[1:])}" for n, v in named(tree).items())

    a, b = form(old), form(new)
    if a != b:
        raise UserError(
            f"{name}.remember must return what {name}.keep does, of the same names, shapes and types: "
            f"{', '.join(a) or 'nothing'}; but got {', '.join(b) or 'nothing'}"
        )
    return new


def pool_of(s: Setting, ids: Tensor) -> Pool:
    f = s.federation
    return Pool(f.x, f.y, f.train.rows[ids], f.train.counts[ids], s.dtype)
