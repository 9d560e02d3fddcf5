"""The evaluation: how well the clients' models, or the one global model, do on validation and test rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedtune.core import metrics
from fedtune.core.trees import Tree, for_each_client, take
from fedtune.data.federation import Split
from fedtune.federated.algorithm import Data, Model
from fedtune.federated.engine import Group, Part, Setting, State, in_chunks, rows_of


@torch.no_grad()
def evaluate(s: Setting, state: State, splits: tuple[str, ...] = ("val", "test")) -> dict[str, float]:
    """Metrics of the clients that are scored on their validation and test rows, by the scenario's rule.

    A client's model is its own parts with the shared ones that it would receive now.
    """
    row: dict[str, float] = {}
    ids, groups = s.scored_clients(), state.groups
    if len(ids) < s.task.clients:
        at = [torch.isin(g.ids, ids).nonzero()[:, 0] for g in groups]
        pairs = [(g, a) for g, a in zip(groups, at, strict=True) if len(a)]
        groups = tuple(g._replace(ids=g.ids[a], tensors=take(g.tensors, a)) for g, a in pairs)
    for split in splits:
        table: Split = getattr(s.federation, split)
        pooled = s.scenario.evaluation == "pooled"
        found = [_scores(s, state, g, table) for g in groups]
        order = torch.cat([g.ids for g in groups]).argsort()
        heads = {h: torch.cat([f[0][h] for f in found])[order] for h in found[0][0]}
        loss, rows = torch.cat([f[1] for f in found])[order], table.counts[ids]
        if pooled:  # one global model: all clients' rows as one test set
            heads, loss, rows = {h: c.sum()[None] for h, c in heads.items()}, loss.sum()[None], rows.sum()[None]
        row |= metrics.accuracy(split, heads, rows, s.task.clients)
        if split == "val":
            row["val_loss"] = (loss / rows).mean().item()
    if "test" in splits and s.everywhere:
        heads_of_groups = [_scores(s, state, g, s.everywhere)[0] for g in groups]
        correct = torch.cat([next(iter(heads.values())) for heads in heads_of_groups])
        row["test_acc_all"] = (correct.double() / s.everywhere.counts[ids]).mean().item()
    return row


def _scores(s: Setting, state: State, g: Group, table: Split) -> tuple[dict[str, Tensor], Tensor]:
    """Correct rows per head, name -> [K_g], and the summed loss of the first head [K_g]."""
    g.net.eval()
    task = s.task_in(state.round + 1)  # what is deployed would be received in the next round

    def one(t: dict[str, Tensor], received: dict[str, Tree], data: Data) -> dict[str, Any]:
        out = s.algorithm.predict(Model(g.net, t), data.x, received)
        heads = out if isinstance(out, dict) else {"head": out}
        correct = {h: ((z.argmax(1) == data.y) & data.mask).sum() for h, z in heads.items()}
        loss = metrics.log_loss(next(iter(heads.values())), data.y) * data.mask
        return {"correct": correct, "loss": loss.sum().double()}

    def run(part: Part) -> dict[str, Any]:
        down = s.algorithm.deployed(state.server, g.ids[part], task)  # here: a chunk of it would be a copy
        tensors = take(g.tensors, part) | s.algorithm.receive(down)
        return for_each_client(one, g.executor, tensors, down, rows_of(s, table, g, part))

    whole = in_chunks(g, table, run)
    return whole["correct"], whole["loss"]
