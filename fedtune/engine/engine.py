"""A federated round: broadcast, local training, upload, aggregate.

Clients of several seeds' runs may train as one stack: see `seed_stack`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedtune.core import metrics
from fedtune.core.errors import Diverged, UserError
from fedtune.core.trees import Size, Tree, is_shared, join, leaves, size, take, to_all, tree_map
from fedtune.data.federation import Federation, rows_by_class
from fedtune.engine import client_errors, oort
from fedtune.engine.batches import Pool
from fedtune.engine.client_errors import among
from fedtune.engine.clipping import Clipping
from fedtune.engine.clock import CLOCK, Clock
from fedtune.engine.cohort import ANSWER, Poll, participants
from fedtune.engine.local_training import PhaseResult, train
from fedtune.engine.seed_stack import SeedStack, Work, by_plan
from fedtune.engine.state import Group, RunSetup, State, no_steps, received
from fedtune.engine.uploads import ClientInputs, read, sends_from_rows, uploads
from fedtune.engine.wire import Codec, Context, Stage, residual, sizes, through
from fedtune.experiment import hooks, plans
from fedtune.experiment.algorithm import DOWN, UP, Phase, part_of
from fedtune.experiment.privacy import Privacy

Address = tuple[str | int, ...]
RoundResult = tuple[State, dict[str, Any]] | Diverged  # the new state and a row of metrics
Result = TypeVar("Result")


def run_rounds(
    seeds: SeedStack, states: Mapping[int, State], polls: Mapping[int, Poll] = MappingProxyType({})
) -> dict[int, RoundResult]:
    """The next round of several runs: of each the new state and metrics (without evaluation), or how it diverged.

    states: by the runs' positions among the seeds, all after the same round.  They are consumed: if only some clients
    take part, a state's tensors are overwritten at the end of the round.  polls: of runs that choose clients by loss.
    """
    began = time.perf_counter()
    rounds = [
        RunningRound(run=i, s=seeds.setups[i], state=state, t=state.round + 1, poll=polls.get(i))
        for i, state in states.items()
    ]
    for plan, runs in by_plan({r.run: r.plan for r in rounds}):
        for action in plan:
            active = [r for r in rounds if r.run in runs and not r.lost]
            if isinstance(action, Phase):
                _train(seeds, active, action)
            elif action == DOWN:
                for r in active:
                    r.send_down()
            else:
                _send_up(seeds, active)
    results = {r.run: r.end(states[r.run]) for r in rounds}
    seconds = (time.perf_counter() - began) / len(rounds)  # each run's share
    return {i: r if isinstance(r, Diverged) else (r[0], r[1] | {"seconds": seconds}) for i, r in results.items()}


def _train(seeds: SeedStack, rounds: Sequence[RunningRound], phase: Phase) -> None:

    def code(s: RunSetup, g: Group, down: Tree) -> PhaseResult:
        return train_group(s, g, down, phase, ("train", rounds[0].t, rounds[0].phase), rounds[0].t)

    def store(r: RunningRound, i: int, done: PhaseResult | Diverged) -> None:
        r.take_training(i, done, phase)

    _of_groups(seeds, rounds, code, lambda r, i: r.down[i], store)
    for r in rounds:
        r.phase += 1


def _send_up(seeds: SeedStack, rounds: Sequence[RunningRound]) -> None:
    """The clients send and update what they keep, and the servers aggregate."""

    def code(s: RunSetup, g: Group, inputs: ClientInputs) -> Tree:
        with client_errors.running(s, g, rounds[0].t):
            return uploads(s, g, inputs, rounds[0].t)

    if rounds and sends_from_rows(rounds[0].s.algorithm):  # else no pass over the data is needed
        _of_groups(seeds, rounds, code, RunningRound.inputs, RunningRound.take_upload)
    for r in rounds:
        r.take_in()


def _of_groups(
    seeds: SeedStack,
    rounds: Sequence[RunningRound],
    code: Callable[..., Tree],
    inputs: Callable[[RunningRound, int], Tree],
    store: Callable[[RunningRound, int, Any], None],
) -> None:
    """Run code for the clients that take part, one group after the other, and store its results in their rounds."""
    for i in range(len(rounds[0].groups) if rounds else 0):
        active = [r for r in rounds if i in r.active_groups and not r.lost]
        works = [Work(r.run, i, r.groups[i], inputs(r, i)) for r in active]
        for r, result in zip(active, seeds.run(works, code), strict=True):
            store(r, i, result)


def train_group(s: RunSetup, g: Group, down: Tree, phase: Phase, address: Address, t: int) -> PhaseResult:
    """One phase of local training for a group's clients in round t; draws come from their streams at this address."""
    cooled, f = s.scenario.lr_decay ** (t - 1), s.federation
    plans.require_parts(s.algorithm, phase, g.net)
    with client_errors.running(s, g, t):
        if phase.read:
            g = g._replace(tensors=g.tensors | read(s, g, down, phase.read, s.streams(g.ids, *address)))
        pool = Pool(f.x, f.y, f.train.rows[g.ids], f.train.counts[g.ids], s.dtype)
        args = (phase, pool, s.scenario, g.executor, s.streams(g.ids, *address), cooled, g.kept)
        with among(g.ids):
            return train(g.net, g.tensors, down, *args, rows_by_class(f, g.ids))


