"""Evaluation: the accuracy of the clients' models, or of the one global model, on validation and test rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core import metrics
from fedtune.core.draws import Draws, certain
from fedtune.core.errors import Diverged
from fedtune.core.trees import Tree, join, leaves, take, tree_map
from fedtune.data.federation import Split, classes_held
from fedtune.engine import client_errors, seed_stack
from fedtune.engine.adaptation import adapt_all
from fedtune.engine.blame import among
from fedtune.engine.chunks import Part, over_rows
from fedtune.engine.seed_stack import SeedStack, Work, one_after_another
from fedtune.engine.stacked_rows import StackedRows
from fedtune.engine.state import Group, RunSetup, State, received
from fedtune.experiment import hooks, user_metrics
from fedtune.experiment.algorithm import Data, Model


class Scored(NamedTuple):
    """An evaluation's result: the metrics, and columns with an entry per scored client."""

    row: dict[str, float]
    clients: dict[str, Tensor]  # client; and for each split SPLIT_rows, SPLIT_acc and the user's own metrics


class Scores(NamedTuple):
    """What models predict for the rows of some clients."""

    # per client: correct rows of each head; for the first head the summed loss and counts by class (`_counts`)
    sums: dict[str, Tree]
    each: dict[
        int, tuple[Tensor, Tensor]
    ]  # if the user's own metrics need them: each client's scores and labels, without padding


_TOLD: WeakKeyDictionary[nn.Module, None] = WeakKeyDictionary()  # nets whose `predict` uses what clients keep


class _Accessed(BaseException):
    """Client code uses what its client keeps, which was not passed in because that costs time.  It is not an error."""


class _Untold(Model):
    """A model whose client's kept state is not passed in until it is used."""

    @property
    def kept(self) -> dict[str, Any]:
        """Not available yet."""
        raise _Accessed


Deployed = Callable[[Tensor, Tensor], dict[str, Tree]]


def evaluate(s: RunSetup, state: State, splits: tuple[str, ...] = ("val", "test")) -> dict[str, float]:
    """The metrics of the clients' models on these splits, without the table of clients that `score` also returns."""
    return score(s, state, splits).row


def score(s: RunSetup, state: State, splits: tuple[str, ...] = ("val", "test")) -> Scored:
    """Metrics of the scored clients on their validation and test rows, by the scenario's evaluation rule.

    A client's model consists of its own parts and the shared ones that it would receive now, trained by the algorithm's
    `adapt` if it has one.  Raises Diverged.
    """
    (found,) = score_all(seed_stack.alone(s), {0: state}, splits).values()
    if isinstance(found, Diverged):
        raise found
    return found


@torch.no_grad()
def score_all(
    seeds: SeedStack, states: Mapping[int, State], splits: tuple[str, ...] = ("val", "test")
) -> dict[int, Scored | Diverged]:
    """Score several runs, given by their positions among the seeds; their clients are evaluated as one stack."""
    first = seeds.setups[next(iter(states))]
    if first.metrics:  # the user's own metrics are computed for one run after the other
        seeds = SeedStack(seeds.setups)
    ready = adapt_all(seeds, states, {i: _scored_groups(seeds.setups[i], state) for i, state in states.items()})
    found: dict[int, Scored | Diverged] = {i: g for i, g in ready.items() if isinstance(g, Diverged)}
    groups = {i: g for i, g in ready.items() if not isinstance(g, Diverged)}
    wanted = (*splits, "all") if "test" in splits and first.everywhere else splits
    scores = {split: _scores(seeds, states, groups, split) for split in wanted}
    for i, of in groups.items():
        found[i] = _summed(seeds.setups[i], of, {split: scores[split][i] for split in wanted})
    return {i: found[i] for i in states}


def _scored_groups(s: RunSetup, state: State) -> dict[int, Group]:
    """The scored clients, by the positions of their groups."""
    ids = s.scored_clients()
    if len(ids) == s.task.clients:
        return dict(enumerate(state.groups))
    at = {i: torch.isin(g.ids, ids).nonzero()[:, 0] for i, g in enumerate(state.groups)}
    return {i: state.groups[i].at(a) for i, a in at.items() if len(a)}


