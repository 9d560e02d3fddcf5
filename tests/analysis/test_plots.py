"""Figures of made-up frames with known answers, the hypervolume, and models that were saved and opened again."""

from __future__ import annotations

import itertools
import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import plotly.graph_objects as go
import pytest
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from fedtune.analysis import frames, gfpl_costs, importances, models, plot_tools, plots, theme
from fedtune.analysis.cost_plots import price
from fedtune.commands import run, search
from fedtune.core import statistics
from fedtune.core.about import FORMAT
from fedtune.core.errors import UserError
from fedtune.core.metrics import OBJECTIVES, accuracy
from fedtune.core.objectives import parse
from fedtune.engine.simulation import Seeds
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.runs import pareto
from fedtune.runs.files import RunFiles
from fedtune.tuning.options import arguments
from fedtune.tuning.options.search import SearchOptions

SMALL = "--model mlp --features 12 --clients 4 --ways 3 --shots 6 --rounds 4 --all-classes 20".split()
AXES = ["val_acc", "comm_mb"]


@pytest.mark.parametrize("draw", ["parallel", "slices", "importance", "effect", "interaction", "curves"])
def test_a_value_that_looks_like_markup_is_shown_as_it_is(draw: str) -> None:
    values = ("<b>x</b>", "$a$ & $b$", "[min]")
    wanted = {"mode": CategoricalDistribution(values), "lr": FloatDistribution(0, 1), "z": FloatDistribution(0, 1)}
    rng, study = np.random.default_rng(0), optuna.create_study(direction="maximize")
    for i in range(20):
        params = {"mode": values[i % 3], "lr": rng.random(), "z": rng.random()}
        study.add_trial(create_trial(params=params, distributions=wanted, value=rng.random()))
    config = {"config/mode": [*values, *values], "config/$z": [1.0] * 3 + [2.0] * 3}
    trials, rounds = made({name: list(rng.random(2)) for name in "abcdef"}, **config)
    figure = {
        "effect": lambda: plots.effect(trials, "mode", ["last_val_acc"]),
        "interaction": lambda: plots.interaction(trials, "mode", "$z"),
        "curves": lambda: plots.learning_curves(rounds, trials, by="mode"),
    }.get(draw, lambda: getattr(plots, draw)(study))()
    figure.update_traces(legendgroup=None)  # which is not shown
    text = json.dumps(figure.to_plotly_json(), default=list)
    assert figure.data and "<b>" not in text and "$a$" not in text
    assert "&lt;b&gt;x&lt;/b&gt;" in text or draw == "importance"


# the hypervolume ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("some", "reference", "area"),
    [
        ([(0.5, 2)], (0, 10), 0.5 * 8),
        ([(0.5, 2), (0.8, 6)], (0, 10), 0.5 * 8 + 0.3 * 4),
        ([(0.5, 2), (0.8, 6)], (0.4, 7), 0.1 * 5 + 0.3 * 1),
        ([(i, i - 1) for i in range(1, 10)], (0, 9), 45),  # a staircase
        ([], (0, 10), 0),
        # what is beaten, or no better than the reference, adds nothing
        (
            [(0.5, 2), (0.8, 6), (0.5, 3), (0.4, 2), (0.9, 10), (0.9, 11), (0.0, 1), (math.nan, 1), (0.5, 2)],
            (0, 10),
            5.2,
        ),
    ],
)
@pytest.mark.parametrize("cost", ["comm_mb", "seconds"])
def test_a_hypervolume_is_the_area_of_the_rectangles(some: list, reference: tuple, area: float, cost: str) -> None:
    frame = pd.DataFrame(some, columns=["val_acc", cost], dtype=float)
    assert pareto.hypervolume(frame, ["val_acc", cost], reference) == pytest.approx(area)


@pytest.mark.parametrize("seed", range(3))
def test_a_hypervolume_counts_the_cells_that_some_point_beats(seed: int) -> None:
    some = pd.DataFrame(np.random.default_rng(seed).integers(0, 12, (25, 2)), columns=AXES, dtype=float)
    cells = itertools.product(range(12), range(12))  # cell (a, b): accuracies a to a + 1, megabytes b to b + 1
    beaten = sum(((some["val_acc"] >= a + 1) & (some["comm_mb"] <= b)).any() for a, b in cells)
    whole = pareto.hypervolume(some, AXES, (0, 12))
    assert whole == beaten == pareto.hypervolume(some.sample(frac=1, random_state=seed), AXES, (0, 12))
    assert pareto.hypervolume(some.assign(comm_mb=3 * some["comm_mb"]), AXES, (0, 36)) == pytest.approx(3 * whole)
    assert pareto.hypervolume(some + [0.5, 7], AXES, (0.5, 19)) == pytest.approx(whole)


# figures --------------------------------------------------------------------------------------------------------------


