"""The metrics of a round, each declared here for tables, axes of figures, and docs/reference/metrics.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # commands that do not need PyTorch import this module for the names
    from torch import Tensor

    from fedtune.core.trees import Size

LOSS_CAP = 12 * math.log(10)  # probabilities are at least 1e-12, so that one row cannot make a mean infinite


class Metric(NamedTuple):
    """The declaration of a metric; `METRICS` holds them by name."""

    help: str
    label: str = ""  # on axes and in tables; default: its name
    unit: str = ""
    last: bool = False  # trials.parquet keeps a trial's last value as last_NAME
    best: bool = False  # trials.parquet keeps its value in the round of the best objective as best_NAME
    evaluated: bool = False  # the table of fresh-seed runs keeps a run's last value
    goal: str = ""  # "max" or "min" if a search can optimise it
    worst: float | None = None  # the worst possible value, for diverged trials; None if there is none
    grows: bool = False  # it accumulates from the start of a trial
    at_end: str = "linear"  # how one that grows ends: in proportion to the rounds, or "known" before training
    summed: bool = False  # added up over the seeds of a trial; other metrics are averaged
    needs: str = ""  # the field of a scenario without which it is absent: "privacy", "compress" or "devices"
    search_only: bool = False  # only trials of a search have it, if an option asks for it

    @property
    def maximum(self) -> float:
        """The largest possible value of a metric that a search can optimise; none of them is below 0."""
        return 1.0 if self.goal == "max" else math.inf if self.worst is None else self.worst


def _validation(help: str, label: str, goal: str = "max", worst: float = 0.0, **more: bool) -> Metric:
    """A metric of validation rows, which a search can optimise."""
    return Metric(help, label, last=True, goal=goal, worst=worst, **more)  # type: ignore[arg-type]


def _test(help: str, label: str = "", **more: bool) -> Metric:
    """A metric of test rows, which is reported only."""
    return Metric(help, label, last=True, evaluated=True, **more)  # type: ignore[arg-type]


def _cost(help: str, label: str, unit: str = "", **more: bool | str) -> Metric:
    """What adds up over the rounds of a trial, and a search can keep low."""
    return Metric(help, label, unit, goal="min", grows=True, **more)  # type: ignore[arg-type]


# rows also hold val_acc_<head> and test_acc_<head>, and what the algorithm reports
METRICS: dict[str, Metric] = {
    "val_acc": _validation(
        "mean over clients of validation accuracy; the default objective of a search",
        "validation accuracy",
        best=True,
        evaluated=True,
    ),
    "val_acc_se": Metric(
        "standard error of val_acc: over seeds (--seeds-per-trial), else over clients if only some are evaluated"
    ),
    "val_loss": _validation(
        "mean over clients of validation cross-entropy, at most 27.6 per row", "validation loss", "min", LOSS_CAP
    ),
    "test_acc": _test(
        "mean over clients of test accuracy; reported, never used for selection", "test accuracy", best=True
    ),
    "test_acc_se": Metric("standard error of test_acc over seeds, with --seeds-per-trial", search_only=True),
    "test_acc_std": _test("standard deviation of test accuracy over clients", "standard deviation of test accuracy"),
    "test_acc_worst10": _test(
        "mean test accuracy of the worst tenth of the clients, at least one", "test accuracy of the worst tenth"
    ),
    "test_acc_all": _test(
        "mean over clients of test accuracy on the same rows of all classes (scenario field all_classes)",
        "test accuracy on all classes",
    ),
    "test_acc_foreign": _test(
        "the same on the rows whose class the client does not hold, predicted among all classes; mean over the "
        "clients that lack a class",
        "test accuracy on foreign classes",
    ),
    "train_loss": Metric(
        "mean over clients and steps of the training loss, in the first phase if a round has several",
        "training loss",
        last=True,
    ),
    "up_floats": Metric("floats that all clients sent in the round"),
    "up_ints": Metric("integers that all clients sent (counts)"),
    "up_bytes": Metric("bytes that all clients sent in the round", unit="B", goal="min"),
    "down_floats": Metric("floats that all clients received in the round"),
    "down_ints": Metric("integers that all clients received"),
    "down_bytes": Metric("bytes that all clients received in the round", unit="B", goal="min"),
    "comm_mb": _cost(
        "megabytes (1e6 bytes) sent and received by all clients since the start", "communication", "MB", evaluated=True
    ),
    "residual": Metric(
        "with error feedback (compress topk, randk or sign): mean over clients of the norm of what was not sent yet",
        needs="compress",
    ),
    "epsilon": _cost(
        "with privacy: ε of the rounds so far, at the run's δ; 0 of an algorithm that sends nothing",
        "ε",
        last=True,
        evaluated=True,
        at_end="known",
        needs="privacy",
    ),
    "update_clip": Metric(
        "C_t, the bound on the norm of a client's update in the round; with privacy", needs="privacy"
    ),
    "clip_share": Metric(
        "share of the round's updates that were longer than the bound; not private: for the researcher only",
        needs="privacy",
    ),
    "update_norm": Metric("median norm of the round's updates; not private: for the researcher only", needs="privacy"),
    "sim_seconds": _cost(
        "device seconds since the start, as the scenario's devices take them; only where it names devices",
        "device time",
        "s",
        last=True,
        evaluated=True,
        needs="devices",
    ),
    "round_seconds": Metric("device seconds of the round, until the server goes on", unit="s", needs="devices"),
    "lost": Metric("clients of the round whose upload was lost", needs="devices"),
    "late": Metric("clients of the round that sent after the deadline", needs="devices"),
    "surplus": Metric("clients of the round that sent in time, but after enough others", needs="devices"),
    "spent": Metric(
        "how much of --budget is used up, in its unit; 0 until early stopping may first stop a trial", search_only=True
    ),
    "seconds": _cost(
        "wall time of the round's training and exchange; as an objective: the trial's time so far",
        "time",
        "s",
        summed=True,
    ),
    "eval_seconds": Metric("wall time of the round's evaluation", unit="s", summed=True),
    "val_acc_rows": _validation(
        "share of all clients' validation rows that are predicted correctly: a mean over rows, as PFLlib prints it",
        "validation accuracy over rows",
    ),
    "val_acc_std": _validation(
        "standard deviation of validation accuracy over clients",
        "standard deviation of validation accuracy",
        "min",
        0.5,
    ),
    "val_acc_worst10": _validation(
        "mean validation accuracy of the worst tenth of the clients, at least one",
        "validation accuracy of the worst tenth",
    ),
    "val_acc_lowest": _validation("validation accuracy of the worst client", "validation accuracy of the worst client"),
    "val_acc_balanced": _validation(
        "mean over clients of the mean recall of the classes that the client has validation rows of",
        "balanced validation accuracy",
    ),
    "val_f1": _validation(
        "mean over clients of macro F1, over the classes that occur in a client's rows or predictions", "validation F1"
    ),
    "test_acc_rows": _test("val_acc_rows on test rows", "test accuracy over rows"),
    "test_acc_lowest": _test("test accuracy of the worst client", "test accuracy of the worst client"),
    "test_acc_balanced": _test("val_acc_balanced on test rows", "balanced test accuracy"),
    "test_f1": _test("val_f1 on test rows", "test F1"),
    "test_loss": _test("val_loss on test rows", "test loss"),
    "judged": Metric(
        "with --subject-to, what schedulers compare: the objective, or its worst value if a constraint is broken",
        search_only=True,
    ),
}

JUDGED = "judged"
SIM_SECONDS = "sim_seconds"  # only rows of runs with devices have it
REPORTED = "reported"  # an entry of a trial's result: the names of those of its metrics that are not declared here
TRAFFIC = ("comm_mb", "up_bytes", "down_bytes")  # what clients and server send
METRIC = "val_acc"  # the default objective: validation data only
OBJECTIVES = {name: m.goal for name, m in METRICS.items() if m.goal}  # what a search can optimise, and which way
STATISTICS = ("", "_std", "_worst10", "_lowest")  # statistics of a per-client metric: mean, then spread


def label(name: str) -> str:
    """A metric's name in a sentence; one that is not declared here, or has no other, stays as it is."""
    return (METRICS[name].label if name in METRICS else "") or name


