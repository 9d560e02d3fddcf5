"""A comparison: equal budgets, fresh seeds, no look at test data, and nothing lost when it is killed."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.comparisons import compared
from support.processes import kill
from support.searches import command, copy_to, copy_when, logged_rounds
from support.waiting import wait_for

from fedtune.commands import compare, resume
from fedtune.core.budget import Budget
from fedtune.engine.simulation import train
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.runs import logs, tables
from fedtune.studies.comparison import report as comparison_report
from fedtune.studies.comparison import tables as comparison_tables
from fedtune.studies.comparison.results import SEARCHED, scenario_words
from fedtune.studies.options import ComparisonOptions

ARGUMENTS = (
    "--algos fedproto,local --scenario digits-w4 --clients 4 --rounds 4 --trials 3 --searcher random --scheduler none "
    "--max-concurrent 1 --searches 1 --seeds 2 --choose-seeds 1 --top-k 2 --test-every 3 --set local_epochs=2 "
    "--baselines local --no-dashboard --name both"
).split()

pytestmark = pytest.mark.usefixtures("one_ray")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    assert compare.main([*ARGUMENTS, "--storage-path", str(folder)]) == 0
    return folder / "both"


def test_every_search_had_the_same_budget_by_its_logs(both):
    for name in ("fedproto", "local"):
        logged = logs.logged(both / name)
        assert len(logged) == 3 and {len(rows) for rows in logged.values()} == {4}
        assert comparison_tables.search_costs([both / name])["rounds"] == 12
    first, other = (json.loads((both / n / "run.json").read_text()) for n in ("fedproto", "local"))
    assert first["scenario"] == other["scenario"] and first["seed"] == other["seed"]
    assert first["grace"] == other["grace"] and first["rungs"] == other["rungs"]
    record = json.loads((both / "compare.json").read_text())
    assert record["state"] == "finished" and record["unequal"] == []
    shared = ComparisonOptions.from_record(record).of_search("local", Path("x"))
    assert (shared.fields, shared.set) == ({"clients": 4, "rounds": 4}, {"local_epochs": 2})


def test_unequal_budgets_are_said(both, tmp_path):
    for name in ("fedproto", "local"):
        (tmp_path / name).mkdir()
        trials = pd.read_parquet(both / name / "trials.parquet")
        if name == "local":
            trials = trials[1:].assign(rounds=3)
        trials.to_parquet(tmp_path / name / "trials.parquet")
    runs = {n: tmp_path / n for n in ("fedproto", "local")}
    assert comparison_tables.unequal(runs, 3, Budget("rounds", 4)) == [
        "local started 2 of 3 trials",
        "finished trials had different numbers of rounds: fedproto 4, local 3",
    ]
    began = "local started 2 of 3 trials"
    silent = "local sends nothing, so its finished trials had 3 rounds whatever the budget in MB"
    used = pd.read_parquet(both / "fedproto" / "trials.parquet")["comm_mb"].mean()
    assert comparison_tables.unequal(runs, 3, Budget("mb", used)) == [began, silent]
    over, *rest = comparison_tables.unequal(runs, 3, Budget("mb", used / 2))
    assert over.startswith("fedproto's finished trials used") and rest == [began, silent]
    under, *rest = comparison_tables.unequal(runs, 3, Budget("mb", 2 * used))
    assert under.endswith("as their 4 rounds were over; give more --rounds") and rest == [began, silent]


def test_an_evaluation_equals_the_run_bit_for_bit(both):
    """The default and the tuned configuration on a fresh seed, bit for bit."""
    frame = pd.read_parquet(both / "evaluations.parquet")
    rounds = pd.read_parquet(both / "evaluation_rounds.parquet")
    assert set(frame["seed"]) == {1, 2}  # 0 was the search's
    experiment = Experiment(algorithm="fedproto", scenario=Scenario(clients=4, rounds=4), pinned={"local_epochs": 2})
    for configuration in ("default", "top 1"):
        which = f"algorithm == 'fedproto' and configuration == '{configuration}' and seed == 2"
        row, logged = frame.query(which), rounds.query(which)
        values = {n.removeprefix("config/"): v for n, v in row.iloc[0].items() if n.startswith("config/")}
        played = list(train(experiment.with_seed(2), tables.plain(values)))
        assert logged["val_acc"].tolist() == [r["val_acc"] for r in played]
        tested = logged.dropna(subset=["test_acc"]).set_index("round")["test_acc"]
        assert tested.to_dict() == {t: played[t - 1]["test_acc"] for t in (3, 4)}  # every third, and the last
        assert row["test_acc"].item() == played[-1]["test_acc"] and row["comm_mb"].item() == played[-1]["comm_mb"]
        there = next(t for t in (3, 4) if played[t - 1]["test_acc"] >= 0.95 * played[-1]["test_acc"])
        assert row["rounds_to_95"].item() == there


def test_the_candidates_are_the_search_s_best_and_the_default(both):
    frame = pd.read_parquet(both / "evaluations.parquet")
    for name, rows in frame.groupby("algorithm"):
        trials = pd.read_parquet(both / str(name) / "trials.parquet").sort_values("last_val_acc", ascending=False)
        assert rows["configuration"].unique().tolist() == ["default", "top 1", "top 2"]
        assert rows.loc[rows["configuration"] == "top 1", "trial"].unique().tolist() == [trials["trial"].iloc[0]]
        means = rows[rows["configuration"] != "default"].groupby("configuration")["val_acc"].mean()
        assert set(rows.loc[rows["chosen"], "configuration"]) == {means.idxmax()}


def test_the_tables_are_written_in_every_form(both):
    table = pd.read_csv(both / "table.csv")
    assert list(table) == list(comparison_tables.COLUMNS) and set(table["algorithm"]) == {"fedproto", "local"}
    pairs = pd.read_csv(both / "pairs.csv")
    assert len(pairs) == 1
    text = (both / "table.md").read_text()
    assert text.count("| fedproto |") == 4
    made = re.search(r"commit (.+), (\d+) s of searches and (\d+) s of runs on fresh seeds", text)
    rows = pd.read_parquet(both / "evaluations.parquet")
    rows = rows.drop_duplicates(["algorithm", "seed", *rows.filter(like="config/")])  # one run may serve two candidates
    assert made and int(made[3]) == round(rows["seconds"].sum())
    assert (both / "table.tex").read_text().count(r"\begin{tabular}") == 4 + 2 * (pairs["p_holm"][0] < 0.05)
    method = (both / "method.md").read_text()
    assert "tuned by one search of 3 trials" in method and "so there is no verdict." in method
    assert "[@holm1979" in method and "Schuirmann" not in (both / "references.bib").read_text()


@pytest.mark.long
def test_labels_of_test_rows_do_not_change_the_comparison(both, tmp_path, monkeypatch):
    """With noise for test labels the same configurations are chosen, on the same validation figures."""
    deal = partitioning.partition

    def noisy(data, scenario, seed):
        dealt = deal(data, scenario, seed)
        y = dealt.y.copy()
        tested = np.unique(dealt.test.rows)
        y[tested] = np.random.default_rng(seed).integers(dealt.classes, size=len(tested))
        return dealt._replace(y=y)

    monkeypatch.setattr(partitioning, "partition", noisy)
    assert compare.main([*ARGUMENTS, "--storage-path", str(tmp_path)]) == 0
    got, want = (pd.read_parquet(at / "evaluations.parquet") for at in (tmp_path / "both", both))
    same = [c for c in want if c in ("algorithm", "configuration", "chosen", "seed", "val_acc") or "config/" in c]
    pd.testing.assert_frame_equal(got[same], want[same], check_exact=True)
    assert got["test_acc"].mean() < 0.5 < want["test_acc"].mean()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What is left of a comparison in its second search, copied while it stood still, and when it is killed later."""
    folder = tmp_path_factory.mktemp("killed")
    run = folder / "both"
    process = command("fedtune", "compare", *ARGUMENTS, "--storage-path", str(folder))
    try:
        copy_when(lambda: logged_rounds(run / "local") > 5, process, run, folder / "search")
        wait_for(lambda: len(list(run.glob("evaluations/*.json"))) > 3)
    finally:
        kill(process)
    process.communicate()
    return {"search": folder / "search", "evaluation": run}


