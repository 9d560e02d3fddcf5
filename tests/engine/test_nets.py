"""The nets that people use, from the rows to the rounds: both executors, and what FedBN keeps of a ResNet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.helpers import DIGITS, play, random_federation, simulate
from support.nets import NETS, setting
from support.numbers import assert_close_numbers, assert_close_rows, assert_same_numbers, numbers

from fedtune.core.errors import UserError
from fedtune.core.torchvision_import import models
from fedtune.engine import executors
from fedtune.experiment import initial_weights
from fedtune.experiment.initial_weights import Target, Weights
from fedtune.nn import architectures
from fedtune.nn.layers import batch_norm_tensors, is_statistic
from fedtune.tuning.options.options import ExperimentOptions


@pytest.mark.parametrize("name", NETS)
def test_rounds_stacked_are_rounds_of_one_client_after_the_other(name: str, tmp_path: Path) -> None:
    stack, loop = (simulate("fedavg", setting(name, tmp_path), executor=e) for e in ("stack", "loop"))
    rows = play(stack, 2)
    assert_close_rows(play(loop, 2), rows)
    assert_close_numbers(numbers(loop.state), numbers(stack.state))
    assert not any(t.dtype == torch.float32 for t in numbers(stack.state).values())


def test_small_nets_are_stacked_large_ones_and_an_lstm_looped_and_either_can_be_forced() -> None:
    for name, shape in NETS.items() | {("resnet18", (3, 32, 32))}:
        net = architectures.build(name, shape, 10)
        assert executors.choose("auto", net, "cpu") == ("loop" if name.startswith(("lstm", "resnet18")) else "stack")
        assert executors.choose("auto", net, "cuda") == executors.choose("stack", net, "cpu") == "stack"
        assert executors.choose("loop", net, "cuda") == "loop"
    with pytest.raises(UserError, match="unknown executor 'stak': did you mean 'stack'"):
        executors.choose("stak", net, "cpu")
    executors.require_device("cpu")
    with pytest.raises(UserError, match="'tpu'; use --device cpu"):
        executors.require_device("tpu")


def test_fedbn_keeps_a_resnets_norms_at_the_clients() -> None:
    scenario, data = DIGITS.override(model="resnet8-bn(width=2)", features=0), random_federation([5, 9])
    own, common = (simulate(name, scenario, data) for name in ("fedbn", "fedavg"))
    assert play(own, 2) != play(common, 2)
    held, shared, norms = own.state.groups[0].tensors, own.state.server["shared"], own.setup.algorithm.stays
    layers = norms(own.state.groups[0].net)
    assert layers == batch_norm_tensors(architectures.build(scenario.model, (1, 8, 8), 4)) and len(layers) == 9 * 5
    assert layers <= held.keys() and not layers & shared.keys() and layers <= common.state.server["shared"].keys()
    for n in layers:
        if not n.endswith("num_batches_tracked"):
            assert not torch.equal(held[n][0], held[n][1]), n  # each client's own, statistics too
    assert any(is_statistic(n) for n in layers)
    assert not any(torch.equal(t, common.state.server["shared"][n]) for n, t in shared.items())


def test_with_group_norm_fedbn_is_fedavg() -> None:
    scenario, data = DIGITS.override(model="resnet8-gn(width=2)", features=0), random_federation([5, 9])
    own, common = (simulate(name, scenario, data) for name in ("fedbn", "fedavg"))
    assert play(own, 1) == play(common, 1)
    assert_same_numbers(numbers(own.state), numbers(common.state))


def state_of(net: torch.nn.Module) -> Weights:
    return Weights("file.pth", dict(net.state_dict()), {})


def target(name: str, shape: tuple[int, ...]) -> Target:
    net = architectures.build(name, shape, 10)
    return Target({n: t.shape for n, t in net.state_dict().items()}, (), (0,))


def test_torchvisions_files_fit_nets_of_the_same_form_and_no_others() -> None:
    transformer = state_of(models.VisionTransformer(8, 4, 2, 2, 8, 32))
    found = initial_weights.fit(transformer, target("vit(width=8,depth=2,heads=2)", (3, 8, 8)))
    assert len(found.names) == len(transformer.common) - 2 and not found.drawn and not found.misfits
    assert set(found.left_out) == {"heads.head.weight", "heads.head.bias"}
    efficient = state_of(models.efficientnet_b0(weights=None))
    found = initial_weights.fit(efficient, target("efficientnet-b0", (3, 32, 32)))
    assert set(found.left_out) == {"classifier.1.weight", "classifier.1.bias"} and not found.drawn
    resnet = state_of(models.ResNet(models.resnet.BasicBlock, [2, 2, 2, 2], width_per_group=64))
    for weights, name, shape, words in (
        (transformer, "vit(width=8,depth=2,heads=2)", (3, 8, 12), "pos_embedding is 1×5×8 in the file and 1×7×8 in"),
        (transformer, "vit(width=8,depth=3,heads=2)", (3, 8, 8), "encoder_layer_2.ln_1.weight is missing in the file"),
        (resnet, "resnet18-bn", (3, 32, 32), "conv1.weight is 64×3×7×7 in the file and 64×3×3×3 in the model"),
        (efficient, "efficientnet-b0", (1, 32, 32), "0.weight is 32×3×3×3 in the file and 32×1×3×3 in the model"),
        (efficient, "convnext-tiny", (3, 32, 32), "file.pth"),
    ):
        with pytest.raises(UserError, match=words):
            initial_weights.require_some(weights, [initial_weights.fit(weights, target(name, shape))])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lstm", "model lstm does not take the rows of digits, numbers of shape 1×8×8; give --model mlp or cnn8"),
        ("cnn1d(width=4)", r"model cnn1d\(width=4\) does not take the rows of digits"),
        ("vit(patch=3)", r"model 'vit\(patch=3\)' does not fit images of 1×8×8: patches of 3×3 do not cover it"),
        ("mlp,vit(dept=3)", "unknown option of model vit 'dept': did you mean 'depth'"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_setting(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        ExperimentOptions(algo="fedavg", fields={"model": name}).experiment().check()
