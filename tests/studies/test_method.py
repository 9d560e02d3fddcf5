"""What a paper can take of a comparison: its method in words that are true of what ran, its references, its tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.comparisons import compared

from fedtune.runs import overview
from fedtune.runs.files import RunFiles
from fedtune.studies.comparison import citations, method, text
from fedtune.studies.comparison import plan as comparison_plan
from fedtune.studies.comparison.results import Results

SETTING = "--scenario digits-w4 --clients 4 --rounds 30"
RECORD = {"versions": {"fedtune": "0.3.0", "ray": "2.60.0", "optuna": "5.0.0"}, "git_commit": "0123456789abcdef+"}
SEARCH = {  # of each algorithm: what its record says
    "algorithm": "x",
    "searcher": "tpe",
    "scheduler": "asha",
    "started": "now",
    "trials": 3,
    "concurrent": 1,
    "space": {"lr": "0.1..1"},
    "scenario": {"rounds": 30},
    "budget": {"unit": "rounds", "limit": 30, "since": 1},
    "rungs": [3, 9, 27],
}
HOSTILE = r"\input{x} 50 % & #1 $a_b$ ~^<> {--no-x} – … [*]"


def planned(folder: Path, words: str, status: str = "finished") -> comparison_plan.ComparisonPlan:
    """A comparison's plan, and what is read of its searches: tables of two trials each."""
    one = "--searches 1 --seeds 5 --choose-seeds 1"
    c = compared(*one.split(), *words.split(), "--storage-path", str(folder))
    for p in c.every:
        p.folder.mkdir(parents=True)
        table = {"trial": ["a", "b"], "status": ["finished", status], "rounds": [30, 9]}
        pd.DataFrame(table).to_parquet(p.files.trials_file)
    return c


