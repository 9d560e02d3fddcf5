"""Every figure that a comparison's page opens with, recomputed from its kept runs by pandas and scipy alone."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from support.evaluations import evaluated, spent

from fedtune.analysis import plots
from fedtune.core.about import FORMAT
from fedtune.core.objectives import ACCURACY
from fedtune.reporting import figures, sections
from fedtune.runs.files import write_json
from fedtune.studies.comparison import tables
from fedtune.studies.comparison.results import Results

MARGIN, NAMES = 0.005, ("fedprox", "gfpl", "fedavg", "local", "fedavg-again")
COMPARED, CONTROL, BASELINES = NAMES[:4], ["fedavg", "fedavg-again"], ("local",)


def kept(folder: Path, apart: float) -> Path:
    """A comparison's tables as its runs leave them.  apart: how far an algorithm's searches lie from each other."""
    stream, rows = np.random.default_rng(5), []
    luck = stream.normal(0, 0.01, (3, 2))
    for name, level in zip(NAMES, (0.93, 0.9, 0.9003, 0.8, 0.9), strict=True):
        lift = apart * stream.normal(size=3)
        for k, s, (how, off) in itertools.product(range(3), range(2), (("default", 0.1), ("top 1", 0.0))):
            acc = level + luck[k, s] + (lift[k] if how != "default" else -off)
            more = {"test_acc_worst10": acc - 0.2, "test_acc_all": acc - 0.1, "test_acc_foreign": acc - 0.3}
            figures = {"score": acc + 0.01, "val_acc": acc, "test_acc": acc, "reason": "", "config/lr": 0.1} | more
            rows.append(evaluated(name, how, 10 * k + s, search=k + 1, trial="t", **figures))
    runs = pd.DataFrame(rows)
    compared = runs[runs["algorithm"].isin(COMPARED)]
    runs.to_parquet(folder / "evaluations.parquet")
    tables.table(runs, spent(NAMES), {}).to_csv(folder / "table.csv", index=False)
    tables.pairs(compared, ACCURACY, MARGIN).to_csv(folder / "pairs.csv", index=False)
    tables.against(compared, BASELINES, ACCURACY, MARGIN).to_csv(folder / "against.csv", index=False)
    told = {"algorithms": list(NAMES), "control": CONTROL, "searches": 3, "seeds": 2, "trials": 8}
    budget = {"unit": "rounds", "limit": 6, "since": 1}
    told |= {"budget": budget, "rounds": 6, "margin": MARGIN, "state": "finished", "format": FORMAT}
    write_json(folder / "compare.json", told)
    return folder


def half(values: pd.Series) -> float:
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def said(mean: float, of: float, form: str = ".2f") -> str:
    return f"{100 * mean:{form}} ± {100 * of:.2f}".replace("-", "−")


@pytest.mark.parametrize("apart", [1e-4, 0.1])
def test_every_figure_that_a_comparison_opens_with_is_that_of_its_runs(apart: float, tmp_path: Path) -> None:
    folder = kept(tmp_path, apart)
    part, found = sections.read(folder, "x"), Results.read(folder)
    assert isinstance(part, sections.Comparison)
    runs = pd.read_parquet(folder / "evaluations.parquet")
    kinds = {"tuned": runs[runs["chosen"]], "default": runs[runs["configuration"] == "default"]}
    means = {kind: of.groupby(["algorithm", "search"]).mean(numeric_only=True) for kind, of in kinds.items()}
    by = {kind: of["test_acc"].unstack("search") for kind, of in means.items()}
    tuned = by["tuned"]
    order = [*tuned.loc[list(COMPARED)].mean(axis=1).sort_values(ascending=False).index, "fedavg-again"]

    # the table: of each algorithm its figures, the best first and the control last
    of_all = means["tuned"]["test_acc_all"].unstack("search")
    gain = tuned - by["default"]
    worst = means["tuned"]["test_acc_worst10"].unstack("search")
    rows = [
        [
            name,
            *(said(by[kind].loc[name].mean(), half(by[kind].loc[name])) for kind in ("tuned", "default")),
            said(gain.loc[name].mean(), half(gain.loc[name]), "+.2f"),
            f"{100 * worst.loc[name].mean():.2f}",
            said(of_all.loc[name].mean(), half(of_all.loc[name])),
        ]
        for name in order
    ]
    shown = [[re.sub(r" \([≤≥].*\)", "", cell) for cell in row] for row in part.tables[0].rows]
    assert shown == rows

    # the figure: the same means and intervals, and two lines
    figure = plots.comparison(found.evaluations, found.objective, found.control)
    traces = {t.name: t for t in figure.data}
    assert list(figure.layout.yaxis.ticktext) == order[:-1]
    for kind in ("tuned", "default"):
        assert list(traces[kind].y) == [0, 1, 2, 3]
        assert list(traces[kind].x) == pytest.approx([100 * by[kind].loc[name].mean() for name in order[:-1]])
    reach = [100 * min(half(tuned.loc[n]), 1 - tuned.loc[n].mean()) for n in order[:-1]]
    assert list(traces["tuned"].error_x.array) == pytest.approx(reach)
    for name, line in (("local", "local, tuned"), ("fedavg-again", "fedavg-again, the control")):
        assert list(traces[line].x) == pytest.approx([100 * tuned.loc[name].mean()] * 2)

    # the pairs: what the matrix and the list give, with verdicts of pairs.csv, corrected anew
    pairs = pd.read_csv(folder / "pairs.csv").set_index(["algorithm", "other"])
    differences = {(a, b): (tuned.loc[a] - tuned.loc[b]).mean() for a, b in itertools.permutations(COMPARED, 2)}
    cells, *_ = plots.pairs(found.pairs, found.objective).data
    for (i, a), (j, b) in itertools.permutations(enumerate(cells.y), 2):
        assert cells.text[i][j] == f"{100 * differences[a, b]:+z.1f}".replace("-", "−")
    listed = {row[0]: row[1:] for table in part.folded["Pairs"][:1] for row in table.rows}
    sure = pairs[pairs["verdict"].isin(["larger", "within the margin"])]
    assert bool(len(sure)) == (apart < 0.01) and list(listed) == [f"{a} − {b}" for a, b in sure.index]
    for (a, b), row in sure.iterrows():
        level = stats.t.ppf(0.975, row["freedom"]) / stats.t.isf(row["p"] / 2, row["freedom"])
        assert listed[f"{a} − {b}"][0].startswith(f"{100 * differences[a, b]:+.2f} ± ".replace("-", "−"))
        assert (
            row["half"] == pytest.approx(level * abs(differences[a, b])) and listed[f"{a} − {b}"][3] == row["verdict"]
        )
    ordered = pairs["p"].sort_values()
    holm = (ordered * np.arange(len(ordered), 0, -1)).clip(upper=1).cummax()
    assert pairs["p_holm"].to_dict() == pytest.approx(holm.to_dict())

    # the sentences
    helps = [n for n in order[:-1] if gain.loc[n].mean() > half(gain.loc[n])]
    names = f"{', '.join(order[:3])} and {order[3]}"
    of_gains = f"Tuning helps {names}" if apart < 0.01 else f"Whether tuning helps {names} cannot be told"
    assert helps == (order[:-1] if apart < 0.01 else [])
    of_gains += " (95 % interval of each gain)."
    best = said(tuned.loc[order[0]].mean(), half(tuned.loc[order[0]]))
    lead = re.sub(r" \([≤≥].*?\)", "", part.lead)
    first = f"{order[0]} ranks first on fresh seeds with {best} %"
    if apart > 0.01:
        assert lead == f"No two of 4 can be told apart; {first}. {of_gains}"
    else:
        above, last = order[1:3], order[3]
        clauses = (
            f"{', '.join(above)} and {last} are worse than {order[0]}; {' and '.join(above)} are better than {last}."
        )
        assert lead == f"{first}; {clauses} {of_gains}"


@pytest.mark.parametrize("lent", [False, True])
def test_the_first_figure_speaks_of_pairs_and_borrowed_runs_where_there_are_some(lent: bool, tmp_path: Path) -> None:
    found = Results.read(kept(tmp_path, 0.1))
    runs = found.evaluations.assign(configuration="borrowed") if lent else found.evaluations
    record = {**found.record, "lender": "fedavg"}
    for pairs, told in ((found.pairs, True), (found.pairs[:0], False)):
        of = dataclasses.replace(found, record=record, evaluations=runs, pairs=pairs)
        sentence = figures.of_comparison(of)["first"][0].sentence
        assert ("Borrowed: with fedavg's" in sentence, "“Pairs” below does" in sentence) == (lent, told)