def _summed(s: RunSetup, groups: Mapping[int, Group], scores: Mapping[str, list[Scores]]) -> Scored:
    """A run's metrics.  scores: of each group, for each split and for the rows of all classes."""
    row: dict[str, float] = {}
    ids = s.scored_clients()
    clients = {"client": ids}
    for split in (n for n in scores if n != "all"):
        table: Split = getattr(s.federation, split)
        found = _in_order(groups, [of.sums for of in scores[split]])
        each = {k: rows for of in scores[split] for k, rows in of.each.items()}
        rows = table.counts[ids]
        clients |= {f"{split}_rows": rows, f"{split}_acc": next(iter(found["correct"].values())).double() / rows}
        of_own, values = _own(s, split, {k: each[k] for k in ids.tolist()} if s.metrics else {})
        clients |= values
        if s.scenario.evaluation == "pooled":  # one global model: all clients' rows as one test set
            found, rows = tree_map(lambda t: t.sum(0, keepdim=True), found), rows.sum()[None]
        row |= metrics.accuracy(split, found["correct"], rows, s.task.clients)
        row[f"{split}_loss"] = (found["loss"] / rows).mean().item()
        row |= metrics.by_class(split, found["counts"]) | of_own
    if s.everywhere and "all" in scores:
        correct = torch.cat([next(iter(of.sums["correct"].values())) for of in scores["all"]])
        row["test_acc_all"] = (correct.double() / s.everywhere.counts[ids]).mean().item()
        counts = _in_order(groups, [of.sums["counts"] for of in scores["all"]])
        row |= metrics.on_foreign(counts, classes_held(s.federation)[ids])
    return Scored(row, clients)


