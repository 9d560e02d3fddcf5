"""Uploads as updates: stages, clipping with a fixed and an adapting bound, and noise."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from support.helpers import CLOCK, DIGITS, play, record_uploads, simulate
from support.numbers import assert_close_rows, assert_same_numbers, copied, numbers
from torch.testing import assert_close

from fedtune.commands.run import over_best
from fedtune.conformance.subject import OfClass
from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.engine import engine
from fedtune.engine.clipping import BOUND, Clipping
from fedtune.engine.cohort import participants
from fedtune.engine.simulation import Seeds, Simulation
from fedtune.engine.wire import Context, Sent, Update, per_client
from fedtune.experiment import partitioning, scenarios
from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.privacy import Privacy
from fedtune.tuning.options.options import ExperimentOptions

FEW = DIGITS.override(shots=4, shots_spread=1, all_classes=0, averaging="clients")
PRIVATE = FEW.override(privacy="client", participation=0.6, update_clip=0.01, update_noise=1.0)
ADAPTING = PRIVATE.override(clip_quantile=0.5, update_clip=0.0)
PLAIN: Any = Privacy.of(FEW.override(privacy="client", update_clip=1.0))


def clipped(
    p: Privacy, update: Update, t: int = 1, kept: dict[str, Any] | None = None, stage: type[Clipping] = Clipping
) -> tuple[Sent, Context]:
    """What a stage makes of updates; kept: what it has kept between rounds."""
    ids = torch.arange(len(next(iter(update.values()))))
    ctx: Any = Context(
        SimpleNamespace(task=SimpleNamespace(seed=0), draws=("of the run",)),
        t,
        ids,
        {} if kept is None else kept,
        {},
        {},
    )  # type: ignore[arg-type]
    return stage(p).apply(update, ctx), ctx


# ------------------------------------------------------------------------------------------------------------ stages


class Halving:
    """Halves the updates of odd clients, and counts for each client how often it was there."""

    def apply(self, update: Update, ctx: Context) -> Sent:
        ctx.wire["times"] = ctx.wire.get("times", torch.zeros(len(ctx.ids))) + 1
        odd, ctx.row["odd"] = ctx.ids % 2 == 1, float((ctx.ids % 2).sum())
        return Sent({n: torch.where(per_client(odd, u), u / 2, u) for n, u in update.items()}, odd)


@pytest.mark.parametrize("groups", [None, [[0, 3], [1, 4], [2]]])
def test_a_stage_sees_updates_and_clients_that_it_leaves_send_their_model_bit_for_bit(
    groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, times = FEW.override(participation=0.4), torch.zeros(5)
    plain, sim = (simulate("fedavg", scenario, groups=groups) for _ in range(2))
    models, sent = record_uploads(plain), record_uploads(sim)
    play(plain, 1)
    monkeypatch.setattr(engine, "stages", lambda s: (Halving(),))
    was = copied(sim.state.server["shared"])
    (row,) = play(sim, 1)
    ids = participants(sim.setup, 1)
    for n, w in models[0]["shared"].items():
        for got, k, w_k in zip(sent[0]["shared"][n], ids.tolist(), w, strict=True):
            assert_close(got, was[n] + (w_k - was[n]) / 2) if k % 2 else assert_close(got, w_k, rtol=0, atol=0)
    assert row["odd"] == (ids % 2).sum() and sent[0]["rows"].equal(models[0]["rows"])
    play(sim, 3)
    again = simulate("fedavg", scenario, groups=groups)
    again.load_state_dict(deepcopy(sim.state_dict()))
    assert play(again, 2) == play(sim, 2)
    for t in range(1, 7):
        times[participants(sim.setup, t)] += 1
    for run in (sim, again):
        kept = {k: c for g in run.state.groups for k, c in zip(g.ids.tolist(), g.wire["times"].tolist(), strict=True)}
        assert [kept[k] for k in range(5)] == times.tolist()


def test_a_client_that_is_not_finite_ends_the_run_before_it_meets_the_others() -> None:
    sim = simulate("fedavg", PRIVATE.override(participation=1.0))
    r = engine.RunningRound(run=0, s=sim.setup, state=sim.state, t=1)
    r.send_down()
    g = r.groups[0]
    bias = g.tensors["head.bias"].clone()
    bias[1] = math.nan
    r.groups[0] = g._replace(tensors=g.tensors | {"head.bias": bias})
    r.take_in()
    assert "diverged in round 1: client 1's parameters" in str(r.lost) and r.server is sim.state.server


# ---------------------------------------------------------------------------------------------------------- clipping


@pytest.mark.parametrize("draw", range(20))
def test_one_client_more_or_less_moves_the_mean_by_its_bound_over_the_expected_number(draw: int) -> None:
    g = torch.Generator().manual_seed(draw)
    m, bound, scale = int(torch.randint(2, 9, (), generator=g)), 10 ** (draw % 5 - 2.0), 10 ** (draw % 7 - 3.0)
    update = {
        n: scale * torch.randn(m, *shape, generator=g, dtype=torch.float64) for n, shape in (("a", (3, 4)), ("b", (7,)))
    }
    p = PLAIN._replace(clip=bound, quantile=0.5)

    def released(of: Update) -> tuple[Update, float]:
        sent, ctx = clipped(p, of)
        return {n: u.mean(0) for n, u in sent.update.items()}, ctx.extra[BOUND].log().item()

    mean, log_bound = released(update)
    for k in range(m):
        others, log_of_others = released({n: torch.cat([u[:k], u[k + 1 :]]) for n, u in update.items()})
        moved = torch.cat([(mean[n] - others[n]).flatten() for n in mean]).norm()
        assert moved <= bound / p.expected * (1 + 1e-9)
        assert abs(log_bound - log_of_others) <= p.clip_rate / 2 / p.expected + 1e-12  # a centred bit moves by a half


def test_short_updates_are_left_and_long_ones_have_the_bounds_length() -> None:
    update = {"a": torch.tensor([[3.0, 0.0], [0.3, 0.0]]), "b": torch.tensor([[4.0], [0.4]])}
    sent, ctx = clipped(PLAIN._replace(expected=2.0), update)
    assert sent.changed.tolist() == [True, False] and ctx.row == {
        "update_clip": 1.0,
        "clip_share": 0.5,
        "update_norm": pytest.approx(2.75),
    }
    assert_close(sent.update["a"], torch.tensor([[0.6, 0.0], [0.3, 0.0]]))
    assert_close(sent.update["b"], torch.tensor([[0.8], [0.4]]))
    assert clipped(PLAIN, update)[0].update["a"][1].tolist() == pytest.approx([0.3 * 2 / 5, 0])  # of five expected


def test_noise_has_its_deviation_and_is_the_same_for_all_clients_of_a_round() -> None:
    p, zeros = PLAIN._replace(update_noise=2.0, clip=0.5, cohort=20.0), {"a": torch.zeros(3, 400, 250)}
    noise = clipped(p, zeros)[0].update["a"]
    assert noise[0].equal(noise[1]) and noise[0].equal(noise[2])
    assert abs(noise[0].std().item() / (2 * 0.5 / 20) - 1) < 0.05 and abs(noise[0].mean().item()) < 0.001
    assert noise[:1].equal(clipped(p, {"a": zeros["a"][:1]})[0].update["a"])
    assert abs(torch.corrcoef(torch.stack([noise[0], clipped(p, zeros, 2)[0].update["a"][0]]).flatten(1))[0, 1]) < 0.02


class Reversed(Clipping):
    """The bits' sign mixed up: it counts clipped updates."""

    def _next(self, bound: float, unclipped: int, m: int, ctx: Context) -> float:
        return super()._next(bound, m - unclipped, m, ctx)


