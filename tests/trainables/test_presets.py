"""Defaults are ours, as_text is the letter, as_published the code: what each is, by closed forms where it is new."""

from typing import Any

import pytest
import torch
from support.generators import two_clients
from support.helpers import DIGITS, EARLY, client_net, play, random_federation, simulate
from support.numbers import TIGHT, assert_same_numbers, numbers, randn
from support.rows import first
from torch.testing import assert_close

from fedtune.analysis.reproduction import plan as reproduction_plan
from fedtune.analysis.reproduction.paper_tables import GRIDS
from fedtune.core.errors import UserError
from fedtune.core.hyper import hyperparameters
from fedtune.engine.simulation import Simulation
from fedtune.experiment import registry, scenarios
from fedtune.experiment.algorithm import Task
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.nn.generator_losses import diversity
from fedtune.trainables.fedgenp import FedGenP
from fedtune.trainables.fedhkd import FedHKD
from fedtune.trainables.fedproto import FedProto
from fedtune.tuning.options.options import ExperimentOptions

C, D = 4, 6
TASK = Task(classes=C, features=D, clients=3, batch=4, seed=0)


def configuration(name: str, preset: str, scenario: Scenario = DIGITS) -> dict:
    return Experiment(algorithm=name, scenario=scenario, preset=preset).configuration({})


PRESETS = [(name, preset) for name in registry.names() for preset in registry.find(name).presets]


def test_every_algorithm_with_published_code_of_its_own_has_a_preset() -> None:
    assert {n for n, _ in PRESETS} >= {"fedavg", "fedensemble", "fedgen", "fedgenp", "fedhkd", "fedpa"}
    assert {p for _, p in PRESETS} <= {"as_text", "as_published", "pfllib", "htfllib", "flbench"}


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_a_preset_has_valid_values_and_takes_effect_and_set_and_search_win_over_it(name: str, preset: str) -> None:
    def of(preset: str, searched: dict | None = None, **pinned: Any) -> dict:
        experiment = Experiment(algorithm=name, scenario=DIGITS, preset=preset, pinned=pinned)
        return experiment.configuration(searched or {})

    values = dict(registry.find(name).presets[preset])
    plain, known = of(""), Experiment(algorithm=name, scenario=DIGITS).hyperparameters()
    for n, value in values.items():
        checked = known[n].check(value)
        assert checked == value and type(checked) is type(value)
    assert values and of(preset) == plain | values
    assert of("as_text") == plain | dict(registry.find(name).presets.get("as_text", {}))  # without one: the defaults
    assert of(preset, lr=0.07, momentum=0.3) == plain | values | {"lr": 0.07, "momentum": 0.3}
    assert of(preset, {"lr": 0.02}, lr=0.07, momentum=0.3) == plain | values | {"lr": 0.02, "momentum": 0.3}
    for n in values.keys() & hyperparameters(registry.find(name)).keys():
        assert of(preset, **{n: plain[n]}) == plain | values | {n: plain[n]}


@pytest.mark.parametrize(("name", "preset"), first(PRESETS, 6))
def test_a_run_under_a_preset_is_the_run_with_its_values(name: str, preset: str) -> None:
    values, data = dict(registry.find(name).presets[preset]), two_clients()
    scenario = Scenario(model="fedgen-cnn", features=8, clients=2)
    small = {n: v for n, v in EARLY.get(name, {}).items() if n not in values}
    sim = Simulation(Experiment(algorithm=name, scenario=scenario, preset=preset), small, data, torch.float64)
    want = simulate(name, scenario, data, **small, **values)
    assert play(sim, 1) == play(want, 1)  # what acts later is among the values that the test before this one compares
    assert_same_numbers(numbers(sim.state), numbers(want.state))


def test_a_scenario_field_that_was_given_wins_over_a_preset() -> None:
    fields = {"lr": 0.3, "batch_norm": "averaged"}
    options = ExperimentOptions(algo="fedavg", fields=fields, set={"momentum": 0.4}, preset="as_published")
    found = options.experiment().configuration({})
    assert (found["lr"], found["batch_norm"], found["momentum"]) == (0.3, "averaged", 0.4)
    assert found["lr_decay"] == registry.find("fedavg").presets["as_published"]["lr_decay"] != 1


@pytest.mark.parametrize(
    ("name", "preset", "words"),
    [("fedgen", "as_publish", "did you mean 'as_published'"), ("local", "as_published", "")],
)
def test_an_unknown_preset_is_refused_with_the_nearest_name(name: str, preset: str, words: str) -> None:
    with pytest.raises(UserError, match=f"unknown preset of {name} '{preset}': {words}.*as_text"):
        Experiment(algorithm=name, scenario=DIGITS, preset=preset).resolve({})


