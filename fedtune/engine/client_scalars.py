"""What stacked client code asks of its client, so that it is told no more: every tensor that it is given costs time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fedtune.experiment.algorithm import Batch, Client

Step = tuple[Any, ...]  # x, y and noise of a batch, and what its client is told of itself


class _RecordingClient(Client):
    """A client that notes in `asks` that it was asked for its rate, its steps or its path."""

    accessed: list[str]

    def __getitem__(self, at: Any) -> Any:
        self.accessed.append("one by its place")
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[Any]:
        self.accessed.append("all")
        return super().__iter__()

    @property
    def lr(self) -> Tensor:
        self.accessed.append("lr")
        return super().__getitem__(1)  # type: ignore[return-value]

    @property
    def steps(self) -> Tensor:
        self.accessed.append("steps")
        return super().__getitem__(2)  # type: ignore[return-value]

    @property
    def path(self) -> dict[str, Tensor]:
        self.accessed.append("path")
        return super().__getitem__(3)  # type: ignore[return-value]


def batch_of(step: Step, accessed: list[str]) -> Batch:
    """A step's batch as client code sees it."""
    x, y, noise, *told = step
    client = _RecordingClient(*told)
    client.accessed = accessed
    return Batch(x, y, noise, client)
