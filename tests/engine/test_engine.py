"""The round itself: batches, addressed randomness, holding still, participation, evaluation and divergence."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import BATCHNORM, DIGITS, client_net, own_rows, play, random_federation, simulate
from support.numbers import TIGHT, assert_close_numbers, assert_close_rows, assert_same_numbers, copied, numbers
from torch import nn
from torch.testing import assert_close

from fedtune.core import metrics, randomness
from fedtune.core.errors import Diverged, UserError
from fedtune.core.trees import for_each_client, take
from fedtune.engine import batches, chunks, engine, evaluation, local_training, stacked_code
from fedtune.engine.batches import Pool
from fedtune.engine.seed_stack import SeedStack
from fedtune.engine.simulation import Simulation
from fedtune.engine.state import common_start
from fedtune.experiment import algorithm
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Noise, Phase
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures, catalogue

PHASE = Phase(Algorithm().loss)


def streams(*clients: int) -> list[torch.Generator]:
    return [randomness.stream(0, "train", 1, k) for k in clients]


def pool_of(counts: list[int], width: int = 0) -> Pool:
    """Client k holds the rows 100 k, 100 k + 1, …; padding points at row -1."""
    width = max([*counts, width])
    rows = torch.full((len(counts), width), -1)
    for k, n in enumerate(counts):
        rows[k, :n] = 100 * k + torch.arange(n)
    return Pool(torch.zeros(100 * len(counts), 1), torch.zeros(100 * len(counts)), rows, torch.tensor(counts))


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_of_the_rows_that_a_phase_makes_masked_ones_are_left_out_wherever_they_stand(executor: Any) -> None:
    """GFPL's draws of a client are masked where its mixtures have fewer components than another's."""
    mask = torch.tensor([[False, True, False, True], [True, True, False, True]])
    made = {"x": torch.arange(8.0).view(2, 4, 1), "y": torch.arange(8).view(2, 4), "mask": mask}
    phase = PHASE._replace(pool=lambda down, eps: Data(down["x"], down["y"], down["mask"], {}))
    found = batches.draw_pool(nn.Identity(), phase, made, pool_of([1, 1]), streams(0, 1), executor, 0)
    assert found.counts.tolist() == [2, 3]
    for k, count in enumerate(found.counts.tolist()):
        rows = found.rows[k, :count]
        assert_close(found.x[rows], made["x"][k][mask[k]]), assert_close(found.y[rows], made["y"][k][mask[k]])


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("given", [None, (), torch.zeros(3), Data(torch.zeros(3, 1), [0, 1, 0], torch.ones(3), {})])
def test_what_a_pool_gives_that_is_no_rows_is_told_with_its_line(given: Any, executor: Any) -> None:
    phase = PHASE._replace(pool=lambda down, eps: given)
    with pytest.raises(UserError, match=r"test_engine.py:\d+: <lambda> must return Data\(x, y, mask, {}\) of tensors"):
        batches.draw_pool(nn.Identity(), phase, {"x": torch.zeros(2, 1)}, pool_of([1, 1]), streams(0, 1), executor, 0)


def phase_of(sim: Simulation, clients: list[int], phase: Phase = PHASE) -> local_training.PhaseResult:
    """One phase for some of the clients of a Local run."""
    at, f, g = torch.tensor(clients), sim.setup.federation, sim.state.groups[0]
    pool = Pool(f.x, f.y, f.train.rows[at], f.train.counts[at])
    args = (phase, pool, sim.setup.scenario, g.executor, streams(*clients))
    return local_training.train(g.net, take(g.tensors, at), {}, *args)


def train_all(sim: Simulation, clients: list[int], phase: Phase = PHASE) -> tuple[dict, torch.Tensor]:
    return phase_of(sim, clients, phase)[:2]


def planned(sim: Simulation, phase: Phase = PHASE, passes: int = 1) -> batches.BatchPlan:
    """The batches of the first three clients."""
    f = sim.setup.federation
    pool = Pool(f.x, f.y, f.train.rows[:3], f.train.counts[:3])
    return batches.plan([pool], phase, sim.setup.scenario, passes, streams(0, 1, 2))


# ------------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_a_batch_is_full_of_real_rows_and_each_permutation_ends_before_the_next(epochs: int) -> None:
    counts = [1, 3, 8, 10]
    plan = batches.plan([pool_of(counts)], PHASE, Scenario(batch=4), epochs, streams(0, 1, 2, 3))
    assert plan.steps == [epochs * -(-n // 4) for n in counts]
    for k, n in enumerate(counts):
        drawn = plan.rows[k, : plan.steps[k]].flatten() - 100 * k
        assert drawn.numel() == 4 * plan.steps[k]
        for start in range(0, len(drawn), n):
            part = drawn[start : start + n].tolist()
            assert len(set(part)) == len(part) and set(part) <= set(range(n))


def test_local_steps_stand_for_a_pass_over_own_rows_not_drawn_ones() -> None:
    work, pool = Scenario(batch=4, local_steps=7), pool_of([2, 30])

    def steps(**said: Any) -> list[int]:
        return batches.plan([pool], PHASE._replace(**said), work, 2, streams(0, 1)).steps

    assert steps() == [7, 7]  # local_epochs, here 2, are idle
    assert steps(epochs=2) == [14, 14] and steps(epochs=0) == [0, 0]
    assert steps(steps=3) == steps(steps=3, epochs=2) == [3, 3]
    assert steps(epochs=2, pool=lambda down, eps: None) == [2, 16]


def test_several_pools_are_gone_through_once_each_in_order() -> None:
    first, second = pool_of([5, 0]), pool_of([3, 4])
    plan = batches.plan([first, second], PHASE._replace(epochs=2), Scenario(batch=2), 2, streams(0, 1))
    assert plan.steps == [3 + 2, 0 + 2]
    drawn = plan.rows[0].flatten().tolist()
    assert set(drawn[:5]) == set(range(5)) and drawn[5] in range(5)
    assert set(drawn[6:9]) == {200, 201, 202}  # 200 rows lie in the first pool
    assert set(plan.rows[1, :2].flatten().tolist()) == {300, 301, 302, 303}


def test_noise_follows_its_law_and_differs_from_step_to_step() -> None:
    asked = {"n": Noise((50,)), "u": Noise((50,), "uniform")}
    drawn = algorithm.draw(asked, randomness.stream(1), (200,), torch.float64)
    assert drawn["n"].shape == drawn["u"].shape == (200, 50) and drawn["n"].dtype == torch.float64
    assert abs(drawn["n"].mean()) < 0.05 and abs(drawn["n"].std() - 1) < 0.05
    assert 0 <= drawn["u"].min() and drawn["u"].max() < 1 and abs(drawn["u"].mean() - 0.5) < 0.02
    assert len(drawn["n"][:, 0].unique()) == 200


def test_uploads_come_in_the_order_of_clients_in_any_grouping(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulate("fedavg", DIGITS, random_federation([5, 9, 7, 6, 8]), groups=[[1, 4], [0, 3], [2]])
    seen, cls = [], type(sim.setup.algorithm)
    monkeypatch.setattr(cls, "aggregate", lambda alg, server, up, task: seen.append(up["rows"].tolist()) or server)
    engine.run_rounds(SeedStack((sim.setup,)), {0: sim.state})
    assert seen == [[5, 9, 7, 6, 8]]


# ------------------------------------------------------------------------------------------------------ training


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize(
    ("scenario", "config"),
    [(BATCHNORM, {"momentum": 0.9}), (DIGITS.override(model="cnn8"), {"optimizer": "adam"})],
    ids=["statistics", "moments"],
)
def test_a_client_that_finishes_early_holds_still(scenario: Scenario, executor: str, config: dict[str, Any]) -> None:
    data = random_federation([2, 19, 9])  # 1, 5 and 3 steps
    sim = simulate("local", scenario, data, executor=executor, **config)
    together, losses = train_all(sim, [0, 1, 2])
    for k in range(3):
        alone, loss = train_all(sim, [k])
        assert_close_numbers({n: t[k] for n, t in together.items()}, {n: t[0] for n, t in alone.items()})
        assert_close(losses[k], loss[0], **TIGHT)
    counters = {n: t.tolist() for n, t in together.items() if n.endswith("num_batches_tracked")}
    assert len(counters) == 2 * (scenario is BATCHNORM) and all(c == [1, 5, 3] for c in counters.values())


def calibrate(m: Model, batch: Batch, down: dict) -> torch.Tensor:
    """Some loss of the head alone, by what the first step left."""
    return nn.functional.cross_entropy(m.head(torch.eye(12, dtype=torch.float64)[: len(batch.y)]), batch.y)


AFTER = PHASE._replace(lr_scale={"head": 0.25}, clip=1.0, after=algorithm.Step(calibrate, ("head",), "adam", 0.02))
SGD, ADAM = {"momentum": 0.9, "weight_decay": 0.05, "lr": 0.05}, {"optimizer": "adam", "weight_decay": 0.05}


def of_torch(kind: str, parameters: Any, work: Scenario) -> Any:
    """PyTorch's optimiser of these parameters, as the scenario has it."""
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=work.lr, weight_decay=work.weight_decay)
    return torch.optim.SGD(parameters, lr=work.lr, momentum=work.momentum, weight_decay=work.weight_decay)


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize(
    ("scenario", "config", "phase"),
    [
        (BATCHNORM, SGD, PHASE),
        (BATCHNORM, SGD | {"clip_norm": 0.5}, PHASE),
        (BATCHNORM, ADAM, PHASE),
        (DIGITS, SGD | {"body_lr_scale": 0.1}, PHASE),
        (DIGITS, ADAM | {"body_lr_scale": 0.1}, PHASE._replace(lr_scale={"body": 3.0, "head": 2.0})),
        (DIGITS, SGD | {"body_lr_scale": 0.1}, PHASE._replace(clip=0.3)),
        (DIGITS, SGD, AFTER),
        (DIGITS, ADAM, AFTER),
    ],
    ids=["sgd", "clipped", "adam", "a slow body", "paces of parts", "clipped by the phase", "two steps", "two of adam"],
)
def test_training_is_torch_optim_on_each_client(scenario: Scenario, config: dict, phase: Phase, executor: str) -> None:
    data = random_federation([2, 13, 9], total=12)
    sim = simulate("local", scenario, data, executor=executor, local_epochs=2, **config)
    got, losses = train_all(sim, [0, 1, 2], phase)
    f, work, clipped = sim.setup.federation, sim.setup.scenario, []
    plan = planned(sim, phase, 2)
    for k in range(3):  # who finishes early leaves the others' memories alone
        net, seen = client_net(sim, k).train(), []
        parts = dict(net.named_children())
        pace = {n: phase.lr_scale.get(n, 1.0) * (work.body_lr_scale if n == "body" else 1.0) for n in parts}
        sets = [{"params": [*part.parameters()], "lr": work.lr * pace[n]} for n, part in parts.items()]
        first, second = of_torch(work.optimizer, sets, work), torch.optim.Adam(net.head.parameters(), lr=0.02)
        bound = work.clip_norm if phase.clip is None else phase.clip
        for rows in plan.rows[k, : plan.steps[k]]:
            loss = nn.functional.cross_entropy(net(f.x[rows]), f.y[rows])
            net.zero_grad()
            loss.backward()
            for together in parts.values() if phase.lr_scale else [net]:
                if bound:
                    clipped.append(nn.utils.clip_grad_norm_(together.parameters(), bound) > bound)
            first.step()
            if phase.after:
                net.zero_grad()
                eye = torch.eye(12, dtype=torch.float64)[: len(rows)]
                nn.functional.cross_entropy(net.head(eye), f.y[rows]).backward()
                second.step()
            seen.append(loss.item())
        assert_close_numbers(take(got, k), dict(net.state_dict()))
        assert_close(losses[k].item(), float(np.mean(seen)), **TIGHT)
    assert any(clipped) == bool(work.clip_norm or phase.clip)


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_a_part_that_is_not_trained_keeps_weights_and_statistics(executor: str) -> None:
    sim = simulate("local", BATCHNORM, random_federation([5, 6]), executor=executor)
    before = sim.state.groups[0].tensors
    for moving, still in (("head", "body"), ("body", "head")):
        after, _ = train_all(sim, [0, 1], PHASE._replace(train=(moving,)))
        assert_same_numbers(*({n: t for n, t in x.items() if n.startswith(still)} for x in (after, before)))
        # BatchNorm takes away the pull on the biases before it
        pulled = [n for n in after if n.startswith(moving) and not n.endswith(("0.bias", "3.bias"))]
        assert pulled and all(not torch.equal(after[n], before[n]) for n in pulled)


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_divergence_names_the_round_and_the_client(executor: str) -> None:
    sim = simulate("local", DIGITS, random_federation([6, 6, 6]), executor=executor)
    play(sim, 1)
    f, before = sim.setup.federation, copied(numbers(sim.state))
    f.x[f.train.rows[1]] *= 1e300
    for _ in range(2):  # the state stays as it was before the round
        with pytest.raises(Diverged, match=r"diverged in round 2: client 1's \w+ became NaN"):
            sim.step()
        assert_same_numbers(numbers(sim.state), before)