def test_fedpas_weight_belongs_to_its_loss() -> None:
    ours, text, code = (configuration("fedpa", p) for p in ("", "as_text", "as_published"))
    assert (ours["distance"], text["distance"], code["distance"]) == ("mse", "l2", "mse")
    assert (ours["bounded"], text["bounded"], code["bounded"]) == (True, False, False)
    assert (text["local_epochs"], text["local_steps"], text["pairs_over"]) == (20, 0, "batch")
    steps = configuration("fedpa", "", scenarios.find("fedpa-fmnist-a0.3"))
    assert (steps["local_steps"], steps["lam_po"]) == (20, 5.0)
    given = Experiment(algorithm="fedpa", scenario=DIGITS, preset="as_text", given=("local_epochs",)).configuration({})
    assert given["local_epochs"] == DIGITS.local_epochs


def test_diversity_over_the_batch_is_eq_7() -> None:
    """exp(-1/B² Σ over pairs of one class), where ours divides by the number of these pairs."""
    rows, y = randn(1, 8, 3), torch.tensor([[0, 0, 1, 1, 1, 2, 3, 3]])
    h = randn(8, D)
    pairs = [(p, q) for p in range(8) for q in range(8) if p != q and y[0, p] == y[0, q]]
    assert len(pairs) == 2 + 6 + 2
    for over_batch, count in ((False, len(pairs)), (True, 64)):
        value, slope = diversity(2.0, rows, y, "same", D, over_batch)(h, 0)
        x = h.clone().requires_grad_()
        apart = sum((x[p] - x[q]).abs().mean() * (rows[0, p] - rows[0, q]).square().mean() for p, q in pairs)
        want = 2 * (-apart / count).exp()
        assert_close(value, want.detach(), **TIGHT)
        assert_close(slope, torch.autograd.grad(want, x)[0], **TIGHT)


def test_the_sum_over_the_others_is_m_minus_1_of_their_means() -> None:
    """J(sum) = (m - 1) · mean of the others - β · own: with m - 1 times the β it is m - 1 times J(mean)."""
    m, b = 4, 5
    heads = {"head.weight": randn(m, C, D), "head.bias": randn(m, C)}
    width = FedGenP().noise_width
    net = FedGenP().init(TASK)["nets"]
    one = {n: t[0].double() for n, t in net.items()}
    noise, xi, y = randn(b, width), randn(b, D), torch.tensor([0, 1, 2, 3, 1])
    share = torch.full((m, C), 1 / m, dtype=torch.float64)
    j = {
        (others, beta): FedGenP(others=others, beta=beta, cap=0.0, lam_kl=0.0).conflict(
            one, torch.tensor(1), noise, xi, y, heads, share
        )
        for others, beta in (("sum", 3.0), ("mean", 1.0))
    }
    assert_close(j["sum", 3.0], 3 * j["mean", 1.0], **TIGHT)


def test_fedgenp_to_the_letter_averages_models_plainly() -> None:
    text = configuration("fedgenp", "as_text")
    names = ("others", "averaging", "gen_optimizer", "gen_lr", "cap", "lam_kl", "beta")
    assert [text[n] for n in names] == ["sum", "clients", "sgd", 0.01, 0.0, 0.0, 1.0]
    data = random_federation((12, 4, 8), [[0, 1], [1, 2], [2, 3]])
    got, plain = (simulate("fedgenp", DIGITS, data, averaging=how, gen_steps=10) for how in ("clients", "rows"))
    play(got, 1), play(plain, 1)
    local = simulate("local", DIGITS, data)  # what the clients send in round 1
    play(local, 1)
    nets = [dict(client_net(local, k).named_parameters()) for k in range(3)]
    for name, mean in got.state.server["shared"].items():
        sent = torch.stack([net[name] for net in nets])
        assert_close(mean, sent.mean(0), **TIGHT)
        weights = torch.tensor([12, 4, 8], dtype=torch.float64).view(3, *[1] * (sent.ndim - 1))
        assert_close(plain.state.server["shared"][name], (sent * weights).sum(0) / 24, **TIGHT)


def test_fedproto_asks_among_all_classes_or_among_the_clients_own() -> None:
    data = random_federation((12, 12, 12), [[0, 1], [1, 2], [2, 3]], other=6)
    sim = simulate("fedproto", DIGITS.override(all_classes=24), data, among="own")
    row = play(sim, 2)[-1]
    held = [[0, 1], [1, 2], [2, 3]]
    assert sim.state.server["own"].tolist() == [[c in own for c in range(4)] for own in held]
    protos, f = sim.state.server["protos"].values, sim.setup.federation
    right = []
    for k, own in enumerate(held):
        rows = f.test.rows[k][: f.test.counts[k]]
        z = client_net(sim, k).eval().get_submodule("body")(f.x[rows])
        near = torch.cdist(z, protos[own]).argmin(1)
        right.append((torch.tensor(own)[near] == f.y[rows]).double().mean())
    assert_close(row["test_acc"], float(torch.stack(right).mean()), **TIGHT)
    assert row["test_acc_foreign"] == 0  # it never says a class that it does not hold
    every, other = (simulate("fedproto", DIGITS, data, among=among) for among in ("all", "own"))
    a, b = play(every, 2)[-1], play(other, 2)[-1]
    assert a["train_loss"] == b["train_loss"] and a["down_bytes"] == b["down_bytes"]  # it predicts, and nothing else