def in_words(name: str) -> str:
    """A metric's name for an axis, with its unit."""
    unit = METRICS[name].unit if label(name) != name else ""
    return label(name) + f" [{unit}]" * bool(unit)


def limits(name: str) -> tuple[float, float]:
    """The smallest and largest possible value of a metric, also of its test counterpart; infinite if unknown."""
    base = name.replace("test_", "val_", 1) if name.startswith("test_") else name
    if base in METRICS and METRICS[base].goal:
        return 0.0, METRICS[base].maximum
    share = base.startswith("val_acc_") and not base.endswith("_se")  # of a prediction head, or on some rows
    return (0.0, 1.0) if share else (-math.inf, math.inf)


def is_share(name: str) -> bool:
    """Whether a metric is a share of rows: accuracies with their spread, and F1.

    People read it in percent, on pages and in terminals.  Files have fractions, as do options and what is said of them.
    """
    return f"{name}_".startswith(("val_acc_", "test_acc_")) or name in ("val_f1", "test_f1")


def worst(name: str) -> float | None:
    """The worst possible value of a metric; None if there is none."""
    return METRICS[name].worst if name in METRICS else None


def worst_tenth(clients: int) -> int:
    """How many of so many clients are their worst tenth: at least one.  `_worst10` is their mean in one run."""
    return max(1, math.ceil(clients / 10))


