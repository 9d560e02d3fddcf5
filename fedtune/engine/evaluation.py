"""Evaluation: the accuracy of the clients' models, or of the one global model, on validation and test rows.

If an algorithm's `adapt` asks for it, clients train before they are scored: personal fine-tuning.
"""

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
from fedtune.engine import client_errors
from fedtune.engine.chunks import Part, over_rows
from fedtune.engine.client_errors import among
from fedtune.engine.engine import require_finite, train_group, undiverged
from fedtune.engine.local_training import PhaseResult
from fedtune.engine.seed_stack import SeedStack, Work, by_plan, one_after_another
from fedtune.engine.stacked_code import StackedRows
from fedtune.engine.state import Group, RunSetup, State, received
from fedtune.experiment import hooks, plans
from fedtune.experiment.algorithm import Data, Model, Phase


class Scored(NamedTuple):
    """An evaluation's result: the metrics, and columns with an entry per scored client."""

    row: dict[str, float]
    clients: dict[str, Tensor]  # client; and for each split SPLIT_rows, SPLIT_acc and the user's own metrics


class Scores(NamedTuple):
    """What models predict for the rows of some clients."""

    # per client: correct rows of each head; for the first head the summed loss and counts by class (`_counts`)
    sums: dict[str, Tree]
    # by client, if the user's own metrics need them: scores and labels, without padding
    outputs: dict[int, tuple[Tensor, Tensor]]


_USES_KEPT: WeakKeyDictionary[nn.Module, None] = WeakKeyDictionary()  # nets whose `predict` uses what clients keep


class _KeptUsed(BaseException):
    """Client code used its client's kept state, which was not passed in because that costs time; it is no error."""


class _WithoutKept(Model):
    """A model whose client's kept state is not passed in until it is used."""

    @property
    def kept(self) -> dict[str, Any]:
        """Not available yet."""
        raise _KeptUsed


Deployed = Callable[[Tensor, Tensor], dict[str, Tree]]
Groups = Mapping[int, Group]  # the groups of a run by position


def score(s: RunSetup, state: State, splits: tuple[str, ...] = ("val", "test")) -> Scored:
    """Metrics of the scored clients on their validation and test rows, by the scenario's evaluation rule.

    A client's model: its own parts and the shared ones that it would receive now, after `adapt`.  Raises Diverged.
    """
    (scored,) = score_all(SeedStack((s,)), {0: state}, splits).values()
    return undiverged(scored)


@torch.no_grad()
def score_all(
    seeds: SeedStack, states: Mapping[int, State], splits: tuple[str, ...] = ("val", "test")
) -> dict[int, Scored | Diverged]:
    """Score several runs, given by their positions among the seeds; their clients are evaluated as one stack."""
    first = seeds.setups[next(iter(states))]
    if first.metrics:  # the user's own metrics are computed for one run after the other
        seeds = SeedStack(seeds.setups)
    trained = adapt_all(seeds, states, {i: _scored_groups(seeds.setups[i], state) for i, state in states.items()})
    results: dict[int, Scored | Diverged] = {i: g for i, g in trained.items() if isinstance(g, Diverged)}
    groups = {i: g for i, g in trained.items() if not isinstance(g, Diverged)}
    all_splits = (*splits, "all") if "test" in splits and first.everywhere else splits
    scores = {split: _scores(seeds, states, groups, split) for split in all_splits}
    for i, run_groups in groups.items():
        results[i] = _summed(seeds.setups[i], run_groups, {split: scores[split][i] for split in all_splits})
    return {i: results[i] for i in states}


@torch.no_grad()
def training_losses(s: RunSetup, state: State, ids: Tensor, of: str = "loss") -> Tensor:
    """These clients' mean loss on their training rows [n], or squared loss, with the model that they would receive."""
    groups, found = {}, torch.zeros(s.task.clients, dtype=torch.float64, device=ids.device)
    for place, g in enumerate(state.groups):
        if len(chosen := torch.isin(g.ids, ids).nonzero()[:, 0]):
            groups[place] = _received(s, 0, place, state, g.at(chosen)).g
    (scores,) = _scores(SeedStack((s,)), {0: state}, {0: groups}, "train").values()
    for g, of_group in zip(groups.values(), scores, strict=True):
        found[g.ids] = of_group.sums[of] / s.federation.train.counts[g.ids].clamp(min=1)
    return found[ids]


