"""GFPL's control on own features, the interleaved order, t*, who missed an event, and unlike architectures."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.helpers import DIGITS, play, random_federation, simulate
from support.numbers import TIGHT, assert_same_numbers, numbers, randn
from torch.testing import assert_close

from fedtune.core.trees import Ragged
from fedtune.engine.engine import participants
from fedtune.experiment import registry
from fedtune.experiment.algorithm import DOWN, UP, Algorithm, Phase, Task
from fedtune.nn.fusion import fuse_classes
from fedtune.nn.mixtures import Mixtures, pack, unpack
from fedtune.trainables.gfpl import GFPL

D, C = 12, 4
TASK = Task(classes=C, features=D, clients=3, batch=4, seed=0)
HELD = [[0, 1], [1, 2], [0, 1]]
EVENTS = {"every": 2, "start": 2, "pseudo": 5, "components": 2, "retrain_epochs": 2, "threshold": 20.0}


def data() -> Any:
    return random_federation((24, 17, 9), HELD)


def run(rounds: int, scenario: Any = DIGITS, executor: str = "stack", **config: Any) -> tuple[Any, list[dict]]:
    sim = simulate("gfpl", scenario, data(), executor=executor, **(EVENTS | config))
    return sim, play(sim, rounds)


def of_clients(sim: Any) -> dict:
    return {n: t for n, t in numbers(sim.state).items() if not n.startswith("server")}


@dataclass(frozen=True)
class HeadAgain(Algorithm):
    """Local training, and in every second round so many steps of the head alone."""

    def round(self, task: Task) -> tuple[Phase | str, ...]:
        steps = 2 * -(-C * 5 // task.batch)  # two passes over five rows of each of four classes
        again = (Phase(self.loss, train=("head",), steps=steps, lr=0.03),)
        return self.phases(task) + (again if task.t % 2 == 0 else ())


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_retraining_on_own_features_is_as_many_more_steps_of_the_head(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gfpl, rows = run(4, executor=executor, retrain_on="own", dcs=False, retrain_lr=0.03)
    find = registry.find
    monkeypatch.setattr(registry, "find", lambda name: HeadAgain if name == "local" else find(name))
    plain = simulate("local", DIGITS, data(), executor=executor)
    play(plain, 4)
    assert_same_numbers(of_clients(gfpl), of_clients(plain))
    assert rows[1]["up_floats"] > 0  # what is exchanged stays as it is


def test_the_control_makes_as_many_steps_as_draws_would() -> None:
    for pseudo, epochs, batch in ((16, 1, 4), (5, 5, 8), (7, 2, 32)):
        alg, task = GFPL(pseudo=pseudo, retrain_epochs=epochs, every=1, start=1), TASK._replace(batch=batch, t=1)
        (own,) = GFPL(pseudo=pseudo, retrain_epochs=epochs, retrain_on="own").retraining(task)
        (draws,) = alg.retraining(task)
        assert own.steps == epochs * -(-C * pseudo // batch) and own.train == draws.train and own.lr == draws.lr
        assert draws.epochs == epochs and draws.steps is None


def test_retraining_on_nothing_is_the_ablation_without_pfg_but_for_what_is_sent() -> None:
    none, rows = run(4, retrain_on="none")
    without, quiet = run(4, pfg=False)
    assert_same_numbers(of_clients(none), of_clients(without))
    assert rows[1]["up_floats"] > 0 and quiet[1]["up_floats"] == 0
    assert [r["test_acc"] for r in rows] == [r["test_acc"] for r in quiet]


@pytest.mark.parametrize("config", [{}, {"retrain_on": "own"}, {"retrain_on": "none"}, {"dcs": False}])
def test_the_interleaved_order_has_one_phase_with_a_second_step(config: dict) -> None:
    alg = GFPL(order="interleaved", start=2, every=2, retrain_lr=0.02, **config)
    assert [len(alg.round(TASK._replace(t=t))) for t in (1, 2, 3, 4)] == [1, 3, 1, 3]
    down, phase, up = alg.round(TASK._replace(t=2))
    assert (down, up) == (DOWN, UP) and isinstance(phase, Phase)
    if config.get("retrain_on") == "none":
        assert phase.after is None
        return
    assert phase.after and phase.after.optimizer == "sgd" and phase.after.lr == 0.02
    assert phase.after.train == (("head",) if "dcs" in config else ("head", "proj"))


def test_at_the_first_event_there_is_nothing_to_draw_from() -> None:
    for order in ("interleaved", "stale"):
        assert_same_numbers(of_clients(run(3, order=order)[0]), of_clients(run(3, pfg=False)[0]))
    assert GFPL(order="interleaved", start=3, every=2).first_retrain() == 6
    assert GFPL(order="interleaved", start=3, every=2, retrain_on="own").first_retrain() == 4
    late, never = of_clients(run(4, order="interleaved")[0]), of_clients(run(4, pfg=False)[0])
    assert any((late[n] != never[n]).any() for n in late)


@pytest.mark.parametrize(("on", "lr"), [("pseudo", 0.05), ("pseudo", None), ("own", 0.05)])
def test_the_second_step_is_plain_sgd_of_the_heads_on_draws_of_the_last_p_g(
    on: str, lr: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last thing that happens to a head in an event's round, by hand: w - lr · slope, and the body stays."""
    name, calls = ("second_loss" if on == "pseudo" else "second_loss_on_own"), []
    original = getattr(GFPL, name)

    def noted(alg: GFPL, m: Any, batch: Any, down: dict) -> Any:
        calls.append(({n: t.detach().clone() for n, t in m.tensors.items()}, batch, down))
        return original(alg, m, batch, down)

    monkeypatch.setattr(GFPL, name, noted)
    scenario = DIGITS.override(local_steps=2, lr=0.02, momentum=0.5)
    sim, _ = run(4, scenario, "loop", order="interleaved", retrain_on=on, retrain_lr=lr, lam=1.5)
    before, batch, down = calls[-1]  # the last client's last step
    heads = {n: before[n].clone().requires_grad_() for n in before if n.split(".")[0] in ("head", "proj")}
    if on == "pseudo":
        mixture, seen = unpack(down["mixtures"].values), down["mixtures"].present.any(1)
        assert seen.tolist() == [True, True, True, False]
        y = (batch.eps["label"] * 3).long()  # uniform among the classes that somebody holds
        f = []
        for i, label in enumerate(y):
            mass = (mixture.weights[label] * down["mixtures"].present[label]).cumsum(0)
            k = int((mass <= batch.eps["component"][i, 0] * mass[-1]).sum())
            f.append(mixture.means[label, k] + mixture.variances[label, k].sqrt() * batch.eps["value"][i, 0])
        z = torch.stack(f)
    else:
        y, body = batch.y, {n.removeprefix("body."): t for n, t in before.items() if n.startswith("body.")}
        with torch.no_grad():
            z = torch.func.functional_call(sim.state.groups[0].net.get_submodule("body"), body, (batch.x,))
    h = z @ heads["proj.weight"].T + heads["proj.bias"]
    dots = (h / h.norm(dim=1, keepdim=True) * before["etf.columns"].T[y]).sum(1)
    logits = z @ heads["head.weight"].T + heads["head.bias"]
    loss = torch.nn.functional.cross_entropy(logits, y) + 1.5 * (0.5 * (dots - 1) ** 2).mean()
    slopes = dict(zip(heads, torch.autograd.grad(loss, list(heads.values())), strict=True))
    for n, after in ((n, t[2]) for n, t in sim.state.groups[0].tensors.items()):
        want = before[n] - (lr or 0.02) * slopes[n] if n in slopes else before[n]
        assert_close(after, want, **TIGHT)


