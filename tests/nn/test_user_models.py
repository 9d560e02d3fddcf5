"""A user's model from a file is trained like one of ours."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from support.algorithms import every
from support.helpers import DIGITS, EARLY, play, random_federation, simulate
from support.numbers import assert_same_numbers, numbers
from torch import nn

from fedtune.core.errors import UserError
from fedtune.experiment import registry
from fedtune.experiment.experiment import Experiment, fitting
from fedtune.nn import architectures, catalogue
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.user_code import user_files

SOURCE = """
from __future__ import annotations

import torch
from torch import nn

from fedtune.nn.layers import Linear, MaxPool2x2


class Small(nn.Module):
    def __init__(self, shape, classes, hidden=6):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), hidden), nn.ReLU())
        self.head = nn.Linear(hidden, classes)


class Two(nn.Module):
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head


def free(shape, classes, features=5):
    body = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), features))
    return Two(body, nn.Linear(features, classes))


def whole(shape, classes, hidden=6):
    small = Small(shape, classes, hidden)
    return nn.Sequential(*small.body, small.head)


class Late(nn.Module):
    def forward(self, x):
        if not hasattr(self, "layer"):
            self.layer = nn.Linear(x.shape[1], 6)
        return self.layer(x)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(self.layer(x))


def lazy(shape, classes): return Two(nn.Sequential(nn.Flatten(), nn.LazyLinear(6), nn.ReLU()), nn.LazyLinear(classes))
def lazy_cut(shape, classes): return nn.Sequential(nn.Flatten(), nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(classes))
def lazy_norm(shape, classes): return Two(
    nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(6)),
    nn.Linear(6, classes))
def lazy_words(shape, classes): return Two(
    nn.Sequential(nn.Embedding(30, 4), nn.Flatten(), nn.LazyLinear(6)), nn.Linear(6, classes))
def late(shape, classes): return Two(nn.Sequential(nn.Flatten(), Late(), nn.ReLU()), nn.Linear(6, classes))
def twice(shape, classes): return Two(
    nn.Sequential(nn.Flatten(), nn.Linear(64, 6), Twice()), nn.Linear(6, classes))
def parametrized(shape, classes):
    net = Two(nn.Sequential(nn.Flatten(), nn.Linear(64, 6)), nn.Linear(6, classes))
    nn.utils.parametrizations.weight_norm(net.body[1])
    return net


class Words(nn.Module):
    def __init__(self, shape, classes, words=30):
        super().__init__()
        self.embed, self.fc = nn.Embedding(words, 4), nn.Linear(4, classes)

    def forward(self, x):
        return self.fc(self.embed(x).mean(1))


def deep(shape, classes):
    body = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 12), nn.ReLU())
    return Two(body, nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, classes, bias=False)))


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, x):
        return x * self.scale


def scaled(shape, classes):
    return Two(nn.Sequential(mlp(shape, 12), Constant()), Linear(12, classes))


def logistic(shape, classes):
    return Two(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes))


def copied(shape, classes):
    return Two(mlp(shape, 12), Linear(12, classes))


"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file's canonical name, registered."""
    path = tmp_path_factory.mktemp("own") / "net.py"
    ours = inspect.getsource(architectures.mlp)
    path.write_text(SOURCE + ours.replace("Shape", "tuple"))
    return user_files.take(str(path))[0]


def test_the_width_is_what_the_model_gives(net: str) -> None:
    widths = [architectures.width(f"{net}:{name}", (1, 8, 8), 10) for name in ("Small", "Small(hidden=3)", "free")]
    assert widths == [6, 3, 5]
    assert architectures.width(f"{net}:free", (1, 8, 8), 10, 9) == 9  # it takes `features`
    assert architectures.width(f"{net}:free(features=4)", (1, 8, 8), 10) == 4
    assert architectures.width(f"{net}:Words(head='fc')", (7,), 3, dtype=torch.int64) == 4
    with pytest.raises(UserError, match="the same width, but net.py:Small has 6 and --features has 9"):
        architectures.width(f"{net}:Small", (1, 8, 8), 10, 9)


