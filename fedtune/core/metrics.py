"""One round's row: the only metric names there are."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names are read by commands that need no PyTorch
    from torch import Tensor

    from fedtune.core.trees import Size

# name -> what it is; rows also hold val_acc_<head> and test_acc_<head>, and what the algorithm reports
METRICS: dict[str, str] = {
    "val_acc": "mean over clients of validation accuracy; what is selected by",
    "val_acc_se": "its standard error over seeds (--seeds-per-trial), else over clients if only some are scored",
    "val_loss": "mean over clients of validation cross-entropy of the same scores, at most 27.6 a row",
    "test_acc": "mean over clients of test accuracy; reported, never used",
    "test_acc_se": "its standard error over seeds, with --seeds-per-trial",
    "test_acc_std": "its standard deviation over clients",
    "test_acc_worst10": "its mean over the worst tenth of the clients, at least one",
    "test_acc_all": "mean over clients of test accuracy on the same rows of all classes (scenario field all_classes)",
    "train_loss": "mean over clients and steps of the loss of the round's first phase",
    "up_floats": "real numbers that all clients sent in the round",
    "up_ints": "whole numbers that they sent (counts)",
    "up_bytes": "bytes that they sent",
    "down_floats": "real numbers that all clients received in the round",
    "down_ints": "whole numbers that they received",
    "down_bytes": "bytes that they received",
    "comm_mb": "megabytes (1e6 bytes) sent and received by all clients since the start",
    "spent": "what of --budget is used up; 0 before the first round in which a trial may be judged",
    "seconds": "wall time of the round's training and exchange",
    "eval_seconds": "wall time of its evaluation",
}
METRIC, MODE = "val_acc", "max"  # what trials are selected by: validation only
OBJECTIVES = {METRIC: MODE, "comm_mb": "min", "seconds": "min"}  # what a search can optimise, and in which direction
OF_TRIALS = ("test_acc_se", "spent")  # only a search's trials have them, where they were asked for

LOSS_CAP = 12 * math.log(10)  # a probability is taken as at least 1e-12, so that one row cannot make a mean infinite


def accuracy(prefix: str, heads: dict[str, Tensor], rows: Tensor, clients: int) -> dict[str, float]:
    """Metrics of one split.  heads: name -> correct rows [k] of k scored clients; rows [k].  The first head counts.

    clients: how many there are.  The standard error is that of a mean over k drawn from them without replacement.
    """
    out: dict[str, float] = {}
    for i, (head, correct) in enumerate(heads.items()):
        share = correct.double() / rows
        if i == 0:
            out[f"{prefix}_acc"] = share.mean().item()
            if prefix == "val":
                k = len(share)
                unseen = (clients - k) / clients if 1 < k < clients else 0
                out["val_acc_se"] = (share.var(correction=1).item() * unseen / k) ** 0.5 if unseen else 0.0
            if prefix == "test":
                worst = share.sort().values[: max(1, math.ceil(len(share) / 10))]
                out |= {"test_acc_std": share.std(correction=0).item(), "test_acc_worst10": worst.mean().item()}
        if len(heads) > 1:
            out[f"{prefix}_acc_{head}"] = share.mean().item()
    return out


def communication(up: Size, down: Size, total_bytes: int) -> dict[str, float]:
    """Metrics of the ledger: this round's sizes, and the megabytes so far."""
    out = {f"{way}_{k}": v for way, size in (("up", up), ("down", down)) for k, v in size._asdict().items()}
    return out | {"comm_mb": total_bytes / 1e6}


def over_seeds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row for a round trained on several seeds: means, seconds added up, and the accuracies' standard errors."""
    if len(rows) == 1:
        return rows[0]
    out: dict[str, Any] = {"round": rows[0]["round"]}
    for name in rows[0].keys() - {"round"}:
        values = [float(row[name]) for row in rows if row.get(name) is not None]
        if values:
            out[name] = sum(values) if name in ("seconds", "eval_seconds") else statistics.fmean(values)
    for name in ("val_acc", "test_acc"):
        out[f"{name}_se"] = statistics.stdev(row[name] for row in rows) / len(rows) ** 0.5
    return {n: out[n] for n in dict.fromkeys([*rows[0], *out]) if n in out}


def log_loss(scores: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each row's softmaxed scores, capped.  [B, C], [B] -> [B]"""
    return (-scores.log_softmax(1).gather(1, y[:, None])[:, 0]).clamp(max=LOSS_CAP)
