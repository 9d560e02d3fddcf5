"""The tables of a comparison: default and tuned figures of each algorithm, and which differences are significant."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedtune.core import statistics
from fedtune.core.budget import SHORT, Budget
from fedtune.core.objectives import ACCURACY, Objective, final
from fedtune.core.terminal import several, short
from fedtune.runs import choice, frames, tables, trial_states
from fedtune.runs.files import RunFiles
from fedtune.runs.tables import BORROWED, DEFAULT, SEARCH

Chosen = Callable[[Sequence[str]], Iterable[tuple[str, str]]]  # the pairs to test, of names, the best first
UNIT = "unit"
LEVEL = 0.05
LARGER, WITHIN, UNTOLD, UNTESTED = "larger", "within the margin", "cannot be told", "not tested"  # verdicts
CLAIMS = ("beyond", "inside")  # the margin
LOCAL = "local"  # every client alone: whom a federated algorithm should beat
OVER = 0.1  # share by which trials may exceed a budget before a warning says so

# column of table.csv -> what it is.  Accuracies are shares of 1, means over fresh seeds; ± is half a 95 % interval.  Of
# searches for something else than validation accuracy, "test accuracy" is the test metric that reports it
COLUMNS: dict[str, str] = {
    "algorithm": "its name",
    "default": "test accuracy of the default configuration",
    "default_half": "its ±",
    "tuned": "test accuracy of the configuration that was found",
    "tuned_half": "its ±",
    "gain": "tuned − default, paired by search, or by seed if there is one search",
    "gain_half": "its ±",
    "clients_std": "standard deviation over clients, tuned",
    "worst10": "mean over the worst tenth of the clients, tuned",
    "all": "test accuracy on rows of all classes, tuned",
    "all_half": "its ±",
    "foreign": "test accuracy on those of classes that a client does not hold, tuned",
    "foreign_half": "its ±",
    "rounds_to_95": "first round tested with 95 % of the algorithm's own last test accuracy, tuned",
    "mb_to_95": "megabytes that all clients had sent and received by then",
    "mb_per_round": "megabytes a round, tuned",
    "seconds": "wall time of a run, tuned",
    "search_score": "validation accuracy, or the objective, of the search's best trial, in the search",
    "selection_gap": "that − the mean of the same, of the same configuration on fresh seeds",
    "default_gap": "the same of the default, if its trial was finished: the luck of the search's partition alone",
    "default_diverged": "runs of the default on fresh seeds that diverged, or whose program failed",
    "tuned_diverged": "runs of the tuned configuration that did",
    "runs": "fresh seeds",
    "search_trials": "trials that the search began",
    "search_rounds": "rounds of all of them, and of the runs on more seeds that it chose by",
    "search_mb": "megabytes that they sent and received",
    "search_seconds": "wall time of their rounds",
    "published": "the paper's own figure for this setting, and what to know of it",
    "configuration": "the tuned hyperparameters",
}

FAILED_COLUMNS: dict[str, str] = {  # where programs failed, also
    "lost": "how the algorithm's runs without a figure ended: diverged, failed, or both"
}
BORROWED_COLUMNS: dict[str, str] = {  # further columns where another algorithm's tuned values were borrowed
    "lender": "whose; empty where nothing was borrowed",
    "borrowed": "test accuracy with the lender's tuned values of what both have, and defaults otherwise",
    "borrowed_half": "its ±",
    "beyond": "tuned − borrowed, paired as the gain is",
    "beyond_half": "its ±",
    "borrowed_diverged": "runs with borrowed values that diverged, or whose program failed",
    "borrowed_runs": "runs with borrowed values: fewer where a search of the lender found nothing",
}
MEANS = {  # columns that are means over the runs of the tuned configuration
    "clients_std": "test_acc_std",
    "worst10": "test_acc_worst10",
    "tuned_test_acc": "test_acc",
} | {name: name for name in ("rounds_to_95", "mb_to_95", "mb_per_round", "seconds")}
OF_CLIENTS = ("test_acc", "test_acc_std", "test_acc_worst10")  # a program may not report them
OBJECTIVE_COLUMNS: dict[str, str] = {  # further columns of a search by another objective
    "metric": "the test metric that reports what was searched for",
    "default_test_acc": "test accuracy of the default configuration",
    "tuned_test_acc": "test accuracy of the configuration that was found",
}


def table(
    evaluations: pd.DataFrame,
    search_costs: Mapping[str, Mapping[str, float]],
    published: Mapping[str, str],
    objective: Objective = ACCURACY,
    lender: str = "",
) -> pd.DataFrame:
    """A row per algorithm, the best tuned one first; columns COLUMNS.

    search_costs: of each algorithm (`search_costs`).  published: text per algorithm, where there is any.
    lender: the algorithm whose tuned values others were trained with.
    """
    rows, metric, tested = [], objective.name, objective.reported(evaluations)
    evaluations = evaluations.reindex(columns=[*evaluations, *(n for n in OF_CLIENTS if n not in evaluations)])
    evaluations = with_units(evaluations)
    for name, runs in evaluations.groupby("algorithm", sort=False):
        default, borrowed = (runs[runs["configuration"] == of] for of in (DEFAULT, BORROWED))
        tuned = runs[runs["chosen"]]
        first = runs[runs["configuration"] == "top 1"]
        gain, score = statistics.paired_by(_differences(tuned, default, tested), None), first["score"].mean()
        row = {"algorithm": name, "gain": gain.mean, "gain_half": gain.half, "search_score": score}
        beyond = statistics.paired_by(_differences(tuned, borrowed, tested), None)
        row |= {"lender": lender * bool(len(borrowed)), "beyond": beyond.mean, "beyond_half": beyond.half}
        for column, of, figure in (
            ("default", default, tested),
            ("tuned", tuned, tested),
            ("borrowed", borrowed, tested),
            ("all", tuned, "test_acc_all"),
            ("foreign", tuned, "test_acc_foreign"),
        ):
            mean = statistics.mean(numbers(of, figure) if figure in of else [])
            row |= {column: mean.mean, f"{column}_half": mean.half}
        row |= {column: tuned[of].mean(skipna=False) for column, of in MEANS.items()}
        row |= {f"search_{k}": v for k, v in search_costs[str(name)].items()}
        each = "; ".join(", ".join(f"{n} = {short(v)}" for n, v in of.items()) for of in configurations(tuned))
        rows.append(
            row
            | {
                "selection_gap": score - first[metric].mean(skipna=False),
                "default_gap": default["score"].mean(skipna=False) - default[metric].mean(skipna=False),
                "default_diverged": int(default[tested].isna().sum()),
                "tuned_diverged": int(tuned[tested].isna().sum()),
                "borrowed_diverged": int(borrowed[tested].isna().sum()),
                "borrowed_runs": len(borrowed),
                "lost": trial_states.loss_word(runs["reason"]) if "reason" in runs else "diverged",
                "runs": len(default),
                "published": published.get(str(name), ""),
                "configuration": each if len(tuned) else "none was found",
                "metric": tested,
                "default_test_acc": default["test_acc"].mean(skipna=False),
            }
        )
    failed = any("failed" in row["lost"] for row in rows)
    more = [*(OBJECTIVE_COLUMNS if tested != ACCURACY.tested else ()), *(FAILED_COLUMNS if failed else ())]
    more += BORROWED_COLUMNS if any(row["lender"] for row in rows) else ()
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *more])
    return frame.sort_values("tuned", ascending=objective.sign_of(tested) < 0, kind="stable", ignore_index=True)


def control_last(table: pd.DataFrame, control: Sequence[str]) -> pd.DataFrame:
    """The table with the row of an algorithm's second name at its end, as it is compared with none of the others.

    control: `ComparisonPlan.control`.
    """
    is_control = table["algorithm"].isin(list(control[1:]))
    return table.iloc[np.argsort(is_control.to_numpy(), kind="stable")].reset_index(drop=True)


def pairs(evaluations: pd.DataFrame, objective: Objective = ACCURACY, margin: float = 0.0) -> pd.DataFrame:
    """Every two algorithms, tuned: difference, ±, p, p corrected for all pairs, and the verdict against a margin.

    It is that of test accuracy, or of the test metric that reports the objective, which `metric` names then.  With
    several searches each is one number, the mean over its seeds, and they are paired, and each pair's variance is
    shrunk to all pairs' (`statistics.moderated`); with one, its seeds are.
    """
    return _corrected(_tests(evaluations, objective, margin, lambda order: itertools.combinations(order, 2)))


def against(
    evaluations: pd.DataFrame, baselines: Sequence[str], objective: Objective = ACCURACY, margin: float = 0.0
) -> pd.DataFrame:
    """Every algorithm against each baseline, tuned: the same, p corrected for these alone, which are fewer."""

    def wanted(order: Sequence[str]) -> list[tuple[str, str]]:
        return [(name, b) for b in baselines if b in order for name in order if name not in baselines]

    return _corrected(_tests(evaluations, objective, margin, wanted))


def against_at(
    levels: Mapping[str, pd.DataFrame], baselines: Sequence[str], objective: Objective = ACCURACY, margin: float = 0.0
) -> pd.DataFrame:
    """Every algorithm against each baseline at each level, with its name in `level`: one family of all of them.

    levels: the runs on fresh seeds at each.  Variances are shrunk to those of all pairs of a level.
    """

    def wanted(order: Sequence[str]) -> list[tuple[str, str]]:
        there = [b for b in baselines if b in order]
        return [(name, b) for i, b in enumerate(there) for name in order if name not in there[: i + 1]]

    each = [_tests(runs, objective, margin, wanted).assign(level=level) for level, runs in levels.items()]
    return _corrected(pd.concat(each, ignore_index=True))


def control(
    evaluations: pd.DataFrame, names: Sequence[str], objective: Objective = ACCURACY, margin: float = 0.0
) -> pd.DataFrame:
    """An algorithm's second name against its first, tuned: one row, judged as the pairs are, but not corrected.

    evaluations: of the control and of all that is compared, whose variances count.  names: the algorithm and its second
    name; no row without them, nor where a search of one found nothing.
    """
    twice = [(names[1], names[0])] if len(names) > 1 else []
    return _corrected(_tests(evaluations, objective, margin, lambda order: [p for p in twice if {*p} <= {*order}]))


def _tests(evaluations: pd.DataFrame, objective: Objective, margin: float, choose_pairs: Chosen) -> pd.DataFrame:
    """Tests between tuned algorithms, uncorrected; with several searches, columns CLAIMS have p of both claims."""
    by_search = evaluations.get(SEARCH, pd.Series([1])).nunique() > 1
    metric, evaluations = objective.reported(evaluations), with_units(evaluations)
    sign = objective.sign_of(metric)
    tuned = {str(name): runs for name, runs in evaluations[evaluations["chosen"]].groupby("algorithm", sort=False)}
    means = {name: runs[metric].mean(skipna=False) for name, runs in tuned.items()}
    order = sorted(tuned, key=lambda name: (math.isnan(means[name]), -sign * means[name]))
    differences = {(a, b): _differences(tuned[a], tuned[b], metric) for a, b in itertools.permutations(order, 2)}
    every = list(itertools.combinations(order, 2))
    spreads = statistics.moderated([differences[pair] for pair in every]) if by_search else [None] * len(every)
    spread = {frozenset(pair): of for pair, of in zip(every, spreads, strict=True)}
    judged = [(*pair, differences[pair], spread[frozenset(pair)]) for pair in choose_pairs(order)]
    rows = [(a, b, *statistics.paired_by(d, of), of.freedom if of else d.size - 1) for a, b, d, of in judged]
    frame = pd.DataFrame(rows, columns=["algorithm", "other", "difference", "half", "p", "freedom"])
    frame = frame if metric == ACCURACY.tested else frame.assign(metric=metric)
    if by_search:  # with one search, nothing is known of what another search would find
        both = [(statistics.beyond(d, margin, of), statistics.inside(d, margin, of)) for *_, d, of in judged]
        frame[[*CLAIMS]] = np.reshape(both, (-1, 2))
    return frame


def _corrected(tests: pd.DataFrame) -> pd.DataFrame:
    """The tests corrected as one family, with their verdicts."""
    verdicts = _verdicts([*zip(*(tests[n] for n in CLAIMS), strict=True)]) if {*CLAIMS} <= {*tests} else ""
    last = tests[tests.columns.intersection(["metric"])]
    frame = tests.drop(columns=[*last, *CLAIMS], errors="ignore")
    return frame.assign(p_holm=statistics.holm(tests["p"].tolist()), verdict=verdicts, **last)


def search_costs(searches: Sequence[Path]) -> dict[str, float]:
    """The actual cost of an algorithm's searches, from the logs of their trials rather than from their options.

    With the runs on more seeds that decided between the best trials.
    """
    more = pd.DataFrame([choice.cost(f) for run in searches for f in RunFiles(run).choice_folder.glob("*.json")])
    trials = pd.concat([frames.trials_table(RunFiles(run)) for run in searches])
    # a sum over values that no trial reported is NaN, not 0
    totals = {c: trials[c].sum(min_count=1) if c in trials else math.nan for c in ("rounds", "comm_mb", "seconds")}
    of_choice = more.reindex(columns=list(totals)).sum(skipna=False)
    return {
        "trials": len(trials),
        "rounds": int(totals["rounds"] + of_choice["rounds"]),
        "mb": totals["comm_mb"] + of_choice["comm_mb"],
        "seconds": totals["seconds"] + of_choice["seconds"],
    }


def unequal(runs: Mapping[str, Path], trials: int, budget: Budget) -> list[str]:
    """Where searches did not have the same budget, by their logs: a sentence each, none if all is equal.

    Trials that a scheduler stopped may differ; those that it let finish must not.
    """
    sentences, lengths = [], {}
    column, unit = final({"mb": "comm_mb"}.get(budget.unit, budget.unit)), SHORT.get(budget.unit, "")
    for name, run in runs.items():
        every = frames.trials_table(RunFiles(run))
        if len(every) != trials:
            sentences.append(f"{name} started {len(every)} of {several(trials, 'trial')}")
        finished = every[every["status"] == "finished"]
        lengths[name] = sorted(set(finished["rounds"]))
        if budget.unit == "rounds" or finished.empty:
            continue
        used, rounds = finished[column].mean(), finished["rounds"].mean()
        if used == 0:
            had = f"{rounds:.0f} rounds whatever the budget in MB"
            sentences.append(f"{name} sends nothing, so its finished trials had {had}")
        elif used > (1 + OVER) * budget.limit:
            of = f"{used:.3g} {unit} of {budget.limit:g}, as a round of it costs {used / rounds:.3g}"
            sentences.append(f"{name}'s finished trials used {of}")
        elif used < (1 - OVER) * budget.limit:
            of = f"{used:.3g} {unit} of {budget.limit:g}, as their {rounds:.0f} rounds were over; give more --rounds"
            sentences.append(f"{name}'s finished trials used {of}")
    if budget.unit == "rounds" and len({n for rounds in lengths.values() for n in rounds}) > 1:
        each = ", ".join(f"{name} {' or '.join(map(str, rounds))}" for name, rounds in lengths.items())
        sentences.append(f"finished trials had different numbers of rounds: {each}")
    return sentences


def with_units(evaluations: pd.DataFrame) -> pd.DataFrame:
    """With the column UNIT: what counts as one number, the search; or the seed, where there is one search.

    Its categories are all units, so that an algorithm of which one has no run is not judged by the others alone.
    """
    searches = evaluations.get(SEARCH, pd.Series(1, evaluations.index))
    unit = searches if searches.nunique() > 1 else evaluations["seed"]
    return evaluations.assign(**{UNIT: pd.Categorical(unit)})


def numbers(runs: pd.DataFrame, metric: str) -> pd.Series:
    """A number for each unit: the mean over its seeds, not a number where a run diverged or there is none."""
    return runs.groupby(UNIT, observed=False)[metric].agg(lambda v: v.mean(skipna=False)).astype(float)


def _differences(a: pd.DataFrame, b: pd.DataFrame, metric: str) -> np.ndarray:
    return (numbers(a, metric) - numbers(b, metric)).to_numpy(float)


def _verdicts(claims: Sequence[tuple[float, float]]) -> list[str]:
    """Of each difference whether it is larger than the margin, within it, or cannot be told, at 5 % for all together.

    claims: p of both.  One of them is true of each difference, so Holm's correction counts differences, not claims.
    """
    corrected = statistics.holm([float(np.min(of)) for of in claims])  # not a number where nothing is tested
    return [
        UNTESTED if math.isnan(p) else UNTOLD if p >= LEVEL else LARGER if large < within else WITHIN
        for p, (large, within) in zip(corrected, claims, strict=True)
    ]


def configurations(tuned: pd.DataFrame) -> list[dict[str, Any]]:
    """The tuned configurations, one of each search, in the order of searches."""
    firsts = tuned.drop_duplicates(SEARCH) if SEARCH in tuned else tuned[:1]
    names = [n for n in tuned if n.startswith(tables.CONFIG)]
    return [tables.plain({n.removeprefix(tables.CONFIG): row[n] for n in names}) for row in firsts.to_dict("records")]