def stages(s: RunSetup) -> tuple[Stage, ...]:
    """What uploads pass, in this order: a codec, clipping with its noise; () if both are off."""
    private = Privacy.of(s.scenario)
    return (*[Codec()] * (s.scenario.compress != "none"), *([Clipping(private)] if private else []))


class RunningRound:
    """A round in progress: the server's entries, and its clients with what they received and tallied last."""

    def __init__(self, *, run: int, s: RunSetup, state: State, t: int, poll: Poll | None = None) -> None:
        """Select the clients of round t from each group.  run: its position among the seeds; poll: who was chosen."""
        self.run, self.s, self.t, self.task, self.server = run, s, t, s.task_in(t), state.server
        self.plan = plans.plan(s.algorithm, self.task)
        waits = UP in self.plan  # else nobody can be lost or late, and there is no first to answer
        self.poll = poll = poll or Poll(participants(s, t, s.scenario.over_ask if waits else 1.0))
        self.clock = Clock(s=s, t=t, asked=poll.asked, waits=waits, polling=poll.seconds) if s.devices else None
        self.awaited = waits and self.clock is not None  # whether it is still open who is taken
        self.positions = [torch.isin(g.ids, poll.asked).nonzero()[:, 0] for g in state.groups]
        self.groups = [g.at(index) for g, index in zip(state.groups, self.positions, strict=True)]
        self.active_groups = [i for i, g in enumerate(self.groups) if len(g.ids)]
        self.down: list[dict[str, Tree]] = [{} for _ in self.groups]
        self.tallies: list[dict[str, Tree]] = [{} for _ in self.groups]
        self.kept = [g.kept for g in self.groups]  # replaced by what `remember` returns
        # what client code knows about its client; no step is made before the round's first phase
        self.clients = [
            no_steps(s, g.net, g.ids)._replace(kept=g.kept, counts=rows_by_class(s.federation, g.ids))
            for g in self.groups
        ]
        self.ups: dict[int, dict[str, Tree]] = {}  # per group, until the server has aggregated it
        self.up_size, self.down_size = poll.up, poll.down
        self.losses: dict[int, Tensor] = {}  # of the first phase, per group
        self.phase = 0  # counts training phases only, so that draws do not depend on what is exchanged
        self.extra = dict(state.extra)
        self.row: dict[str, float | None] = {}  # columns of what happens on the wire
        self.lost: Diverged | None = None  # how it diverged

    @contextmanager
    def until_lost(self) -> Iterator[None]:
        """Record if the run diverges here; the rest of the round is then skipped."""
        try:
            yield
        except Diverged as error:
            self.lost = error

    def send_down(self) -> None:
        """The server sends, and clients replace the tensors that they receive."""
        with self.until_lost():
            for i in self.active_groups:
                g = self.groups[i]
                self.down[i] = hooks.broadcast(self.s.algorithm, "broadcast", self.server, g.ids, self.task)
                self.down_size = self.down_size.plus(size(self.down[i]))
                self.groups[i] = g._replace(tensors=received(self.s, g, self.down[i]))
                if self.clock:
                    self.clock.receives(g.ids, self.down[i])
            self._leave_out_lost()

    def take_training(self, i: int, done: PhaseResult | Diverged, phase: Phase) -> None:
        """Store the result of a phase for a group's clients."""
        with self.until_lost():
            done = undiverged(done)
            g, frozen = self.groups[i], self.s.scenario.frozen
            moved = {n: t for n, t in done.tensors.items() if part_of(n) not in frozen}  # frozen tensors stay views
            self.groups[i] = g._replace(tensors=g.tensors | moved)
            self.losses |= {} if self.phase else {i: done.losses}
            self.tallies[i], self.clients[i] = done.tally or self.tallies[i], done.client
            if self.clock:
                self.clock.trains(g.ids, phase, done.steps)
            require_finite(self.t, self.s.federation, g.ids, done.losses, {}, {})

    def only(self, ids: Tensor) -> None:
        """Go on with these clients: it is as if the others had not taken part, but for what was sent."""
        for i in self.active_groups:
            g = self.groups[i]
            index = torch.isin(g.ids, ids).nonzero()[:, 0]
            self.positions[i], self.groups[i] = self.positions[i][index], g.at(index)
            stores: tuple[Any, ...] = self.kept, self.down, self.tallies, self.clients
            for store in (*stores, *([self.ups] if i in self.ups else [])):
                store[i] = take(store[i], index)
            if i in self.losses:
                self.losses[i] = self.losses[i][index.to(self.losses[i].device)]
        self.active_groups = [i for i in self.active_groups if len(self.groups[i].ids)]

    def _leave_out_lost(self) -> None:
        """Clients that are lost receive, and are not heard of again."""
        if self.clock and self.awaited and len(self.clock.lost):
            self.only(self.ids[~torch.isin(self.ids, self.clock.lost)])

    @property
    def ids(self) -> Tensor:
        """The clients that still take part, group by group."""
        return torch.cat([g.ids for g in self.groups])

    def inputs(self, i: int) -> ClientInputs:
        """What a group's clients received and tallied."""
        return ClientInputs(self.down[i], self.tallies[i], self.clients[i])

    def take_upload(self, i: int, result: dict[str, Tree] | Diverged) -> None:
        """Store what a group's clients send and keep."""
        with self.until_lost():
            result = undiverged(result)
            self.ups[i], self.kept[i] = result["up"], result["kept"]

    def take_in(self) -> None:
        """The server aggregates the uploads of those who are taken, in the order of client numbers."""
        if self.lost:
            return
        self._leave_out_lost()
        private = self.s.scenario.privacy == "client" and bool(self.s.algorithm.shared)
        for i in self.active_groups:
            self.ups[i] = self._sent(i, private)
        if self.clock and self.awaited:
            taken, self.awaited = self.clock.taken(self.ids.sort().values), False
            if len(taken) < len(self.ids):
                self.only(taken)
        ups, self.ups, chain = [self.ups[i] for i in self.active_groups], {}, stages(self.s)
        if not ups and not private:
            return
        ids = self.ids
        with self.until_lost():
            if chain and (private or self.s.scenario.privacy == "none"):
                uploads = self._over_wire(chain, ups, ids)
            else:
                uploads = take(join(ups) | {"ids": ids}, ids.argsort())
            entries = self.s.algorithm.aggregate(self.server, uploads, self.task)
            self.server = hooks.entries(self.s.algorithm, "aggregate", entries, self.server)

    def _sent(self, i: int, private: bool) -> dict[str, Tree]:
        """What a group's clients send; bytes and time count of those who send in vain, too."""
        g, up = self.groups[i], self.ups.get(i, {})
        if self.s.algorithm.shared:
            rows = self.s.federation.train.counts[g.ids]
            up = {"shared": {n: g.tensors[n] for n in self.server["shared"]}, "rows": rows} | up
        if private:
            up = {"shared": up["shared"]}  # the server gets models and nothing else
        sent, of_each = sizes(self.s, up, len(g.ids))
        if self.awaited and self.poll.utility is not None:
            sent, of_each = sent.plus(Size(len(g.ids), 0, ANSWER * len(g.ids))), of_each + ANSWER
        self.up_size = self.up_size.plus(sent)
        if self.clock:
            self.clock.sends(g.ids, of_each)
        return up

    def _over_wire(self, chain: tuple[Stage, ...], ups: list[dict[str, Tree]], ids: Tensor) -> dict[str, Tree]:
        """The uploads after all stages.  ids: the clients, group by group.

        With privacy the server gets models and nothing else; if nobody took part, its own one with the round's noise.
        Diverged before any stage if a model is not finite: it would spoil the others.
        """
        if "update_clip" in self.row:
            raise UserError("privacy=client counts one upload in a round, but there are two; send all of it in one")
        order = ids.argsort()
        if ups:
            down = take(join([self.down[i].get("shared", {}) for i in self.active_groups]), order)
            uploads = take(join(ups), order)
            require_finite(self.t, self.s.federation, ids[order], torch.zeros(1), uploads.get("shared", {}), {})
        else:
            down = to_all(self.server["shared"], 1)
            uploads, chain = {"shared": down}, chain[-1:]
        wire = take(join([g.wire for g in self.groups]), order)
        ctx = Context(self.s, self.t, ids[order], self.extra, wire, self.row)
        uploads = through(chain, uploads, down, ctx)
        if self.s.scenario.privacy == "client":
            uploads["rows"] = torch.ones(max(1, len(ids)), dtype=ids.dtype, device=ids.device)
        places = order.argsort().split([len(g.ids) for g in self.groups])
        self.groups = [g._replace(wire=take(wire, at)) for g, at in zip(self.groups, places, strict=True)]
        return uploads | {"ids": ids[order]}

    def end(self, state: State) -> tuple[State, dict[str, Any]] | Diverged:
        """The new state and the round's metrics, or how it diverged."""
        with self.until_lost():
            if not self.lost:
                self._require_finite()
        if self.lost:
            return self.lost
        total = state.bytes + self.up_size.bytes + self.down_size.bytes
        losses = [self.losses[i] for i in self.active_groups if i in self.losses]  # nobody may have trained
        row = {"train_loss": torch.cat(losses).mean().item() if losses else None}
        row |= metrics.communication(self.up_size, self.down_size, total) | self.row
        if self.clock:
            row |= self.clock.columns(self.ids, float(self.extra.get(CLOCK, 0.0)))
            self.extra[CLOCK] = torch.tensor(row["sim_seconds"], dtype=torch.float64)
            if self.poll.utility is not None:
                of_asked, taken = (self.poll.asked.cpu(), self.poll.utility.cpu()), self.ids.cpu().sort().values
                known = oort.arms(self.extra, self.task.clients)
                self.extra[oort.ARMS] = oort.learnt(known, self.t, *of_asked, taken, self.clock.spent)
        row |= hooks.reported(self.s.algorithm, self.s.algorithm.report(self.server))
        groups = self._merged(state.groups)
        return State(self.server, groups, self.t, total, self.extra), row | residual(groups)

    def _require_finite(self) -> None:
        """Diverged unless all parameters, all that clients keep and all server entries are finite."""
        for i in self.active_groups:
            g = self.groups[i]
            require_finite(self.t, self.s.federation, g.ids, torch.zeros(1), g.tensors, self.kept[i])
        lost = [n for n, tree in self.server.items() if not all(v.isfinite().all() for v in leaves(tree))]
        if lost:
            raise Diverged(f"diverged in round {self.t}: the server's {', '.join(lost)} became NaN or infinite")

    def _merged(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        return tuple(
            old._replace(
                tensors=_back(old.tensors, index, g.tensors),
                kept=_back(old.kept, index, kept),
                wire=_back(old.wire or _zeros(g.wire, len(old.ids)), index, g.wire),
            )
            for old, index, g, kept in zip(groups, self.positions, self.groups, self.kept, strict=True)
        )


def _zeros(tree: Tree, clients: int) -> Tree:
    """The same tree for so many clients, all zeros."""
    return tree_map(lambda t: t.new_zeros(clients, *t.shape[1:]), tree)


def _back(old: Tree, at: Tensor, new: Tree) -> Tree:
    """Replace some clients' tensors in a group, in place, so that clients that do not take part cost nothing.

    Only frozen tensors stay shared; those that all clients of a group received and keep untrained are copied here.
    """
    if isinstance(old, dict):
        return {n: _back(t, at, new[n]) for n, t in old.items()}
    if isinstance(old, tuple):
        return type(old)(*(_back(*pair) for pair in zip(old, [at] * len(old), new, strict=True)))
    if is_shared(old):
        return old
    if len(at) < len(old):
        return old.index_copy_(0, at, new)
    return new.clone() if is_shared(new) else new


def require_finite(t: int, f: Federation, ids: Tensor, losses: Tensor, tensors: Tree, kept: Tree) -> None:
    """Diverged, with round and clients, unless every loss [K_g], every parameter and every kept value is finite."""
    fine = {"loss": losses.isfinite().to(ids.device).expand(len(ids))}
    for name, tree in (("parameters", tensors), ("memory", kept)):
        reals = [v.reshape(len(v), -1).isfinite().all(1) for v in leaves(tree) if v.is_floating_point()]
        fine[name] = torch.stack(reals).all(0) if reals else fine["loss"]
    for name, ok in fine.items():
        if not ok.all():
            ids_lost = ids[~ok].tolist()
            whose = f"{f.who(ids_lost[0])}'s {name}"
            if len(ids_lost) > 1:
                whose = f"the {name} of {len(ids_lost)} clients ({f.some(ids_lost)})"
            raise Diverged(f"diverged in round {t}: {whose} became NaN or infinite")


def undiverged(result: Result | Diverged) -> Result:
    """The result; raises it if it is Diverged."""
    if isinstance(result, Diverged):
        raise result
    return result
