"""What algorithms declare of their servers, and that a bound that nobody reaches changes no bit of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.helpers import CLOCK, DIGITS, EARLY, simulate
from support.numbers import assert_same_numbers, flat, numbers
from torch.testing import assert_close

from fedtune.core.trees import tree_map
from fedtune.experiment.registry import find, names

TINY = DIGITS.override(clients=3, shots=5, shots_spread=2, averaging="clients", all_classes=0)
CLIPPED = TINY.override(privacy="client", update_clip=1e2)
MEAN = [name for name in names() if find(name).releases == "mean"]


def test_every_algorithm_declares_what_its_server_does() -> None:
    kinds = {name: vars(find(name)).get("releases") for name in names()}
    counts = {kind: sum(k == kind for k in kinds.values()) for kind in {*kinds.values()}}
    assert counts == {"nothing": 1, "mean": 27, "means": 8, "single": 6, "classes": 12}


class Calls:
    """A run's calls of `aggregate`: server, uploads, task, and what it returned."""

    def __init__(self, sim: Any) -> None:
        self.aggregate = sim.setup.algorithm.aggregate
        self.made: list[tuple[Any, ...]] = []
        object.__setattr__(sim.setup.algorithm, "aggregate", self)

    def __call__(self, *args: Any) -> Any:
        self.made.append((*args, result := self.aggregate(*args)))
        return result


@pytest.mark.parametrize("name", MEAN)
def test_a_bound_that_nobody_reaches_changes_no_bit_and_the_server_uses_nothing_but_the_mean(name: str) -> None:
    values = EARLY[name] | ({"weighing": "clients"} if hasattr(find(name), "weighing") else {})  # fedmrl's, fml's
    plain = simulate(name, TINY, executor="loop", **values)
    clipped = simulate(name, CLIPPED, executor="loop", **values, update_noise=0.0)
    calls = Calls(clipped)
    for _ in range(2):
        row, clipped_row = plain.step(), clipped.step()
        assert_same_numbers(numbers(clipped.state), numbers(plain.state))
        unlike = {n for n, v in clipped_row.items() if n not in CLOCK and row.get(n) != v}
        assert unlike == {"clip_share", "update_norm", "update_clip", "up_ints", "up_bytes", "comm_mb", "epsilon"}
        assert clipped_row["clip_share"] == 0 and clipped_row["update_norm"] > 0 and clipped_row["up_ints"] == 0
    server, up, task, result = calls.made[-1]
    alike = tree_map(lambda t: t.double().mean(0, keepdim=True).to(t).expand_as(t), up["shared"])
    twice = tree_map(lambda t: torch.cat([t, t]), up)
    for others in (up | {"shared": alike}, twice):
        found, expected = flat(calls.aggregate(server, others, task)), flat(result)
        assert found.keys() == expected.keys()
        for n, t in expected.items():
            assert_close(found[n], t, rtol=1e-6, atol=1e-6, msg=n)