def test_one_seed_one_network_and_the_global_random_state_stays(net: str) -> None:
    chance = torch.get_rng_state()
    a, b, c = (architectures.build(f"{net}:Small", (1, 8, 8), 10, seed=s).state_dict() for s in (1, 1, 2))
    architectures.width(f"{net}:Small", (3, 8, 8), 10)
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(torch.equal(a[n], b[n]) for n in a) and not torch.equal(a["head.weight"], c["head.weight"])


def test_naming_the_last_layer_cuts_the_same_network(net: str) -> None:
    small, cut = (architectures.build(f"{net}:{name}", (1, 8, 8), 10, seed=3) for name in ("Small", "whole(head='3')"))
    x = torch.randn(4, 1, 8, 8)
    assert torch.equal(small.body(x), cut.body(x)) and torch.equal(small(x), cut(x))
    assert isinstance(cut.head, nn.Linear) and [n for n, _ in cut.named_children()] == ["body", "head"]


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_a_copy_of_our_network_in_a_file_trains_to_the_same_numbers(net: str, executor: str) -> None:
    data = random_federation([5, 9, 7])
    ours, copy = (
        simulate("fedper", DIGITS.override(model=m), data, executor=executor) for m in ("mlp", f"{net}:copied")
    )
    assert play(ours, 2) == play(copy, 2)
    assert_same_numbers(numbers(copy.state), numbers(ours.state))


def test_own_and_ours_mix_where_their_bodies_are_the_clients_own(net: str) -> None:
    model = f"{net}:Small(hidden=7),cnn8,{net}:free"
    assert catalogue.members(model) == ("net.py:Small(hidden=7)", "cnn8", "net.py:free")
    scenario = DIGITS.override(model=model, features=0)
    Experiment(algorithm="fedproto", scenario=scenario).check()
    sim = simulate("fedproto", scenario, random_federation([5, 9, 7, 6]))
    assert sim.setup.task.features == 7 and [g.ids.tolist() for g in sim.state.groups] == [[0, 3], [1], [2]]
    play(sim, 1)
    with pytest.raises(UserError, match="fedavg averages body and head"):
        Experiment(algorithm="fedavg", scenario=scenario).check()
    with pytest.raises(UserError, match="net.py:Small has 6 and net.py:Small.hidden=7. has 7"):
        Experiment(algorithm="fedproto", scenario=scenario.override(model=f"{net}:Small(hidden=7),{net}:Small")).check()


@pytest.mark.parametrize("name", [n for n in catalogue.WIDTHS if catalogue.axes(n) == (3,)])
def test_our_networks_for_images_refuse_vectors(name: str) -> None:
    with pytest.raises(UserError, match=f"model '{name}' does not fit vectors of 30: it is for images; use mlp"):
        architectures.build(name, (30,), 10)


def test_tokens_have_a_network_of_their_own_and_the_perceptron_takes_vectors() -> None:
    assert architectures.build("mlp", (30,), 10)(torch.zeros(2, 30)).shape == (2, 10)
    for name, dtype, words in (
        ("mlp", torch.int64, "sequences of 30 tokens: it is for images and vectors; use tokens, or your own model"),
        ("tokens", torch.float32, "vectors of 30: it is for tokens; use your own model"),
    ):
        with pytest.raises(UserError, match=f"model '{name}' does not fit {words}"):
            architectures.require_fit(name, architectures.build(name, (30,), 10), (30,), dtype)
    architectures.require_fit("tokens", architectures.build("tokens", (30,), 10), (30,), torch.int64)


def test_constants_that_no_state_dict_holds_have_the_types_of_the_rows(net: str) -> None:
    sim = simulate("fedavg", DIGITS.override(model=f"{net}:scaled"), random_federation([5, 9]))  # in float64
    assert sim.state.groups[0].net.body[1].scale.dtype == torch.float64
    assert not any("scale" in name for name in numbers(sim.state))
    play(sim, 1)


def test_a_model_without_a_body_that_learns_is_shared_whole_or_refused(net: str) -> None:
    logistic = DIGITS.override(model=f"{net}:logistic", features=0)
    play(simulate("fedavg", logistic, random_federation([5, 9])), 1)
    with pytest.raises(UserError, match="fedper averages body, but net.py:logistic has no tensors there; use"):
        Experiment(algorithm="fedper", scenario=logistic).check()


