"""A bound on communication that no configuration keeps ends a search at once, and no other does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.algorithms import FEW
from support.helpers import DIGITS, play, simulate
from support.rows import first
from support.searches import QUICK, searched

from fedtune.commands import report
from fedtune.core.errors import UserError
from fedtune.core.hyper import Hyperparameter, hyperparameters
from fedtune.core.objectives import constraints
from fedtune.experiment import registry
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.runs.folder import StudyFolder
from fedtune.tuning import plan, unkeepable
from fedtune.tuning.options.search import SearchOptions


def sends_alike(name: str, searched: list[str]) -> bool:
    return Experiment(algorithm=name, scenario=Scenario()).traits.sends_alike(searched)


AVERAGING = sorted((n for n in registry.names() if sends_alike(n, [])), key=lambda name: name not in FEW)


def made(**options: Any) -> plan.SearchPlan:
    return plan.make(SearchOptions(**{"algo": "fedavg", "scenario": "digits-w4", "fields": {"rounds": 10}} | options))


def row(mb: float, at: int = 1) -> dict[str, Any]:
    """A round after `at` of them, each of so many megabytes: two thirds up."""
    return {"round": at, "comm_mb": mb * at, "up_bytes": 2e6 * mb / 3, "down_bytes": 1e6 * mb / 3}


@pytest.mark.parametrize(
    ("bound", "more", "kept"),
    [
        ("comm_mb<=1.5", {}, False),
        ("comm_mb<=19.99", {}, False),
        ("comm_mb<=20", {}, True),  # ten rounds of 2 MB
        ("comm_mb>=20", {}, True),
        ("comm_mb>=20.01", {}, False),
        ("comm_mb<=100", {}, True),
        ("up_bytes<=1333333", {}, False),
        ("up_bytes<=1333334", {}, True),
        ("down_bytes>=700000", {}, False),
        ("val_loss<=0.0001", {}, True),
        ("val_acc>=1,seconds<=0.001", {}, True),  # no bound on traffic
        ("val_loss<=1,comm_mb<=1", {}, False),
        ("comm_mb<=30,comm_mb>=25", {}, False),
        ("comm_mb<=5", {"budget_unit": "mb", "budget": 5.0}, False),  # a trial ends in the round in which it has 5 MB
        ("comm_mb<=6", {"budget_unit": "mb", "budget": 5.0}, True),
        ("comm_mb<=6", {"budget_unit": "mb", "budget": 6.0}, True),
        ("comm_mb<=2", {"budget_unit": "seconds", "budget": 5.0}, True),  # one that is slow has a round
        ("comm_mb<=1.9", {"budget_unit": "seconds", "budget": 5.0}, False),
        ("comm_mb>=19", {"budget_unit": "seconds", "budget": 5.0}, True),
        ("comm_mb<=2", {"objective": "val_acc,comm_mb"}, True),  # the front is of all rounds
        ("comm_mb<=1.9", {"objective": "val_acc,comm_mb"}, False),
    ],
)
def test_a_bound_is_hopeless_where_every_round_costs_as_much(bound: str, more: dict[str, Any], kept: bool) -> None:
    p = made(subject_to=bound, **more)
    for at in (1, 3):
        assert (unkeepable.why(p, row(2.0, at)) == "") is kept
    third = row(0.1, 3) | {"comm_mb": 0.1 + 0.1 + 0.1}  # a sum of floats: 0.30000000000000004
    p = made(subject_to="comm_mb<=0.3", fields={"rounds": 3})
    assert not unkeepable.why(p, third)


def test_it_says_what_a_round_costs() -> None:
    said = unkeepable.why(made(subject_to="comm_mb<=15"), row(2.0))
    assert said.startswith(
        "comm_mb<=15 cannot be satisfied: whatever the configuration, fedavg sends and receives 2 MB a round here, "
        "20 in 10 rounds; loosen the bound"
    )
    up = unkeepable.why(made(subject_to="up_bytes<=700000"), row(2.0))
    assert "fedavg sends 1.333e+06 bytes a round here; loosen" in up


@pytest.mark.parametrize(
    ("algorithm", "searched", "alike"),
    [
        ("fedavg", "lr,momentum,local_epochs,batch", True),
        ("fedavg", "lr,body_lr_scale", False),
        ("fedavg", "batch_norm", False),
        ("fedprox", "mu,lr", True),
        ("feddyn", "alpha_dyn", True),
        ("fedadam", "rule,server_lr,lr", True),
        ("fedbabu", "lr", True),
        ("fedbabu", "update", False),
        ("lgfedavg", "averages", False),
        ("fml", "meme,lr", False),
        ("gfpl", "lr", False),
        ("fedkd", "lr", False),
        ("fedproto", "lam", False),
        ("scaffold", "lr", False),
        ("fedpft", "components", False),
    ],
)
def test_which_searches_send_alike(algorithm: str, searched: str, alike: bool) -> None:
    assert sends_alike(algorithm, searched.split(",")) is alike


OWN = """
from fedtune.trainables.fedavg import FedAvg
class Half(FedAvg):
    def {hook}