def made(played: dict[str, list[float]], **more: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Trials and rounds with these validation accuracies; a round costs 1 s and 2 MB, and test is val / 2."""
    columns = ["trial", "round", "val_acc", "test_acc", "comm_mb", "seconds", "eval_seconds", "run"]
    rows = [(t, i, v, v / 2, 2.0 * i, 0.75, 0.25, "r") for t, of in played.items() for i, v in enumerate(of, 1)]
    longest = max(map(len, played.values()), default=0)
    status = {t: "finished" if len(of) == longest else "stopped" for t, of in played.items()}
    names = ["trial", "status", "rounds", "run", "last_val_acc", "last_test_acc", "comm_mb"]
    ends = [(t, status[t], len(of), "r", of[-1], of[-1] / 2, 2.0 * len(of)) for t, of in played.items()]
    return pd.DataFrame(ends, columns=names).assign(**more), pd.DataFrame(rows, columns=columns)


def ended(*values: float, **config: list) -> pd.DataFrame:
    """Trials a, b, … of one round with these accuracies and hyperparameters."""
    played = {t: [v] for t, v in zip("abcdefghijkl", values, strict=False)}
    return made(played, **{f"config/{n}": of for n, of in config.items()})[0]


PLAYED = {"a": [0.2, 0.6, 0.5, 0.7], "b": [0.3, 0.4], "c": [0.1, 0.5, 0.9, 0.8], "d": [0.3, 0.2]}
TRIALS, ROUNDS = made(PLAYED, **{"config/n": [1, 1, 2, 2], "config/s": [0.1, 1.0, 0.1, 1.0]})
ONE = made({"a": [0.5]}, **{"config/n": [1], "config/s": [0.1]})
NONE = made({}, **{"config/n": [], "config/s": []})
EVALUATIONS = pd.DataFrame(
    [
        {"algorithm": a, "configuration": c, "chosen": c == "top 2", "seed": s, "test_acc": base + s / 10}
        for a, base in (("fedavg", 0.2), ("gfpl", 0.3))
        for c in ("default", "top 1", "top 2")
        for s in range(3)
    ]
)
BUDGET = pd.DataFrame(
    {
        "algorithm": ["fast"] * 3 + ["slow"] * 3,
        "trials": [1, 2, 3] * 2,
        "score": [0.8, 0.81, 0.82, 0.7, 0.85, 0.95],
        "half": [0.02] * 5 + [0.12],
        "rank": [1, 2, 2, 2, 1, 1],
        "rounds": [10.0, 20.0, 30.0] * 2,
        "searches": 3,
        "metric": "val_acc",
    }
)
ROWS = models.Points(np.random.default_rng(0).normal(size=(30, 5)), np.arange(30) % 3, np.arange(30) % 4)
COSTS = pd.DataFrame({"varied": ["n", "n", "m"], "value": [1, 2, 3], "measured": [1e3, 2e3, 3e3], "formula": 2e3})


def quiet_study(**options: Any) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(**options)


def journal(folder: Path, trials: int, diverged: int = 0, objectives: int = 1) -> Path:
    """A run with a study.journal: accuracy hangs on lam alone; linkage and n are idle."""
    storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    study = quiet_study(storage=storage, study_name="s", directions=["maximize", "minimize"][:objectives])
    rng, linkages = np.random.default_rng(0), ["single", "ball"]
    kinds = {"lam": FloatDistribution(0.1, 10, log=True), "linkage": CategoricalDistribution(linkages)}
    kinds["n"] = FloatDistribution(0, 1)
    for i in range(trials + diverged):
        lam = float(np.exp(rng.uniform(np.log(0.1), np.log(10))))
        params, lost = {"lam": lam, "linkage": linkages[i % 2], "n": float(rng.uniform())}, i >= trials
        values, attrs = [0.0 if lost else 0.5 + 0.1 * np.log(lam), 3.0][:objectives], {"diverged": True} if lost else {}
        study.add_trial(create_trial(params=params, distributions=kinds, values=values, user_attrs=attrs))
    study.add_trial(create_trial(state=TrialState.PRUNED, params=params, distributions=kinds))
    return folder


def title(figure: go.Figure) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", figure.layout.title.text).split())


def says(figure: go.Figure) -> str:
    """The text of a figure without data."""
    assert not figure.data, title(figure)
    return figure.layout.annotations[0].text.replace("<br>", " ")


def every(trials: pd.DataFrame, rounds: pd.DataFrame) -> dict[str, go.Figure]:
    """A figure of each function over trials and rounds."""
    return {
        "learning curves": plots.learning_curves(rounds, trials),
        "learning curves by": plots.learning_curves(rounds, trials, by="config/n"),
        "losses": plots.learning_curves(rounds, trials, metric="test_acc"),
        "found": plots.found(trials),
        "rungs": plots.rung_survival(trials, rounds, [2]),
        "communication": plots.accuracy_communication(rounds),
        "seconds": plots.accuracy_communication(rounds, "seconds"),
        "effect": plots.effect(trials, "n", costs=["comm_mb"]),
        "interaction": plots.interaction(trials, "n", "s"),
    }


def others(folder: Path) -> dict[str, go.Figure]:
    """A figure of each of the other functions."""
    clients = pd.DataFrame({"client": range(5), "test_acc": [0.1, 0.9, 0.5, 0.7, 0.3], "rows": 9})
    study = plots.study(folder)
    return {
        "parallel": plots.parallel(study),
        "slices": plots.slices(study),
        "importance": plots.importance(study),
        "clients": plots.per_client(clients),
        "several": plots.per_client(pd.concat([clients.assign(algorithm=a) for a in ("gfpl", "local")])),
        "together": plots.embedding({"features": ROWS, "prototypes": models.Points(*(p[:6] for p in ROWS))}),
        "apart": plots.embedding({"features": ROWS, "projections": ROWS}, together=False),
        "costs": plots.communication_by(COSTS),
        "comparison": plots.comparison(EVALUATIONS),
        "by budget": plots.by_budget(BUDGET),
        "of a comparison": plots.learning_curves(
            ROUNDS.assign(algorithm=ROUNDS["trial"], configuration="default", seed=1)
        ),
    }


def test_every_figure_has_a_title_units_and_n(tmp_path: Path) -> None:
    figures = every(TRIALS, ROUNDS) | others(journal(tmp_path, 12))
    for name, figure in figures.items():
        assert figure.data, f"{name}: {title(figure)}"
        assert re.search(r"\bn = \d", title(figure)), name
        axes = [a for a in figure.select_xaxes() if a.visible is not False and not a.matches]
        assert any(a.title.text for a in axes) or name == "parallel", name
        assert figure.layout.template.layout.colorway == tuple(theme.COLOURS), name
        assert json.loads(figure.to_json())["data"], name


def test_clients_stand_by_accuracy_and_those_of_several_seeds_are_counted_once() -> None:
    accuracies = pd.DataFrame({"client": range(20), "test_acc": [((7 * i) % 20) / 20 for i in range(20)]})
    figure = plots.per_client(accuracies)
    assert list(figure.data[0].y) == [i / 20 for i in range(20)]
    assert "n = 20 clients; mean 47.50 %, worst tenth 2.50 %" in title(figure)
    each = itertools.product(("best", "default"), (1, 2, 3), range(4))
    runs = pd.DataFrame(each, columns=["configuration", "seed", "client"]).assign(test_acc=0.5)
    assert "n = 4 clients on each of 3 seeds" in title(plots.per_client(runs, by="configuration"))
    assert "n = 4 clients;" in title(plots.per_client(runs[:4]))
    lost = title(plots.per_client(runs[4:], by="configuration"))  # a run of the best diverged
    assert "n = 4 clients on each of 2 seeds (best) and 3 seeds (default); best: mean" in lost


def test_points_have_the_names_of_clients_and_classes() -> None:
    named = ROWS._replace(clients=("north", "<b>", "c d", "ü"), classes=("[unk]", "cat", "dog"))
    figure = plots.embedding({"features": named, "prototypes": named._replace(owners=np.full(30, models.SERVER))})
    features, prototypes = figure.data
    assert set(features.text) == {"[unk]", "cat", "dog"}
    assert "class [unk], client north" in features.customdata and "class cat, server" in prototypes.customdata
    by_client = plots.embedding({"features": named}, colour="client").data[0].text
    assert set(by_client) == {"north", "&lt;b&gt;", "c d", "ü"}
    assert set(plots.embedding({"features": ROWS}, colour="client").data[0].text) == {"0", "1", "2", "3"}


def test_frames_that_are_empty_or_hold_one_trial_give_figures_too(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    record = {"format": FORMAT, "algorithm": "gfpl", "scenario": {"dataset": "d", "rounds": 3}}
    (tmp_path / "new" / "run.json").write_text(json.dumps(record))
    for frames_of in (NONE, frames.load(tmp_path / "new")):
        assert all(map(says, every(*frames_of).values()))
    assert all(map(title, every(*ONE).values()))
    few = models.Points(*(p[:3] for p in ROWS))
    for figure, why in (
        (plots.effect(ONE[0], "n"), "fewer than two trials"),
        (plots.interaction(ONE[0], "n", "s"), "at least two trials"),
        (plots.effect(TRIALS, "lam"), "was not searched"),
        (plots.rung_survival(TRIALS, ROUNDS, []), "no rungs"),
        (plots.comparison(EVALUATIONS.iloc[:0]), "nothing was re-run"),
        (plots.by_budget(BUDGET.assign(score=np.nan)), "no search has a validation accuracy"),
        (plots.communication_by(COSTS.iloc[:0]), "nothing was measured"),
        (plots.per_client(pd.DataFrame({"test_acc": []})), "no client"),
        (plots.embedding({"features": few}), "four points"),
        (plots.learning_curves(ROUNDS, TRIALS, by="config/y"), "no run has a value of y"),
        (plots.regret(pd.DataFrame()), "there is no simulated search"),
    ):
        assert why in says(figure)
    drawn = [plots.parallel, plots.slices, plots.importance]
    assert all("no study.journal" in says(figure(plots.study(tmp_path))) for figure in drawn)
    few = plots.study(journal(tmp_path, 1, diverged=9))
    assert all("finished trials, but there are 1" in says(figure(few)) for figure in drawn)


def test_what_a_search_found_is_each_trial_in_order_in_percent_with_the_best_finished_one_so_far() -> None:
    values, how = [0.5, 0.9, 0.6, 0.95, 0.7, math.nan], ["finished"] * 3 + ["stopped", "finished", "diverged"]
    trials = pd.DataFrame({"trial": list("abcdef"), "status": how, "last_val_acc": values})
    final = pd.DataFrame({"configuration": ["best"] * 2 + ["default"] * 2, "test_acc": [0.9, 0.8, 0.6, 0.6]})
    figure = plots.found(trials, best="b", final=final)
    finished, stopped, diverged, so_far, best, _, default, _, tuned = figure.data
    assert list(finished.x) == [1, 2, 3, 5] and list(finished.y) == pytest.approx([50, 90, 60, 70])
    assert (stopped.x[0], stopped.y[0]) == (4, 95) and (diverged.x[0], diverged.y[0]) == (6, 50)
    assert list(so_far.y) == pytest.approx([50, 90, 90, 90, 90, 90]) and (best.x[0], best.y[0]) == (2, 90)
    assert (default.x[0], tuned.x[0]) == (
        pytest.approx(60),
        pytest.approx(85),
    ) and "[%]" in figure.layout.xaxis2.title.text
    assert tuned.error_x.array[0] == pytest.approx(15)  # cut at 100 %
    assert tuned.hovertemplate.startswith("best: 85.00 ± 63.53 % (≤ 100)<")  # once in percent
    assert title(figure).endswith("n = 6 trials; at the edge: 1 without a value") and not figure.layout.annotations


@pytest.mark.parametrize(("name", "sign"), [("val_acc", 1), ("val_loss", -1)])
def test_a_trial_far_worse_than_the_others_is_marked_at_the_edge_with_its_value(name: str, sign: int) -> None:
    values = sign * np.array([0.8, 0.81, 0.82, 0.83, 0.1])
    trials = pd.DataFrame({"trial": list("abcde"), "status": "stopped", f"last_{name}": values})
    final = pd.DataFrame(
        {"configuration": ["best"] * 3, name: [math.nan, math.nan, 0.5], "reason": ["diverged"] * 2 + [""]}
    )
    figure = plots.found(trials, parse(name)[0], final=final)
    stopped, far = figure.data[:2]
    assert list(stopped.x) == [1, 2, 3, 4] and list(far.x) == [5] and sign * far.y[0] < min(sign * np.array(stopped.y))
    assert far.name == "far worse, at the edge" and far.mode == "markers+text" and stopped.mode == "markers"
    assert far.customdata[0] == ("10.00 %" if sign > 0 else "−0.1000") and "stopped" in far.text[0]
    assert far.marker.symbol == ("triangle-down" if sign > 0 else "triangle-up")
    assert [a.text for a in figure.layout.annotations] == ["diverged in 2 of 3"]


def test_curves_are_means_with_a_band_of_one_deviation() -> None:
    figure = plots.learning_curves(ROUNDS, TRIALS, by="config/n")
    lines = {t.name: t for t in figure.data if t.name}
    assert list(lines) == ["n 1 (n = 2)", "n 2 (n = 2)"] and plots.learning_curves(ROUNDS, TRIALS, by="n") == figure
    first = lines["n 1 (n = 2)"]
    assert list(first.y) == pytest.approx([0.25, 0.5, 0.5, 0.7])
    spread, count = np.array(first.customdata).T
    assert spread.tolist() == pytest.approx([0.1 / 2**0.5, 0.2 / 2**0.5, 0, 0]) and count.tolist() == [2, 2, 1, 1]
    band = figure.data[0]
    assert list(band.y[:2]) == pytest.approx([0.25 + 0.1 / 2**0.5, 0.5 + 0.2 / 2**0.5])
    many = TRIALS.assign(**{"config/x": [0.1, 0.2, 0.3, None]})
    assert len([t for t in plots.learning_curves(ROUNDS, many, by="config/x").data if t.name]) == 3


def test_a_legend_tells_trials_and_the_runs_of_a_comparison_apart() -> None:
    figure = plots.learning_curves(ROUNDS)
    assert {t.name for t in figure.data} == {"a (70.00 %)", "b (40.00 %)", "c (80.00 %)", "d (20.00 %)"}
    assert "every trial" in title(figure) and "n = 4 trials" in title(figure)
    rows = [
        {"algorithm": "gfpl", "configuration": c, "seed": s, "round": 1, "val_acc": v + s / 10}
        for c, v in (("default", 0.1), ("top 1", 0.5))
        for s in (1, 2, 3)
    ]
    figure = plots.learning_curves(pd.DataFrame(rows))
    names = ["1 other", "top 1, seed 3 (80.00 %)", "top 1, seed 2 (70.00 %)", "top 1, seed 1 (60.00 %)"]
    assert [t.name for t in figure.data] == [*names, "default, seed 3 (40.00 %)", "default, seed 2 (30.00 %)"]
    assert "every run" in title(figure) and "n = 6 runs; in colour the 5 that end best" in title(figure)


def test_numbers_of_many_values_are_cut_into_quarters_in_rising_order() -> None:
    played = {f"t{i}": [i / 20] for i in range(20)}
    trials, rounds = made(played, **{"config/x": [float((7 * i) % 20) for i in range(20)]})
    names = [t.name for t in plots.learning_curves(rounds, trials, by="config/x").data if t.name]
    assert names == ["x 0–4 (n = 5)", "x 5–9 (n = 5)", "x 10–14 (n = 5)", "x 15–19 (n = 5)"]
    crowded = [1, 1, 2, 2, 2, 2, 2, 4, 4, 4, 5, 5, 5, 7, 8, 9, 10]  # of five parts, one is empty
    trials = trials.iloc[:17].assign(**{"config/x": crowded})
    best, _ = plots.interaction(trials, "x", "x").data
    assert list(best.x) == ["1–2", "4", "5", "7–10"]


def test_rungs_say_who_came_and_what_became_of_them() -> None:
    trials = TRIALS.assign(status=["finished", "stopped", "diverged", "stopped"])
    figure = plots.rung_survival(trials, ROUNDS, [2, 4])
    bars = {t.name: dict(zip(t.x, t.y, strict=True)) for t in figure.data if t.type == "bar"}
    assert bars == {
        "went on": {"begun": 4, "2 rounds": 2, "4 rounds": 1, "the end": 0},
        "finished": {"begun": 0, "2 rounds": 0, "4 rounds": 0, "the end": 1},
        "stopped": {"begun": 0, "2 rounds": 2, "4 rounds": 0, "the end": 0},
        "diverged": {"begun": 0, "2 rounds": 0, "4 rounds": 1, "the end": 0},
    }
    at = {(x, y) for t in figure.data if t.type == "box" for x, y in zip(t.x, t.y, strict=True)}
    assert at == {("2 rounds", v[1]) for v in PLAYED.values()} | {("4 rounds", 0.7), ("4 rounds", 0.8)}
    assert plots.rung_survival(TRIALS, ROUNDS, [5], "mb").data[0].x == ("begun", "5 MB", "the end")
    timed = plots.rung_survival(TRIALS, ROUNDS.assign(sim_seconds=ROUNDS["comm_mb"]), [5], "sim_seconds")
    assert timed.data[0].x == ("begun", "5 device seconds", "the end")
    assert plots.rung_survival(TRIALS, ROUNDS, [1, 2]).data[0].x == ("begun", "1 round", "2 rounds", "the end")


def test_the_front_is_over_every_round_and_its_hypervolume_is_told() -> None:
    figure = plots.accuracy_communication(ROUNDS)
    cloud, front = figure.data
    assert len(cloud.x) == 12
    assert list(zip(front.x, front.y, strict=True)) == [(2, 0.3), (4, 0.6), (6, 0.9)]
    volume = 0.3 * 6 + 0.3 * 4 + 0.3 * 2
    assert f"hypervolume {volume:.4g} of 8, reference point: accuracy 0 at 8 MB" in title(figure)
    two = plots.accuracy_communication(pd.concat([ROUNDS, ROUNDS.assign(run="other")]), reference=4)
    assert len(two.data) == 4 and "hypervolume r 0.6, other 0.6 of 4" in title(two)
    seeds = pd.concat([ROUNDS.assign(algorithm="x", seed=1), ROUNDS.assign(algorithm="x", seed=2, val_acc=0.1)])
    figure = plots.accuracy_communication(seeds.drop(columns="run"))
    assert list(figure.data[1].y) == pytest.approx([0.2, 0.35, 0.5])  # no lucky seed
    assert "n = 4 configurations, means of 2 seeds, 12 rounds" in title(figure)
    seconds = plots.accuracy_communication(ROUNDS, "seconds").data[0]
    assert sorted(set(seconds.x)) == [1, 2, 3, 4]  # since the trial's start


@pytest.mark.parametrize(
    ("first", "other", "said"),
    [
        ("val_acc", "comm_mb", "From 30.00 % on, each further point of validation accuracy costs 0.0667 MB up to "
         "60.00 %, then 0.0667 MB up to 90.00 %."),
        ("val_acc", "val_loss", "From 30.00 % on, each further point of validation accuracy costs 0.0167 of validation "
         "loss up to 90.00 %."),
        ("val_loss", "val_acc", "From 1.0000 on, each unit of validation loss costs 60 points of validation accuracy "
         "down to 0.0000."),
        ("val_acc", "val_gain:max", ""),
    ],
)  # fmt: skip
def test_what_each_point_costs_is_told_along_the_front(first: str, other: str, said: str) -> None:
    front = pd.DataFrame({"trial": "t", "round": [1, 2, 3], "val_acc": [0.3, 0.6, 0.9], "comm_mb": [2.0, 4.0, 6.0]})
    lost = front.assign(val_acc=[0.2, 0.5, 0.8], val_loss=2.0)  # beaten by the others
    some = pd.concat([front.assign(val_loss=[0.0, 9.0, 1.0]), lost.assign(comm_mb=9.0)])
    (one,), (two,) = parse(first), parse(other, {"val_gain": "", **OBJECTIVES})
    assert price(some, one, two) == said


def test_rounds_whose_epsilon_is_infinite_are_left_out_and_counted() -> None:
    some = pd.concat([ROUNDS.assign(epsilon=1.0), ROUNDS.assign(trial="z", epsilon=math.inf, val_acc=0.99)])
    one, two, three = parse("val_acc,epsilon,comm_mb")
    shown = [plots.accuracy_communication(some, two), plots.tradeoffs(some, (one, two, three))]
    assert all(f"; {len(ROUNDS)} rounds without bound left out" in title(f) for f in shown)
    assert [*shown[0].data[1].y] == [0.9] and all(np.isfinite(line.y).all() for line in shown[1].data)
    assert not price(some, one, two)


def test_a_front_of_three_has_a_line_a_round_and_better_is_further_up() -> None:
    three = parse("val_acc,comm_mb,val_loss")
    some = ROUNDS.assign(val_loss=1 - ROUNDS["val_acc"])
    figure = plots.tradeoffs(some, three)
    assert len(figure.data) == len(pareto.front(some, three)) == 3
    heights = [list(line.y) for line in figure.data]  # from the least accuracy on
    assert heights == pytest.approx(np.array([[0, 1, 0], [0.5, 0.5, 0.5], [1, 0, 1]]))
    ends = {(a.x, a.y): a.text for a in figure.layout.annotations}
    assert ends[0, 1] == "90.00 %" and ends[0, 0] == "30.00 %" and ends[1, 1] == "2.0000 MB"
    assert figure.layout.xaxis.ticktext == ("validation<br>accuracy", "communication<br>[MB]", "validation<br>loss")
    assert "no round has all of" in plots.tradeoffs(ROUNDS, three).layout.annotations[0].text
    assert len(plots.tradeoffs(some.assign(val_acc=0.5, comm_mb=1.0), three).data) == 1  # values without a span


def test_an_effect_is_that_of_trials_which_differ_in_nothing_else() -> None:
    values = [0.1 * i for i in range(1, 7)]
    trials = ended(*values, n=[1, 2, 4, 2, 8, 2], s=[1.0, 1.0, 1.0, 3.0, 9.0, 1.0], how=["x"] * 5 + ["y"])
    accuracy, tested, cost = plots.effect(trials, "n", costs=["comm_mb"]).data
    assert list(accuracy.x) == [1, 2, 4] and list(accuracy.y) == pytest.approx([0.1, 0.2, 0.3])
    assert list(tested.y) == pytest.approx([0.05, 0.1, 0.15]) and list(cost.y) == [2, 2, 2]
    errors = pd.DataFrame({"trial": list("abcdef"), "round": 1, "val_acc_se": np.arange(6) / 100})
    accuracy, tested = plots.effect(trials, "n", rounds=errors).data
    assert list(accuracy.error_y.array) == [0, 0.01, 0.02] and tested.error_y.array is None
    # the commonest values are those of the whole grid: among how = x and s = 5 or 9 the counts of s are equal for n < 4
    grid = ended(*values, n=[1, 1, 2, 2, 4, 4], s=[5, 9, 5, 9, 9, 7], how=["x"] * 5 + ["y"])
    assert list(plots.effect(grid, "n").data[0].y) == pytest.approx([0.2, 0.4, 0.5])
    # and it is not that of training lengths, unless nothing finished
    short = ended(0.1, 0.2, 0.3, n=[1, 2, 4])
    assert list(plots.effect(short.assign(status="stopped"), "n").data[0].x) == [1, 2, 4]
    assert list(plots.effect(short.assign(status=["finished", "stopped", "finished"]), "n").data[0].x) == [1, 4]


def test_the_worst_tenth_of_several_seeds_is_that_of_the_table_of_fresh_seeds() -> None:
    """The mean of each run's worst tenth, as test_acc_worst10 is, and not the worst tenth of all runs' clients."""
    each = {1: [0.1, 0.2, *[0.9] * 18], 2: [0.5, 0.7, *[0.8] * 8]}
    rows = [{"client": i, "seed": seed, "test_acc": a} for seed, of in each.items() for i, a in enumerate(of)]
    table = [accuracy("test", {"": 100 * torch.tensor(a)}, torch.full((len(a),), 100), len(a)) for a in each.values()]
    mean, worst = (np.mean([row[name] for row in table]) for name in ("test_acc", "test_acc_worst10"))
    assert (round(mean, 4), round(worst, 4)) == (0.7925, 0.325)
    note = title(plots.per_client(pd.DataFrame(rows)))
    assert "n = 20 clients on each of 2 seeds; mean 79.25 %, worst tenth 32.50 %" in note


def test_a_pair_shows_best_mean_and_count_of_each_cell() -> None:
    trials = ended(0.2, 0.6, 0.5, 0.7, n=[1, 1, 2, 2], s=["p", "p", "p", "q"])
    best, mean = plots.interaction(trials, "n", "s").data
    assert list(best.x) == ["1", "2"] and list(best.y) == ["p", "q"]
    assert np.array(best.z)[0].tolist() == [0.6, 0.5] and np.isnan(best.z[1][0])
    assert np.array(mean.z)[0].tolist() == pytest.approx([0.4, 0.5])
    assert [list(row) for row in best.text] == [["60.0 %<br>n = 2", "50.0 %<br>n = 1"], ["", "70.0 %<br>n = 1"]]
    stopped = trials.assign(status=["finished", "stopped", "finished", "diverged"])
    (best,) = plots.interaction(stopped, "n", "s").data  # the mean of one is the same
    assert np.array(best.z).tolist() == [[0.2, 0.5]]


def test_the_curve_by_budget_shows_means_and_bands() -> None:
    figure = plots.by_budget(BUDGET)
    lines = {t.name: t for t in figure.data if t.name}
    assert list(lines) == ["slow", "fast"], "the last leader first"
    assert list(lines["fast"].x) == [1, 2, 3] and list(lines["fast"].y) == [0.8, 0.81, 0.82]
    band = next(t for t in figure.data if t.legendgroup == "slow" and not t.name)
    assert band.mode == "lines", "Plotly marks the corners of a band of few points"
    assert list(band.y) == pytest.approx([0.72, 0.87, 1.0, 0.83, 0.83, 0.68]), "cut at what an accuracy can be"
    assert "n = 3 searches of each; mean and its" in title(figure)
    assert list(figure.layout.xaxis.tickvals) == [1, 2, 3] and figure.layout.yaxis.title.text == "validation accuracy"
    assert figure.layout.yaxis.tickformat.endswith("%"), "as its texts"
    one = plots.by_budget(BUDGET.assign(half=np.nan, searches=1))
    assert all(t.name for t in one.data) and "n = 1 search of each; another may order" in title(one)


def test_a_comparison_shows_the_tuned_mean_with_its_interval_and_the_default() -> None:
    lost = EVALUATIONS["test_acc"].mask((EVALUATIONS["algorithm"] == "fedavg") & (EVALUATIONS["seed"] == 2))
    figure = plots.comparison(EVALUATIONS.assign(test_acc=lost))
    default, tuned = figure.data
    want = [statistics.mean([0.3, 0.4, 0.5])]  # of fedavg no mean: the survivors' would be too good
    assert list(tuned.x) == list(default.x) == pytest.approx([100 * m.mean for m in want])
    assert list(tuned.error_x.array) == pytest.approx([100 * m.half for m in want]) and default.error_x.array is None
    assert list(figure.layout.yaxis.ticktext) == ["gfpl", "fedavg"] and "n = 3 seeds" in title(figure)
    by_search = plots.comparison(EVALUATIONS.assign(search=EVALUATIONS["seed"]))
    assert "n = 3 searches" in title(by_search), "of one seed each"
    told = [(a.text, a.y) for a in figure.layout.annotations]
    assert told == [("default diverged in 1 of 3", 1.28), ("tuned diverged in 1 of 3", 0.72)]
    assert not plots.comparison(EVALUATIONS).layout.annotations
    lost = EVALUATIONS["test_acc"].mask(EVALUATIONS["algorithm"] == "gfpl")
    figure = plots.comparison(EVALUATIONS.assign(test_acc=lost))
    assert list(figure.layout.yaxis.ticktext) == ["fedavg", "gfpl"]


def test_local_and_the_control_are_lines_through_a_comparison() -> None:
    again = EVALUATIONS[EVALUATIONS["algorithm"] == "gfpl"].assign(algorithm="gfpl-again")
    runs = pd.concat([EVALUATIONS.replace({"algorithm": {"fedavg": "local"}}), again], ignore_index=True)
    figure = plots.comparison(runs, control=("gfpl", "gfpl-again"))
    lines = {t.name: list(t.x) for t in figure.data if t.mode == "lines"}
    assert lines == {"local, tuned": pytest.approx([30] * 2), "gfpl-again, the control": pytest.approx([40] * 2)}
    assert list(figure.layout.yaxis.ticktext) == ["gfpl", "local"]


def test_every_pair_stands_twice_in_the_matrix_with_the_verdict_of_its_row() -> None:
    rows = [("a", "b", 0.1, "larger"), ("a", "c", 0.002, "within the margin"), ("b", "c", -0.098, "cannot be told")]
    table = pd.DataFrame(rows, columns=["algorithm", "other", "difference", "verdict"]).assign(half=0.01)
    cells, *legend = plots.pairs(table).data
    assert [list(row) for row in cells.text] == [["", "+10.0", "+0.2"], ["−10.0", "", "−9.8"], ["−0.2", "+9.8", ""]]
    better, worse, within, untold = range(4)
    assert [list(row) for row in cells.z] == [[None, better, within], [worse, None, untold], [within, untold, None]]
    assert [t.name for t in legend] == ["row is better", "row is worse", "within the margin", "cannot be told"]
    assert cells.customdata[1][0] == "b − a: −10.00 ± 1.00 points, larger"
    loss, *_ = plots.pairs(table.assign(metric="test_loss"), parse("val_loss")[0]).data
    assert (loss.z[0][1], loss.z[1][0], loss.text[0][1]) == (worse, better, "+0.100")
    (*_, long) = plots.pairs(table.replace("c", "c[x=1,y=2]")).layout.xaxis.ticktext
    assert long == "c<br>[x=1,<br>y=2]"
    assert len(plots.pairs(table.assign(verdict=np.nan)).data) == 1, "with one search no colour means anything"


def test_what_is_drawn_around_a_mean_ends_where_the_metric_does() -> None:
    for most, end in ((1.0, "% (≤ 100)"), (0.1, "% (≥ 0)")):
        near = EVALUATIONS.assign(test_acc=(most - 0.1 * (EVALUATIONS["seed"] > 0)).clip(0))
        for t in (t for t in plots.comparison(near).data if t.name == "tuned"):
            ends = [x + e for x, e in zip(t.x, t.error_x.array, strict=True)]
            starts = [x - e for x, e in zip(t.x, t.error_x.arrayminus, strict=True)]
            assert max(ends) <= 100 + 1e-12 and min(starts) >= -1e-12 and all(text.endswith(end) for text in t.text)
    rounds = pd.DataFrame({"trial": ["a", "a", "b", "b"], "round": [1, 2, 1, 2], "val_acc": [0.1, 1.0, 0.9, 0.98]})
    rounds["val_loss"] = [9.0, 1.0, 0.1, 0.1]
    of = pd.DataFrame({"trial": ["a", "b"], "config/n": [1, 1]})
    for metric, top in (("val_acc", 1.0), ("val_loss", 27.7)):
        band = plots.learning_curves(rounds, of, metric=metric, by="n").data[0]
        assert band.fill == "toself" and 0 <= min(band.y) and max(band.y) <= top
    assert max(plots.learning_curves(rounds, of, metric="val_loss", by="n").data[0].y) > 1


def test_importance_is_optunas_without_the_diverged(tmp_path: Path) -> None:
    for objectives in (1, 2):
        (folder := tmp_path / str(objectives)).mkdir()
        study = plots.study(journal(folder, 12, diverged=3, objectives=objectives))
        bars = plots.importance(study).data[0]
        assert dict(zip(bars.y, bars.x, strict=True))["lam"] > 0.9 and sum(bars.x) == pytest.approx(1)
        assert {len(t.x) for t in plots.slices(study).data} == {12}
        assert "n = 12 finished trials of 16" in title(plots.slices(study))


def test_what_mattered_is_said_with_how_sure_it_is(tmp_path: Path) -> None:
    study = plots.study(journal(tmp_path, 12, diverged=3))
    found = plots.mattered(study)
    bars = plots.importance(study).data[0]
    assert found.shares == pytest.approx(dict(zip(bars.y, bars.x, strict=True))) and next(iter(found.shares)) == "lam"
    assert (found.first, found.trials) == (plots.RESAMPLES, 12)
    assert plots.importance(study, found) == plots.importance(study)
    more = study.trials[0]
    study.add_trial(create_trial(params=more.params, distributions=more.distributions, value=0.9))
    grown = plots.mattered(study)
    assert grown.trials == 13 and grown.shares != found.shares  # not what was known of twelve
    again = plots.importance(study).data[0]
    assert grown.shares == pytest.approx(dict(zip(again.y, again.x, strict=True)))
    values, unsure = np.random.default_rng(1).uniform(size=(12, 3)), quiet_study(direction="maximize")
    for lam, mu, noise in values:
        both = {name: FloatDistribution(0, 1) for name in ("lam", "mu")}
        unsure.add_trial(create_trial(params={"lam": lam, "mu": mu}, distributions=both, value=lam + mu + noise / 10))
    vague = plots.mattered(unsure)
    assert vague.first < 0.8 * plots.RESAMPLES
    for of in (found, grown, vague):
        assert all(low <= of.shares[name] <= high for name, (low, high) in of.ranges.items())
    assert plots.mattered(None) is None
    (few := tmp_path / "few").mkdir()
    assert plots.mattered(plots.study(journal(few, 7))) is None


def test_a_range_that_was_widened_during_a_search_counts_as_one(tmp_path: Path) -> None:
    found, moved = plots.mattered(plots.study(journal(tmp_path, 12))), quiet_study(direction="maximize")
    for i, trial in enumerate(plots.study(tmp_path).trials):
        if trial.state == TrialState.COMPLETE:
            ranges = trial.distributions | {
                "lam": FloatDistribution(-1 * (i > 5), trial.distributions["lam"].high + (i > 8))
            }
            moved.add_trial(create_trial(params=trial.params, distributions=ranges, value=trial.values[0]))
    assert "lam" not in get_param_importances(moved, evaluator=FanovaImportanceEvaluator(seed=0))  # Optuna drops it
    assert next(iter(plots.mattered(moved).shares)) == next(iter(found.shares)) == "lam"
    both = plots.pooled([moved, moved])
    assert (len(both.trials), plots.mattered(both).trials) == (24, 24)
    choices = [CategoricalDistribution(c) for c in ((1, 2), (2, 3))]
    assert importances._common(choices) == CategoricalDistribution((1, 2, 3))
    whole = [IntDistribution(1, 4, log=True), IntDistribution(2, 9, log=True)]
    assert importances._common(whole) == IntDistribution(1, 9, log=True)


def test_of_many_trials_a_forest_is_grown_on_some_and_not_on_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = plots.study(journal(tmp_path, 60))
    monkeypatch.setattr(importances, "GROWN", 60)
    assert "drawn at random" not in title(plots.importance(study)) and plots.mattered(study).trials == 60
    monkeypatch.setattr(importances, "GROWN", 20)
    assert plots.mattered(study).trials == 20
    said = title(plots.importance(study))
    assert "n = 60 finished trials of 61" in said and "; 20 of these, drawn at random" in said
    every = sorted(t.value for t in study.trials if t.value is not None)
    values = [t.value for t in importances.grown_on(study).trials]
    assert set(values) < set(every) and len(set(values) & set(every[-20:])) < 15
    assert [t.value for t in importances.grown_on(study).trials] == values  # the same each time


def test_figures_follow_the_objective(tmp_path: Path) -> None:
    study = plots.study(journal(tmp_path, 12))
    assert "accuracy's" in title(plots.importance(study))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study.set_metric_names(["val_loss"])
    for figure in (plots.importance(study), plots.slices(study), plots.parallel(study)):
        assert "validation loss" in title(figure).lower() and "ccuracy" not in figure.to_json()
    trials = ended(0.2, 0.6, 0.5, n=[1, 1, 2], s=["p", "p", "p"])
    trials = trials.assign(last_val_loss=[0.7, 0.9, 0.8], last_val_own=[1, 2, 3])
    least, _ = plots.interaction(trials, "n", "s", value="last_val_loss").data
    assert np.array(least.z).tolist() == [[0.7, 0.8]]
    most, _ = plots.interaction(trials, "n", "s", value="last_val_own").data
    least, _ = plots.interaction(trials, "n", "s", value="last_val_own", mode="min").data
    assert np.array(most.z).tolist() == [[2, 3]] and np.array(least.z).tolist() == [[1, 3]]
    assert plots.effect(trials.drop(index=1), "n", ["last_val_loss"]).layout.yaxis.title.text == "validation loss"
    axes = [
        plots.effect(trials.drop(index=1), "n", ["last_val_acc", *of]).layout.yaxis for of in ([], ["last_val_loss"])
    ]
    assert [axis.tickformat for axis in axes] == [".3~%", ""] and not axes[1].hoverformat, "a loss is no share"


def test_where_few_finished_the_last_round_that_enough_reached_counts() -> None:
    study = quiet_study(direction="maximize")
    for i in range(24):  # rungs at 2 and 4, the end at 6: 24, 9 and 3 come there
        length, lam = 6 if i < 3 else 4 if i < 9 else 2, FloatDistribution(0, 1)
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE if length == 6 else TrialState.PRUNED,
                value=0.9 if length == 6 else None,
                params={"lam": i / 24},
                distributions={"lam": lam},
                intermediate_values={t: i / 100 + t / 10 for t in range(1, length + 1)},
            )
        )
    figure = plots.slices(study)
    assert sorted(figure.data[0].y) == pytest.approx([i + 40 for i in range(9)])
    assert "n = 9 trials of 24, by accuracy after round 4: only 3 finished" in title(figure)
    assert plots.importance(study).data[0].x == (1,)


# saved models ---------------------------------------------------------------------------------------------------------


def keep(folder: Path, algo: str, *more: str) -> tuple[models.Saved, dict[str, Any]]:
    """A model played and saved by the command, opened again; and its last row."""
    model, rows = folder / f"{algo}.pt", folder / f"{algo}.jsonl"
    files = ["--save", str(model), "--output", str(rows)]
    assert run.main(["--algo", algo, *SMALL, *more, *files]) == 0
    return models.load(model), json.loads(rows.read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def gfpl(tmp_path_factory: pytest.TempPathFactory) -> tuple[models.Saved, dict[str, Any]]:
    return keep(tmp_path_factory.mktemp("gfpl"), "gfpl", "--set", "start=2", "--set", "every=2", "--seed", "3")


def test_a_model_that_is_opened_again_has_the_figures_it_was_saved_with(gfpl: tuple) -> None:
    model, last = gfpl
    again = model.evaluate()
    assert again["test_acc"] == last["test_acc"] and again == {n: last[n] for n in again}  # exactly
    clients_have(model, last)
    assert repr(model) == "gfpl on digits, seed 3, after 4 rounds"


def clients_have(model: models.Saved, last: dict[str, Any]) -> None:
    """Its clients' accuracies are those of its last row."""
    clients = model.client_accuracies()
    assert clients["test_acc"].mean() == pytest.approx(last["test_acc"], abs=1e-12)
    assert clients["val_acc"].mean() == pytest.approx(last["val_acc"], abs=1e-12)
    assert clients["client"].tolist() == [0, 1, 2, 3] and clients["rows"].gt(0).all()


def test_clients_that_tune_before_they_are_scored_are_shown_as_they_are_scored(tmp_path: Path) -> None:
    clients_have(*keep(tmp_path, "fedavgft", "--set", "tune_epochs=3"))


def test_points_of_a_saved_model_are_what_the_clients_and_the_server_hold(gfpl: tuple) -> None:
    model, _ = gfpl
    f = model.setup.federation
    features, projections = model.features(), model.projections("train")
    assert features.values.shape == (int(f.test.counts.sum()), 12) and set(features.owners) == {0, 1, 2, 3}
    rows = f.test.rows[2, : int(f.test.counts[2])]
    group = model.state.groups[0]
    own = {n: t[group.ids.tolist().index(2)] for n, t in group.tensors.items() if n.startswith("body.")}
    want = torch.func.functional_call(group.net.body, {n.removeprefix("body."): t for n, t in own.items()}, f.x[rows])
    mine = features.values[features.owners == 2]
    np.testing.assert_allclose(mine, want.detach(), atol=1e-5)
    np.testing.assert_array_equal(features.labels[features.owners == 2], f.y[rows])
    np.testing.assert_allclose((projections.values**2).sum(1), 1, atol=1e-5)
    prototypes, drawn = model.prototypes(), model.generated(5)
    held = set(f.y[f.train.rows.flatten()].tolist())
    assert set(prototypes.labels) == held == set(drawn.labels) and set(prototypes.owners) == {models.SERVER}
    assert len(drawn.values) == 5 * len(held)
    np.testing.assert_array_equal(drawn.values, model.generated(5).values)
    for label in held:  # a class's draws are around its components
        near = model.generated(4000).values[model.generated(4000).labels == label].mean(0)
        table = model.state.server["mixtures"]
        weights = table.values[label, :, 0] * table.present[label]
        middle = (weights[:, None] * table.values[label, :, 1:13]).sum(0)
        np.testing.assert_allclose(near, middle, atol=0.15)


def test_algorithms_give_what_they_have_and_say_what_they_lack(tmp_path: Path) -> None:
    few = ["--rounds", "2", "--set", "gen_steps=10", "--set", "gen_hidden=16"]
    fedpa, last = keep(tmp_path, "fedpa", *few)
    assert fedpa.evaluate()["test_acc"] == last["test_acc"]
    made_up = fedpa.generated(7)
    assert made_up.values.shape[1] == 12 and (np.bincount(made_up.labels)[made_up.labels] == 7).all()
    assert len(fedpa.prototypes().values) == len(set(made_up.labels))
    personal, _ = keep(tmp_path, "fedgenp", *few)
    assert set(personal.generated(2).owners) == {0, 1, 2, 3}
    fedsa, _ = keep(tmp_path, "fedsa", "--rounds", "2")
    np.testing.assert_array_equal(fedsa.anchors().values, fedsa.state.server["anchors"].double())
    for ask, lack in (
        (fedsa.projections, "fedsa has no projection"),
        (fedsa.generated, "nothing to generate features with"),
        (fedpa.anchors, "fedpa has no anchors"),
        (personal.prototypes, "fedgenp has no prototypes"),
    ):
        with pytest.raises(UserError, match=lack):
            ask()


def test_a_trials_checkpoint_is_opened_as_a_model(tmp_path: Path) -> None:
    words = ["--algo", "fedproto", "--scenario", "digits-w4", *SMALL, "--rounds", "2", "--seeds-per-trial", "2"]
    options = SearchOptions(**arguments.given(search.parser().parse_args(words), SearchOptions)).to_record()
    (tmp_path / "run.json").write_text(json.dumps({"format": FORMAT, "options": options}))
    RunFiles(tmp_path).suggestions_file.write_text(json.dumps({"trial": "ab12", "config": {"lam": 3.0}}) + "\n")
    names = ("model", "features", "clients", "ways", "shots", "rounds", "all_classes")
    scenario = Scenario().override(**dict(zip(names, ("mlp", 12, 4, 3, 6, 2, 20), strict=True)))
    experiment = Experiment(algorithm="fedproto", scenario=scenario)
    data = [models.partitioning.make(scenario, seed) for seed in (0, 1)]
    both = Seeds(experiment, {"lam": 3.0}, dict(enumerate(data)))
    row = [both.step() for _ in range(2)][-1]
    with pytest.raises(UserError, match="has none of trial ab12"):
        models.of_trial(tmp_path, "ab12")
    (folder := tmp_path / "fedproto-ab12" / "checkpoint_000000").mkdir(parents=True)
    both.save(folder)
    opened = [models.of_trial(tmp_path, "ab12", seed) for seed in (0, 1)]
    assert np.mean([m.evaluate()["test_acc"] for m in opened]) == pytest.approx(row["test_acc"], abs=1e-12)
    assert opened[1].setup.algorithm.lam == 3.0 and opened[1].experiment.seed == 1


def test_a_file_that_is_no_saved_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path, about = tmp_path / "m.pt", {"experiment": {"algorithm": "gfpl"}}
    for content, why in (
        (b"text", "a saved model must come from fedtune run --save"),
        (b"PK\x03\x04", "a saved model must come from fedtune run --save"),
        (about, "must come from fedtune run --save"),
        (about | {"fedtune": "0.2.0"}, "m.pt is of fedtune 0.2.0"),
        (about | {"fedtune": "9.0", "format": FORMAT + 1}, "m.pt is of fedtune 9.0"),
    ):
        path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
        with pytest.raises(UserError, match=why):
            models.load(path)
    for file in (path, tmp_path / "no" / "m.pt"):
        assert run.main(["--algo", "local", "--save", str(file)]) == 2
        assert "--save needs a new file in a folder that exists" in capsys.readouterr().err


def test_measured_costs_are_the_formulas_where_nothing_fuses() -> None:
    fields = {"model": "mlp", "features": 12, "clients": 4, "ways": 3, "ways_spread": 0, "shots": 10, "shots_spread": 0}
    scenario = Scenario(**fields, rounds=4, val_shots=2, test_shots=2, all_classes=0)  # type: ignore[arg-type]
    gfpl, fixed = Experiment(algorithm="gfpl", scenario=scenario), {"start": 2, "every": 2, "components": 1}
    told = gfpl_costs.measured(gfpl, {"n": [1, 2], "m": [2], "ways": [2]}, fixed | {"threshold": 0.1})
    # events in 2 of 4 rounds; a client sends 3 classes of n components of 25 numbers and receives all 4 clients'
    want = [2 / 4 * (1 + 4) * 3 * 25, 2 / 4 * (1 + 4) * 3 * 2 * 25, 2 / 4 * (1 + 2) * 3 * 25, 2 / 4 * (1 + 4) * 2 * 25]
    assert told["measured"].tolist() == pytest.approx(want) and told["formula"].tolist() == pytest.approx(want)
    fused = gfpl_costs.measured(gfpl, {"n": [1]}, {"start": 2, "every": 2, "threshold": 300.0})
    assert fused["measured"].item() < want[0]


def untested(rounds: pd.DataFrame, tested: set[tuple[str, int]]) -> pd.DataFrame:
    """Rounds with figures on test rows in these rounds of these trials alone."""
    there = [pair in tested for pair in zip(rounds["trial"], rounds["round"], strict=True)]
    return rounds.assign(test_acc=rounds["test_acc"].where(there))


def test_curves_connect_the_rounds_that_were_tested() -> None:
    """And a mean is of rounds in which all were: c is tested in round 3 and a is not, so a mean there would be c's."""
    some = untested(ROUNDS, {("a", 2), ("a", 4), ("c", 2), ("c", 3), ("c", 4)})
    lines = {line.name.split()[0]: line for line in plots.learning_curves(some, TRIALS, metric="test_acc").data}
    assert list(lines["a"].x) == [2, 4] and list(lines["a"].y) == [0.3, 0.35] and list(lines["c"].x) == [2, 3, 4]
    both = some[some["trial"].isin(["a", "c"])].assign(kind="x")
    (line,) = [t for t in plots.learning_curves(both, by="kind", metric="test_acc").data if t.name]
    assert list(line.x) == [2, 4] and list(line.y) == pytest.approx([(0.3 + 0.25) / 2, (0.35 + 0.4) / 2])
    never = both[(both["trial"] == "c") == (both["round"] == 3)]
    assert len(plots.learning_curves(never, by="kind", metric="test_acc").data)


def test_what_untested_rounds_cost_counts_for_the_next_one_that_is() -> None:
    some = untested(ROUNDS, {("a", 2), ("a", 4)})
    for against, each in (("rounds", 2), ("mb", 4.0), ("seconds", 2.0)):
        found = plot_tools.with_cost(some, against, "test_acc")
        assert found["_cost"].tolist() == [each, each] and found["round"].tolist() == [2, 4]
        whole = plot_tools.with_cost(some, against)
        assert whole["_cost"].tolist() == [each / 2] * len(ROUNDS)


# simulated searches ---------------------------------------------------------------------------------------------------


def simulated(strategies: dict[str, float], tables: tuple[str, ...] = ("a",), searches: int = 4) -> pd.DataFrame:
    """Searches whose regret is a strategy's own over the budget, more or less."""
    each = itertools.product(tables, strategies.items(), range(searches), (4, 8))
    rows = [(table, name, i, budget, (worth + 0.001 * i) / budget) for table, (name, worth), i, budget in each]
    return pd.DataFrame(rows, columns=["table", "strategy", "search", "budget", "regret"])


def test_regret_has_a_line_a_strategy_the_best_first_and_its_interval() -> None:
    figure = plots.regret(simulated({"worse": 0.4, "better": 0.1}))
    lines = [t for t in figure.data if t.name]
    assert [t.name for t in lines] == ["better", "worse"]
    expected = statistics.mean([100 * (0.1 + 0.001 * i) / 8 for i in range(4)])
    assert lines[0].y[1] == pytest.approx(expected.mean) and list(lines[0].x) == [4, 8]
    band = figure.data[0]
    assert band.y[1] - band.y[2] == pytest.approx(2 * expected.half)
    assert "n = 4 searches each" in figure.layout.title.text


def test_regret_draws_no_more_strategies_than_there_are_colours_and_says_so() -> None:
    figure = plots.regret(simulated({f"s{i}": 0.1 * i for i in range(10)}, ("a", "b")))
    assert [t.name for t in figure.data if t.name and t.showlegend] == [f"s{i}" for i in range(8)]
    assert "the 8 of 10 strategies that end best" in figure.layout.title.text.replace("<br>", " ")
    assert {a.text for a in figure.layout.annotations} == {"a", "b"}
    many = plots.regret(simulated({"s": 0.1}, tuple("abcdefghijkl"), searches=1))
    assert len(many.data) == 12 and all(t.name == "s" for t in many.data)  # no band of one search
    early = simulated({"early": 0.2}, ("a",)).query("budget == 4")  # a strategy whose table ends earlier stays
    figure = plots.regret(pd.concat([early, simulated({"late": 0.4}, ("b",))]))
    assert {t.name for t in figure.data if t.name} == {"early", "late"}
