"""The report: what it says, in every state of a run, and how it looks and works in a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shlex
import shutil
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
import yaml
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from plotly.offline import get_plotlyjs
from scipy import stats
from support.broken_off import broken_off
from support.chromium import Browser, chromium
from support.waiting import wait_for

from fedtune.__main__ import main as console
from fedtune.commands import report
from fedtune.core.about import FORMAT
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.reporting import figures, findings, sections, templates
from fedtune.runs import overview, provenance, tables
from fedtune.runs.files import RunFiles, write_json
from fedtune.runs.tables import trial_summary
from fedtune.studies.comparison.results import Results
from fedtune.studies.comparison.tables import COLUMNS
from fedtune.tuning import checked, verdict
from fedtune.tuning.ranges import edge

ROUNDS = 6
LATER = "when it is over."
HOSTILE = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'> & \"so\""
# seeds 1 to 3: differences .02, .04, .06, whose interval is 4.3027 · .02 / √3
BEST, DEFAULT = (0.92, 0.94, 0.96), (0.90, 0.90, 0.90)


def record(**more: Any) -> dict[str, Any]:
    """A run.json."""
    experiment = Experiment(algorithm="fedproto", scenario=Scenario(clients=5, rounds=ROUNDS))
    space = {"lam": "0.1..50 log", "lr": "0.001..0.3 log"}
    told = {"space": space, "trials": 14, "searcher": "tpe", "scheduler": "asha", "objectives": ["val_acc"]}
    told |= {"seeds_per_trial": 1, "rungs": [2], "state": "finished", "search_seconds": 12.0, "seconds": 20.0}
    told |= {"budget": {"unit": "rounds", "limit": ROUNDS, "since": 1}, "format": FORMAT, "scenario_name": "digits-w4"}
    told |= {"options": {"algo": "fedproto", "data_dir": "my data"}}
    told |= {"command": ["python", "-m", "fedtune.search", "--algo", "fedproto"]}
    told |= {"declared": {name: experiment.hyperparameters()[name].to_record() for name in space}}
    told["declared"]["lam"] |= {"help": "weight of `term` <b>"}
    return provenance.of_workload(experiment) | told | more


def final(best: tuple[float, ...] = BEST, default: tuple[float, ...] = DEFAULT) -> list[dict[str, Any]]:
    return [
        {"configuration": name, "seed": 1 + i, "test_acc": v, "val_acc": v - 0.01, "comm_mb": 1.5, "reason": ""}
        for name, values in (("best", best), ("default", default))
        for i, v in enumerate(values)
    ]


def frames_of(hostile: str = HOSTILE) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Trials t00 to t09 finished, two stopped in round 2, one diverged, one failed; t03 is the best, at lam = 49."""
    trials, rounds, rng = [], [], np.random.default_rng(0)
    fixed = {"test_acc_std": 0.1, "test_acc_worst10": 0.5, "seconds": 0.5, "eval_seconds": 0.1}
    for i in range(14):
        status = "finished" if i < 10 else "stopped" if i < 12 else "diverged" if i == 12 else "failed"
        played = {"finished": ROUNDS, "stopped": 2, "diverged": 1, "failed": 0}[status]
        lam, lr = (49.0, 0.02) if i == 3 else (float(10 ** rng.uniform(-1, 1)), float(10 ** rng.uniform(-3, -1)))
        name, end = f"t{i:02}", 0.95 if i == 3 else 0.6 + 0.02 * i
        mine = pd.DataFrame({"round": range(1, played + 1)}).assign(trial=name, test_acc=end - 0.02, **fixed)
        mine["val_acc"], mine["comm_mb"] = end - 0.05 * (ROUNDS - mine["round"]), (20 - i) * mine["round"]
        mine["val_loss"] = mine["train_loss"] = 1 / mine["round"]
        rounds.append(mine)
        reason = {"diverged": "diverged in round 2", "failed": f"worse:\n{hostile}"}.get(status, "")
        row = {"trial": name, "status": status, "config/lam": lam, "config/lr": lr, "reason": reason}
        trials.append(row | trial_summary(mine if played else pd.DataFrame()))
    return pd.DataFrame(trials), pd.concat(rounds[:13], ignore_index=True)


def make(run: Path, hostile: str = HOSTILE, **more: Any) -> Path:
    """A finished search's folder."""
    run.mkdir(parents=True)
    trials, rounds = frames_of(hostile)
    trials.to_parquet(run / "trials.parquet", index=False)
    rounds.to_parquet(run / "rounds.parquet", index=False)
    write_json(run / "run.json", record(**({"final": final(), "pinned": {}} | more)))
    best = {"algorithm": "fedproto", "scenario": "digits-w4", "overrides": {}, "seed": 0}
    best |= {"hyperparameters": {"lam": 49.0}, "found": {"trial": "t03", "run": hostile}}
    (run / "best.yaml").write_text(yaml.safe_dump(best))
    journal(run / "study.journal", trials)
    return run


def journal(path: Path, trials: pd.DataFrame) -> None:
    """The same trials as an Optuna study."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        storage = JournalStorage(JournalFileBackend(str(path)))
    study = optuna.create_study(storage=storage, study_name="s", direction="maximize")
    over = {"lam": FloatDistribution(0.1, 50, log=True), "lr": FloatDistribution(0.001, 0.3, log=True)}
    for row in trials[trials["status"] == "finished"].to_dict("records"):
        params, attrs = {n: row[f"config/{n}"] for n in over}, {"trial": row["trial"]}
        value = row["last_val_acc"]
        study.add_trial(optuna.trial.create_trial(value=value, distributions=over, params=params, user_attrs=attrs))


@pytest.fixture(scope="module", autouse=True)
def few_resamples() -> Iterator[None]:
    """How sure it is what mattered takes half of a report's time: tests/analysis/test_plots.py asks that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtune.analysis.importances.RESAMPLES", 1)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("report") / "a run")


@pytest.fixture(scope="module")
def html(run: Path) -> str:
    assert report.main([str(run)]) == 0
    return (run / "report.html").read_text()


