"""`fedtune.train`, `objective`, `tunable` and `Search`'s arguments, without Ray; docs/how-to/python.md has its own."""

import optuna
import pandas as pd
import pytest

import fedtune
from fedtune.core.errors import Diverged, UserError
from fedtune.engine import simulation
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.tuning.trainable import FederatedTrainable

SMALL = {"rounds": 3, "clients": 4}


@pytest.fixture(autouse=True)
def quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


def test_play_gives_the_rows_of_the_configuration_that_is_named():
    rows = fedtune.train("fedprox", "digits-w4", {"mu": 0.5, "lr": 0.05}, seed=3, momentum=0.0, **SMALL)
    experiment = Experiment(algorithm="fedprox", scenario=Scenario(momentum=0.0, **SMALL), seed=3, test_every=10)
    expected = pd.DataFrame(simulation.train(experiment, {"mu": 0.5, "lr": 0.05}))
    timed = ["seconds", "eval_seconds"]
    pd.testing.assert_frame_equal(rows.drop(columns=timed), expected.drop(columns=timed))


def test_a_hyperparameter_is_held_fixed_and_a_scenarios_field_a_default():
    options = fedtune.Search("fedprox", mu=0.5, lr=0.05, trials=7, set={"momentum": 0.1}).options
    assert options.set == {"mu": 0.5, "momentum": 0.1} and options.fields == {"lr": 0.05} and options.trials == 7
    assert options.experiment().pinned == {"mu": 0.5, "momentum": 0.1} and options.experiment().scenario.lr == 0.05
    for start, pinned in ((2, {"start": 2}), ("own", {})):  # of one name: told by the value
        made = fedtune.Search("gfpl", start=start).options
        assert (made.set, made.start) == (pinned, "common" if pinned else "own")
    said = "Search(algo='gfpl', scenario='digits-shards', fields={'rounds': 3}, trials=4)"
    assert repr(fedtune.Search("gfpl", trials=4, rounds=3)) == said


def test_a_model_that_play_saves_is_where_another_starts(tmp_path):
    fedtune.train("fedavg", save=tmp_path / "a.pt", **SMALL)
    rows = [fedtune.train("local", start_from=start, **SMALL) for start in (str(tmp_path / "a.pt"), "")]
    assert rows[0]["val_acc"][0] != rows[1]["val_acc"][0]
    with pytest.raises(UserError, match="save needs a new file, but .*a.pt exists"):
        fedtune.train("fedavg", save=tmp_path / "a.pt", **SMALL)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: fedtune.Search("gfpll"), "unknown algorithm 'gfpll': did you mean 'gfpl'"),
        (lambda: fedtune.Search("gfpl", "digits-w5"), "unknown scenario 'digits-w5': did you mean 'digits-w4'"),
        (lambda: fedtune.Search("gfpl", trails=3), "unknown argument 'trails': did you mean 'trials'"),
        (lambda: fedtune.Search("gfpl", lamb=3), "unknown argument 'lamb': did you mean 'lam'"),
        (lambda: fedtune.Search("gfpl", client=3), "unknown argument 'client': did you mean 'clients'"),
        (lambda: fedtune.Search("gfpl", trials=0), "--trials must be a whole number in 1..1000000, but got 0"),
        (lambda: fedtune.Search("gfpl", lam=-3.0), "lam"),
        (lambda: fedtune.train("gfpl", config={"lamb": 1.0}, **SMALL), "did you mean 'lam'"),
        (lambda: fedtune.train("gfpl", trials=3), "unknown argument 'trials'"),
        (lambda: fedtune.objective("gfpl", space="papers"), "did you mean 'paper'"),
        (lambda: fedtune.objective("gfpl", space="paper"), "'paper' of gfpl is a list of"),
        (lambda: fedtune.tunable("gfpl", space="paper"), "'paper' of gfpl is a list of"),
        (lambda: fedtune.Study("/nowhere").record, "/nowhere"),
    ],
)
def test_a_wrong_argument_is_one_line_that_names_the_nearest(make, rule):
    with pytest.raises(UserError) as refused:
        make()
    assert rule in str(refused.value) and "\n" not in str(refused.value)


def test_an_objective_reports_every_round_and_returns_the_last():
    objective = fedtune.objective("fedprox", seed=3, **SMALL)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial(objective.default)
    study.optimize(objective, n_trials=2)
    for trial in study.trials:
        rows = fedtune.train("fedprox", config=trial.params, seed=3, **SMALL)
        assert trial.intermediate_values == dict(zip(rows["round"], rows["val_acc"], strict=True))
        assert trial.value == rows["val_acc"].iloc[-1] and trial.user_attrs["test_acc"] == rows["test_acc"].iloc[-1]
    assert study.trials[0].params == objective.default


def test_an_objective_ends_where_the_pruner_says():
    pruner, sampler = optuna.pruners.ThresholdPruner(lower=2.0), optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(direction="maximize", pruner=pruner, sampler=sampler)  # a trial that does not diverge
    study.optimize(fedtune.objective("fedprox", **SMALL), n_trials=1)
    (trial,) = study.trials
    assert trial.state.name == "PRUNED" and list(trial.intermediate_values) == [1]


