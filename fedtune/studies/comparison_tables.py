"""The tables of a comparison: an algorithm's default and tuned figures, and which differences are more than chance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from fedtune.core import statistics
from fedtune.core.budget import Budget
from fedtune.core.objectives import ACCURACY, Objective
from fedtune.core.statistics import interval, number
from fedtune.core.terminal import short
from fedtune.runs import frames, tables
from fedtune.runs.files import RunFiles
from fedtune.studies.fresh_seeds import DEFAULT

LEVEL = 0.05
OVER = 0.1  # share by which trials may exceed a budget before a warning says so
MANY = 15  # with more pairs than those of six algorithms, only those with the best are shown

# column of table.csv -> what it is.  Accuracies are shares of 1, means over fresh seeds; ± is half a 95 % interval.  Of
# searches for something else than validation accuracy, "test accuracy" is the test metric that reports it
COLUMNS: dict[str, str] = {
    "algorithm": "its name",
    "default": "test accuracy of the default configuration",
    "default_half": "its ±",
    "tuned": "test accuracy of the configuration that was found",
    "tuned_half": "its ±",
    "gain": "tuned − default, paired by seed",
    "gain_half": "its ±",
    "clients_std": "standard deviation over clients, tuned",
    "worst10": "mean over the worst tenth of the clients, tuned",
    "rounds_to_95": "first round tested with 95 % of the algorithm's own last test accuracy, tuned",
    "mb_to_95": "megabytes that all clients had sent and received by then",
    "mb_per_round": "megabytes a round, tuned",
    "seconds": "wall time of a run, tuned",
    "search_score": "validation accuracy, or the objective, of the search's best trial, in the search",
    "selection_gap": "that − the mean of the same, of the same configuration on fresh seeds",
    "default_gap": "the same of the default, if its trial was finished: the luck of the search's partition alone",
    "default_diverged": "runs of the default on fresh seeds that diverged",
    "tuned_diverged": "runs of the tuned configuration that did",
    "runs": "fresh seeds",
    "search_trials": "trials that the search began",
    "search_rounds": "rounds of all of them",
    "search_mb": "megabytes that they sent and received",
    "search_seconds": "wall time of their rounds",
    "published": "the paper's own figure for this setting, and what to know of it",
    "configuration": "the tuned hyperparameters",
}

OBJECTIVE_COLUMNS: dict[str, str] = {  # and then also
    "metric": "the test metric that reports what was searched for",
    "default_test_acc": "test accuracy of the default configuration",
    "tuned_test_acc": "test accuracy of the configuration that was found",
}


def table(
    evaluations: pd.DataFrame, spent: Mapping[str, Mapping[str, float]], published: Mapping[str, str],
    objective: Objective = ACCURACY,
) -> pd.DataFrame:  # fmt: skip
    """A row per algorithm, the best tuned one first; columns COLUMNS.

    spent: what each search took (`spent`).  published: text per algorithm, where there is any.
    """
    rows, metric, tested = [], objective.name, objective.tested
    for name, runs in evaluations.groupby("algorithm", sort=False):
        default, tuned = runs[runs["configuration"] == DEFAULT], runs[runs["chosen"]]
        first = runs[runs["configuration"] == "top 1"]
        at_default, at_tuned = (statistics.mean(of[tested]) for of in (default, tuned))
        gain = _paired(tuned, default, tested)
        means = {c: tuned[c].mean(skipna=False) for c in ("rounds_to_95", "mb_to_95", "mb_per_round", "seconds")}
        score = first["score"].iloc[0] if len(first) else math.nan
        lost = {f"{n}_diverged": int(of["test_acc"].isna().sum()) for n, of in (("default", default), ("tuned", tuned))}
        rows.append(
            {
                "algorithm": name, "default": at_default.mean, "default_half": at_default.half,
                "tuned": at_tuned.mean, "tuned_half": at_tuned.half, "gain": gain.mean, "gain_half": gain.half,
                "clients_std": tuned["test_acc_std"].mean(skipna=False),
                "worst10": tuned["test_acc_worst10"].mean(skipna=False), **means,
                "search_score": score, "selection_gap": score - first[metric].mean(skipna=False),
                "default_gap": default["score"].iloc[0] - default[metric].mean(skipna=False), **lost,
                "runs": len(default),
                **{f"search_{k}": v for k, v in spent[str(name)].items()},
                "published": published.get(str(name), ""), "configuration": _listed(tuned), "metric": tested,
                "default_test_acc": default["test_acc"].mean(skipna=False),
                "tuned_test_acc": tuned["test_acc"].mean(skipna=False),
            }
        )  # fmt: skip
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *(OBJECTIVE_COLUMNS if tested != ACCURACY.tested else ())])
    return frame.sort_values("tuned", ascending=objective.tested_sign < 0, kind="stable", ignore_index=True)


def pairs(evaluations: pd.DataFrame, objective: Objective = ACCURACY) -> pd.DataFrame:
    """Every two algorithms, tuned: difference paired by seed, ±, p, and p corrected for all pairs.

    It is that of test accuracy, or of the test metric that reports the objective, which `metric` names then.
    """
    metric, sign = objective.tested, objective.tested_sign
    tuned = {name: runs for name, runs in evaluations[evaluations["chosen"]].groupby("algorithm", sort=False)}
    means = {name: runs[metric].mean(skipna=False) for name, runs in tuned.items()}
    order = sorted(tuned, key=lambda name: (math.isnan(means[name]), -sign * means[name]))
    rows = [(a, b, *_paired(tuned[a], tuned[b], metric)) for a, b in itertools.combinations(order, 2)]
    frame = pd.DataFrame(rows, columns=["algorithm", "other", "difference", "half", "p"])
    frame = frame.assign(p_holm=statistics.holm(frame["p"].tolist()))
    return frame if metric == ACCURACY.tested else frame.assign(metric=metric)


def spent(run: Path) -> dict[str, float]:
    """What a search used up, from the logs of its trials rather than from its options."""
    trials = frames.trials_table(RunFiles(run))
    totals = {c: trials[c].sum() if c in trials else 0 for c in ("rounds", "comm_mb", "seconds")}
    return {"trials": len(trials), "rounds": int(totals["rounds"]), "mb": totals["comm_mb"]} | {
        "seconds": totals["seconds"]
    }


def unequal(runs: Mapping[str, Path], trials: int, budget: Budget) -> list[str]:
    """Where searches did not have the same budget, by their logs: a sentence each, none if all is equal.

    Trials that a scheduler stopped may differ; those that it let finish must not.
    """
    found, lengths = [], {}
    for name, run in runs.items():
        had = frames.trials_table(RunFiles(run))
        if len(had) != trials:
            found.append(f"{name} began {len(had)} of {trials} trials")
        ended = had[had["status"] == "finished"]
        lengths[name] = sorted(set(ended["rounds"]))
        if budget.unit != "rounds" and len(ended):
            found += _overspent(name, ended, budget)
    if budget.unit == "rounds" and len({n for rounds in lengths.values() for n in rounds}) > 1:
        each = ", ".join(f"{name} {' or '.join(map(str, rounds))}" for name, rounds in lengths.items())
        found.append(f"finished trials had unlike numbers of rounds: {each}")
    return found


def _overspent(name: str, ended: pd.DataFrame, budget: Budget) -> list[str]:
    """Where a budget in megabytes or seconds does not suit an algorithm: a round costs too much of it, or nothing."""
    column, unit = ("comm_mb", "MB") if budget.unit == "mb" else ("seconds", "s")
    used, rounds = ended[column].mean(), ended["rounds"].mean()
    if used == 0:
        return [f"{name} sends nothing, so its finished trials had {rounds:.0f} rounds whatever the budget of MB"]
    if used > (1 + OVER) * budget.limit:
        return [
            f"{name}'s finished trials used {used:.3g} {unit} of {budget.limit:g}, as a round of it costs "
            f"{used / rounds:.3g}"
        ]
    return []


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The table of accuracies as text, in percent; of another metric than those, as it is."""
    scale, form = _scale(table)
    other = "metric" in table and len(table)
    named = f" {table['metric'].iloc[0]}" if other else ""
    unit = " %" if in_percent(table) else ""
    gap = [
        number(scale * g, f"+{form}") + ("" if math.isnan(d) else f" ({number(scale * d, f'+{form}')})")
        for g, d in zip(table["selection_gap"], _of(table, "default_gap"), strict=True)
    ]
    found = {
        "algorithm": table["algorithm"],
        f"default{named}{unit}": _unless_diverged(table, "default"),
        f"tuned{named}{unit}": _unless_diverged(table, "tuned"),
        "gain": _with_half(table, "gain", "gain_half", sign="+"),
        **({"tuned test_acc %": table["tuned_test_acc"].map(_percent)} if other else {}),
        "std over clients": table["clients_std"].map(_percent),
        "worst tenth": table["worst10"].map(_percent),
        "gap (default's)": gap,
        "published %": table["published"].astype(object).fillna(""),
    }
    frame = pd.DataFrame(found)
    return frame if frame["published %"].any() else frame.drop(columns="published %")