# ----------------------------------------------------------------------------------------- start and participation


@pytest.mark.parametrize(("share", "number"), [(1.0, 10), (0.5, 5), (0.26, 3), (0.01, 1)])
def test_as_many_take_part_as_asked_for_without_replacement(share: float, number: int) -> None:
    sim = simulate("fedavg", DIGITS.override(participation=share), random_federation([2] * 10))
    drawn = [engine.participants(sim.setup, t).tolist() for t in range(1, 41)]
    assert all(len(set(ids)) == number and ids == sorted(ids) for ids in drawn)
    assert {k for ids in drawn for k in ids} == set(range(10))
    assert number == 10 or len(set(map(tuple, drawn))) > 5
    assert drawn == [engine.participants(sim.setup, t).tolist() for t in range(1, 41)]


# ---------------------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("name", ["local", "fedavg"])
def test_every_client_is_also_scored_on_the_same_rows_of_all_classes(name: str) -> None:
    data = random_federation([9, 6, 8], [[0, 1], [1, 3], [0, 2, 3]], total=5, other=9)  # nobody holds class 4
    sim = simulate(name, DIGITS.override(all_classes=12), data, lr=0.05)
    row, f, everywhere = play(sim, 2)[-1], sim.setup.federation, sim.setup.everywhere
    rows = everywhere.rows[0]
    assert (everywhere.rows == rows).all() and everywhere.counts.tolist() == [8] * 3
    assert f.y[rows].bincount().tolist() == [2, 2, 2, 2] and rows.unique().numel() == 8
    assert set(rows.tolist()) <= set(f.test.rows.flatten().tolist())
    right = [(client_net(sim, k).eval()(f.x[rows]).argmax(1) == f.y[rows]).double() for k in range(3)]
    hits = [r.mean().item() for r in right]
    assert_close(row["test_acc_all"], float(np.mean(hits)), **TIGHT)
    assert (len(set(hits)) > 1) == (name == "local")
    foreign = [torch.isin(f.y[rows], torch.tensor(held), invert=True) for held in ([0, 1], [1, 3], [0, 2, 3])]
    assert [int(lacks.sum()) for lacks in foreign] == [4, 4, 2]
    found = [r[lacks].mean().item() for r, lacks in zip(right, foreign, strict=True)]
    assert_close(row["test_acc_foreign"], float(np.mean(found)), **TIGHT)
    without = play(simulate(name, DIGITS.override(all_classes=0), data), 1)[0]
    assert not {"test_acc_all", "test_acc_foreign"} & without.keys()