@pytest.mark.long
@pytest.mark.parametrize("moment", ["search", "evaluation"])
def test_a_killed_comparison_is_resumed(moment, killed, both, tmp_path, capsys, monkeypatch):
    here = copy_to(tmp_path, killed[moment])
    monkeypatch.chdir(tmp_path)
    assert resume.main([str(here), "--no-dashboard"]) == 0
    out, near = capsys.readouterr().out, here.relative_to(tmp_path)
    assert "fedproto: already searched" in out
    assert f"\nfolder: {near}\nreport: " in out and f" report {near}\nfor a paper: {near}/table.tex, " in out
    for name, read, but in (
        ("table.csv", pd.read_csv, ["seconds", "search_seconds"]),
        ("evaluation_rounds.parquet", pd.read_parquet, ["seconds", "eval_seconds"]),
    ):
        got, want = (read(at / name).drop(columns=but) for at in (here, both))
        pd.testing.assert_frame_equal(got, want, check_exact=True)


def test_everybody_searches_what_anybody_does_of_the_setting(tmp_path):
    """A space of yours that leaves momentum alone would not be fair beside FedAvg's, which does not."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from ray import tune\nfrom fedtune.trainables.fedavg import FedAvg as Base\n"
        "class Mine(Base):\n    pass\nSPACES = {'default': {'lr': tune.loguniform(0.001, 0.3)}}"
    )
    plans = compared(*f"--algos {mine},fedavg,gfpl --rounds 30".split()).plans
    own = next(p for name, p in plans.items() if "mine.py" in name)
    assert "momentum" in own.space.names
    for name in ("lr", "momentum", "local_epochs"):
        assert len({p.space.text()[name] for p in plans.values()}) == 1
    assert {p.grace for p in plans.values()} == {20}
    pinned = compared(*"--algos gfpl,fedavg --rounds 30 --set lr=0.1".split()).plans
    assert "lr" not in pinned["gfpl"].space.names and "momentum" in pinned["gfpl"].space.names


def test_what_is_changed_of_a_setting_is_said_and_hides_what_was_printed_for_it():
    """By --set as by an argument of its own; a preset is the algorithm's, not the setting's."""
    base = "--algos gfpl,fedavg --scenario gfpl-fmnist-w4".split()
    assert scenario_words(compared(*base).to_record()) == "gfpl-fmnist-w4" and comparison_report.printed(
        compared(*base), "gfpl"
    )
    for more in (["--batch", "32"], ["--set", "batch=32"]):
        contest = compared(*base, *more)
        assert scenario_words(contest.to_record()) == "gfpl-fmnist-w4 (batch = 32)" and not comparison_report.printed(
            contest, "gfpl"
        )
        assert contest.to_record()["scenario"]["batch"] == 32
        assert scenario_words(contest.to_record() | {SEARCHED: ["batch"]}) == "gfpl-fmnist-w4"
    by_code = compared("--algos", "fedavg,fedgen", "--preset", "as_published")
    assert scenario_words(by_code.to_record()) == "digits-shards" and by_code.to_record()["preset"] == "as_published"


def test_a_dry_run_says_what_would_be_done_and_how_long_and_starts_nothing(tmp_path, capsys, nothing_starts):
    words = "--algos fedproto,fedavg --scenario digits-w4 --clients 4 --rounds 4 --trials 5 --baselines local --dry-run"
    assert compare.main([*words.split(), "--searches", "2", "--storage-path", str(tmp_path)]) == 0
    what, then, time = capsys.readouterr().out.splitlines()
    who = "4 algorithms (fedproto, fedavg, the baseline local, the control fedavg-again)"
    assert what == f"{who} × 2 searches × 5 trials = 40 trials of at most 4 rounds"
    chosen, fresh = 4 * 2 * 3 * 2, 4 * 2 * 2 * 3 + 2 * 2 * 3  # the best three on two more seeds; two or three on three
    runs = f"then about {chosen} runs to choose among each search's best, and {fresh} runs on fresh seeds"
    runs += ", also with fedavg's tuned values"
    assert then == f"{runs}; in all up to {4 * (40 + chosen + fresh)} rounds"
    timed = (
        r"about \d+ (minutes?|hours) if all are as one of fedproto's default configuration \(.+ s\), \d+ at once; .*"
    )
    assert re.fullmatch(timed, time)
    assert not list(tmp_path.iterdir())


def test_what_could_not_be_evaluated_is_refused_before_anything_starts(tmp_path, capsys):
    words = "--algos local --scenario digits-w4 --clients 26 --seed 1 --seeds 5"  # seed 1 can be dealt
    assert compare.main([*words.split(), "--storage-path", str(tmp_path)]) == 2
    assert "(with seed 2)" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_comparison_whose_search_has_another_format_is_refused_in_one_line(both, tmp_path, capsys, nothing_starts):
    for name in ("compare.json", "fedproto/run.json", "local/run.json"):
        record = json.loads((both / name).read_text())
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(record | ({"format": 1} if name == "local/run.json" else {})))
    before = sorted(tmp_path.rglob("*"))
    assert resume.main([str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "local/run.json is of fedtune" in err and err.count("\n") == 1 and before == sorted(tmp_path.rglob("*"))


WIDENING = (
    "--algos fedprox,local --scenario digits-w4 --clients 4 --rounds 2 --trials 1 --searches 1 --seeds 2 "
    "--choose-seeds 1 --top-k 1 --baselines none --scheduler none --max-concurrent 1 "
    "--vary momentum=0.5..0.9 --widen --no-dashboard --name wide"
).split() + ["--vary", "lr=0.03..0.3 log"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    folder = tmp_path_factory.mktemp("widened")
    assert compare.main([*WIDENING, "--storage-path", str(folder)]) == 0
    return folder / "wide"


@pytest.mark.long  # a search of Ray's
def test_ranges_at_whose_end_a_choice_lies_are_searched_again_by_all(wide):
    """The only trial of each search is the default, at the lower end of lr's range and the upper of momentum's."""
    record = json.loads((wide / "compare.json").read_text())
    whose = "for fedprox, local, because fedprox chose"
    assert record["widened"] == [
        f"lr: 0.03..0.3 log becomes 0.003..0.3 log {whose} 0.03, local chose 0.03",
        f"momentum: 0.5..0.9 becomes 0.5..0.99 {whose} 0.9, local chose 0.9",
    ]
    assert record["trials"] == 2 and record["unequal"] == []
    for name in ("fedprox", "local"):
        first, again = (json.loads((wide / n / "run.json").read_text()) for n in (name, f"{name}+widened"))
        assert again["extends"] == name and again["space"]["lr"] == "0.003..0.3 log"
        assert again["space"] == first["space"] | {"lr": "0.003..0.3 log", "momentum": "0.5..0.99"}
        trials = pd.read_parquet(wide / f"{name}+widened" / "trials.parquet")
        assert len(trials) == 2 and trials["trial"].iloc[0] in set(
            pd.read_parquet(wide / name / "trials.parquet")["trial"]
        )
    table = (wide / "table.md").read_text()
    assert "each search had 2 trials" in table and "ranges were widened: lr: 0.03..0.3 log becomes" in table
    scored = pd.read_parquet(wide / "evaluations.parquet")
    assert set(scored["configuration"]) == {"default", "top 1"}


@pytest.mark.long  # a search of Ray's
def test_a_widened_comparison_that_was_interrupted_goes_on(wide, tmp_path):
    there = tmp_path / "wide"
    shutil.copytree(wide, there)
    shutil.rmtree(there / "local+widened")
    shutil.rmtree(there / "evaluations")
    record = json.loads((there / "compare.json").read_text())
    (there / "compare.json").write_text(json.dumps(record | {"state": "interrupted"}))
    assert resume.main([str(there)]) == 0
    timed = ["seconds", "search_seconds"]
    got, want = (pd.read_csv(folder / "table.csv").drop(columns=timed) for folder in (there, wide))
    pd.testing.assert_frame_equal(got, want, check_exact=True)