@pytest.mark.parametrize(("stage", "finds_it"), [(Clipping, True), (Reversed, False)])
def test_an_adapting_bound_finds_the_median_and_a_mixed_up_sign_does_not(stage: Any, finds_it: bool) -> None:
    kept: dict[str, Any] = {}
    p = PLAIN._replace(clip=0.1, quantile=0.5, expected=50.0, cohort=50.0)
    for t in range(1, 201):
        lengths = torch.randn(50, 1, generator=randomness.stream(t), dtype=torch.float64).exp()
        clipped(p, {"a": lengths}, t, kept, stage)
    assert (abs(kept[BOUND].item() - 1) < 0.1) == finds_it and (finds_it or kept[BOUND] < 1e-6)


def test_the_bounds_own_noise_has_its_deviation() -> None:
    p = PLAIN._replace(quantile=0.5, count_noise=3.0, cohort=10.0, clip_rate=1.0)
    update = {"a": torch.tensor([[0.5], [2.0]])}  # one within, one not: without noise the bound stays
    logs = torch.stack([clipped(p, update, t)[1].extra[BOUND].log() for t in range(2000)])
    assert abs(logs.std().item() / 0.3 - 1) < 0.06 and abs(logs.mean().item()) < 0.03


def test_a_fixed_bound_is_its_own_in_a_state_that_pbt_copied_from_a_trial_whose_bound_adapts() -> None:
    _, ctx = clipped(PLAIN._replace(clip=2.0), {"a": torch.ones(2, 1)}, kept={BOUND: torch.tensor(9.0)})
    assert ctx.row["update_clip"] == 2.0