def test_fedtgp_asks_among_the_clients_own_classes_too() -> None:
    data = random_federation((12, 12, 12), [[0, 1], [1, 2], [2, 3]], other=6)
    row = play(simulate("fedtgp", DIGITS.override(all_classes=24), data, among="own", server_epochs=2), 2)[-1]
    assert row["test_acc_foreign"] == 0


@pytest.mark.parametrize(("ways", "spread", "silent"), [(4, 1, False), (5, 0, True), (6, 1, True), (5, 1, False)])
def test_fedhkd_says_where_its_least_share_silences_everybody(ways: int, spread: int, silent: bool) -> None:
    scenario = Scenario(ways=ways, ways_spread=spread, clients=4)
    assert ("lam" in FedHKD().idle(scenario)) == silent
    assert not FedHKD(least_share=0.1).idle(scenario) and not FedHKD().idle(Scenario(partition="iid"))
    if silent:
        small = scenario.override(rounds=2, shots=4, shots_spread=0, val_shots=2, test_shots=2, model="mlp", features=8)
        sim = simulate("fedhkd", small)
        assert play(sim, 2)[-1]["up_floats"] > 0 and not sim.state.server["features"].present.any()


def test_emnist_s_columns_have_the_generators_rate_of_the_text() -> None:
    """1e-4, as the clients' there; elsewhere 3e-4.  Rows without a generator have none."""
    for table in ("fedpa-table2", "fedpa-table3", "fedpa-table4"):
        grid = GRIDS[table]._replace(seeds=1)
        rates = {}
        for spot in reproduction_plan.planned(grid, "ours", "cpu"):
            run = spot.runs[0]
            rate = run.workload.configuration(run.config).get("gen_lr")
            rates.setdefault((spot.column.label.startswith("EMNIST"), spot.row.algorithm), set()).add(rate)
        for (emnist, name), found in rates.items():
            wanted = {None} if name in ("fedavg", "fedprox", "fedensemble", "fedhkd") else {1e-4 if emnist else 3e-4}
            assert found == wanted, (table, name)
    known = {n for name in registry.names() for n in Experiment(algorithm=name, scenario=DIGITS).hyperparameters()}
    assert all(set(c.config) <= known for g in GRIDS.values() for p in g.panels for c in p.columns)


def test_fedsa_has_one_value_of_each_weight_in_all_tables() -> None:
    """HtFLlib's FedGen and FedProto, and λ_CC = 0 with one architecture, in the grids and across devices alike."""
    htfllib = {name: dict(registry.find(name).presets["htfllib"]) for name in ("fedgen", "fedproto")}
    grids = {"fedsa-table1": {"lam_cc": 0.0}, "fedsa-table2": {}, "fedsa-table3": {}}
    for table, fedsa in grids.items():
        rows = {r.algorithm: r.config for p in GRIDS[table].panels for r in p.rows}
        assert rows["fedsa"] == fedsa and {n: rows[n] for n in htfllib} == htfllib
    for panel, fedsa in zip(GRIDS["fedsa-device"].panels, ({"lam_cc": 0.0}, {}), strict=True):
        rows = {r.algorithm: r.config for r in reproduction_plan.rows_of(panel, panel.columns[0])}
        assert rows["fedsa"] == fedsa and rows["fedproto"]["lam"] == 10.0 and rows["fedgen"] == htfllib["fedgen"]
    assert (
        htfllib["fedgen"]["gen_lr"] == 0.1
        and FedProto(**{k: v for k, v in htfllib["fedproto"].items() if k != "momentum"}).lam == 10.0
    )


def notes(name: str, preset: str) -> list[str]:
    return [
        line for line in Experiment(algorithm=name, scenario=Scenario(), preset=preset).describe() if "text" in line
    ]


@pytest.mark.parametrize("name", ["ccvr", "feddyn", "fedpft", "moon", "fedsa", "fedproto"])
def test_as_text_says_what_it_cannot_set(name: str) -> None:
    assert notes(name, "as_text") == [f"note: not as in the text: {registry.find(name).unlike_text}"]
    assert not notes(name, "")


def test_an_algorithm_whose_paper_was_not_at_hand_says_so() -> None:
    """FedTGP's file extends FedProto's."""
    for name in ("fedgh", "fedtgp", "fedala"):
        why = "no preset as_text, because its paper was not at hand: the defaults stay as they are"
        assert notes(name, "as_text") == [f"note: {why}"]
    assert not any(notes(name, "as_text") for name in ("fedavg", "local", "apfl"))