@pytest.mark.parametrize(
    ("metric", "directions", "said"),
    [
        ("val_acc", [], "val_acc has one direction, maximize, but this one has minimize;"),  # Optuna's own default
        ("val_loss", ["maximize"], "val_loss has one direction, minimize, but this one has maximize;"),
        ("seconds", ["maximize"], "seconds has one direction, minimize, but this one has maximize;"),
        ("val_acc", ["maximize", "minimize"], "but this one has maximize and minimize;"),
        ("val_acc", ["maximize", "maximize"], "but this one has maximize and maximize;"),
    ],
)
def test_a_study_in_another_direction_is_refused_before_it_trains(metric, directions, said, monkeypatch):
    objective = fedtune.objective("fedavg", objective=metric, **SMALL)
    monkeypatch.setattr(simulation.Seeds, "step", None)
    study = optuna.create_study(directions=directions or None)
    for ask in (lambda: study.optimize(objective, n_trials=1), lambda: objective(study.ask())):
        with pytest.raises(UserError) as refused:
            ask()
        assert said in str(refused.value) and "create it with direction=objective.direction" in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_study_in_the_objectives_direction_and_a_trial_without_a_study_are_trained():
    objective = fedtune.objective("fedavg", objective="val_loss", **SMALL)
    study = optuna.create_study(direction=objective.direction)
    study.enqueue_trial(objective.default)
    study.optimize(objective, n_trials=1)
    assert study.best_value == objective(optuna.trial.FixedTrial(objective.default))


def test_a_trial_that_diverges_has_the_worst_value_and_says_why(monkeypatch):
    step = simulation.Seeds.step

    def diverging(self):
        if self.round == 1:
            raise Diverged("round 2 of client 0")
        return step(self)

    monkeypatch.setattr(simulation.Seeds, "step", diverging)
    study = optuna.create_study(direction="maximize")
    study.optimize(fedtune.objective("fedprox", **SMALL), n_trials=1)
    (trial,) = study.trials
    assert (trial.state.name, trial.value) == ("COMPLETE", 0.0)
    assert trial.user_attrs["diverged"] == "round 2 of client 0" and trial.user_attrs["round"] == 1


def test_a_space_with_conditions_is_suggested_in_its_order(tmp_path):
    (tmp_path / "s.py").write_text(
        "from ray import tune\nfrom fedtune import when\n"
        "SPACE = {'momentum': when(tune.uniform(0, 0.9), optimizer='sgd'), "
        "'optimizer': tune.choice(['sgd', 'adam']), 'local_epochs': tune.randint(1, 3)}\n"
    )
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(fedtune.objective("fedavg", space=str(tmp_path / "s.py"), **SMALL), n_trials=8)
    assert {t.params["optimizer"] for t in study.trials} == {"sgd", "adam"}
    assert all(("momentum" in t.params) == (t.params["optimizer"] == "sgd") for t in study.trials)


def test_tunable_has_every_range_and_a_trainable_of_its_own(tmp_path):
    trainable, space = fedtune.tunable("gfpl", **SMALL, lam=2.0)
    objective = fedtune.objective("gfpl", **SMALL)
    assert {*space, "lam"} == {*objective.space.domains} and "lam" not in space
    assert trainable.__name__ == trainable.__qualname__ == "FederatedTrainable"  # as Ray shows actors


@pytest.mark.parametrize(("key", "said"), [("tag", "unknown hyperparameter"), ("moment", "did you mean 'momentum'")])
def test_a_key_that_is_no_hyperparameter_is_refused_before_anything_trains(key, said, monkeypatch):
    monkeypatch.setattr(FederatedTrainable, "_setup_logdir", lambda self: None, raising=False)
    monkeypatch.setattr(FederatedTrainable, "trial_resources", None)
    monkeypatch.setattr(FederatedTrainable, "_begin", None)
    trainable, _ = fedtune.tunable("fedavg", **SMALL)
    with pytest.raises(UserError, match=said):
        trainable({"lr": 0.1, key: 1})


def test_a_trial_on_several_seeds_reports_their_means(monkeypatch):
    monkeypatch.setattr(FederatedTrainable, "_setup_logdir", lambda self: None, raising=False)
    monkeypatch.setattr(FederatedTrainable, "trial_resources", None)
    trainable, _ = fedtune.tunable("fedavg", seed=3, seeds_per_trial=2, **SMALL)
    trial = trainable({"lr": 0.1})
    rows = [trial.train() for _ in range(SMALL["rounds"])]
    single = [fedtune.train("fedavg", config={"lr": 0.1}, seed=seed, **SMALL)["val_acc"] for seed in (3, 4)]
    assert [row["val_acc"] for row in rows] == pytest.approx((sum(single) / 2).tolist(), abs=1e-6)
    assert single[0].tolist() != single[1].tolist()
    with pytest.raises(UserError, match="--seeds-per-trial must be a whole number in 1..1000, but got 0"):
        fedtune.tunable("fedavg", seeds_per_trial=0, **SMALL)