# -------------------------------------------------------------------------------------------------------------- runs


def flat(shared: Update, names: tuple[str, ...]) -> torch.Tensor:
    return torch.cat([shared[n].flatten() for n in sorted(shared) if n in names])


def test_a_round_is_the_formula() -> None:
    """The server's move: the clipped updates and the round's noise, over the expected number of clients."""
    sim = simulate("fedavg", PRIVATE)
    t = next(t for t in range(1, 99) if len(participants(sim.setup, t)) not in (0, 3))
    play(sim, t - 1)
    names, before = sim.setup.task.parameters, copied(sim.state.server["shared"])
    seen: list[dict[str, Any]] = []
    through = engine.through

    def watched(chain: Any, up: Any, *rest: Any) -> Any:
        seen.append(up)
        return through(chain, up, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "through", watched)
        (row,) = play(sim, 1)
    moves = {n: w - before[n] for n, w in seen[0]["shared"].items()}
    updates = [flat({n: u[i] for n, u in moves.items()}, names) for i in range(len(participants(sim.setup, t)))]
    draws = randomness.stream(0, "clip noise", t, *sim.setup.draws)
    noise = torch.cat(
        [torch.randn(before[n].shape, generator=draws, dtype=torch.float64).flatten() for n in sorted(names)]
    )
    want = (sum(u * min(1, 0.01 / u.norm()) for u in updates) + 0.01 * noise) / 3
    assert_close(flat(sim.state.server["shared"], names) - flat(before, names), want, rtol=0, atol=1e-12)
    assert row["update_clip"] == 0.01 and 0 < row["clip_share"] <= 1


@pytest.mark.parametrize("scenario", [PRIVATE, ADAPTING])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_resumed_and_in_other_groups_the_numbers_are_the_same(scenario: Any, executor: str) -> None:
    sim, joined = simulate("fedadam", scenario, executor=executor), simulate("fedadam", scenario, executor="loop")
    first = play(sim, 2)
    assert_close_rows(play(joined, 2), first)
    again = simulate("fedadam", scenario, executor=executor)
    again.load_state_dict(deepcopy(sim.state_dict()))
    assert play(again, 2) == play(sim, 2)
    assert_same_numbers(numbers(again.state), numbers(sim.state))
    grouped = simulate("fedadam", scenario, executor=executor, groups=[[0, 3], [1, 2, 4]])
    assert_close_rows(play(grouped, 2), first)


def test_no_two_configurations_share_draws_and_a_configuration_always_has_its_own() -> None:
    """Else the difference of two trials would have no noise; without privacy, trials share their participants."""

    def drawn(name: str = "fedavg", scenario: Any = PRIVATE, **config: Any) -> tuple[list[list[int]], torch.Tensor]:
        sim = simulate(name, scenario, **config)
        draws: Any = Context(sim.setup, 1, torch.arange(2), {}, {}, {})  # type: ignore[arg-type]
        noise = Clipping(PLAIN._replace(update_noise=1.0)).apply({"a": torch.zeros(2, 999)}, draws).update["a"][0]
        return [participants(sim.setup, t).tolist() for t in range(1, 9)], noise

    who, noise = drawn(lr=0.1)
    for same in (drawn(lr=0.1), drawn(lr=0.1, momentum=0.5), drawn(scenario=PRIVATE.override(lr=0.1, rounds=9))):
        assert same[0] == who and same[1].equal(noise)
    for name, config in (("fedavg", {"lr": 0.2}), ("fedavg", {"lr": 0.1, "update_noise": 2.0}), ("moon", {"lr": 0.1})):
        others = drawn(name, **config)
        assert others[0] != who and abs(torch.corrcoef(torch.stack([others[1], noise]))[0, 1]) < 0.2
    target = PRIVATE.override(update_noise=0.0, epsilon=8.0)
    calibrated: Any = Privacy.of(target)
    assert drawn(scenario=target)[0] == drawn(scenario=PRIVATE, update_noise=calibrated.noise)[0]
    poisson = PRIVATE.override(privacy="none", sampling="poisson")
    assert drawn(scenario=poisson, lr=0.1)[0] == drawn(scenario=poisson, lr=0.2)[0]


@dataclass(frozen=True)
class Twice(Algorithm):
    """Its server uses means, but two in a round."""

    shared = ("body", "head")
    releases = "mean"

    def round(self, task: Any) -> Any:
        return (*super().round(task), *super().round(task))


