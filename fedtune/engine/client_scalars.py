"""Record which scalars of its client stacked client code uses; only these are passed, because tensors cost time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fedtune.experiment.algorithm import Batch, Client

Step = tuple[Any, ...]  # x, y and noise of a batch, and the client's scalars


class _RecordingClient(Client):
    """A client that records in `accessed` whether its lr, steps or path is used."""

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
    """A step's batch for client code."""
    x, y, noise, *told = step
    client = _RecordingClient(*told)
    client.accessed = accessed
    return Batch(x, y, noise, client)