def test_clients_that_hold_every_class_have_no_foreign_accuracy() -> None:
    both = random_federation([9, 6], [[0, 1, 2], [0, 1]], total=3)
    sim = simulate("local", DIGITS.override(all_classes=9), both, lr=0.05)
    row, f, rows = play(sim, 2)[-1], sim.setup.federation, sim.setup.everywhere.rows[1]
    mine = f.y[rows] == 2  # what the second client lacks; the first lacks nothing
    right = client_net(sim, 1).eval()(f.x[rows]).argmax(1) == f.y[rows]
    assert mine.any()
    assert_close(row["test_acc_foreign"], right[mine].double().mean().item(), **TIGHT)
    whole = random_federation([9, 6], [[0, 1], [0, 1]], total=2)
    alone = play(simulate("local", DIGITS.override(all_classes=9), whole), 1)[-1]
    assert "test_acc_all" in alone and "test_acc_foreign" not in alone


def test_many_clients_are_evaluated_and_uploaded_in_chunks_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    skewed = DIGITS.override(partition="dirichlet", alpha=0.5, rounds=2)
    whole = simulate("fedproto", skewed)
    wanted = play(whole, 2)
    monkeypatch.setattr(chunks, "ROWS_AT_ONCE", 400)
    parts = simulate("fedproto", skewed)
    group, train = parts.state.groups[0], parts.setup.federation.train
    dealt = chunks.chunks_of(group, train)
    assert torch.cat(dealt).sort().values.equal(torch.arange(len(group.ids)))
    assert not torch.cat(dealt).equal(torch.arange(len(group.ids)))  # so what they give is put in order again
    for part, after in itertools.pairwise(dealt):
        assert train.counts[part].min() >= train.counts[after].max()
    assert all(len(part) == 1 or train.counts[part].max() * len(part) <= 400 for part in dealt)
    got = play(parts, 2)
    assert_close_numbers(numbers(parts.state), numbers(whole.state))
    assert [r["val_acc"] for r in got] == [r["val_acc"] for r in wanted]