def accuracy(prefix: str, heads: dict[str, Tensor], rows: Tensor, clients: int) -> dict[str, float]:
    """Metrics of one split.  heads: name -> correct rows [k] of k scored clients; rows [k].  The first head counts.

    clients: the number of all clients.  The standard error is that of k of them sampled without replacement.
    """
    out: dict[str, float] = {}
    for i, (head, correct) in enumerate(heads.items()):
        share = correct.double() / rows
        if i == 0:
            out |= over_clients(f"{prefix}_acc", share)
            out[f"{prefix}_acc_rows"] = correct.sum().item() / rows.sum().item()
            if prefix == "val":
                k = len(share)
                unseen = (clients - k) / clients if 1 < k < clients else 0
                out["val_acc_se"] = (share.var(correction=1).item() * unseen / k) ** 0.5 if unseen else 0.0
        if len(heads) > 1:
            out[f"{prefix}_acc_{head}"] = share.mean().item()
    return out


def over_clients(name: str, each: Tensor, mode: str = "max") -> dict[str, float]:
    """Mean, standard deviation, worst tenth and worst of the clients' figures [k].  mode: "min" if less is better."""
    worst = each.sort(descending=mode == "min").values[: worst_tenth(len(each))]
    values = (each.mean(), each.std(correction=0), worst.mean(), worst[0])
    return {f"{name}{end}": value.item() for end, value in zip(STATISTICS, values, strict=True)}


def by_class(prefix: str, counts: Tensor) -> dict[str, float]:
    """Balanced accuracy and macro F1, averaged over clients.  counts [k, 3, C]: rows, predicted rows, correct rows.

    Per client these are scikit-learn's `balanced_accuracy_score` and `f1_score` with average="macro".
    """
    import torch

    rows, predicted, correct = counts.double().unbind(1)
    denominators = torch.stack([rows, rows + predicted])  # F1 counts correct rows twice
    ratios = torch.stack([correct, 2 * correct]) / denominators.clamp(min=1)
    recall, f1 = (ratios.sum(2) / (denominators > 0).sum(2)).mean(1).tolist()
    return {f"{prefix}_acc_balanced": recall, f"{prefix}_f1": f1}


def on_foreign(counts: Tensor, classes_held: Tensor) -> dict[str, float]:
    """Accuracy on rows of classes that a client does not hold, averaged over clients; empty if each holds all.

    counts [k, 3, C] as in `by_class`, for rows of all classes; held [k, C] bool.
    """
    rows, _, correct = (counts.double() * ~classes_held[:, None]).sum(2).unbind(1)  # [k] each
    has_foreign = rows > 0
    return {"test_acc_foreign": (correct[has_foreign] / rows[has_foreign]).mean().item()} if has_foreign.any() else {}


def figures(row: Mapping[str, Any]) -> list[str]:
    """What tables of fresh-seed runs keep of a run's last row: the metrics declared `evaluated`, and the user's own."""
    return [*(n for n, m in METRICS.items() if m.evaluated and (n in row or not m.needs)), *filter(is_own, row)]


def metrics_in(result: Mapping[str, Any]) -> dict[str, Any]:
    """The round and its metrics, of a trial's result; nothing that Tune adds to it, or will add some day."""
    reported = result.get(REPORTED) or ()
    return {name: v for name, v in result.items() if name == "round" or name in METRICS or name in reported}


def is_own(column: str) -> bool:
    """Whether a column of rounds belongs to a user's metric: val_NAME, test_NAME, or its spread over clients."""
    head = column.startswith(("val_acc_", "test_acc_"))  # the metric of a prediction head
    return column.startswith(("val_", "test_")) and column not in METRICS and not head


def communication(up: Size, down: Size, total_bytes: int) -> dict[str, float]:
    """Communication metrics: this round's sizes, and the megabytes so far."""
    out = {f"{way}_{k}": v for way, size in (("up", up), ("down", down)) for k, v in size._asdict().items()}
    return out | {"comm_mb": total_bytes / 1e6}


def over_seeds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine the rows of several seeds into one: means, summed seconds, and standard errors of accuracies."""
    if len(rows) == 1:
        return rows[0]
    out: dict[str, Any] = {"round": rows[0]["round"]}
    for name in rows[0].keys() - {"round"}:
        values = [float(row[name]) for row in rows if row.get(name) is not None]
        if values:
            out[name] = sum(values) if name in METRICS and METRICS[name].summed else statistics.fmean(values)
    for name in {"val_acc", "test_acc"} & out.keys():
        out[f"{name}_se"] = statistics.stdev(row[name] for row in rows) / len(rows) ** 0.5
    return {n: out[n] for n in dict.fromkeys([*rows[0], *out]) if n in out}


def log_loss(scores: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each row from its scores (logits), capped.  [B, C], [B] -> [B]"""
    return (-scores.log_softmax(1).gather(1, y[:, None])[:, 0]).clamp(max=LOSS_CAP)