def outcome_of(c: comparison_plan.ComparisonPlan, metric: str = "test_acc", **more: Any) -> tuple[Results, method.Ran]:
    """What was found and what ran.  metric: of the runs on fresh seeds.  more: of what ran."""
    pairs = pd.DataFrame({"algorithm": ["x"] * (len(c.compared) * (len(c.compared) - 1) // 2)})
    tops = [f"top {k + 1}" for k in range(min(c.options.candidates, c.trials))]
    twice = {"algorithm": "again", "other": "x", "difference": 0.012, "half": 0.02, "p": 0.3, "p_holm": 0.3}
    none = pd.DataFrame()
    found = Results(
        record=RECORD | c.first.goal.to_record(),
        evaluations=pd.DataFrame({metric: 0.5, "configuration": ["default", *tops]}),
        table=none,
        pairs=pairs,
        against=pairs[: len(c.baselines)],
        twice=pd.DataFrame([twice | {"verdict": "cannot be told"}]),
        by_budget=none,
    )
    return found, method.Ran(**{"unequal": [], "records": [], **more})


def told(folder: Path, words: str, status: str = "finished", **more: Any) -> tuple[str, list[str]]:
    """The method as one text without citations, and the keys that it cites."""
    c = planned(folder, words, status)
    found = method.sentences(c, *outcome_of(c, **more))
    return " ".join(re.sub(f" {citations.MARKS[0]}.*?{citations.MARKS[1]}", "", s) for s in found), citations.cited(
        found
    )


ALWAYS = ["fedtune", "liaw2018tune", "akiba2019optuna"]


def test_the_method_of_several_searches(tmp_path: Path) -> None:
    words = "--algos fedprox,fedavg --baselines local --searches 3 --trials 32 --seeds 5"
    said, keys = told(tmp_path, f"{SETTING} {words}")
    for part in (
        "Each is tuned by 3 searches of 32 trials, which have draws and seeds of their own, with fedtune",
        "a tree-structured Parzen estimator, in Optuna 5.0.0; the first trial of each search is the default",
        "and the first 10 are not guided by others.",
        "A trial lasts at most 30 rounds.",
        "rungs at 3, 9 and 27 rounds and a reduction factor of 3. Of the",  # no rung was reached
        "lr, momentum and local_epochs have one range for all",
        "A search chooses by val_acc at a trial's end, among the trials that it did not stop.",
        "No figure of test rows takes part in that.",
        "searched on 0, fresh 1–5; searched on 6, fresh 7–11; searched on 12, fresh 13–17.",
        "Of these 3 the one with the best mean val_acc on the fresh seeds is the tuned configuration.",
        "Each algorithm is also trained on these seeds with fedavg's tuned values of the hyperparameters that both",
        "compared by the 3 differences between searches",
        "and a paired t-test whose variance is shrunk towards that of all pairs.",
        "Against a margin of 0.5 points, given",
        "corrected by Holm's method over 3 pairs",
        "As a control, fedavg takes part twice, on the same seeds with other draws; its difference is +1.20 ± 2.00",
        "The tests against local are corrected",
        "trials count in the order in which they ran",
    ):
        assert part in said
    assert said.startswith("We compare fedprox, fedavg and local on digits-w4 (clients = 4, rounds = 30). ")
    assert said.endswith("Versions: fedtune 0.3.0, ray 2.60.0, optuna 5.0.0; fedtune's commit is 0123456789+.")
    judged = ["bouthillier2021variance", "holm1979", "schuirmann1987", "smyth2004"]
    of_search = ["bergstra2011tpe", "li2020asha", "li2020fedprox"]
    assert "no verdict" not in said and keys == [*ALWAYS, *of_search, *judged, "dodge2019"]


@pytest.mark.parametrize(("scheduler", "known"), [("asha", True), ("promote", True), ("hyperband", False)])
def test_how_many_went_on_is_counted_from_the_folder(scheduler: str, known: bool, tmp_path: Path) -> None:
    """A third is what is aimed at: the first trials at a rung go on, whatever they have."""
    c = planned(
        tmp_path, f"{SETTING} --algos fedprox,fedavg --baselines none --searches 2 --no-control --scheduler {scheduler}"
    )
    for folder, rounds in zip((p.folder for p in c.every), ((2, 5, 30), (3, 30, 30), (9, 30), (27, 28)), strict=True):
        RunFiles(folder).write("finished", **SEARCH)
        for i, last in enumerate(rounds):
            log = [
                {"trial_id": f"t{i}", "training_iteration": t, "config": {}, "val_acc": 0.5} for t in range(1, last + 1)
            ]
            (folder / f"x-t{i}").mkdir()
            (folder / f"x-t{i}" / "result.json").write_text("".join(f"{json.dumps(row)}\n" for row in log))
    rungs = overview.rungs(p.folder for p in c.every)
    assert [rung[:3] for rung in rungs] == [("round 3", 9, 8), ("round 9", 7, 6), ("round 27", 6, 5)]
    said = " ".join(method.sentences(c, *outcome_of(c, rungs=rungs)))
    counts = "8 of 9 went on from round 3, 6 of 7 from round 9 and 5 of 6 from round 27."
    assert (f"Of the trials of all searches, {counts}" in said) == known and "one trial in" not in said


NONE = "--baselines none"


@pytest.mark.parametrize(
    ("words", "says", "silent", "cites", "cites_not"),
    [
        ("--privacy client --epsilon 8", "has one client less, with all its rows; the server is trusted; and a "
         "client takes part in a round with probability 1, whoever else does.|ε, at δ = 0.218 and by dp-accounting's "
         "privacy loss distributions, is that of one run, and noise keeps it at 8;", "", "mcmahan2018private", ""),
        ("--searches 3", "over 1 pair.|and a paired t-test.", "", "", "smyth2004"),
        ("--trials 8 --scheduler none", "Each is tuned by one search of 8 trials, with|so few are never guided.|"
         "No trial is stopped early.|over the 5 fresh seeds, corrected by Holm's method over 1 pair|"
         "know the luck of the seeds and not that of the search, so there is no verdict.", "As a control|margin",
         "bergstra2011tpe holm1979 dodge2019", "li2020asha schuirmann1987"),
        ("--seeds 1 --top-k 1", "one fresh seed nothing is tested|trained on 1 fresh seed with its own partition.",
         "Of these", "", "holm1979"),
        ("--algos fedprox --searches 2 --no-control", "With one algorithm there is nothing to test.", "one range for",
         "", "holm1979 schuirmann1987 bouthillier2021variance"),
        ("--searcher random --scheduler none", "all orders of trials after the default", "", "tang2020", "li2020asha"),
        ("--searcher random", "in the order in which they ran", "", "bergstra2012random li2020asha", "tang2020"),
        ("--searcher gp", "suggested by a Gaussian process, in", "", "li2020asha", "bergstra2011tpe"),
        ("--searcher cmaes", "suggested by CMA-ES", "", "hansen2001cmaes", "bergstra2011tpe"),
        ("--searcher nsga2", "suggested by NSGA-II", "", "deb2002nsga2", "bergstra2011tpe"),
        ("--scheduler promote", "lets trials wait and continues the best", "", "li2020asha", "golovin2017vizier"),
        ("--scheduler front", "by non-dominated sorting", "", "li2020asha schmucker2021 deb2002nsga2", ""),
        ("--scheduler median", "the median stopping rule, from 3 rounds on", "", "golovin2017vizier", "li2020asha"),
        ("--scheduler hyperband", "rungs in the first bracket at 3, 9", "", "li2018hyperband li2020asha", ""),
        ("--grace 30", "No trial is stopped early.", "", "", "li2020asha"),
        ("--seeds-per-trial 2", "30 rounds, on each of 2 seeds. ", "", "", ""),
        ("--budget-unit mb --budget 20", "at most 20 megabytes sent and received. ", "", "", ""),
        ("--objective val_loss --subject-to comm_mb<=9", "val_loss subject to comm_mb<=9 at a trial", "", "", ""),
        ("--choose-seeds 3", "best 3 of them on 2 more seeds, and names the one with the best mean|"
         "The configuration named by each search and the default one are|"
         "partition. No search has used them: searched on 0–2, fresh 3–7.|"
         "would have chosen then, before further seeds decide; trials count", "", "", ""),
        ("--trials 2", "The best 2 configurations of each search and|Of these 2 the one", "best 3", "", ""),
        ("--batch 16 --vary batch=2..8", "on digits", "batch = 16", "", ""),
        ("--set lr=0.1", "Fixed, not searched: lr = 0.1.", "", "", ""),
        ("--algos fedavg,fedavg[momentum=0.9] --set local_epochs=2", "searched: local_epochs = 2 and the values in "
         "brackets.", "momentum = 0.9", "", ""),
    ],
)  # fmt: skip
def test_the_method_says_what_ran(
    words: str, says: str, silent: str, cites: str, cites_not: str, tmp_path: Path
) -> None:
    said, keys = told(tmp_path, f"{SETTING} --algos fedprox,fedavg {NONE} {words}")
    assert all(part in said for part in says.split("|")) and not any(part in said for part in silent.split("|") if part)
    assert {*ALWAYS, *cites.split()} <= set(keys) and not {*cites_not.split()} & set(keys)


def test_orders_are_not_said_to_be_averaged_where_a_trial_was_cut_short(tmp_path: Path) -> None:
    words = f"{SETTING} --algos fedprox,fedavg --baselines none --searcher random --scheduler none"
    said, keys = told(tmp_path, words, status="stopped")
    assert "in the order in which they ran" in said and "all orders" not in said and "tang2020" not in keys


def test_what_is_not_fair_is_in_the_method(tmp_path: Path) -> None:
    on_test = {"algorithm": "p", "objectives": ["acc"], "metrics": {"acc": {"split": "test"}}}
    said, _ = told(tmp_path, f"{SETTING} --algos fedprox,fedavg", records=[on_test], unequal=["local had\n2 of 3"])
    assert "SELECTED ON TEST ROWS: acc of p" in said and "No figure of test rows" not in said
    assert "Budgets were not equal: local had 2 of 3." in said


def test_a_program_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("print()")
    (tmp_path / "own.toml").write_text(
        "command = \"python own.py {lr} {seed} {rounds}\"\nrounds = 4\n[metrics]\nval_acc = {pattern = 'acc (\\S+)'}\n"
        '[space]\nlr = "0.01..1 log"\n[defaults]\nlr = 0.1\n'
    )
    said, _ = told(tmp_path / "runs", f"--algos {tmp_path}/own.toml --baselines none", metric="val_acc")
    assert said.startswith("We compare own on their own data. own is a program outside fedtune. ")
    assert "with its own partition" not in said and "We report val_acc after the last round." in said


# HOSTILE, as TeX reads it
IN_TEX = r"\textbackslash{}input\{x\} 50 \% \& \#1 \$a\_b\$ \~{}\^{}$<$$>$ \{-{}-no-x\} -- \ldots{} [*]"


def test_tables_are_whole_in_latex_whatever_names_are() -> None:
    frame = pd.DataFrame({"pair": [HOSTILE, "[a]", "*"], "verdict": ["larger", HOSTILE, ""], "p": ["1", "2", "3"]})
    made = text.latex(f"tuned\nof {HOSTILE}", frame, "tab:x-1")
    assert made.count(IN_TEX) == 3 and not re.search(r"\n[\[*]", made)
    assert made.count(r"\begin{table}") == made.count(r"\end{table}") == made.count(r"\label{tab:x-1}") == 1
    assert r"\begin{tabular}{llr}" in made and r"\toprule" in made and r"\bottomrule" in made
    assert "\n{}[a] & " in made and "\n{}* & " in made, "a bracket after a row's end would be its option"
    assert r"\caption{Tuned of \textbackslash" in made


def test_the_method_is_whole_in_latex_and_markdown_whatever_names_are(tmp_path: Path) -> None:
    c = planned(tmp_path, f"{SETTING} --algos fedprox,fedavg --baselines none --searches 2")
    hostile = f"{HOSTILE} {citations.MARKS[0]}holm1979{citations.MARKS[1]}"
    found = method.sentences(c, *outcome_of(c, unequal=[hostile]))
    made = citations.latex(found)
    assert IN_TEX in made and r"~\cite{li2020asha}" in made and made.startswith("% ")
    assert not re.search(r"(?m)^(?!%).*(?<!\\)[%#&]", made), "one of TeX's letters is bare"
    assert not re.search("|".join(citations.MARKS), made) and made.count("holm1979") == 2, "once cited, once in a name"
    listed = citations.markdown(found)
    assert r"\*]" in listed and "[@li2020asha]" in listed and "[@holm1979]" in listed
    assert set(re.findall(r"\\cite\{([^}]*)\}", made)) == set(citations.cited(found))


def test_the_bibliography_has_what_is_cited_and_nothing_else(tmp_path: Path) -> None:
    c = planned(tmp_path, f"{SETTING} --algos fedprox,fedavg --baselines none --searches 2")
    found = method.sentences(c, *outcome_of(c))
    bib = citations.bibtex(found, "0.3.0")
    assert re.findall(r"(?m)^@\w+\{(\w+),$", bib) == citations.cited(found)
    assert "note = {Version 0.3.0}" in bib and "tang2020" not in bib
    whole = citations.REFERENCES.read_text(encoding="utf-8")
    for key, entry in citations._entries().items():
        assert entry.count("{") == entry.count("}") and entry.endswith("\n}"), key
        fields = re.findall(r"(?m)^  (\w+) = \{.*\},?$", entry)
        assert {"author", "title"} <= set(fields) and ("year" in fields or key == "fedtune"), key
    known = {k for keys in (method.SEARCHERS, method.SCHEDULERS) for _, of in keys.values() for k in of.split(",") if k}
    assert known <= set(citations._entries()) and whole.count("\n@") + 1 == len(citations._entries())


def test_every_searcher_and_scheduler_of_a_comparison_has_words() -> None:
    from fedtune.tuning import schedulers, searchers

    assert set(method.SEARCHERS) == set(searchers.KINDS)
    assert set(method.SCHEDULERS) == {
        n for n, k in schedulers.KINDS.items() if n != "none" and not k.moves_hyperparameters
    }