def test_the_shared_model_is_not_copied_for_every_client_that_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of an expanded tree would be: of FedEnsemble's members, gigabytes."""
    seen = []

    def watched(code: Any, executor: str, tensors: Any, down: Any, data: Any, **more: Any) -> Any:
        seen.append({n: t.data_ptr() for n, t in down["shared"].items()})
        return for_each_client(code, executor, tensors, down, data, **more)

    monkeypatch.setattr(stacked_code, "for_each_client", watched)
    for at_once, executor in ((90, "stack"), (8192, "stack"), (8192, "loop")):
        monkeypatch.setattr(chunks, "ROWS_AT_ONCE", at_once)
        sim = simulate("fedavg", DIGITS.override(partition="dirichlet", alpha=0.5), executor=executor)
        seen.clear()
        evaluation.score(sim.setup, sim.state)
        one = {n: t.data_ptr() for n, t in sim.state.server["shared"].items()}
        assert seen and all(places == one for places in seen)


def test_the_worst_tenth_and_several_heads_by_hand() -> None:
    correct, rows = torch.arange(1, 21), torch.full((20,), 20)
    got = metrics.accuracy("test", {"a": correct, "b": correct * 0}, rows, 20)
    assert got["test_acc_worst10"] == pytest.approx(1.5 / 20) and got["test_acc_b"] == 0
    assert got["test_acc_a"] == got["test_acc"] == pytest.approx(10.5 / 20)
    assert metrics.accuracy("test", {"a": correct[:11]}, rows[:11], 11)["test_acc_worst10"] == pytest.approx(1.5 / 20)