@pytest.mark.parametrize("name", every())
def test_every_algorithm_trains_a_head_of_two_layers_or_says_that_it_cannot(net: str, name: str) -> None:
    scenario, data = DIGITS.override(model=f"{net}:deep"), random_federation([5, 9])
    if registry.find(name).linear_head:
        with pytest.raises(UserError, match="linear head, but that of net.py:deep has head.0.weight, head.0"):
            Experiment(algorithm=name, scenario=scenario).check()
    else:
        Experiment(algorithm=name, scenario=scenario).check()
        play(simulate(name, scenario, data, **EARLY.get(name, {})), 2)


def test_the_models_of_the_page_are_models(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "model.md").read_text()
    code = next(block for block in page.split("```python\n") if block.startswith("# nets.py")).split("```")[0]
    (tmp_path / "nets.py").write_text(code)
    file = user_files.take(str(tmp_path / "nets.py"))[0]
    assert architectures.width(f"{file}:Small(hidden=64)", (1, 8, 8), 10) == 64
    assert architectures.width(f"{file}:sequence(head='2')", (7,), 3, dtype=torch.int64) == 16 * 7
    options = ExperimentOptions(algo="fedproto", fields={"model": [f"{tmp_path}/nets.py:Small", "cnn8"]})
    assert options.experiment().scenario.model == "nets.py:Small,cnn8"


def test_all_algorithms_are_those_that_the_model_lets_run(net: str) -> None:
    deep, logistic = (fitting(DIGITS.override(model=f"{net}:{name}", features=0)) for name in ("deep", "logistic"))
    assert {"fedavg", "fedproto", "local"} <= set(deep)
    assert not {"fedgen", "fedpa", "fedgenp", "ccvr", "fedpft"} & set(deep)
    assert {"fedavg", "fedgen", "local"} <= set(logistic) and not {"fedper", "fedrep"} & set(logistic)


UNUSUAL = ["lazy", "lazy_cut(head='3')", "lazy_norm", "late", "twice", "parametrized"]


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_has_no_tensors_before_a_run_is_run_once_and_then_like_any_other(net: str, name: str) -> None:
    model = f"{net}:{name}"
    first, same, other = (architectures.build(model, (1, 8, 8), 10, seed=seed).state_dict() for seed in (1, 1, 2))
    assert_same_numbers(first, same)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert architectures.width(model, (1, 8, 8), 10) == 6
    data = random_federation([9, 5, 7])
    runs = [simulate("fedavg", DIGITS.override(model=model, features=0), data, executor=e) for e in ("stack", "loop")]
    for run in runs:
        play(run, 2)
    a, b = (numbers(run.state) for run in runs)
    assert all(torch.allclose(a[n], b[n], atol=1e-9) for n in b) and a.keys() == b.keys()


def test_tokens_reach_what_has_no_size_yet(net: str) -> None:
    assert architectures.width(f"{net}:lazy_words", (7,), 3, 0, torch.int64) == 6
    assert architectures.build(f"{net}:lazy_words", (7,), 3).state_dict()["body.2.weight"].shape == (6, 28)


@pytest.mark.parametrize("layer", ["BatchNorm1d(6", "LazyBatchNorm1d(", "SyncBatchNorm(6"])
def test_batch_norm_without_running_statistics_is_refused_in_plain_words(layer: str, tmp_path: Path) -> None:
    kept = f"nn.{layer}{', ' if layer[-1] != '(' else ''}track_running_stats=False)"
    (tmp_path / "norm.py").write_text(
        "from torch import nn\ndef net(shape, classes):\n"
        "    made = nn.Module()\n    made.head = nn.Linear(6, classes)\n"
        f"    made.body = nn.Sequential(nn.Flatten(), nn.LazyLinear(6), {kept})\n    return made\n"
    )
    name, _ = user_files.take(str(tmp_path / "norm.py:net"))
    with pytest.raises(UserError, match="must keep running statistics, .* but body.2 has track_running_stats=False"):
        architectures.width(name, (1, 4, 4), 3)