@dataclass(frozen=True)
class Unreceived(Twice):
    """A mean of models that clients did not receive."""

    def round(self, task: Any) -> Any:
        return Algorithm.round(self, task)

    def broadcast(self, server: Any, ids: Any, task: Any) -> Any:
        shared = super().broadcast(server, ids, task)["shared"]
        return {"shared": {n: t for n, t in shared.items() if n != "head.bias"}}


@pytest.mark.parametrize(("cls", "rule"), [(Twice, "one upload in a round"), (Unreceived, "that clients received in")])
def test_what_would_be_released_without_noise_of_its_own_is_refused(cls: Any, rule: str) -> None:
    experiment = OfClass(algorithm="own", scenario=PRIVATE.override(participation=1.0), executor="loop", cls=cls)
    with pytest.raises(UserError, match=rule):
        Simulation(experiment, {}, partitioning.make(experiment.scenario, 0), torch.float64).step()


def test_best_yaml_gives_the_numbers_of_its_trial() -> None:
    config, scenario = {"lr": 0.123, "momentum": 0.25, "update_clip": 0.5}, scenarios.find("digits-w4")
    private = replace(scenario, privacy="client", epsilon=8.0, rounds=9, clients=6, participation=0.5)
    trial = Experiment(algorithm="fedadam", scenario=private, seed=4)
    found = yaml.safe_load(yaml.safe_dump(trial.to_best("digits-w4", config, None)))
    again = ExperimentOptions(**over_best(found, {})).workload()
    data, rows = partitioning.make(private, 4), []
    for experiment, values in ((trial, config), (again, {})):
        sim = Simulation(experiment, values, data)
        rows.append([{n: v for n, v in row.items() if n not in CLOCK and "test_" not in n} for row in play(sim, 3)])
    assert rows[0] == rows[1] and rows[0][0]["epsilon"] > 0


def test_identity_holds_after_a_resume() -> None:
    free = PRIVATE.override(participation=1.0, update_clip=1e2)
    plain, private = simulate("feddyn", FEW), simulate("feddyn", free, update_noise=0.0)
    play(plain, 2), play(private, 1)
    again = simulate("feddyn", free, update_noise=0.0)
    again.load_state_dict(deepcopy(private.state_dict()))
    play(again, 1)
    assert_same_numbers(numbers(again.state), numbers(plain.state))


def test_a_stack_of_seeds_gives_the_numbers_of_single_runs() -> None:
    data = {seed: partitioning.make(ADAPTING, seed) for seed in (0, 1, 2)}
    together = Seeds(Experiment(algorithm="fedavg", scenario=ADAPTING), {}, data, torch.float64)
    alone = {seed: simulate("fedavg", ADAPTING, d, seed) for seed, d in data.items()}
    for _ in range(3):
        together.steps()
        rows = {seed: sim.step() for seed, sim in alone.items()}
        for run, (seed, sim) in zip(together.runs, alone.items(), strict=True):
            assert (
                run.state.extra[BOUND].equal(sim.state.extra[BOUND])
                and run.last.row["update_clip"] == rows[seed]["update_clip"]
            )
            for n, t in numbers(sim.state).items():
                assert_close(numbers(run.state)[n], t, rtol=0, atol=1e-12)
    assert len({run.last.row["update_clip"] for run in together.runs}) == 3


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "feddyn", "pfedme"])
def test_a_round_that_nobody_takes_part_in_still_has_its_noise(name: str) -> None:
    sim = simulate(name, ADAPTING.override(participation=0.2, update_noise=3.0))
    t = next(t for t in range(1, 99) if not len(participants(sim.setup, t)))
    play(sim, t - 1)
    server, clients = copied(sim.state.server["shared"]), copied(numbers(sim.state))
    bound, total, seen = (
        sim.state.extra.get(BOUND, torch.tensor(0.1, dtype=torch.float64)).item(),
        sim.state.bytes,
        record_uploads(sim),
    )
    (row,) = play(sim, 1)
    names = sim.setup.task.parameters
    private = Privacy.of(sim.setup.scenario)
    assert private
    noise = flat({n: w[0] - server[n] for n, w in seen[0]["shared"].items()}, names)
    assert abs(noise.std().item() / (private.update_noise * bound / 1) - 1) < 0.1  # one client was expected
    assert not flat(sim.state.server["shared"], names).equal(flat(server, names)) and sim.state.bytes == total
    after = numbers(sim.state)
    assert all(after[n].equal(w) for n, w in clients.items() if n.startswith("client"))
    assert row["update_clip"] == bound and row["clip_share"] is row["update_norm"] is None
    assert play(sim, 1)[0]["round"] == t + 1