def test_a_row_loss_is_capped_so_that_none_makes_the_mean_infinite() -> None:
    scores = torch.tensor([[0.0, -torch.inf, 0.0], [0.0, 1.0, 2.0]], dtype=torch.float64)
    got = metrics.log_loss(scores, torch.tensor([1, 2]))
    assert_close(got[0].item(), 12 * float(np.log(10)), **TIGHT)
    assert_close(got[1].item(), float(np.log(np.exp([0, 1, 2]).sum()) - 2), **TIGHT)


@pytest.mark.parametrize(("name", "own"), [("local", "body, head"), ("fedper", "head"), ("gfpl", "body, etf, head")])
@pytest.mark.parametrize("rule", ["global", "pooled"])
def test_a_global_score_needs_a_global_model(name: str, own: str, rule: str) -> None:
    with pytest.raises(UserError, match=f"'{rule}' scores one global model, but under {name} {own}.*--evaluation"):
        Experiment(algorithm=name, scenario=DIGITS.override(evaluation=rule)).check()
    Experiment(algorithm=name, scenario=DIGITS).check()
    Experiment(algorithm="fedavg", scenario=DIGITS.override(evaluation=rule)).check()


def test_averaging_is_refused_where_the_groups_have_other_shapes() -> None:
    sim = simulate("fedavg")
    nets = [(architectures.build(m, (1, 8, 8), 10, 12), ids) for m, ids in (("mlp", [0, 1]), ("cnn8", [2, 3, 4]))]
    with pytest.raises(UserError, match="body"):
        common_start(sim.setup, [(net, ids, "stack") for net, ids in nets])