@pytest.mark.parametrize(("first", "every", "rounds"), [(3, 4, [3, 7, 11]), (1, 1, list(range(1, 13))), (9, 5, [9])])
def test_t_star_says_when_events_begin(first: int, every: int, rounds: list[int]) -> None:
    alg = GFPL(first=first, every=every, start=40)
    assert [t for t in range(1, 13) if len(alg.round(TASK._replace(t=t))) > 1] == rounds
    assert alg.first_event() == alg.first_retrain() == first and "start" in alg.idle(DIGITS)


def test_who_missed_an_event_gets_its_p_g_once_when_it_next_takes_part() -> None:
    scenario = DIGITS.override(participation=0.67)
    late, rows = run(8, scenario)
    _, never = run(8, scenario, catch_up=False)
    due, known, size = set(), 0, 2 * D + 1
    for t, row in enumerate(rows, 1):
        here = set(participants(late.setup, t).tolist())
        if t % 2 == 0:
            known = int(row["components_out"])
            assert row["down_floats"] == len(here) * known * size
            due = {0, 1, 2} - here
        elif t > 2:
            assert row["down_floats"] == len(here & due) * known * size and row["up_bytes"] == 0
            due -= here
        else:
            assert row["down_floats"] == 0
    assert late.state.server["due"].nonzero()[:, 0].tolist() == sorted(due)
    came = [r["down_floats"] > 0 for r in rows]
    assert any(came[2::2]) and not any(r["down_floats"] for r in never[2::2])
    full, plain = run(5), run(5, catch_up=False)  # nobody misses anything
    assert_same_numbers(of_clients(full[0]), of_clients(plain[0]))
    assert "due" not in full[0].state.server


