"""The evaluation: how well the clients' models, or the one global model, do on validation and test rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtune.core import metrics, randomness
from fedtune.core.draws import Draws, certain
from fedtune.core.trees import Tree, for_each_client, join, take, tree_map
from fedtune.data.federation import Split
from fedtune.federated import client_code, own_metrics
from fedtune.federated.adaptation import adapted
from fedtune.federated.algorithm import Data, Model
from fedtune.federated.chunks import Part, over_rows
from fedtune.federated.state import Group, Setting, State


class Scored(NamedTuple):
    """How well the clients do: the metrics, and columns with an entry of each scored client."""

    row: dict[str, float]
    clients: dict[str, Tensor]  # client; and of each split SPLIT_rows, SPLIT_acc and metrics of the user's own


def evaluate(s: Setting, state: State, splits: tuple[str, ...] = ("val", "test")) -> dict[str, float]:
    """The metrics of the clients' models on these splits, without the table of clients that `score` also gives."""
    return score(s, state, splits).row


@torch.no_grad()
def score(s: Setting, state: State, splits: tuple[str, ...] = ("val", "test")) -> Scored:
    """Metrics of the clients that are scored on their validation and test rows, by the scenario's rule.

    A client's model is its own parts with the shared ones that it would receive now, trained by the algorithm's
    `adapt` where it says so.
    """
    row: dict[str, float] = {}
    ids, groups = s.scored_clients(), state.groups
    if len(ids) < s.task.clients:
        at = [torch.isin(g.ids, ids).nonzero()[:, 0] for g in groups]
        pairs = [(g, a) for g, a in zip(groups, at, strict=True) if len(a)]
        groups = tuple(g.at(a) for g, a in pairs)
    groups = adapted(s, state, groups)
    clients = {"client": ids}
    for split in splits:
        table: Split = getattr(s.federation, split)
        each: dict[int, tuple[Tensor, Tensor]] = {}
        found = _in_order(groups, [_scores(s, state, g, table, split, each) for g in groups])
        rows = table.counts[ids]
        clients |= {f"{split}_rows": rows, f"{split}_acc": next(iter(found["correct"].values())).double() / rows}
        of_own, values = _own(s, split, [each[k] for k in ids.tolist()] if s.metrics else [])
        clients |= values
        if s.scenario.evaluation == "pooled":  # one global model: all clients' rows as one test set
            found, rows = tree_map(lambda t: t.sum(0, keepdim=True), found), rows.sum()[None]
        row |= metrics.accuracy(split, found["correct"], rows, s.task.clients)
        row[f"{split}_loss"] = (found["loss"] / rows).mean().item()
        row |= metrics.by_class(split, found["counts"]) | of_own
    if "test" in splits and s.everywhere:
        scores = [_scores(s, state, g, s.everywhere, "all", {})["correct"] for g in groups]
        correct = torch.cat([next(iter(heads.values())) for heads in scores])
        row["test_acc_all"] = (correct.double() / s.everywhere.counts[ids]).mean().item()
    return Scored(row, clients)


def _own(s: Setting, split: str, rows: own_metrics.Rows) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The user's own metrics by the scenario's rule, and of each client.  rows: the clients' scores and labels."""
    row: dict[str, float] = {}
    clients: dict[str, Tensor] = {}
    for metric in s.metrics:
        values = clients[f"{split}_{metric.name}"] = own_metrics.one_each(metric, rows)
        if s.scenario.evaluation == "pooled":
            scores, y = (torch.cat(both) for both in zip(*rows, strict=True))
            values = own_metrics.one_each(metric, [(scores, y)])
        row |= own_metrics.spread(metric, split, values)
    return row, clients


def _scores(
    s: Setting, state: State, g: Group, table: Split, split: str, each: dict[int, tuple[Tensor, Tensor]]
) -> dict[str, Tree]:
    """Of each client: correct rows per head, and of the first head the summed loss and counts by class (`_counts`).

    each: where the user's own metrics need them, its scores and labels on its real rows are put here.
    """
    g.net.eval()
    task = s.task_in(state.round + 1)  # what is deployed would be received in the next round

    def one(t: dict[str, Tensor], received: dict[str, Tree], data: Data) -> dict[str, Any]:
        out = s.algorithm.predict(Model(g.net, t), data.x, received)
        heads = out if isinstance(out, dict) else {"head": out}
        said = {h: z.argmax(1) for h, z in heads.items()}
        correct = {h: ((y == data.y) & data.mask).sum() for h, y in said.items()}
        scores = next(iter(heads.values()))
        loss = metrics.log_loss(scores, data.y) * data.mask
        found = {"correct": correct, "loss": loss.sum().double(), "said": next(iter(said.values()))}
        return found | ({"scores": scores} if s.metrics else {})

    draws = Draws(_scores, g.net)

    def run(part: Part, data: Data) -> dict[str, Any]:
        address, ids = (s.task.seed, "predict", split, state.round), g.ids[part].tolist()
        draws.begin(lambda: [randomness.stream(*address, k) for k in ids])
        down = s.algorithm.deployed(state.server, g.ids[part], task)  # here: a chunk of it would be a copy
        tensors = take(g.tensors, part)
        if not s.algorithm.adapt(task):  # what was adapted holds what it received
            tensors |= s.algorithm.receive(down)
        found = for_each_client(one, g.executor, tensors, down, data, draws=draws)
        if s.metrics:
            counts, scores = table.counts[g.ids[part]].tolist(), found.pop("scores")
            each.update({k: (scores[i, :n], data.y[i, :n]) for i, (k, n) in enumerate(zip(ids, counts, strict=True))})
        return found | {"counts": _counts(data, found.pop("said"), s.task.classes)}

    with client_code.running(g.executor):
        return certain(lambda: over_rows(s, g, table, run, keep=split == "val"), draws)


def _counts(data: Data, said: Tensor, classes: int) -> Tensor:
    """Of each client and class: its rows, those said to be of it, and those of both.  [K, N] -> [K, 3, C]"""
    y, right = data.y, data.mask & (said == data.y)
    at = torch.cat([y, said + classes, y + 2 * classes], 1)
    counted = torch.cat([data.mask, data.mask, right], 1).to(at.dtype)
    return at.new_zeros(len(y), 3 * classes).scatter_add_(1, at, counted).view(len(y), 3, classes)


def _in_order(groups: Sequence[Group], found: Sequence[Tree]) -> Tree:
    """What was found of each group's clients, in the order of all clients' numbers."""
    return take(join(list(found)), torch.cat([g.ids for g in groups]).argsort())