def told(page: str) -> str:
    """What a reader sees of it without scripts: its text, one space between words."""
    return " ".join(unescape(re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]*>", " ", page)).split())


def said(run: Path, out: Path) -> str:
    """The text of its report."""
    assert report.main([str(run), "-o", str(out)]) == 0
    return told(out.read_text())


def words(run: Path, out: Path) -> str:
    """The text of its report without figures, which take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "drawn", lambda name, make, sentence: figures.Shown(name, "", sentence, "", "no time"))
        return said(run, out)


# what it says ---------------------------------------------------------------------------------------------------------


def test_the_answer_comes_first_and_says_how_sure_it_is(html: str, run: Path) -> None:
    text = told(html)
    order = [
        "fedproto on digits-w4",
        "On 3 fresh seeds the tuned",
        "What the trials found",
        "Best configuration",
        "How sure is that? 4 caveats",
        "Which hyperparameters mattered, and what to try next",
        "All trials 14 trials: 10 finished",
        "Run it again",
        "fedtune run",
    ]
    places = [text.index(word) for word in [*order, "Where the numbers come from"]]
    assert places == sorted(places)
    half = 4.302653 * 2 / 3**0.5
    equal = "the tuned configuration does not differ significantly from the default"
    by = f"(+4.00 ± {half:.2f} points in test accuracy, 95 % interval)"
    gained = f"{equal} {by}. It has 94.00 %, the default 90.00 %."
    assert f"On 3 fresh seeds {gained}" in text
    assert f"best 94.00 ± {half:.2f} % 92.00 94.00 96.00 1.50 default 90.00 ± 0.00 %" in text
    assert "validation accuracy 95.00 % after 6 rounds" in text and "a selection gap of +2.00 points" in text
    assert "14 trials: 10 finished, 2 stopped, 1 diverged, 1 failed" in text
    assert re.search(r"lam \(λ\) 49 1 0\.1..50 log", text)
    assert "lam = 49, at the upper end of the searched 0.1..50 log" in text
    assert f"fedtune run --config '{run}/best.yaml' --data-dir 'my data'" in text
    command, origin = "fedtune search --algo fedproto", text.split("Where the numbers come from")[1]
    for word in (command, "the search 12 s, in all 20 s", "check on 1, 2, 3", "ray 2.60", "clients = 5"):
        assert word in origin


def test_every_figure_of_a_searchs_page_is_that_of_its_tables(html: str, run: Path) -> None:
    """Computed anew by pandas and SciPy from the rounds and the runs on fresh seeds."""
    text, rounds = told(html), pd.read_parquet(run / "rounds.parquet")
    status = pd.read_parquet(run / "trials.parquet").set_index("trial")["status"].astype(str)
    runs = pd.DataFrame(json.loads((run / "run.json").read_text())["final"]).set_index(["configuration", "seed"])
    best, default = (100 * runs.loc[name, "test_acc"] for name in ("best", "default"))
    gain, each = best - default, lambda of: " ".join(f"{v:.2f}" for v in of)
    half = {n: stats.t.ppf(0.975, len(of) - 1) * of.sem() for n, of in (("best", best), ("gain", gain))}
    assert f"({gain.mean():+.2f} ± {half['gain']:.2f} points in test accuracy" in text
    assert f"It has {best.mean():.2f} %, the default {default.mean():.2f} %." in text
    mb = runs.loc["best", "comm_mb"].mean()
    assert f"best {best.mean():.2f} ± {half['best']:.2f} % {each(best)} {mb:.2f} default {default.mean():.2f}" in text
    last, count = rounds.groupby("trial").last(), rounds.groupby("trial").size()
    named = last["val_acc"][status[last.index] == "finished"].idxmax()
    score = 100 * last.loc[named, "val_acc"]
    assert f"validation accuracy {score:.2f} % after {count[named]} rounds" in text
    assert f"a selection gap of {score - 100 * runs.loc['best', 'val_acc'].mean():+.2f} points" in text
    numbers = status.value_counts()
    assert f"{len(status)} trials: {', '.join(f'{numbers[how]} {how}' for how in numbers.index[:2])}" in text
    order = re.findall(r'<td data-name="trial"[^>]*>([^<]*)</td>', html)
    seconds = (rounds["seconds"] + rounds["eval_seconds"]).groupby(rounds["trial"]).sum()
    shown = {"rounds": count.map(str), "val_acc %": (100 * last["val_acc"]).map("{:.2f}".format)}
    shown |= {"test_acc %": (100 * last["test_acc"]).map("{:.2f}".format), "s": seconds.map("{:.1f}".format)}
    shown |= {"best val_acc %": (100 * rounds.groupby("trial")["val_acc"].max()).map("{:.2f}".format)}
    shown |= {"MB": last["comm_mb"].map("{:.2f}".format)}
    for name, of in shown.items():
        cells = re.findall(rf'<td data-name="{name}"[^>]*>([^<]*)</td>', html)
        assert (
            dict(zip(order, cells, strict=True))
            == of.reindex(order, fill_value="0" if name == "rounds" else "").to_dict()
        )
    specs = [json.loads(spec) for spec in re.findall(r'(?s)<script type="application/json">(.*?)</script>', html)]
    hovers = [t for trace in specs[0]["data"] for t in trace.get("text", ())]
    assert {f"trial {t}, {status[t]}: {100 * v:.2f} %" for t, v in last["val_acc"].items()} <= {*hovers}
    ends = last["val_acc"].nlargest(5)
    assert {f"{t} ({100 * v:.2f} %)" for t, v in ends.items()} <= {
        trace.get("name") for of in specs for trace in of["data"]
    }


def test_an_end_of_a_range_is_told_where_most_searches_chose_it() -> None:
    def told(*values: float) -> list[str]:
        return verdict.at_edges(
            "a", [{"lr": v, "head_epochs": 1.0} for v in values], {"lr": "0.1..10", "head_epochs": "1..10"}
        )

    assert told(10, 5, 5) == told(10, 0.1, 5) == told(10, 5) == []  # one of them, or a half
    end = ", at the upper end of the searched 0.1..10: the optimum may lie beyond it"
    assert told(10.0, 5.0, 9.9) == [f"a has lr = 10, 9.9 in 2 of 3 searches (1, 3){end}"]
    assert told(10.0) == [f"a has lr = 10{end}"]


@pytest.mark.parametrize(
    ("searcher", "trials", "first", "enough"),
    [("tpe", 1, 10, 32), ("tpe", 31, 10, 32), ("gp", 8, 10, 32), ("nsga2", 32, 50, 100), ("tpe", 32, 0, 0)]
    + [("nsga2", 100, 0, 0), ("random", 1, 0, 0), ("grid", 4, 0, 0), ("cmaes", 8, 0, 0), ("None", 1, 0, 0)],
)
def test_a_search_says_where_it_was_as_good_as_random(searcher: str, trials: int, first: int, enough: int) -> None:
    said = verdict.caveats(searcher, trials, {}, {})
    more = f", or give it {enough - trials} more: fedtune resume x --trials +{enough - trials}"
    for resume, end in (("fedtune resume x", more), ("", "")):
        others = verdict.caveats(searcher, trials, {}, {}, resume)
        assert all(line.endswith(f"read this as a random search{end}") for line in others) and len(others) == len(said)
    assert len(said) == bool(enough)
    assert verdict.lacking(searcher, trials) == (enough - trials if enough else 0)
    for line in said:
        assert f"trial{'s' * (trials > 1)} {searcher} has hardly" in line and f"its first {first} are random" in line
        assert line.endswith(f"give --trials {enough}")


def test_a_page_has_the_caveats_of_the_terminal_and_says_what_to_try_next(
    html: str, run: Path, comparison: Path, tmp_path: Path
) -> None:
    begun = "With 14 trials tpe has hardly begun to learn (its first 10 are random): read "
    text = told(html)
    more = f"or give it 18 more: fedtune resume {shlex.quote(str(run))} --trials +18."
    places = ["Caveats", f"{begun}this as a random search, {more}", "What to try next", "All trials"]
    assert [text.index(word) for word in places] == sorted(map(text.index, places))
    assert 'class="short">weight of <code>term</code> &lt;b&gt;</td>' in html and templates.code("a ` b") == "a ` b"
    assert "The best has lam = 49, at the upper end of the searched 0.1..50 log: the optimum may lie beyond" in text
    assert "Widen lam to 0.1..50" not in text and "Look beyond the declared range" in text  # FedProto declares up to 50
    text = words(comparison, tmp_path / "x.html")
    places = ["Test accuracy on digits-w4", "Caveats", f"{begun}these as random searches, or give"]
    assert [text.index(word) for word in places] == sorted(map(text.index, places))
    assert "Widen ranges for all that share them" in text


@pytest.mark.parametrize(
    ("best", "verdict"),
    [
        ((0.94, 0.95, 0.96), "beats the default (+5.00 ± 2.48 points in test accuracy, 95 % interval)"),
        ((0.84, 0.85, 0.86), "is worse than the default (−5.00 ± 2.48 points"),
        ((0.84, 0.90, 0.96), "does not differ significantly from the default (+0.00 ± 14.90 points"),
        ((0.90, 0.90, 0.90), "does not differ significantly from the default (+0.00 ± 0.00 points"),
        (
            (0.94, 0.94, 0.94),
            "differs from the default by +4.00 points in test accuracy; how much of that is chance is",
        ),
    ],
)
def test_the_verdict_is_that_of_the_paired_difference(best: tuple[float, ...], verdict: str) -> None:
    found = checked.FinalCheck(pd.DataFrame(final(best)))
    assert found.verdict().startswith(f"On 3 fresh seeds the tuned configuration {verdict}")


def test_a_worst_client_is_shown_where_the_worst_tenth_is_not_known() -> None:
    runs = pd.DataFrame(final([0.9, 0.8, 0.7])).assign(test_acc_std=0.1, test_acc_lowest=0.25)
    _, columns, rows = checked.FinalCheck(runs).spread()
    assert columns == ["configuration", "std over clients", "worst client"] and rows[0][1:] == ["10.00 %", "25.00 %"]


def test_a_seed_that_diverged_is_told_and_has_no_mean(tmp_path: Path) -> None:
    text = words(make(tmp_path / "run", final=final((0.94, float("nan"), 0.88))), tmp_path / "x.html")
    assert "best diverged in 1 of 3 94.00 diverged 88.00" in text
    assert "best − default, by seed – +4.00 diverged −2.00" in text
    unknown = "so whether tuning gained anything over the default is unknown"
    assert f"On fresh seeds the best diverged in 1 of 3 runs, {unknown}." in text
    lost = checked.FinalCheck(pd.DataFrame(final((math.nan, 0.9), (math.nan, math.nan))))
    assert (
        lost.verdict()
        == f"On fresh seeds the best diverged in 1 of 2 runs and the default diverged in 2 of 2 runs, {unknown}"
    )
    alone = checked.FinalCheck(pd.DataFrame(final((0.9, math.nan), ())))
    assert (
        alone.verdict()
        == "The tuned configuration is the default one, and on fresh seeds the best diverged in 1 of 2 runs"
    )


def test_a_resumed_run_names_all_its_commits_and_no_whole_time(tmp_path: Path) -> None:
    """One fresh seed has no interval."""
    more = {"resumed": ["2026-01-02"], "earlier_commits": ["abc"], "git_commit": "def+", "seconds": 20}
    text = words(make(tmp_path / "run", **more, final=final((0.9,), (0.8,))), tmp_path / "x.html")
    assert "commit abc and def with uncommitted changes" in text and "in total at least 20 s" in text
    assert "On 1 fresh seed the tuned configuration differs from the default by +10.00 points in test accuracy;" in text
    assert "one fresh seed only" in text


def test_what_comes_from_a_run_is_text_and_nothing_else(html: str, tmp_path: Path) -> None:
    assert "<script>window" not in html and "<img" not in html.split("<main>")[1].split("</main>")[0]
    assert told(html).count(f"worse: {HOSTILE}") == 1 and "window.pwned = 1</script>" in told(html)
    more = {"pinned": {"x": HOSTILE}, "scored": HOSTILE, "command": [HOSTILE], "space": {"<i>": HOSTILE}}
    page = make(tmp_path / "<b>run", **more) / "report.html"
    assert report.main([str(page.parent)]) == 0
    assert not re.search("<script>window|<b>|<i>", page.read_text())


def test_nothing_is_fetched_and_only_our_own_scripts_may_run(html: str) -> None:
    shown = re.sub(r"(?s)<script\b.*?</script>", "", html)
    assert all(to.startswith("#") for to in re.findall(r'\b(?:src|href|srcset|action|data|poster)="([^"]*)"', shown))
    assert "url(" not in shown and "@import" not in shown
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-") and "connect-src" not in policy
    assert len(re.findall("sha256-", policy)) == 2 and len(re.findall(r"<script>", html.split("</main>")[1])) == 1
    packed = re.search(r'<script type="text/plain" id="plotly">([^<]*)</script>', html)[1]
    assert zlib.decompress(base64.b64decode(packed)).decode() == get_plotlyjs()
    assert len(html.encode()) < 2.5e6, "small enough to send"


# every state of a run -------------------------------------------------------------------------------------------------


def line(trial: str, t: int, value: float) -> dict[str, Any]:
    row = {"trial_id": trial, "round": t, "training_iteration": t, "timestamp": t, "config": {"lam": 0.1 * t}}
    row |= {"val_acc": value, "test_acc": value, "test_acc_std": 0.1, "val_loss": 1.0, "train_loss": 1.0}
    return row | {"seconds": 1.0, "eval_seconds": 0.5, "comm_mb": 2.0 * t, "complete": t == ROUNDS}


def test_a_search_that_runs_and_one_whose_driver_died(tmp_path: Path) -> None:
    logged = {"a": [line("a", 1, 0.2), line("a", 2, 0.5)], "b": [line("b", 1, 0.4)]}
    how = {"a": "RUNNING", "b": "TERMINATED", "c": "PENDING"}
    run = broken_off(tmp_path / "run", record(state="running"), logged, how)
    text = said(run, tmp_path / "x.html")
    assert "its driver is gone; fedtune resume" in text and "validation accuracy 50.00 % after 2 rounds" in text
    assert "3 of 14 trials: 1 stopped, 2 open" in text and "No trial finished" in text
    assert "no check on fresh seeds" in text and "fedtune run --config" not in text
    with RunFiles(run).lock():
        text = said(run, tmp_path / "x.html")
    assert "It is still running" in text and "3 of 14 trials: 1 stopped, 1 running, 1 waiting" in text


def test_a_search_that_was_broken_off_is_told_as_its_status_tells_it(tmp_path: Path) -> None:
    """Also where its tables are of an earlier version; nothing is advised but to let it go on."""
    logged = {"a": [line("a", 1, 0.2), line("a", 2, 0.5)], "b": [line("b", 1, 0.4)]}
    how = {"a": "RUNNING", "b": "TERMINATED", "c": "PENDING"}
    run = broken_off(tmp_path / "run", record(state="interrupted", started="now", concurrent=1), logged, how)
    trials = [(n, "stopped", tables.trial_summary(pd.DataFrame(logged.get(n, [])))) for n in how]
    for given in (False, True):
        text = said(run, tmp_path / "x.html")
        assert f"It was interrupted; fedtune resume {run} continues it" in text
        assert "The best of 3 trials so far has validation accuracy 50.00 %" in text
        assert "3 of 14 trials: 1 stopped, 2 open" in text
        assert overview.Reader().search(run).counts == {"stopped": 1, "open": 2}
        assert f"What to try next Let it go on. What else to try can be told {LATER} fedtune resume {run}" in text
        assert "--trials" not in text and "--final-seeds" not in text
        if not given:
            table = pd.DataFrame([{"trial": n, "status": s, "reason": ""} | of for n, s, of in trials])
            table.to_parquet(run / "trials.parquet")
            tables.rounds_frame(logged).to_parquet(run / "rounds.parquet")
    for log in run.glob("*/result.json"):
        log.write_text("")
    for name in ("trials", "rounds"):
        (run / f"{name}.parquet").unlink()
    text = said(run, tmp_path / "x.html")
    assert "Nothing was found yet" in text and "3 of 14 trials: 2 open, 1 not started" in text
    assert "no trial has reported a round" in text


def test_a_search_of_which_nothing_was_found_and_one_that_has_not_begun(tmp_path: Path) -> None:
    nan = {"trial_id": "a", "training_iteration": 1, "diverged": True, "reason": "nan", "config": {"lam": 1.0}}
    lost = broken_off(tmp_path / "lost", record(state="nothing found"), {"a": [nan]}, {"a": "TERMINATED"})
    text = said(lost, tmp_path / "x.html")
    assert "Nothing was found" in text and "1 of 1 trial diverged (the first: nan)" in text and "Not drawn" in text
    text = said(broken_off(tmp_path / "new", record(state="running"), {}, {}), tmp_path / "x.html")
    assert "0 of 14 trials" in text and "Nothing was found yet" in text


def test_a_search_that_was_interrupted_has_no_check_and_goes_on(tmp_path: Path) -> None:
    run = make(tmp_path / "run", state="interrupted", final=None)
    (run / "study.journal").unlink()
    text = said(run, tmp_path / "x.html")
    assert "It was interrupted; fedtune resume" in text and "no check on fresh seeds" in text
    assert "Best configuration (trial t03)" in text and "study.journal" in text
    (run / "best.yaml").unlink()
    for name in ("gfpl-fmnist-w4", "digits-w4"):  # its fields are not that scenario's own
        write_json(run / "run.json", record(state="interrupted", scenario_name=name))
        found = findings.read(run)
        assert found.scenario == name and found.title.startswith(f"fedproto on {name}")
        assert "rounds = 6" in found.title


def test_a_record_of_an_algorithm_that_is_gone_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    scenario = {"dataset": "digits", "rounds": 6, "gone": 1}
    old = {"format": FORMAT, "algorithm": "vanished", "scenario": scenario, "state": "finished"}
    write_json(run / "run.json", old)
    text = said(run, tmp_path / "x.html")
    assert "Best configuration (trial t03)" in text and "lam 49 ?" in text and "gone = 1" in text


@pytest.mark.parametrize("row", [{"val_acc": 0.5}, {"reason": ""}, {"reason": "", "val_acc": None}])
def test_a_forged_choice_is_one_line_that_names_the_file(row: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    run = make(tmp_path / "run", choice=[{"trial": "t03", "own": 0.5} | row])
    assert console(["report", str(run)]) == 2
    error = capsys.readouterr().err
    assert "run.json is missing or damaged (its choice" in error and error.count("\n") == 1


def test_a_report_runs_no_code_of_a_runs_folder(tmp_path: Path) -> None:
    """What it says of hyperparameters stands in the record."""
    run, ran = make(tmp_path / "run"), tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w').close()\n"
    (run / "own").mkdir()
    (run / "own" / "mine.py").write_text(code)
    own = {"name": "mine.py", "path": str(run / "own" / "mine.py"), "sha256": hashlib.sha256(code.encode()).hexdigest()}
    options = {"algo": f"{own['path']}:Mine"}
    write_json(run / "run.json", record(algorithm="mine.py:Mine", own=[own], options=options, final=final()))
    text = said(run, tmp_path / "x.html")
    assert "lam (λ) 49" in text and not ran.exists()


def test_figures_that_fail_or_are_too_large_leave_a_sentence(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("<no luck>")

    monkeypatch.setattr("fedtune.analysis.plots.slices", broken)
    monkeypatch.setattr("fedtune.reporting.figures.LARGEST", 3000)
    text = said(run, tmp_path / "x.html")
    assert "Not drawn: RuntimeError: <no luck>." in text and "a notebook can show it" in text


@pytest.mark.parametrize(
    ("value", "text", "end"),
    [
        (1, "1..16", ""),
        (2, "2..16", "lower"),
        (1.0, "1..16", ""),
        (1.0, "1.0..16.0", "lower"),
        (0.01, "0..0.95", ""),
        (16, "1..16", "upper"),
    ]
    + [(8, "1..16", ""), (0.11, "0.1..10 log", "lower"), (0.2, "0.1..10 log", ""), (0, "0.1..10 log", "lower")]
    + [(9.9, "0.1..10 log where optimizer is sgd", "upper"), (-1e-5, "-0.5..0", "upper"), (1, "1..1", "")]
    + [("sgd", "sgd | adam", ""), (True, "False | True", ""), (None, "1..2", "")],
)
def test_edge_names_the_end_of_a_range_that_a_value_lies_at(value: Any, text: str, end: str) -> None:
    assert edge(value, text) == end


# several runs, and comparisons ----------------------------------------------------------------------------------------


def compared(folder: Path) -> Path:
    """A comparison of two algorithms, of which the second's second best was chosen."""
    names, rows = ("fedproto", "local"), []
    for k, name in enumerate(names):
        make(folder / name, final=None)
        for place, base in (("default", 0.8), ("top 1", 0.85), ("top 2", 0.9)):
            row = {"algorithm": name, "configuration": place, "chosen": place == ("top 2" if k else "top 1")}
            row |= {"val_acc": base, "test_acc_std": 0.1, "score": 0.95, "reason": "", "comm_mb": 1.0}
            rows += [row | {"seed": s, "test_acc": base + 0.01 * s} for s in (1, 2)]
    pd.DataFrame(rows).to_parquet(folder / "evaluations.parquet")
    told = {name: record()[name] for name in ("scenario_name", "scenario", "trials", "format", "budget", "state")}
    told |= {"algorithms": [*names, "fedavg"], "seeds": 2, "unequal": ["local started 3 of 14 trials"]}
    told["command"] = ["python", "-m", "fedtune", "compare", "--name", "both", "--algos", "fedproto,local,fedavg"]
    write_json(folder / "compare.json", told)
    row = dict.fromkeys(COLUMNS, 0.5) | {"published": "", "configuration": HOSTILE}
    table = [row | {"algorithm": n, "tuned": 0.7 - k / 10} for k, n in enumerate(names)]
    pd.DataFrame(table).to_csv(folder / "table.csv", index=False)
    pair = {"algorithm": "fedproto", "other": "local", "difference": 0.1, "half": 0.05, "p": 0.01, "p_holm": 0.01}
    pd.DataFrame([pair | {"verdict": "larger"}]).to_csv(folder / "pairs.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compared(tmp_path_factory.mktemp("compared") / "both")


def test_a_comparison_shows_its_tables_and_each_search_folded(comparison: Path) -> None:
    assert report.main([str(comparison)]) == 0
    html = (comparison / "report.html").read_text()
    text = told(html)
    assert html.count('<details class="search"') == 2 and "<script>window" not in html
    order = [
        "3 algorithms, each tuned",
        "Test accuracy on digits-w4",
        "Every two tuned algorithms",
        "1 of 1 pair can be told (± of each pair by itself, paired by seed",
    ]
    order += ["Cost; each search had", "What the searches found", "What to try next, and the method"]
    order += ["The searches fedproto on digits-w4", "Best configuration"]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    assert "local started 3 of 14 trials" in text and "The folder has no search for fedavg." in text
    assert "fedproto − local +10.00 ± 5.00 0.01 0.01 larger" in text and "published" not in text
    assert "no check on fresh seeds" not in text and text.count("a selection gap of +10.00 points") == 2
    assert "Run it again: fedtune compare --algos fedproto,local,fedavg" in text  # with --name it would fail
    assert "command fedtune compare --name both" in text and "python -m" not in text


def test_a_comparison_shows_what_its_searches_had_found_by_trials(comparison: Path, tmp_path: Path) -> None:
    run = shutil.copytree(comparison, tmp_path / "by-budget")
    rows = [("fedproto", n, 0.8 + n / 100, 0.01, 2, 10.0 * n) for n in (1, 2)]
    rows += [("local", n, 0.9, 0.02, 1, 10.0 * n) for n in (1, 2)]
    table = pd.DataFrame(rows, columns=["algorithm", "trials", "score", "half", "rank", "rounds"])
    table.assign(searches=3, metric="val_acc").to_csv(run / "budget.csv", index=False)
    write_json(run / "compare.json", json.loads((run / "compare.json").read_text()) | {"searches": 3, "margin": 0.005})
    text = said(run, tmp_path / "x.html")
    assert "paired by search, with verdicts against a margin of 0.5 points at 5 % for all together" in text
    assert "Best validation accuracy in the searches" in text and "The verdicts are of fresh seeds" in text
    (run / "budget.csv").write_text("algorithm,trials\nlocal,1\n")
    assert report.main([str(run)]) == 2


def test_a_comparison_claims_no_more_than_was_done(comparison: Path, tmp_path: Path) -> None:
    assert "each tuned, but with unequal budgets, selected on" in words(comparison, tmp_path / "x.html")
    file = shutil.copytree(comparison, tmp_path / "cut") / "compare.json"
    whole = json.loads(file.read_text())
    for name in ("evaluations.parquet", "table.csv", "pairs.csv"):
        (file.parent / name).unlink()
    write_json(file, whole | {"state": "interrupted", "command": ["x", "--name=both"]})
    text = words(file.parent, tmp_path / "x.html")
    assert (
        "3 algorithms will be tuned, and trained again on fresh seeds together with the defaults; this has not" in text
    )
    assert (
        "same budget" not in text
        and f"Let it go on. What else to try can be told {LATER} fedtune resume {file.parent}" in text
    )
    assert "It was interrupted" in text and "Run it again: x" not in text
    write_json(file, whole | {"unequal": []})
    shutil.copy(comparison / "table.csv", file.parent)
    pair = pd.read_csv(comparison / "pairs.csv")
    pd.concat([pair.assign(algorithm=f"a{i % 2}") for i in range(20)]).to_csv(file.parent / "pairs.csv", index=False)
    text = words(file.parent, tmp_path / "x.html")
    assert "each tuned with the same budget of 14 trials, selected" in text
    assert "20 of 20 pairs can be told (± of each pair by itself" in text and text.count("a1 − local") == 10


def test_a_control_is_neither_the_best_nor_counted(comparison: Path, tmp_path: Path) -> None:
    run = shutil.copytree(comparison, tmp_path / "twice")
    record = json.loads((run / "compare.json").read_text())
    names = {"algorithms": [*record["algorithms"], "local-again"], "control": ["local", "local-again"]}
    write_json(run / "compare.json", record | names)
    runs = pd.read_parquet(run / "evaluations.parquet")
    twice = runs[runs["algorithm"] == "local"].assign(algorithm="local-again")
    pd.concat([runs, twice], ignore_index=True).to_parquet(run / "evaluations.parquet")
    table = pd.read_csv(run / "table.csv")
    again = table[:1].assign(algorithm="local-again", tuned=0.99)
    pd.concat([again, table]).to_csv(run / "table.csv", index=False)
    assert report.main([str(comparison), str(run), "-o", str(tmp_path / "x.html")]) == 0
    page = told((tmp_path / "x.html").read_text())
    best = "finished fedproto 70.00 ± 50.00 % (≤ 100) 50.00 ± 50.00 %"
    assert "twice fedproto, local, fedavg on digits-w4" in page and page.count(best) == 2
    assert page.count("3 algorithms, each tuned") == 2 and "local-again ranks first" not in page


def test_a_search_of_a_comparison_finds_its_check_there(
    comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(comparison / "local")
    text = words(Path(), tmp_path / "x.html")
    assert "no check on fresh seeds" not in text and "a selection gap of +10.00 points" in text
    assert "Test accuracy on 2 fresh seeds" in text


def test_several_runs_stand_under_one_table(run: Path, comparison: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.html"
    assert report.main([str(run), str(comparison), "-o", str(out)]) == 0
    html = out.read_text()
    changed = "digits-w4 (clients = 5, rounds = 6, momentum = 0.5)"  # no default of today's; lr is searched
    assert f"a run fedproto on {changed} finished 14 validation accuracy 95.00 % 94.00 ± 4.97 % 90.00 ± 0.00 %" in told(
        html
    )
    both = f"both fedproto, local, fedavg on {changed} finished fedproto 70.00 ± 50.00 % (≤ 100) 50.00 ± 50.00 %"
    assert both in told(html)
    assert {"run1", "run2", "run2-1"} <= set(re.findall(r' id="([^"]+)"', html))
    assert html.count('id="plotly"') == html.count("<style>") == 1


# where it goes --------------------------------------------------------------------------------------------------------


def test_a_report_overwrites_a_report_and_nothing_else(run: Path, html: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "x.html"
    out.write_text("<p>mine</p>")
    for arguments, why in (
        ((run, "-o", out), "overwrites only an earlier report, but"),
        ((run, "-o", run / "run.json"), "overwrites only an earlier report, but"),
        ((run, "-o", tmp_path), "overwrites only an earlier report, but"),
        ((run, "-o", tmp_path / "no" / "x.html"), "a folder that exists, but got"),
        ((run, run), "a report on several runs needs -o"),
        ((tmp_path,), "is not a study folder"),
    ):
        assert console(["report", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert why in error and error.startswith("error: ") and error.count("\n") == 1
    assert out.read_text() == "<p>mine</p>" and list(tmp_path.iterdir()) == [out]
    assert console(["report", str(run)]) == 0  # over the earlier one
    assert "report.html (" in capsys.readouterr().out


# in a browser ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture
def opened(browser: Browser, html: str, run: Path) -> Iterator[Browser]:
    show(browser, run / "report.html").press("//summary[starts-with(., 'All trials')]")
    yield browser
    browser.do("goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params={"media": ""})


def show(browser: Browser, page: Path) -> Browser:
    browser.errors()
    browser.do("url", url=page.as_uri())
    return browser


def drawn(browser: Browser) -> list[dict[str, Any]]:
    """Every figure that no search folds away, its part opened, scrolled to, once it has something drawn."""
    number = browser.script("return document.querySelectorAll('.plot').length")
    found = []
    for i in range(number):
        look = (
            f"const box = document.querySelectorAll('.plot')[{i}], tab = box.closest('details.part');"
            "if (tab) tab.open = true;"
            "if (!box.checkVisibility()) return 'folded';"
            "box.scrollIntoView({block: 'center'});"
            "const marks = box.querySelectorAll('.scatterlayer path, .barlayer path, .heatmaplayer image').length;"
            "const svg = box.querySelector('.main-svg');"
            "if (!marks || !svg) return null; const {width, height, right} = svg.getBoundingClientRect();"
            "return {marks, width, height, right, traces: box._fullData.length}"
        )
        if (seen := wait_for(lambda look=look: browser.script(look), seconds=120)) != "folded":
            found.append(seen)
    return found


def cells(browser: Browser, column: str) -> list[str]:
    """A column of the first table of trials as it stands there."""
    return browser.script(
        "const t = document.querySelector('table.trials');"
        f"const i = [...t.querySelectorAll('th')].findIndex(th => th.textContent === {column!r});"
        "return [...t.tBodies[0].rows].filter(row => !row.hidden).map(row => row.cells[i].textContent)"
    )


def heading(column: str) -> str:
    return f"(//table[contains(@class, 'trials')])[1]//th/button[text()='{column}']"


COUNT = "return document.querySelector('.count').textContent"


def count(browser: Browser) -> str:
    wait_for(lambda: browser.script(COUNT))
    return browser.script(COUNT)


def test_every_figure_is_drawn_and_nothing_goes_wrong_or_out(opened: Browser, html: str) -> None:
    found = drawn(opened)
    assert len(found) == 7 and "Not drawn" not in told(html)
    for figure in found:
        assert figure["marks"] > 0 and figure["traces"] > 0 and figure["width"] > 500 and figure["height"] > 150
    assert opened.errors() == []
    assert opened.script("return performance.getEntriesByType('resource').length") == 0
    assert opened.script("return window.pwned === undefined")
    # Plotly has a button that would send a figure to its maker's server
    buttons = set(opened.script("return [...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)"))
    assert {"Zoom", "Pan", "Reset axes"} <= buttons and "Share chart..." not in buttons


def test_another_script_would_not_run(opened: Browser) -> None:
    opened.refuses_scripts()


def test_the_table_sorts_by_mouse_and_keyboard(opened: Browser) -> None:
    assert cells(opened, "trial")[0] == "t03" and cells(opened, "val_acc %")[-1] == ""  # best first, missing last
    opened.press(heading("MB"))
    down = [float(v) for v in cells(opened, "MB") if v]
    assert down == sorted(down, reverse=True) and len(down) == 13
    opened.press(heading("MB"))
    assert [float(v) for v in cells(opened, "MB") if v] == down[::-1] and cells(opened, "MB")[-1] == ""
    assert opened.script("return document.querySelector('th[aria-sort]').ariaSort") == "ascending"
    opened.press(heading("trial"), "\ue007")  # Enter
    assert cells(opened, "trial") == [f"t{i:02}" for i in range(14)]
    assert opened.script("return document.querySelectorAll('th[aria-sort]').length") == 1
    assert opened.script("return document.querySelector('tr.best').cells[0].textContent") == "t03"


def test_the_table_filters_by_a_text_in_any_column(opened: Browser) -> None:
    assert opened.script(COUNT) == "", "the heading counts all"
    opened.press("//input[@name='text']", "STOPPED")
    assert set(cells(opened, "status")) == {"stopped"} and count(opened) == "2 of 14 trials"
    opened.press("//input[@name='text']", "nobody")
    assert cells(opened, "trial") == [] and count(opened) == "0 of 14 trials"


@pytest.mark.long  # in a browser
def test_the_command_can_be_copied(opened: Browser) -> None:
    opened.press("//summary[starts-with(., 'Run it again')]")
    opened.press("(//details[summary[starts-with(., 'Run it again')]]//button)[1]")
    box = "return document.querySelector('details[data-key$=again] .copy')"
    wait_for(lambda: opened.script(f"{box}.querySelector('button').textContent") != "copy", seconds=120)
    assert opened.script(f"{box}.querySelector('pre').textContent").startswith("fedtune run --config")


def test_a_phone_shows_it_without_sideways_scrolling(browser: Browser, html: str, run: Path, opened: Browser) -> None:
    with browser.wide(390, 844, mobile=True):
        show(browser, run / "report.html")
        for figure in drawn(browser):
            assert figure["right"] <= 390
        names = (
            "const plot = [...document.querySelectorAll('.plot')].find((p) => p.ariaLabel.startsWith('Every trial')); "
            "const seen = (t) => t.style.display !== 'none' && getComputedStyle(t).visibility !== 'hidden' "
            "&& t.getBoundingClientRect().right <= 390; "
            "return [...plot.querySelectorAll('.xtick text')].filter(seen).map((t) => t.textContent)"
        )
        assert browser.script(names) == ["val. accuracy [%]", "lam", "lr"]
        assert browser.script("return [document.documentElement.scrollWidth, innerWidth]") == [390, 390]
        cut = "return [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).length"
        assert browser.script(cut) == 0, "rows are cards"
        assert browser.errors() == []


@pytest.mark.long  # in a browser
def test_paper_shows_every_figure_whole_and_no_filter(opened: Browser) -> None:
    wait_for(lambda: opened.script("return !!window.Plotly"))
    opened.do("goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params={"media": "print"})
    opened.script("window.dispatchEvent(new Event('beforeprint'))")
    widths = "return [...document.querySelectorAll('.plot')].map(b => b.querySelector('.main-svg').clientWidth)"
    assert opened.script(widths) == [680] * 7  # none was scrolled to
    hidden = "return ['.filter', '.copy button'].map(q => getComputedStyle(document.querySelector(q)).display)"
    assert opened.script(hidden) == ["none", "none"]
    opened.script("window.dispatchEvent(new Event('afterprint'))")
    assert base64.b64decode(opened.do("print")).startswith(b"%PDF")
    assert opened.errors() == []


@pytest.mark.long  # in a browser
def test_all_but_one_figure_is_folded_and_drawn_once_it_is_opened(opened: Browser, comparison: Path) -> None:
    names = "return [...document.querySelectorAll('.part > summary')].map(t => t.firstChild.textContent.trim())"
    mattered = "Which hyperparameters mattered, and what to try next"
    again = "Run it again, and where the numbers come from"
    assert opened.script(names) == ["How sure is that?", mattered, "All trials", again]
    shown = "return [...document.querySelectorAll('.plot')].filter(p => p.checkVisibility()).length"
    assert opened.script(shown) == 4  # the first, and those of all trials, which is open
    opened.press(f"//summary[text()='{mattered}']")
    assert opened.script(shown) == 7
    report.main([str(comparison)])
    show(opened, comparison / "report.html")
    assert len(drawn(opened)) == 2  # the algorithms, and the matrix of pairs, as some can be told apart
    opened.press("(//details[@class='search']/summary)[2]")
    assert len(drawn(opened)) == 9 and opened.errors() == []  # and the seven of its second search


@pytest.mark.long
def test_ten_thousand_trials(browser: Browser, run: Path, tmp_path: Path) -> None:
    many = tmp_path / "many"
    shutil.copytree(run, many)
    trials, _ = frames_of()
    rng, n = np.random.default_rng(0), 10_000
    whole = trials.iloc[np.arange(n) % len(trials)].assign(trial=[f"{i:08x}" for i in range(n)])
    whole = whole.assign(last_val_acc=rng.random(n), seconds=rng.random(n), **{"config/lam": rng.random(n)})
    whole.to_parquet(many / "trials.parquet", index=False)
    assert report.main([str(many)]) == 0
    assert (many / "report.html").stat().st_size < 20e6
    show(browser, many / "report.html").press("//summary[starts-with(., 'All trials')]")
    wait_for(lambda: len(cells(browser, "trial")) == 1000)  # a large page fills its table after it has loaded
    best = whole.nlargest(1000, "last_val_acc")
    assert cells(browser, "trial") == best["trial"].tolist()
    browser.press(heading("s"))
    assert [float(v) for v in cells(browser, "s")] == sorted((round(v, 1) for v in best["seconds"]), reverse=True)


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ("val_acc", "test accuracy 93.00 %"),
        ("val_acc_worst10", "test accuracy of the worst tenth 50.00 %"),
        ("val_acc_std", "standard deviation of test accuracy 10.00 %"),
    ],
)
def test_the_best_trial_is_told_with_the_test_figure_of_what_was_searched_for(
    objective: str, said: str, tmp_path: Path
) -> None:
    run = make(tmp_path / "run", objectives=[objective], final=None)
    rounds = pd.read_parquet(run / "rounds.parquet").assign(**{objective: lambda r: r["val_acc"]})
    rounds.to_parquet(run / "rounds.parquet", index=False)
    trials = pd.read_parquet(run / "trials.parquet")
    trials.assign(**{f"last_{objective}": trials["last_val_acc"]}).to_parquet(run / "trials.parquet", index=False)
    f = findings.read(run)
    assert f.test_text == f"{said}, reported and never used"
    columns = sections._trials(f).columns
    assert f"{f.goal.first.tested} %" in columns and "test_acc %" in columns and len(set(columns)) == len(columns)


def test_the_default_has_no_value_of_what_is_off_in_it(tmp_path: Path) -> None:
    space = {"compress": "none | topk", "sent_share": "0.0001..1 log where compress is topk"}
    told = findings.read(make(tmp_path / "run", space=space, default_config={"compress": "none"})).answer()
    assert [(name, default) for name, _, default, *_ in told.rows] == [("compress", "none"), ("sent_share", "–")]


def test_the_front_has_a_table_of_ten_points_along_it_with_their_values(tmp_path: Path) -> None:
    run = make(tmp_path / "run", objectives=["val_acc", "epsilon"], final=None)
    points = {"trial": [f"t{i}" for i in range(28)], "round": 1, "val_acc": [i / 100 for i in range(28)]}
    front = pd.DataFrame(points | {"epsilon": 2.0, "config/lam": 3.0, "config/lr": 0.1})
    front.to_parquet(run / "front.parquet")
    shown = sections._front(findings.read(run))
    assert shown and shown.columns == ["trial", "round", "val_acc", "epsilon", "lam", "lr"]
    assert shown.caption == "10 of 28 points of the front" and [row[0] for row in shown.rows][::9] == ["t27", "t0"]
    assert shown.rows[0] == ["t27", "1", "27.00 %", "2.0000", "3", "0.1"] and len(shown.rows) == 10


def test_runs_on_fresh_seeds_have_each_cost_that_is_known() -> None:
    rows = [run | {"epsilon": 2.0, "sim_seconds": 9.5} for run in final()]
    _, columns, cells = checked.FinalCheck(pd.DataFrame(rows)).table()
    assert columns[3:] == ["MB a run", "ε", "device seconds"] and cells[0][3:] == ["1.50", "2.0000", "9.5"]
    assert {len(row) for row in cells} == {6}


@pytest.mark.parametrize(
    ("names", "sent", "told"),
    [
        (("fedproto", "local"), (1.0, 1.04), None),
        (("fedproto", "local"), (1.0, 1.06), ["1", "1.06"]),
        (("fedproto", "local"), (1.0, 0.0), None),  # it sends nothing whatever the others do
        (("fedavg", "fedavg[compress=fp16]"), (1.0, 1.0), ["1", "1"]),
    ],
)
def test_megabytes_stand_beside_accuracies_where_they_differ(
    names: tuple[str, str], sent: tuple[float, float], told: list[str] | None, comparison: Path
) -> None:
    found = Results.read(comparison)
    called, mb = dict(zip(("fedproto", "local"), names, strict=True)), dict(zip(names, sent, strict=True))
    runs = found.evaluations.replace({"algorithm": called})
    runs["comm_mb"] = runs["algorithm"].map(mb)
    first, *_ = replace(found, evaluations=runs, table=found.table.replace({"algorithm": called})).titled
    assert list(first.text)[6:] == ["MB a run"] * bool(told) and first.text.get("MB a run", pd.Series()).tolist() == (
        told or []
    )


def test_a_long_name_may_break_in_a_cell() -> None:
    assert templates.breaking("a[b=<i>,c=2]") == "a<wbr>[b=&lt;i&gt;,<wbr>c=2]" and templates.breaking("1,2") == "1,2"


def test_the_fronts_of_several_objectives_come_first(tmp_path: Path) -> None:
    f = findings.read(make(tmp_path / "run", objectives=["val_acc", "comm_mb", "val_loss"], final=None))
    shown = {where: [g.title for g in some] for where, some in sections.report_figures.of_search(f, None, None).items()}
    two = [
        "Validation accuracy against communication, every round",
        "Validation accuracy against validation loss, every round",
    ]
    assert shown["found"][:3] == ["The Pareto front of all 3 objectives", *two]
    assert "Communication against validation loss, every round" in shown["trials"] and not {*two} & {*shown["trials"]}