"""
HOOKS = {
    "loss(self, m, batch, down):\n        return super().loss(m, batch, down)": True,
    "upload(self, m, data, down):\n        return {}": False,
    "aggregate(self, server, up, task):\n        return super().aggregate(server, up, task)": False,
    "stays(self, net):\n        return set()": True,
}


@pytest.mark.parametrize("hook", HOOKS)
def test_of_an_own_algorithm_only_what_is_sure_is_taken_as_such(hook: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN.replace("{hook}", hook))
    p = made(algo=str(tmp_path / "own.py"))
    assert p.workload.traits.sends_alike(["lr"]) is HOOKS[hook]


def two(hp: Hyperparameter) -> list[Any]:
    """Two values of a hyperparameter, far apart where that costs nothing."""
    if hp.choices:
        return [hp.choices[0], hp.choices[-1]]
    assert hp.low is not None and hp.high is not None
    return [hp.check(hp.low), hp.check(min(hp.high, hp.low + 2) if hp.integer else hp.high)]


@pytest.mark.parametrize("name", first(AVERAGING, 8))
def test_what_sends_alike_does(name: str) -> None:
    declared = hyperparameters(Scenario) | hyperparameters(registry.find(name))
    alike = {n: two(k) for n, k in declared.items() if k.searchable and sends_alike(name, [n])} | {"lr": [0.01, 0.02]}
    scenario = replace(DIGITS, local_steps=1, participation=0.6)
    sent = []
    for i in range(2):
        config = {n: values[i] for n, values in alike.items() if n != "local_steps"}
        rows = play(simulate(name, scenario, **config), 2)
        sent.append([(r["up_bytes"], r["down_bytes"], r["comm_mb"] / r["round"]) for r in rows])
    (first, *_) = every = [pytest.approx(figures, rel=1e-12) for rows in sent for figures in rows]
    assert all(figures == first for rows in sent for figures in rows), every


@pytest.mark.parametrize(
    "text",
    ["val_acc>=1.01", "val_acc<=-0.1", "comm_mb<=-1", "val_loss>=28", "comm_mb<=5,comm_mb>=6", "val_acc_std>=0.6"],
)
def test_what_no_value_keeps_is_refused_before_anything_starts(text: str) -> None:
    name = re.split("[<>]", text)[0]
    with pytest.raises(UserError, match=f"--subject-to must allow some value of {name}, but got {text}, and {name} is"):
        constraints(text)


@pytest.mark.parametrize("text", ["val_acc>=1", "val_acc<=0", "comm_mb<=0", "comm_mb<=5,comm_mb>=5", "val_loss<=27.6"])
def test_what_some_value_keeps_is_taken(text: str) -> None:
    assert ",".join(map(str, constraints(text))) == text


def test_a_metric_of_ones_own_may_have_any_value() -> None:
    assert constraints("val_gain>=99", ["val_gain"]) and constraints("val_gain<=-99", ["val_gain"])
    with pytest.raises(UserError, match="must allow some value of val_gain"):
        constraints("val_gain<=1,val_gain>=2", ["val_gain"])


@pytest.mark.long  # a search of Ray's
def test_the_search_ends_at_once_and_page_and_terminal_say_why(
    tmp_path: Path, one_ray: None, capsys: pytest.CaptureFixture
) -> None:
    words = f"--algo fedavg --trials 6 --rounds 20 --max-concurrent 2 --subject-to comm_mb<=0.5 {QUICK}"
    found = searched(tmp_path, words, status=1)
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("comm_mb<=0.5 cannot be satisfied: whatever the configuration, fedavg sends and receives ")
    assert len(found.rounds) < 40 and not (found.trials["status"] == "finished").any()
    assert (found.record["state"], found.record["reason"]) == ("nothing found", said)
    assert not StudyFolder(found.folder).best_file.exists()
    assert report.main([str(found.folder)]) == 0
    page = (found.folder / "report.html").read_text()
    assert f"Nothing was found: {said}.".replace("<", "&lt;") in page and "0 of" not in page.split("Figures")[0]