# ---------------------------------------------------------------------------------------- what a run is made of


def test_a_configuration_is_resolved_between_algorithm_and_scenario() -> None:
    experiment = Experiment(algorithm="fedprox", scenario=DIGITS, pinned={"mu": 0.5, "lr": 0.2})
    alg, scenario = experiment.resolve({"lr": "0.3", "batch": 8})
    assert (alg.mu, scenario.lr, scenario.batch) == (0.5, 0.3, 8)  # type: ignore[attr-defined]
    full = experiment.configuration({"batch": 8})
    assert (full["mu"], full["batch"], full["lr"]) == (0.5, 8, 0.2)
    assert set(full) == {*experiment.hyperparameters()} - scenario.off
    with pytest.raises(UserError, match="unknown hyperparameter of fedprox 'momentun': did you mean 'momentum'"):
        experiment.resolve({"momentun": 1})
    with pytest.raises(UserError, match="unknown hyperparameter of fedprox 'clients'"):
        experiment.resolve({"clients": 3})


def test_clients_that_do_not_fit_the_memory_together_are_halved_until_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, stack, sizes = simulate("fedprox", DIGITS), local_training._stack, []

    def small(job: local_training.Job, *trees: Any) -> Any:
        sizes.append(len(job.plan.steps))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError("too many")
        return stack(job, *trees)

    wanted = play(whole, 2)
    monkeypatch.setattr(local_training, "_stack", small)
    halved = simulate("fedprox", DIGITS)
    assert_close_rows(play(halved, 2), wanted)
    assert_close_numbers(numbers(halved.state), numbers(whole.state))
    assert max(sizes) > 2 and min(sizes) <= 2
    monkeypatch.setattr(local_training, "_stack", lambda *_: exec("raise torch.OutOfMemoryError('not even one')"))
    with pytest.raises(torch.OutOfMemoryError, match="not even one"):
        simulate("fedprox", DIGITS).step()


# ------------------------------------------------------------------------------- what rounds and statistics do


