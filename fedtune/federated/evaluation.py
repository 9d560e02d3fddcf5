"""The evaluation: how well the clients' models, or the one global model, do on validation and test rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedtune.core import metrics, randomness
from fedtune.core.draws import Draws
from fedtune.core.trees import Tree, for_each_client, join, take, tree_map
from fedtune.data.federation import Split
from fedtune.federated import client_code
from fedtune.federated.adaptation import adapted
from fedtune.federated.algorithm import Data, Model
from fedtune.federated.chunks import Part, in_chunks, rows_of
from fedtune.federated.state import Group, Setting, State


@torch.no_grad()
def evaluate(s: Setting, state: State, splits: tuple[str, ...] = ("val", "test")) -> dict[str, float]:
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
    for split in splits:
        table: Split = getattr(s.federation, split)
        found = _in_order(groups, [_scores(s, state, g, table, split) for g in groups])
        rows = table.counts[ids]
        if s.scenario.evaluation == "pooled":  # one global model: all clients' rows as one test set
            found, rows = tree_map(lambda t: t.sum(0, keepdim=True), found), rows.sum()[None]
        row |= metrics.accuracy(split, found["correct"], rows, s.task.clients)
        row[f"{split}_loss"] = (found["loss"] / rows).mean().item()
        row |= metrics.by_class(split, found["counts"])
    if "test" in splits and s.everywhere:
        scores = [_scores(s, state, g, s.everywhere, "all")["correct"] for g in groups]
        correct = torch.cat([next(iter(heads.values())) for heads in scores])
        row["test_acc_all"] = (correct.double() / s.everywhere.counts[ids]).mean().item()
    return row


def _scores(s: Setting, state: State, g: Group, table: Split, split: str) -> dict[str, Tree]:
    """Of each client: correct rows per head, and of the first head the summed loss and counts by class (`_counts`)."""
    g.net.eval()
    task = s.task_in(state.round + 1)  # what is deployed would be received in the next round

    def one(t: dict[str, Tensor], received: dict[str, Tree], data: Data) -> dict[str, Any]:
        out = s.algorithm.predict(Model(g.net, t), data.x, received)
        heads = out if isinstance(out, dict) else {"head": out}
        said = {h: z.argmax(1) for h, z in heads.items()}
        correct = {h: ((y == data.y) & data.mask).sum() for h, y in said.items()}
        loss = metrics.log_loss(next(iter(heads.values())), data.y) * data.mask
        return {"correct": correct, "loss": loss.sum().double(), "said": next(iter(said.values()))}

    draws = Draws()

    def run(part: Part) -> dict[str, Any]:
        address = (s.task.seed, "predict", split, state.round)
        draws.begin(lambda: [randomness.stream(*address, k) for k in g.ids[part].tolist()])
        down = s.algorithm.deployed(state.server, g.ids[part], task)  # here: a chunk of it would be a copy
        tensors = take(g.tensors, part)
        if not s.algorithm.adapt(task):  # what was adapted holds what it received
            tensors |= s.algorithm.receive(down)
        data = rows_of(s, table, g, part)
        found = for_each_client(one, g.executor, tensors, down, data, draws=draws)
        return found | {"counts": _counts(data, found.pop("said"), s.task.classes)}

    with client_code.running(g.executor):
        return in_chunks(g, table, run)


def _counts(data: Data, said: Tensor, classes: int) -> Tensor:
    """Of each client and class: its rows, those said to be of it, and those of both.  [K, N] -> [K, 3, C]"""
    y, right = data.y, data.mask & (said == data.y)
    at = torch.cat([y, said + classes, y + 2 * classes], 1)
    counted = torch.cat([data.mask, data.mask, right], 1).to(at.dtype)
    return at.new_zeros(len(y), 3 * classes).scatter_add_(1, at, counted).view(len(y), 3, classes)


def _in_order(groups: Sequence[Group], found: Sequence[Tree]) -> Tree:
    """What was found of each group's clients, in the order of all clients' numbers."""
    return take(join(list(found)), torch.cat([g.ids for g in groups]).argsort())