def _own(
    s: RunSetup, split: str, each: Mapping[int, tuple[Tensor, Tensor]]
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The values of the user's metrics by the scenario's rule, and per client. each: a client's scores and labels."""
    row: dict[str, float] = {}
    clients: dict[str, Tensor] = {}
    ids, rows = list(each), list(each.values())
    for metric in s.metrics:
        values = user_metrics.one_each(metric, rows, lambda i: s.federation.who(ids[i]))
        clients[f"{split}_{metric.name}"] = values
        if s.scenario.evaluation == "pooled":
            scores, y = (torch.cat(both) for both in zip(*rows, strict=True))
            values = user_metrics.one_each(metric, [(scores, y)])
        row |= user_metrics.spread(metric, split, values)
    return row, clients


def _scores(
    seeds: SeedStack, states: Mapping[int, State], groups: Mapping[int, Mapping[int, Group]], split: str
) -> dict[int, list[Scores]]:
    """For each run, the scores of each group's clients on a split's rows.  groups: of each run, by position."""

    def deployed(ids: Tensor, runs: Tensor) -> dict[str, Tree]:
        """What clients would receive in the next round, from their own run's server."""
        found = []
        for i in dict.fromkeys(runs.tolist()):
            s, mine = seeds.setups[i], ids[runs == i] % seeds.setups[i].task.clients
            task = s.task_in(states[i].round + 1)
            found.append(hooks.broadcast(s.algorithm, "deployed", states[i].server, mine, task))
        return one_after_another(found)

    t = next(iter(states.values())).round
    found: dict[int, list[Scores]] = {i: [] for i in groups}
    for place in dict.fromkeys(place for of in groups.values() for place in of):
        here = {i: of[place] for i, of in groups.items() if place in of}
        works = [Work(i, place, g, torch.full_like(g.ids, i)) for i, g in here.items()]
        scores = seeds.run(works, lambda s, g, runs: _of_group(s, g, runs, deployed, split, t))
        for i, of in zip(here, scores, strict=True):
            if isinstance(of, Diverged):  # raised by a user's code, because predictions are not checked
                raise of
            found[i].append(of)
    return found


def _of_group(s: RunSetup, g: Group, runs: Tensor, deployed: Deployed, split: str, t: int) -> Scores:
    """The scores of clients on a split's rows after round t.  runs [k]: the position of each client's run."""
    g.net.eval()
    table: Split | None = s.everywhere if split == "all" else getattr(s.federation, split)
    assert table
    adapts, each = bool(s.algorithm.adapt(s.task_in(t + 1))), {}
    draws, of_each = Draws(_of_group, g.net), torch.arange(len(g.ids), device=g.ids.device)
    everyone = g, runs
    if split == "all" and draws.seen is False:  # the same rows for all clients
        down = deployed(g.ids, runs)
        model = g.tensors if adapts else received(s, g, down)
        who, of_each = _representatives({"model": model, "down": down, "kept": g.kept if g.net in _TOLD else {}}, runs)
        g, runs = g.at(who), runs[who]

    def one(own: dict[str, Tree], received: dict[str, Tree], rows: dict[str, Tensor]) -> dict[str, Any]:
        told = g.net in _TOLD or not g.kept
        out = s.algorithm.predict((Model if told else _Untold)(g.net, *own.values()), rows["x"], received)
        heads = hooks.heads(s.algorithm, out, len(rows["y"]), s.task.classes)
        scores = next(iter(heads.values()))
        found = {"said": {h: z.argmax(1) for h, z in heads.items()}, "loss": metrics.log_loss(scores, rows["y"])}
        return found | ({"scores": scores} if s.metrics else {})

    what = "scores, too" if s.metrics else "what was said"
    of_rows = StackedRows(net=g.net, executor=g.executor, of_one=one, code=s.algorithm.predict, what=what, draws=draws)

    def run(part: Part, data: Data, longest: int) -> dict[str, Any]:
        ids = g.ids[part]
        draws.begin(lambda: s.streams(ids, "predict", split, t))
        down = deployed(ids, runs[part])  # here: a chunk of it would be a copy
        mine = g._replace(ids=ids, tensors=take(g.tensors, part))
        tensors = (
            mine.tensors if adapts else received(s, mine, down)
        )  # after adaptation the tensors include what was received
        own = {"tensors": tensors} | ({"kept": take(g.kept, part)} if g.net in _TOLD else {})
        with among(ids, table):
            found = of_rows(own, down, {"x": data.x, "y": data.y})
        if s.metrics:
            of = enumerate(zip(ids.tolist(), table.counts[ids].tolist(), strict=True))
            each.update({k: (found["scores"][i, :n], data.y[i, :n]) for i, (k, n) in of})
        correct = {h: ((y == data.y) & data.mask).sum(1) for h, y in found["said"].items()}
        loss = F.pad(found["loss"] * data.mask, (0, longest - data.y.shape[1])).sum(1).double()
        counts = _counts(data, next(iter(found["said"].values())), s.task.classes)
        return {"correct": correct, "loss": loss, "counts": counts}

    with client_errors.running(s, g, t):
        try:
            found = certain(lambda: over_rows(s, g, table, run, keep=split == "val"), draws)
        except _Accessed:
            _TOLD[g.net] = None  # from now on clients with different kept state count as different
            return _of_group(s, *everyone, deployed, split, t)
    return Scores(take(found, of_each), each)


def _representatives(tree: Tree, runs: Tensor) -> tuple[Tensor, Tensor]:
    """Which clients need to be computed, and for every client the position of an identical one among them.

    If all clients of a run have identical tensors [K, …], two of them stand for all (one alone would use another
    kernel). runs [K]: the position of each client's run.
    """
    who: list[int] = []
    of_each = torch.empty_like(runs)
    for run in dict.fromkeys(runs.tolist()):
        mine = (runs == run).nonzero()[:, 0]
        same = all(_constant(t if len(mine) == len(t) else t[mine]) for t in leaves(tree))
        of_each[mine] = len(who) + (0 if same else torch.arange(len(mine), device=mine.device))
        who += mine[: 2 if same else None].tolist()
    return torch.tensor(who, device=runs.device), of_each


def _constant(t: Tensor) -> bool:
    """Whether all entries along the first axis are the same."""
    return t.stride(0) == 0 or bool((t == t[:1]).all())


def _counts(data: Data, said: Tensor, classes: int) -> Tensor:
    """For each client and class: its rows, rows predicted as it, and rows that are both.  [K, N] -> [K, 3, C]"""
    y, right = data.y, data.mask & (said == data.y)
    at = torch.cat([y, said + classes, y + 2 * classes], 1)
    counted = torch.cat([data.mask, data.mask, right], 1).to(at.dtype)
    return at.new_zeros(len(y), 3 * classes).scatter_add_(1, at, counted).view(len(y), 3, classes)


def _in_order(groups: Mapping[int, Group], found: Sequence[Tree]) -> Tree:
    """The results of all groups' clients, in the order of client numbers."""
    return take(join(list(found)), torch.cat([g.ids for g in groups.values()]).argsort())