def test_the_learning_rate_falls_by_its_factor_after_every_round() -> None:
    data, config = random_federation([6]), {"momentum": 0.0, "local_steps": 1, "batch": 6}
    falling = simulate("local", DIGITS, data, lr=0.4, lr_decay=0.9, **config)
    for t in range(3):
        steady = simulate("local", DIGITS, data, lr=0.4 * 0.9**t, **config)
        steady.state = falling.state
        play(falling, 1), play(steady, 1)
        assert_close_numbers(numbers(falling.state), numbers(steady.state))


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_running_statistics_are_averaged_or_stay_with_their_client(executor: str) -> None:
    data = random_federation([5, 9, 7])
    rules = ("averaged", "personal")
    sims = {rule: simulate("fedavg", BATCHNORM, data, executor=executor, batch_norm=rule) for rule in rules}
    start = numbers(sims["personal"].state)
    rows = {rule: play(sim, 2)[-1] for rule, sim in sims.items()}
    shared = {rule: set(sim.state.server["shared"]) for rule, sim in sims.items()}
    statistics = {n for n, _ in sims["averaged"].state.groups[0].net.named_buffers()}
    assert statistics and shared["averaged"] - shared["personal"] == statistics
    own = sims["personal"].state.groups[0].tensors
    assert set(own) == statistics and not sims["averaged"].state.groups[0].tensors
    mean = next(n for n in statistics if n.endswith("running_mean"))
    assert not torch.equal(own[mean][0], own[mean][1])  # each its own, and none at its start
    assert all(not torch.equal(own[mean][k], start[f"client {k}/{mean}"]) for k in range(3))
    assert rows["averaged"]["up_floats"] > rows["personal"]["up_floats"]
    hits = []  # of the averaged weights with each client's own statistics
    for k in range(3):
        x, y = own_rows(sims["personal"], k, "test")
        hits.append((client_net(sims["personal"], k).eval()(x).argmax(1) == y).double().mean().item())
    assert_close(rows["personal"]["test_acc"], float(np.mean(hits)), **TIGHT)


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_what_a_loss_tallies_is_summed_over_the_steps_of_each_client(executor: str) -> None:
    sim = simulate("local", DIGITS, random_federation([5, 9, 2]), executor=executor, batch=4)
    classes = torch.arange(4.0, dtype=torch.float64)

    def loss(m: Model, batch: Batch, down: dict) -> Any:
        rows = (batch.y[:, None] == classes).double().sum(0)
        return sim.setup.algorithm.loss(m, batch, down), {"rows": rows, "steps": torch.ones_like(rows[0])}

    f, plan = sim.setup.federation, planned(sim)
    done, plain = phase_of(sim, [0, 1, 2], Phase(loss)), phase_of(sim, [0, 1, 2])
    assert done.tally["steps"].tolist() == plan.steps == [2, 3, 1]
    for k in range(3):
        drawn = f.y[plan.rows[k, : plan.steps[k]]].flatten()
        assert done.tally["rows"][k].tolist() == drawn.bincount(minlength=4).tolist()
    assert_close_numbers(done.tensors, plain.tensors)
    assert plain.tally == {}


# --------------------------------------------------------------------------------------------- mixed architectures

MIXED = Scenario(model="htmini3", features=12, clients=7, batch=4, participation=0.6)


def test_client_i_runs_architecture_number_i_of_the_family() -> None:
    sim = simulate("local", MIXED)
    assert [g.ids.tolist() for g in sim.state.groups] == [[0, 3, 6], [1, 4], [2, 5]]
    assert sim.setup.task.models == ("mlp", "cnn8", "cnn8-wide")
    sizes = [sum(t[0].numel() for t in g.tensors.values()) for g in sim.state.groups]
    nets = [architectures.build(m, (1, 8, 8), 10, 12) for m in catalogue.FAMILIES["htmini3"]]
    assert sizes == [sum(p.numel() for p in net.parameters()) for net in nets]
    few = simulate("local", MIXED.override(clients=2))
    assert [g.ids.tolist() for g in few.state.groups] == [[0], [1]]


def test_clients_of_a_mixed_scenario_train_as_they_would_among_their_own() -> None:
    """Local: the clients of each architecture have the numbers of a run in which everybody has it."""
    mixed = simulate("local", MIXED)
    play(mixed, 3)
    for i, name in enumerate(catalogue.FAMILIES["htmini3"]):
        alone = simulate("local", MIXED.override(model=name))
        play(alone, 3)
        group = mixed.state.groups[i]
        assert_close_numbers(group.tensors, take(alone.state.groups[0].tensors, group.ids))