def adapted(s: RunSetup, state: State, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """A run's groups after adaptation, as new ones.  Raises Diverged."""
    (result,) = adapt_all(SeedStack((s,)), {0: state}, {0: dict(enumerate(groups))}).values()
    return tuple(undiverged(result).values())


def adapt_all(
    seeds: SeedStack, states: Mapping[int, State], groups: Mapping[int, Groups]
) -> dict[int, Groups | Diverged]:
    """The groups of several runs after training as `adapt` asks for it, by position, or how a run diverged."""
    results: dict[int, Groups | Diverged] = dict(groups)
    setups = {i: seeds.setups[i] for i in states}
    phases_by_run = {i: plans.adapting(s.algorithm, s.task_in(states[i].round + 1)) for i, s in setups.items()}
    for phases, runs in by_plan(phases_by_run):
        for place in dict.fromkeys(place for i in runs if phases for place in groups[i]):
            works = [_received(setups[i], i, place, states[i], groups[i][place]) for i in runs if place in groups[i]]
            for i, g in _adapted(seeds, works, phases, states[runs[0]].round).items():
                run_groups = results[i]
                if not isinstance(run_groups, Diverged):
                    results[i] = g if isinstance(g, Diverged) else {**run_groups, place: g}
    return results


def _received(s: RunSetup, run: int, place: int, state: State, g: Group) -> Work:
    """A group's clients with what they would receive now."""
    down = hooks.broadcast(s.algorithm, "deployed", state.server, g.ids, s.task_in(state.round + 1))
    return Work(run, place, g._replace(tensors=received(s, g, down)), down)


@torch.enable_grad()
def _adapted(seeds: SeedStack, works: list[Work], phases: tuple[Phase, ...], t: int) -> dict[int, Group | Diverged]:
    """Each run's group after these phases, or how it diverged."""
    lost: dict[int, Group | Diverged] = {}
    for n, phase in enumerate(phases):

        def code(s: RunSetup, g: Group, down: Tree, n: int = n, phase: Phase = phase) -> PhaseResult:
            return train_group(s, g, down, phase, ("adapt", t + 1, n), t + 1)

        left = []
        for w, result in zip(works, seeds.run(works, code), strict=True):
            try:
                done = undiverged(result)
                require_finite(t, seeds.setups[w.run].federation, w.g.ids, done.losses, done.tensors, {})
                left.append(w._replace(g=w.g._replace(tensors=done.tensors)))
            except Diverged as error:
                lost[w.run] = error
        works = left
    return {w.run: w.g for w in works} | lost


def _scored_groups(s: RunSetup, state: State) -> dict[int, Group]:
    """The scored clients, by the positions of their groups."""
    ids = s.scored_clients()
    if len(ids) == s.task.clients:
        return dict(enumerate(state.groups))
    positions = {i: torch.isin(g.ids, ids).nonzero()[:, 0] for i, g in enumerate(state.groups)}
    return {i: state.groups[i].at(index) for i, index in positions.items() if len(index)}


def _summed(s: RunSetup, groups: Mapping[int, Group], scores: Mapping[str, list[Scores]]) -> Scored:
    """A run's metrics.  scores: of each group, for each split and for the rows of all classes."""
    row: dict[str, float] = {}
    ids = s.scored_clients()
    clients = {"client": ids}
    for split in (n for n in scores if n != "all"):
        table: Split = getattr(s.federation, split)
        sums = _in_order(groups, [result.sums for result in scores[split]])
        outputs = {k: rows for result in scores[split] for k, rows in result.outputs.items()}
        rows = table.counts[ids]
        clients |= {f"{split}_rows": rows, f"{split}_acc": next(iter(sums["correct"].values())).double() / rows}
        own_row, values = _own_metrics(s, split, {k: outputs[k] for k in ids.tolist()} if s.metrics else {})
        clients |= values
        if s.scenario.evaluation == "pooled":  # one global model: all clients' rows as one test set
            sums, rows = tree_map(lambda t: t.sum(0, keepdim=True), sums), rows.sum()[None]
        row |= metrics.accuracy(split, sums["correct"], rows, s.task.clients)
        row[f"{split}_loss"] = (sums["loss"] / rows).mean().item()
        row |= metrics.by_class(split, sums["counts"]) | own_row
    if s.everywhere and "all" in scores:
        correct = torch.cat([next(iter(result.sums["correct"].values())) for result in scores["all"]])
        row["test_acc_all"] = (correct.double() / s.everywhere.counts[ids]).mean().item()
        counts = _in_order(groups, [result.sums["counts"] for result in scores["all"]])
        row |= metrics.on_foreign(counts, classes_held(s.federation)[ids])
    return Scored(row, clients)


def _own_metrics(
    s: RunSetup, split: str, outputs: Mapping[int, tuple[Tensor, Tensor]]
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The values of the user's metrics by the scenario's rule, and per client. each: a client's scores and labels."""
    row: dict[str, float] = {}
    clients: dict[str, Tensor] = {}
    ids, rows = list(outputs), list(outputs.values())
    for metric in s.metrics:
        values = metric.of_each(rows, lambda i: s.federation.who(ids[i]))
        clients[f"{split}_{metric.name}"] = values
        if s.scenario.evaluation == "pooled":
            scores, y = (torch.cat(parts) for parts in zip(*rows, strict=True))
            values = metric.of_each([(scores, y)])
        row |= metric.spread(split, values)
    return row, clients


def _scores(
    seeds: SeedStack, states: Mapping[int, State], groups: Mapping[int, Mapping[int, Group]], split: str
) -> dict[int, list[Scores]]:
    """For each run, the scores of each group's clients on a split's rows.  groups: of each run, by position."""

    def deployed(ids: Tensor, runs: Tensor) -> dict[str, Tree]:
        """What clients would receive in the next round, from their own run's server."""
        messages = []
        for i in dict.fromkeys(runs.tolist()):
            s, mine = seeds.setups[i], ids[runs == i] % seeds.setups[i].task.clients
            task = s.task_in(states[i].round + 1)
            messages.append(hooks.broadcast(s.algorithm, "deployed", states[i].server, mine, task))
        return one_after_another(messages)

    t = next(iter(states.values())).round
    scores_by_run: dict[int, list[Scores]] = {i: [] for i in groups}
    for place in dict.fromkeys(place for by_place in groups.values() for place in by_place):
        group_by_run = {i: by_place[place] for i, by_place in groups.items() if place in by_place}
        works = [Work(i, place, g, torch.full_like(g.ids, i)) for i, g in group_by_run.items()]
        scores = seeds.run(works, lambda s, g, runs: _score_group(s, g, runs, deployed, split, t))
        for i, result in zip(group_by_run, scores, strict=True):
            scores_by_run[i].append(undiverged(result))  # Diverged only if a user's code raised it
    return scores_by_run


def _score_group(s: RunSetup, g: Group, runs: Tensor, deployed: Deployed, split: str, t: int) -> Scores:
    """The scores of clients on a split's rows after round t.  runs [k]: the position of each client's run."""
    g.net.eval()
    table: Split | None = s.everywhere if split == "all" else getattr(s.federation, split)
    assert table
    adapts, outputs = bool(s.algorithm.adapt(s.task_in(t + 1))), {}
    draws, stand_in = Draws(_score_group, g.net), torch.arange(len(g.ids), device=g.ids.device)
    everyone = g, runs
    if split == "all" and draws.is_random is False:  # the same rows for all clients
        down = deployed(g.ids, runs)
        model = g.tensors if adapts else received(s, g, down)
        kept = g.kept if g.net in _USES_KEPT else {}
        samples, stand_in = _representatives({"model": model, "down": down, "kept": kept}, runs)
        g, runs = g.at(samples), runs[samples]

    def one(own: dict[str, Tree], received: dict[str, Tree], rows: dict[str, Tensor]) -> dict[str, Any]:
        passes_kept = g.net in _USES_KEPT or not g.kept
        out = s.algorithm.predict((Model if passes_kept else _WithoutKept)(g.net, **own), rows["x"], received)
        heads = hooks.heads(s.algorithm, out, len(rows["y"]), s.task.classes)
        scores = next(iter(heads.values()))
        result = {"predicted": {h: z.argmax(1) for h, z in heads.items()}, "loss": metrics.log_loss(scores, rows["y"])}
        return result | ({"scores": scores} if s.metrics else {})

    key = "scores, too" if s.metrics else "predictions"
    of_rows = StackedRows(net=g.net, executor=g.executor, of_one=one, code=s.algorithm.predict, key=key, draws=draws)

    def run(part: Part, data: Data, longest: int) -> dict[str, Any]:
        ids = g.ids[part]
        draws.begin(lambda: s.streams(ids, "predict", split, t))
        down = deployed(ids, runs[part])  # for this chunk only: a chunk of the whole message would be a copy
        mine = g._replace(ids=ids, tensors=take(g.tensors, part))
        # after adaptation the tensors include what was received
        tensors = mine.tensors if adapts else received(s, mine, down)
        own = {"tensors": tensors} | ({"kept": take(g.kept, part)} if g.net in _USES_KEPT else {})
        with among(ids):
            result = of_rows(own, down, {"x": data.x, "y": data.y})
        if s.metrics:
            numbered = enumerate(zip(ids.tolist(), table.counts[ids].tolist(), strict=True))
            outputs.update({k: (result["scores"][i, :n], data.y[i, :n]) for i, (k, n) in numbered})
        correct = {h: ((y == data.y) & data.mask).sum(1) for h, y in result["predicted"].items()}
        losses = F.pad(result["loss"] * data.mask, (0, longest - data.y.shape[1]))
        counts = _counts(data, next(iter(result["predicted"].values())), s.task.classes)
        squares = {"squares": losses.square().sum(1).double()} if split == "train" else {}
        return {"correct": correct, "loss": losses.sum(1).double(), "counts": counts} | squares

    with client_errors.running(s, g, t):
        try:
            result = certain(lambda: over_rows(s, g, table, run, keep=split == "val"), draws)
        except _KeptUsed:
            _USES_KEPT[g.net] = None  # from now on clients with different kept state count as different
            return _score_group(s, *everyone, deployed, split, t)
    return Scores(take(result, stand_in), outputs)


def _representatives(tree: Tree, runs: Tensor) -> tuple[Tensor, Tensor]:
    """Which clients need to be computed, and for every client the position of an identical one among them.

    Two stand for all of a run with identical tensors (one alone would use another kernel).  runs [K]: their runs.
    """
    positions: list[int] = []
    stand_in = torch.empty_like(runs)
    for run in dict.fromkeys(runs.tolist()):
        mine = (runs == run).nonzero()[:, 0]
        of_run = (t if len(mine) == len(t) else t[mine] for t in leaves(tree))
        identical = all(t.stride(0) == 0 or bool((t == t[:1]).all()) for t in of_run)
        stand_in[mine] = len(positions) + (0 if identical else torch.arange(len(mine), device=mine.device))
        positions += mine[: 2 if identical else None].tolist()
    return torch.tensor(positions, device=runs.device), stand_in


def _counts(data: Data, predicted: Tensor, classes: int) -> Tensor:
    """For each client and class: its rows, rows predicted as it, and rows that are both.  [K, N] -> [K, 3, C]"""
    y, correct = data.y, data.mask & (predicted == data.y)
    index = torch.cat([y, predicted + classes, y + 2 * classes], 1)
    flags = torch.cat([data.mask, data.mask, correct], 1).to(index.dtype)
    return index.new_zeros(len(y), 3 * classes).scatter_add_(1, index, flags).view(len(y), 3, classes)


def _in_order(groups: Mapping[int, Group], results: Sequence[Tree]) -> Tree:
    return take(join(list(results)), torch.cat([g.ids for g in groups.values()]).argsort())
