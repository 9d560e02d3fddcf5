"""PyTorch's own generator is borrowed, and given back as it was."""

import pytest
import torch

from fedtune.core import randomness


def test_draws_start_from_the_seed_as_torchs_own_do_and_the_generator_is_given_back() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2**62 + 7)
        theirs = torch.nn.Linear(3, 2).weight
    before = torch.get_rng_state()
    with randomness.seeded(2**62 + 7):
        ours = torch.nn.Linear(3, 2).weight
    assert torch.equal(ours, theirs) and torch.equal(torch.get_rng_state(), before)


def test_the_generator_is_given_back_after_an_error_and_gpus_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", asked.append)
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), randomness.seeded(1):
        torch.rand(1).item() / 0
    assert torch.equal(torch.get_rng_state(), before) and not asked
