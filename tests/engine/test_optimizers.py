"""The optimisers are torch.optim's, bit for bit."""

from typing import Any

import pytest
import torch

from fedtune.engine.optimizers import Optimizers
from fedtune.experiment.algorithm import Phase
from fedtune.experiment.scenario import Scenario

SHAPES = {"body.weight": (3, 7, 2), "body.bias": (3, 7), "head.weight": (3, 5)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("work", [{"momentum": 0.0}, {"momentum": 0.9}, {"optimizer": "adam"}], ids=str)
def test_steps_are_those_of_torch_optim(work: dict[str, Any], decay: float, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(0)
    ours = [torch.randn(s, generator=rng, dtype=dtype) for s in SHAPES.values()]
    theirs = [t.clone().requires_grad_() for t in ours]
    scenario = Scenario(lr=0.03, weight_decay=decay, **work)
    optimizers = Optimizers(
        phase=Phase(lambda m, b, d: None, lr_scale={"head": 0.5}),
        work=scenario,
        cooled=1.0,
        names=[*SHAPES],
        leaves=ours,
        lead=1,
    )  # type: ignore[arg-type, return-value]
    groups = [{"params": theirs[2:], "lr": 0.03 * 0.5}, {"params": theirs[:2], "lr": 0.03}]
    kind: Any = torch.optim.Adam if scenario.optimizer == "adam" else torch.optim.SGD
    given = {} if scenario.optimizer == "adam" else {"momentum": scenario.momentum}
    reference = kind(groups, weight_decay=decay, **given)
    for step in range(5):
        grads = [torch.randn(t.shape, generator=rng, dtype=dtype) for t in ours]
        if step < 2:
            grads[1] = None  # type: ignore[call-overload]  # a leaf that the loss does not reach yet
        for leaf, grad in zip(theirs, grads, strict=True):
            leaf.grad = None if grad is None else grad.clone()
        reference.step()
        optimizers.step(grads)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


def test_clients_that_have_finished_are_left_behind_with_what_is_remembered_of_them() -> None:
    whole, part = torch.ones(3, 2), torch.ones(2, 2)
    phase = Phase(lambda m, b, d: None)  # type: ignore[arg-type, return-value]
    both = [
        Optimizers(phase=phase, work=Scenario(momentum=0.5), cooled=1.0, names=["body.w"], leaves=[t], lead=1)
        for t in (whole, part)
    ]
    both[0].step([torch.ones(3, 2)])
    both[1].step([torch.ones(2, 2)])
    both[0].cut([whole[:2]])
    for optimizers in both:
        optimizers.step([torch.full((2, 2), 2.0)])
    assert torch.equal(whole[:2], part) and torch.equal(whole[2], torch.full((2,), 1 - 0.01))