def test_what_is_shared_by_unlike_models_starts_equal_and_is_averaged_over_all() -> None:
    sim = simulate("fedgen", MIXED.override(participation=1.0), averages="head")
    for g in sim.state.groups:
        assert not any(n.startswith("head") for n in g.tensors) and any(n.startswith("body") for n in g.tensors)
    before = copied(sim.state.server["shared"])
    play(sim, 1)
    assert all((sim.state.server["shared"][n] != t).any() for n, t in before.items())


@pytest.mark.parametrize(
    ("name", "features", "words"),
    [
        ("fedavg", 12, "fedavg averages body and head.*htmini3.*fedgen --set averages=head.*local"),
        ("fedgen", 12, "or use .*fedgen --set averages=head, "),
        ("fedavg", 5, "fedavg averages body and head.*or use feddistill.*local"),
    ],
)
def test_who_averages_unlike_bodies_is_refused_with_those_that_fit(name: str, features: int, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        Experiment(algorithm=name, scenario=MIXED.override(features=features)).check()
    assert features == 12 or "gfpl" not in str(caught.value)  # ten classes have no frame in five dimensions
    Experiment(algorithm="fedgen", scenario=MIXED, pinned={"averages": "head"}).check()


def test_each_group_has_the_executor_of_its_model() -> None:
    scenario = Scenario(dataset="cifar10", model="htfe2", features=16)
    data = random_federation([3, 3], shape=(3, 32, 32))
    sim = Simulation(Experiment(algorithm="local", scenario=scenario.override(clients=2)), {}, data)
    assert [g.executor for g in sim.state.groups] == ["stack", "loop"]


# --------------------------------------------------------------------------------------------- some clients scored


@pytest.mark.parametrize("rule", ["personal", "pooled"])
def test_some_clients_are_scored_the_same_in_every_round_with_a_standard_error(rule: str) -> None:
    name = "fedavg" if rule == "pooled" else "local"
    base = Scenario(model="mlp", features=12, clients=9, evaluation=rule, val_shots=6)
    whole, part = simulate(name, base), simulate(name, base.override(eval_clients=4))
    scored = part.setup.scored_clients()
    assert len(scored.unique()) == 4 and whole.setup.scored_clients().tolist() == list(range(9))
    for everything, some in zip(play(whole, 3), play(part, 3), strict=True):
        f, nets = whole.setup.federation, {k: client_net(part, k) for k in scored.tolist()}
        assert everything["val_acc_se"] == 0 and everything["train_loss"] == some["train_loss"]
    hits = []
    for k, net in nets.items():
        x, y = own_rows(part, k, "val")
        hits.append((net(x).argmax(1) == y).double())
    if rule == "pooled":
        assert_close(some["val_acc"], torch.cat(hits).mean().item(), **TIGHT)
        assert some["val_acc_se"] == 0
    else:
        shares = torch.stack([h.mean() for h in hits])
        assert_close(some["val_acc"], shares.mean().item(), **TIGHT)
        assert_close(some["val_acc_se"], (shares.var() / 4 * 5 / 9).sqrt().item(), **TIGHT)
        assert some["val_acc_se"] > 0
    rows = f.val.counts[scored].sum()
    assert rows < f.val.counts.sum()
    assert_same_numbers(numbers(part.state), numbers(whole.state))


def test_scored_clients_may_miss_an_architecture() -> None:
    sim, found = simulate("local", MIXED.override(eval_clients=2)), []
    row = play(sim, 1)[0]
    for k in sim.setup.scored_clients().tolist():
        group = next(g for g in sim.state.groups if k in g.ids.tolist())
        x, y = own_rows(sim, k, "test")
        m = Model(group.net.eval(), take(group.tensors, group.ids.tolist().index(k)))
        found.append((m.head(m.body(x)).argmax(1) == y).double().mean().item())
    assert_close(row["test_acc"], sum(found) / 2, **TIGHT)


def test_no_more_clients_are_scored_than_there_are() -> None:
    with pytest.raises(UserError, match="eval_clients must be 2 to the 9 clients.*but got 10"):
        Scenario(clients=9, eval_clients=10)
