"""A user's own metrics: functions (scores [N, C], labels [N]) of one client's rows that return one number.

    def recall(scores, y):                     # fedtune search --metric mine.py:recall --objective val_recall:max
        return (scores.argmax(1) == y)[y == 1].double().sum() / max(1, int((y == 1).sum()))

    recall.mode = "max"                        # optional: the direction, for --objective without one

Scores are the first head's, as returned by `predict`; some may be -inf.  The numbers of the scored clients become
val_recall and test_recall, means over clients, with _std and _worst10 (for mode "min", the highest tenth).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtune.core.errors import UserError
from fedtune.core.metrics import METRICS, over_clients
from fedtune.core.terminal import several
from fedtune.user_code import user_errors, user_files
from fedtune.user_code.references import parsed

Rows = Sequence[tuple[Tensor, Tensor]]  # of each client: scores [N, C] and labels [N]
CONTRACT = "a metric must be a function (scores [N, C], labels [N]) of a client's rows that returns one finite number"


class OwnMetric(NamedTuple):
    """A user's metric after loading."""

    reference: str  # FILE.py:NAME(options)
    name: str
    function: Callable[[Tensor, Tensor], Any]
    mode: str  # "max", "min", or "" if the file does not say

    def names(self, split: str) -> list[str]:
        """Its names in tables: the mean over clients, and its spread."""
        return [f"{split}_{self.name}{end}" for end in ("", "_std", "_worst10")]

    @property
    def place(self) -> str:
        """FILE:LINE of its definition."""
        return user_errors.place_of(self.function) or self.reference

    def wrong(self, what: str) -> UserError:
        """The error for a function that is not a metric."""
        return UserError(f"{CONTRACT}, but {self.name} at {self.place} {what}")

    def modes(self) -> dict[str, str]:
        """Its validation metrics in tables, with their directions; "" if unknown."""
        return dict(zip(self.names("val"), (self.mode, "min", self.mode), strict=True))

    def check(self, classes: int) -> None:
        """UserError for a function that does not return a number for random rows, two of each class, or that returns
        another for the same rows after it has seen others.
        """
        y = torch.arange(classes).repeat(2)
        scores = torch.randn(len(y), classes, generator=torch.Generator().manual_seed(0))
        right = torch.nn.functional.one_hot(y, classes).to(scores)
        first = self.of_each([(scores, y)])
        for others in (scores, right, -right):  # none is better than right, for what keeps the best it has seen
            with suppress(UserError):
                self.of_each([(others, y)])
            if not torch.equal(first, last := self.of_each([(scores, y)])):
                raise self.wrong(
                    f"returns {float(first):.7g} and later {float(last):.7g} for the same rows; let it keep nothing "
                    "from call to call (reset what adds up), change no argument and draw nothing at random"
                )

    def spread(self, split: str, values: Tensor) -> dict[str, float]:
        """The metric over clients: mean, standard deviation, and mean over the worst tenth.  values [k]"""
        found = over_clients(f"{split}_{self.name}", values, self.mode)
        return {name: found[name] for name in self.names(split)}

    def of_each(self, rows: Rows, who: Callable[[int], str] = lambda i: "") -> Tensor:
        """The metric of each client, on its real rows.  UserError unless all are finite.  -> [k]

        who: the i-th client in words, for messages.
        """
        values = torch.stack([_one(self, scores, y) for scores, y in rows])
        if values.dim() > 1:
            raise self.wrong(f"returns a tensor of shape {list(values.shape[1:])}")
        if not values.isfinite().all():
            at = int((~values.isfinite()).nonzero()[0])
            value, y, whose = float(values[at]), rows[at][1], f" ({who(at)})" if who(at) else ""
            raise self.wrong(
                f"returns {value} for {several(len(y), 'row')} of {several(len(y.unique()), 'class')}{whose}"
            )
        return values.double()


def take(texts: Iterable[str]) -> tuple[tuple[str, ...], tuple[user_files.UserFile, ...]]:
    """The canonical names of what was typed, and their files; UserError for anything but a function in a file."""
    taken = []
    for text in texts:
        if not user_files.is_reference(text) or not parsed(text).member:
            raise UserError(f"--metric needs a function of a file, FILE.py:NAME, but got {text!r}")
        taken.append(user_files.take(text))
    return tuple(name for name, _ in taken), user_files.merged(*(files for _, files in taken))


def load(references: Sequence[str]) -> tuple[OwnMetric, ...]:
    """The metrics of these names; UserError if one is not a metric, or has a name that exists already."""
    found = tuple(_loaded(reference) for reference in references)
    taken = [name for metric in found for name in metric.names("val")]
    for metric in found:
        if any(n in METRICS for n in metric.names("val") + metric.names("test")) or metric.name.startswith("acc_"):
            raise UserError(
                f"a metric's name must be new, but val_{metric.name} is fedtune's own; rename it at {metric.place}"
            )
        if sum(taken.count(name) for name in metric.names("val")) > 3:
            raise UserError(f"metrics must have different names, but {metric.name} comes twice; rename one")
    return found


def _loaded(reference: str) -> OwnMetric:
    function = user_files.load(reference, "metric")
    name, options = parsed(reference).member, user_files.call_options(reference)
    mode = getattr(function, "mode", "")
    metric = OwnMetric(reference, name, function, mode)
    if not callable(function) or isinstance(function, type):
        raise metric.wrong(f"is {'a class' if isinstance(function, type) else type(function).__name__}")
    if mode not in ("", "max", "min"):
        raise UserError(f"a metric's mode is 'max' or 'min', but that of {name} at {metric.place} is {mode!r}")
    try:
        inspect.signature(function).bind(None, None, **options)
    except TypeError as error:
        raise metric.wrong(f"cannot be called like this: {error}") from None
    except ValueError:
        pass  # unknown for a function in C
    return metric._replace(function=partial(function, **options)) if options else metric


def _one(metric: OwnMetric, scores: Tensor, y: Tensor) -> Tensor:
    with user_files.calling(metric.reference, "metric"):
        value = metric.function(scores, y)
    try:
        return torch.as_tensor(value).detach().cpu().to(torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise metric.wrong(f"returns {type(value).__name__}") from None
