"""Models with something attached (hooks, parametrizations, buffers, counts) are right, or refused in one line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support import hooked_nets
from support.helpers import DIGITS, random_federation
from support.user_algorithms import NETS

from fedtune.conformance import models
from fedtune.conformance.check import Note, Violation
from fedtune.core.errors import UserError
from fedtune.engine.simulation import Simulation
from fedtune.experiment.experiment import Experiment
from fedtune.user_code import user_files

DATA = random_federation([10, 12, 7])
SMALL = DIGITS.override(clients=3, local_steps=5, batch=4)
HOOKED = [
    "forward",
    "forward_of_body",
    "forward_of_head",
    "with_kwargs",
    "pre",
    "backward",
    "backward_pre",
]
KEEPING = ["parametrized", "weight_norm_of_old", "spectral_norm_of_old"]
KEEPING_NOTHING = [
    "doubled",
    "weight_norm",
    "spectral_norm",
    "orthogonal",
    "written",
    "reassigned",
    "twice",
    "made",
    "lazy",
    "batch_norm",
    "layer_norm",
    "relu_twice",
]
REFUSED = {
    "everywhere_forward": "registers a hook on all modules",
    "everywhere_pre": "registers a hook on all modules",
    "everywhere_backward": "registers a hook on all modules",
    "tied": "is the same tensor as body.3.weight",
    "norm_twice": "is the same tensor as body.3.running_mean",
    "environment": r"hooked_nets.py:\d+ changes os.environ\['HOOKED_NETS'\], which outlives a trial",
    "file": r"hooked_nets.py:\d+ writes .*hooked_nets.count, which outlives a trial",
    "cache": r"hooked_nets.py:\d+ changes _counter, which outlives a trial",
}


@pytest.fixture(autouse=True)
def nothing_is_attached() -> Iterator[None]:
    yield
    hooked_nets.detach()


def model_of(kind: str) -> str:
    return user_files.take(f"{NETS.with_name('hooked_nets.py')}:{kind}")[0]


def trained(kind: str, executor: str) -> Simulation:
    scenario = SMALL.override(model=model_of(kind), features=0)
    simulation = Simulation(Experiment(algorithm="fedavg", scenario=scenario, executor=executor), {}, DATA)  # type: ignore[arg-type]
    for _ in range(3):
        simulation.step()
    return simulation


def told(kind: str) -> Violation | Note | None:
    """What `fedtune check` says of what a model keeps."""
    return models.own_state(models.ModelSubject(model_of(kind), SMALL.override(model=model_of(kind), features=0)))


@pytest.mark.parametrize("kind", [*HOOKED, *KEEPING, *KEEPING_NOTHING])
def test_what_is_attached_to_a_model_gives_the_figures_of_one_client_after_the_other(kind: str) -> None:
    found, alone = trained(kind, "auto"), trained(kind, "loop")
    if kind in (*HOOKED, *KEEPING):
        assert {g.executor for g in found.state.groups} == {"loop"}
    for n, t in alone.state.server["shared"].items():
        torch.testing.assert_close(found.state.server["shared"][n], t, rtol=1e-5, atol=1e-5)
    assert found.last.row["val_loss"] == pytest.approx(alone.last.row["val_loss"], rel=1e-5)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_right_is_refused_in_one_line(kind: str) -> None:
    with pytest.raises(UserError, match=REFUSED[kind]) as error:
        trained(kind, "auto")
    assert "\n" not in str(error.value)


def test_check_tells_what_a_model_keeps() -> None:
    for kind in HOOKED:
        assert "has a hook" in str(told(kind)), kind
    for kind in ("parametrized", "environment", "file", "cache"):
        assert isinstance(told(kind), Violation), kind
    for kind in KEEPING_NOTHING:
        assert told(kind) is None, kind


def test_a_buffer_that_forward_replaces_moves_as_one_that_it_writes_into() -> None:
    sizes = [trained(kind, "loop").state.server["shared"]["body.3.size"] for kind in ("written", "reassigned")]
    assert torch.equal(*sizes) and sizes[0] != 1
