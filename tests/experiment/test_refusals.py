"""What a part of the round does not take, and why: a row a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from support.helpers import DIGITS
from support.user_algorithms import known_as

from fedtune.core.errors import UserError
from fedtune.experiment.algorithm import UP, Algorithm
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.refusals import releases
from fedtune.trainables.fedprox import FedProx
from fedtune.trainables.local import Local

PRIVATE = DIGITS.override(privacy="client", update_noise=1.0)


@dataclass(frozen=True)
class Own(Algorithm):
    """FedAvg with a loss of its own."""

    shared = ("body", "head")

    def loss(self, m: Any, batch: Any, down: Any) -> Any:
        return 2 * super().loss(m, batch, down)


@dataclass(frozen=True)
class Sending(FedProx):
    """What it inherits is declared, but it sends more."""

    def upload(self, m: Any, data: Any, down: Any) -> Any:
        return {"rows of class 0": (data.y == 0).sum()}


@dataclass(frozen=True)
class Twice(Own):
    """Two uploads a round."""

    def round(self, task: Any) -> Any:
        return (*super().round(task), *self.phases(task), UP)


@dataclass(frozen=True)
class Watching(Own):
    """Its server sees scores."""

    def observe(self, server: Any, val_acc: float, task: Any) -> Any:
        return server


@dataclass(frozen=True)
class Alone(Algorithm):
    """Shares nothing."""


OF_USERS = {"own": Own, "sending": Sending, "twice": Twice, "watching": Watching, "alone": Alone}
BATCH_NORM = {"model": "fedgen-cnn", "features": 8}


@pytest.mark.parametrize(
    ("name", "fields", "pinned", "rule"),
    [
        ("scaffold", {}, {}, "but scaffold's server takes several means, or weighs"),
        ("cfl", {}, {}, "but cfl's server uses single clients' models, each of which would need noise of its own; use"),
        ("fedproto", {}, {}, "but fedproto's server gets statistics of rows per class, whose size one client's rows"),
        ("sending", {}, {}, "but sending's server uses single clients' models"),
        ("twice", {}, {}, "but twice's server uses single clients' models"),
        ("watching", {}, {}, "takes no algorithm whose server sees scores, which are data, but watching has `observe`"),
        ("fedavg", {}, {"averaging": "rows"}, "privacy=client averages over clients, as a client's rows are data, but"),
        (
            "fedavg",
            BATCH_NORM,
            {},
            "would release running statistics, which are means of rows; use batch_norm",
        ),
        ("fedavg", {"sampling": "fixed", "participation": 0.5}, {}, "but sampling=fixed always takes 3 of 5 clients"),
        ("fedavg", {}, {"update_clip": 0.0}, "privacy needs a bound on updates, but update_clip is 0"),
        (
            "fedavg",
            {"epsilon": 8.0},
            {},
            "so only one of them can be given, but got 8 and 1",
        ),
    ],
)
def test_privacy_is_refused_where_noise_would_not_cover_all(
    name: str, fields: dict[str, Any], pinned: dict[str, Any], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_as(monkeypatch, **OF_USERS)
    with pytest.raises(UserError) as error:
        Experiment(algorithm=name, scenario=PRIVATE.override(**fields), pinned=pinned).check()
    assert rule in str(error.value) and "\n" not in str(error.value)
    Experiment(algorithm=name, scenario=DIGITS.override(**(fields | {"epsilon": 0.0}))).check()


@pytest.mark.parametrize(
    ("name", "fields", "pinned"),
    [
        ("fedavg", {}, {}),
        ("local", {}, {}),
        ("own", {}, {}),
        ("alone", {}, {}),
        ("fedavg", {"sampling": "fixed"}, {}),
        ("fedavg", {}, {"update_clip": 0.0, "clip_quantile": 0.5}),
        ("fedavg", BATCH_NORM, {"batch_norm": "personal"}),
        ("fedbn", BATCH_NORM, {}),
    ],
)
def test_what_it_covers_is_taken(
    name: str, fields: dict[str, Any], pinned: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known_as(monkeypatch, **OF_USERS)
    experiment = Experiment(algorithm=name, scenario=PRIVATE.override(**fields), pinned=pinned)
    experiment.check()
    assert experiment.resolve({})[1].averaging == "clients"
    assert experiment.default().get("update_clip") == pinned.get("update_clip", 1.0)
    searched = name not in ("local", "alone") and "clip_quantile" not in pinned
    assert ("update_clip" in experiment.traits.searched) == searched


def test_what_a_subclass_inherits_holds_while_its_methods_do() -> None:
    assert [releases(c) for c in (Own, Alone, FedProx, Local)] == ["mean", "nothing", "mean", "nothing"]
    assert [releases(c) for c in (Sending, Twice)] == ["single", "single"] and releases(Watching) == "mean"