def costs(table: pd.DataFrame) -> pd.DataFrame:
    """What the tuned configurations cost and what each search used up, as text."""
    return pd.DataFrame(
        {
            "algorithm": table["algorithm"],
            "rounds to 95 % of end": table["rounds_to_95"].map(lambda v: number(v, ".0f")),
            "MB to there": table["mb_to_95"].map(lambda v: number(v, ".3g")),
            "MB a round": table["mb_per_round"].map(lambda v: number(v, ".3g")),
            "s a run": table["seconds"].map(lambda v: number(v, ".3g")),
            "searched: trials": table["search_trials"].map(str),
            "rounds": table["search_rounds"].map(str),
            "MB": table["search_mb"].map(lambda v: number(v, ".4g")),
            "s": table["search_seconds"].map(lambda v: number(v, ".0f")),
        }
    )


def searched(table: pd.DataFrame) -> pd.DataFrame:
    """The tuned hyperparameters of each algorithm, as text."""
    return pd.DataFrame({"algorithm": table["algorithm"], "tuned hyperparameters": table["configuration"]})


def shown_pairs(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs as text; if there are many, only those with the first algorithm."""
    if len(pairs) > MANY:
        pairs = pairs[pairs["algorithm"] == pairs["algorithm"].iloc[0]]
    better = pairs["p_holm"].map(lambda p: "not tested" if math.isnan(p) else "yes" if p < LEVEL else "cannot be told")
    return pd.DataFrame(
        {
            "pair": pairs["algorithm"] + " − " + pairs["other"],
            "difference": _with_half(pairs, "difference", "half", sign="+"),
            "p": pairs["p"].map(lambda v: number(v, ".2g")),
            "p (Holm)": pairs["p_holm"].map(lambda v: number(v, ".2g")),
            f"differ at {LEVEL:.0%}": better,
        }
    )


def markdown(frame: pd.DataFrame) -> str:
    """A table of text in Markdown."""
    rows = [list(frame), ["---"] * frame.shape[1], *frame.astype(str).values.tolist()]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows) + "\n"


def latex(frame: pd.DataFrame) -> str:
    """A table of text in LaTeX, for the package booktabs."""
    special = {c: "\\" + c for c in "&%$#_{}"} | {c: f"${c}$" for c in "<>"}
    special |= {"±": "$\\pm$", "−": "$-$", "\\": "\\textbackslash{}", "~": "\\~{}", "^": "\\^{}"}
    lines = [" & ".join("".join(special.get(c, c) for c in cell) for cell in row) + r" \\"
             for row in [list(frame), *frame.astype(str).values.tolist()]]  # fmt: skip
    columns = "l" + "r" * (frame.shape[1] - 1)
    inner = [r"\begin{tabular}{" + columns + "}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*inner, r"\end{tabular}"]) + "\n"


def _paired(a: pd.DataFrame, b: pd.DataFrame, metric: str) -> statistics.Difference:
    """The difference in a metric between two sets of runs, paired by seed."""
    both = a.set_index("seed")[metric].to_frame("a").join(b.set_index("seed")[metric].rename("b"), how="inner")
    return statistics.paired(both["a"], both["b"])


def _listed(tuned: pd.DataFrame) -> str:
    """The hyperparameters of a tuned configuration in one line."""
    if tuned.empty:
        return "none was found"
    row = tuned.iloc[0]
    values = tables.plain({n.removeprefix(tables.CONFIG): row[n] for n in row.index if n.startswith(tables.CONFIG)})
    return ", ".join(f"{n} = {short(v)}" for n, v in values.items())


def _unless_diverged(table: pd.DataFrame, name: str) -> list[str]:
    """Means with their ±; in words why there is none."""
    texts = _with_half(table, name, f"{name}_half")
    lost, runs = _of(table, f"{name}_diverged"), _of(table, "runs")
    return [
        text if text != "–" else f"diverged in {k:.0f} of {n:.0f}" if k > 0 else "none found"
        for text, k, n in zip(texts, lost, runs, strict=True)
    ]


def _of(table: pd.DataFrame, column: str) -> pd.Series:
    """A column, or not-a-numbers where a table of an earlier version lacks it."""
    return table[column] if column in table else pd.Series(math.nan, index=table.index)


def in_percent(frame: pd.DataFrame) -> bool:
    """Whether a table's figures are shown in percent: those of accuracies and F1 are."""
    return all(n.startswith("test_acc") or n == "test_f1" for n in frame.get("metric", pd.Series(dtype=str)))


def _scale(frame: pd.DataFrame) -> tuple[int, str]:
    return (100, ".2f") if in_percent(frame) else (1, ".4f")


def _with_half(frame: pd.DataFrame, column: str, half: str, sign: str = "") -> list[str]:
    scale, form = _scale(frame)
    return [interval(scale * v, scale * h, sign + form) for v, h in zip(frame[column], frame[half], strict=True)]


def _percent(value: float) -> str:
    return number(100 * value, ".2f")