def test_mixtures_of_unlike_architectures_are_fused_apart() -> None:
    weights = randn(6, C, 2).abs()
    local = Mixtures(weights, randn(6, C, 2, D) / 10, randn(6, C, 2, D).square() + 1)
    kind = torch.arange(6) % 2
    both, home, counted = fuse_classes(weights, local, kind, 2, 1e6, "complete")
    assert both.weights.shape == (C, 2) and home.tolist() == [[0, 1]] * C and counted.tolist() == [48, 8, 8, 8]
    for k in range(2):
        mine = Mixtures(*(t[kind == k] for t in local))
        alone, _, _ = fuse_classes(weights[kind == k], mine, None, 1, 1e6, "complete")
        for together, want in zip(both, alone, strict=True):
            assert_close(together[:, k : k + 1], want, **TIGHT)
    one, _, _ = fuse_classes(weights, local, None, 1, 1e6, "complete")
    assert one.weights.shape == (C, 1)


def test_a_client_receives_the_mixtures_of_its_own_architecture() -> None:
    task = TASK._replace(models=("a", "b"), t=2)
    for apart in (True, False):
        alg, ids = GFPL(apart=apart, threshold=300.0), torch.tensor([0, 1, 2])
        local = Mixtures(torch.ones(3, C, 1) / 1, randn(3, C, 1, D), torch.ones(3, C, 1, D))
        here = torch.ones(3, C, 1, dtype=torch.bool)
        up = {"ids": ids, "mixtures": Ragged(pack(local), here), "counts": Ragged(torch.full((3, C), 9), here[..., 0])}
        server = alg.aggregate(alg.init(task), up, task)
        values, present = alg.broadcast(server, ids, task)["mixtures"]
        first = [unpack(values[k, 0])[1][present[k, 0]] for k in range(3)]
        assert_close(first[0], first[2])
        assert ((first[0].shape == first[1].shape) and bool((first[0] == first[1]).all())) == (not apart)
        if apart:
            assert_close(first[1], local.means[1, 0], rtol=0, atol=1e-6)  # the only one of its kind
    assert "apart" in GFPL().idle(DIGITS) and "apart" not in GFPL().idle(DIGITS.override(model="htmini3"))
