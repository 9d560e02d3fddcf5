"""A declaration validates, parses, makes the search domain and words the error."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedtune.core.errors import UserError
from fedtune.core.hyper import Hyperparameter, find, hyper, hyperparameters
from fedtune.experiment.algorithm import Algorithm, first_round
from fedtune.experiment.scenario import Scenario


@dataclass(frozen=True)
class Toy(Algorithm):
    rate: float = hyper(0.5, 0.1, 10.0, log=True, extra_values=(0.0,), symbol="ρ", help="a rate", first_round=3)
    steps: int = hyper(4, 1, 8, help="steps", first_round="later")
    kind: str = hyper("a", choices=("a", "b"), help="a kind")
    on: bool = hyper(True, help="a switch")
    maybe: float | None = hyper(None, 0.1, 1.0, help="a rate or none")
    free: float = hyper(1.0, help="any number")
    width: int = hyper(0, 2, 512, extra_values=(0,), help="a width")

    def later(self) -> int:
        return self.steps + 1


HYPERPARAMETERS = hyperparameters(Toy)


TAKEN = {  # what is given -> the value
    "rate": [("0.25", 0.25), (1, 1.0), ("1e-1", 0.1), (10.0, 10.0), (0, 0.0), ("0", 0.0), (np.float32(0.5), 0.5)],
    "steps": [("3", 3), (3.0, 3), (1, 1), (8, 8), (np.int64(3), 3), (np.uint8(8), 8), (np.array(3), 3)],
    "kind": [("b", "b"), (np.str_("b"), "b")],
    "on": [("False", False), ("true", True), (False, False), (np.bool_(False), False), (torch.tensor(True), True)],
    "maybe": [("none", None), ("0.5", 0.5), (None, None), (np.float64(0.5), 0.5)],
    "free": [("-1e9", -1e9)],
    "width": [("0", 0), (0.0, 0), (2, 2), (np.int32(0), 0)],
}
TAKEN["steps"] += [(torch.tensor(3), 3), (np.float32(3), 3), (pd.Series([2, 3])[1], 3)]
TAKEN["rate"] += [(torch.tensor(0.5), 0.5), (np.int64(1), 1.0)]


@pytest.mark.parametrize(("name", "given", "value"), [(n, *row) for n, rows in TAKEN.items() for row in rows])
def test_a_value_comes_back_in_its_type_from_python_from_text_and_from_arrays(
    name: str, given: Any, value: Any
) -> None:
    got = HYPERPARAMETERS[name].check(given)
    assert got == value and type(got) is type(value)


def test_a_declaration_may_be_of_numpys_numbers_but_not_of_sequences() -> None:
    @dataclass(frozen=True)
    class Numbers(Algorithm):
        steps: int = hyper(np.int64(4), np.int64(1), np.int64(8))
        kind: str = hyper("a", choices=tuple(np.array(["a", "b"])))

    assert hyperparameters(Numbers)["steps"].integer and type(Numbers().steps) is int
    assert type(hyperparameters(Numbers)["kind"].check("b")) is str
    with pytest.raises(UserError, match=r"choices must be strings, numbers or bools, but got \(1, 2\)"):
        hyper((1, 2), choices=((1, 2), (3, 4)))


RULES = {
    "rate": "rate must be a number in 0.1..10 log, or 0.0",
    "steps": "steps must be a whole number in 1..8",
    "kind": "kind must be one of a | b",
    "on": "on must be one of False | True",
    "maybe": "maybe must be a number in 0.1..1",
    "free": "free must be a number in any",
    "width": "width must be a whole number in 2..512, or 0",
}
NONE = "(None|nan|<NA>)"  # what a table shows for nothing
REFUSED = {
    "rate": [(0.05, "0.05"), ("11", "11"), (float("nan"), NONE), ("inf", "inf"), ("much", "'much'"), (True, "True")],
    "steps": [(2.5, "2.5"), (0, "0"), (9, "9"), (True, "True"), (10**400, "1000")],
    "kind": [("c", "'c'"), (True, "True")],
    "on": [(1, "1"), ("yes", "'yes'"), (0, "0")],
    "maybe": [(2, "2")],
    "free": [(float("inf"), "inf")],
    "width": [(1, "1"), (False, "False")],
}
REFUSED["rate"] += [(False, "False"), (None, NONE), (np.datetime64("2020-01-01"), "datetime64"), (1 + 0j, "(1+0j)")]
REFUSED["rate"] += [(np.float64("nan"), NONE), (pd.NA, NONE)]
REFUSED["steps"] += [(np.array([3, 4]), "array"), (np.array([3]), "array"), (np.bool_(True), "True")]
REFUSED["steps"] += [(np.timedelta64(3, "ns"), "timedelta64"), (torch.tensor([3, 4]), "tensor")]
REFUSED["steps"] += [(torch.empty((), device="meta"), "tensor")]
REFUSED["kind"] += [(np.array(["a", "b"]), "array"), (("a",), "('a',)"), (pd.NA, NONE), (None, NONE)]
REFUSED["on"] += [(np.int64(1), "1")]


@pytest.mark.parametrize(("name", "given", "got"), [(n, *row) for n, rows in REFUSED.items() for row in rows])
def test_a_value_that_was_not_declared_is_refused_with_the_rule_and_the_value(name: str, given: Any, got: str) -> None:
    with pytest.raises(UserError) as caught:
        HYPERPARAMETERS[name].check(given)
    said = str(caught.value)
    assert re.match(rf"{re.escape(RULES[name])}, but got (np\.|numpy\.)?{got if got is NONE else re.escape(got)}", said)
    assert ("leave it out for the default" in said) == (got is NONE) and "\n" not in said
    with pytest.raises(UserError):
        Toy(**{name: given})


def test_an_algorithm_normalises_its_values() -> None:
    toy = Toy(rate="0.2", steps="2", on="false", maybe="0.3")  # type: ignore[arg-type]
    assert (toy.rate, toy.steps, toy.on, toy.maybe) == (0.2, 2, False, 0.3)
    assert toy == Toy(rate=0.2, steps=2, on=False, maybe=0.3)


def test_knobs_are_listed_in_order_under_their_names() -> None:
    assert list(HYPERPARAMETERS) == ["rate", "steps", "kind", "on", "maybe", "free", "width"]
    assert all(k.name == n for n, k in HYPERPARAMETERS.items())
    assert [HYPERPARAMETERS[n].integer for n in ("rate", "steps", "on", "kind")] == [False, True, False, False]
    assert [n for n in HYPERPARAMETERS if not HYPERPARAMETERS[n].searchable] == ["free"]


@pytest.mark.parametrize("hp", HYPERPARAMETERS.values(), ids=str)
def test_a_record_keeps_a_declaration(hp: Hyperparameter) -> None:
    """All but the rounds in which it matters, which only a search asks for."""
    kept = json.loads(json.dumps(hp.to_record()))
    assert Hyperparameter.from_record(hp.name, kept) == replace(hp, first_round=1, late=False)


def draws(hp: Hyperparameter, *bounds: float) -> list[Any]:
    np.random.seed(0)
    domain = hp.domain(*bounds)
    return [domain.sample() for _ in range(400)]


@pytest.mark.parametrize("name", ["rate", "steps", "kind", "on", "maybe", "width"])
def test_everything_a_domain_draws_is_allowed_and_ranges_include_both_ends(name: str) -> None:
    hp = HYPERPARAMETERS[name]
    seen = draws(hp)
    assert [hp.check(v) for v in seen] == seen
    if hp.choices:
        assert set(seen) == set(hp.choices)
    elif name == "steps":
        assert set(seen) == set(range(1, 9))


def test_a_log_domain_is_uniform_in_the_logarithm() -> None:
    seen = draws(HYPERPARAMETERS["rate"])
    assert abs(sum(v < 1 for v in seen) / 400 - 0.5) < 0.1  # 1 is the middle of 0.1..10


def test_a_domain_can_be_narrowed_but_not_widened_and_needs_a_range() -> None:
    assert set(draws(HYPERPARAMETERS["steps"], 2, 3)) == {2, 3}
    assert all(1 <= v <= 2 for v in draws(HYPERPARAMETERS["rate"], 1, 2))
    with pytest.raises(UserError, match="rate must be a number in 0.1..10 .*but got 20"):
        HYPERPARAMETERS["rate"].domain(1, 20)
    with pytest.raises(UserError, match="free has no range to search; fix it with --set free=VALUE"):
        HYPERPARAMETERS["free"].domain()


@pytest.mark.parametrize(
    ("low", "high"), [(5.0, 1.0), (2.0, 2.0), (0.0, 1.0)], ids=["turned round", "a point", "log from a value beside it"]
)
def test_a_domain_that_cannot_be_drawn_from_is_refused(low: float, high: float) -> None:
    with pytest.raises(UserError, match="rate"):
        HYPERPARAMETERS["rate"].domain(low, high).sample()


def test_find_takes_the_first_owner_of_a_name_or_tells_the_nearest() -> None:
    assert find("rate", Toy, Scenario) is not None and find("lr", Toy, Scenario).symbol == "η"
    with pytest.raises(UserError, match="unknown hyperparameter 'step': did you mean 'steps'"):
        find("step", Toy, Scenario)

    @dataclass(frozen=True)
    class Other(Algorithm):
        lr: float = hyper(1.0, 0.5, 2.0, symbol="mine")

    assert find("lr", Other, Scenario).symbol == "mine" and find("lr", Scenario, Other).symbol == "η"


def test_first_rounds_are_numbers_or_told_by_the_algorithm() -> None:
    toy = Toy(steps=6)
    assert [first_round(toy, n) for n in ("rate", "steps", "kind", "lr", "batch")] == [3, 7, 1, 1, 1]


def test_scenario_knobs_have_defaults_in_their_ranges_and_help() -> None:
    declared = hyperparameters(Scenario)
    work = {"batch", "local_epochs", "local_steps", "optimizer", "lr", "lr_decay", "momentum", "weight_decay"}
    privacy = {"update_noise", "update_clip", "clip_quantile", "clip_rate"}
    codecs = {"compress", "sent_share", "sent_bits", "error_feedback"}
    others = {"averaging", "clip_norm", "participation", "batch_norm", "body_lr_scale"}
    assert set(declared) == work | others | privacy | codecs
    for hp in declared.values():
        assert hp.check(hp.default) == hp.default and hp.help and hp.searchable
