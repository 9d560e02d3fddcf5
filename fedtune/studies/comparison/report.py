"""The results of a comparison: its tables with published figures, in every format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from fedtune.core import terminal
from fedtune.core.objectives import BY_ACCURACY, Goal
from fedtune.core.terminal import command_line, near, say, several
from fedtune.experiment.scenarios import find
from fedtune.runs import overview
from fedtune.runs.choice import TOP
from fedtune.runs.files import RunFiles, write_whole
from fedtune.runs.provenance import provenance_line
from fedtune.runs.reading import commits_of
from fedtune.studies import published
from fedtune.studies.comparison import budgets, citations, method
from fedtune.studies.comparison import tables as comparison_tables
from fedtune.studies.comparison import text as comparison_text
from fedtune.studies.comparison.plan import ComparisonPlan
from fedtune.studies.ray_tasks import Outcome
from fedtune.tuning.plan import SearchPlan
from fedtune.user_code.user_files import plain_name

PACKAGES = "for a paper; needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}"
PUBLISHED = "published (in brackets: for another data set, not comparable)"


def report(
    c: ComparisonPlan, evaluations: pd.DataFrame, outcomes: Sequence[Outcome], record: dict[str, Any]
) -> dict[str, Any]:
    """Write and show a comparison's tables; returns the results for its record.

    evaluations: a row for every algorithm, configuration and fresh seed.  outcomes: the runs that these stand for.
    """
    runs = {name: [of[name].folder for of in c.searches] for name in c.plans}
    cells = {name: printed(c, name) for name in runs}
    texts = {n: "; ".join(f"({v.text})" if v.stands_in else v.text for v in figures) for n, figures in cells.items()}
    costs, objective = {n: comparison_tables.search_costs(of) for n, of in runs.items()}, c.first.goal.first
    table = comparison_tables.control_last(comparison_tables.table(evaluations, costs, texts, objective), c.control)
    compared = evaluations[evaluations["algorithm"].isin(list(c.compared))]
    pairs = comparison_tables.pairs(compared, objective, c.options.margin)
    against = comparison_tables.against(compared, c.baselines, objective, c.options.margin)
    files = RunFiles(c.folder)
    write_whole(files.table_file, table.to_csv(index=False))
    write_whole(files.pairs_file, pairs.to_csv(index=False))
    write_whole(files.against_file, against.to_csv(index=False))
    by_budget = budgets.table([{n: of[n] for n in c.compared} for of in c.searches])
    write_whole(files.budget_file, by_budget.to_csv(index=False))
    folders = {p.options.name or n: p.folder for of in c.searches for n, p in of.items()}
    unequal = comparison_tables.unequal(folders, c.trials, c.first.budget)
    warnings = [f"warning: budgets were not equal: {u}" for u in unequal]
    notes = list(dict.fromkeys(published.note(v) for figures in cells.values() for v in figures))
    records = {name: RunFiles(of[0]).record for name, of in runs.items()}
    caveats = [
        *comparison_text.unlike(c.unlike, c.options.preset),
        *(f"ranges were widened: {why}" for why in c.widened),
    ]
    twice = comparison_tables.control(evaluations, c.control, objective, c.options.margin)
    caveats += comparison_text.control(twice)
    caveats += comparison_text.caveats(records, c.trials, compared)
    titled = _titled(c, table, pairs, against, twice, by_budget)
    answer = comparison_text.outcome(table, pairs, against)
    leading = comparison_text.by_budget(by_budget, objective, c.options.margin)
    sentences = [line for line in (answer, leading) if line]
    for line in sentences:
        say(f"\n{line}")
    _show(titled, {PUBLISHED: notes, "what to know before you trust this": caveats})
    made = _made(record, folders.values(), outcomes, table["search_seconds"].sum())
    _write(c, titled, sentences, [*warnings, *notes, *caveats], made)
    reported, every = objective.reported(evaluations), [RunFiles(run).record for run in folders.values()]
    tested = method.Tested(
        pairs=pairs,
        against=against,
        control=twice,
        reported=reported,
        unequal=unequal,
        record=record,
        records=every,
        rungs=overview.rungs(folders.values()),
    )
    _write_method(c, method.sentences(c, tested), str((record.get("versions") or {}).get("fedtune", "")))
    for line in warnings:
        say(line)
    say(f"folder: {near(c.folder)}")
    say(f"report: {command_line('report', c.folder)}")
    say(f"for a paper: {near(files.latex_file)}, {files.method_latex_file.name}, {files.references_file.name}")
    return {
        "unequal": unequal,
        "outcome": answer,
        "contrasts": _entries(pairs),
        "control_contrast": _entries(twice),
        "by_budget": {
            "metric": objective.name,
            "leaders": [dict(zip(("from", "to", "algorithm"), of, strict=True)) for of in budgets.leaders(by_budget)],
            "order_stays_from": budgets.settled(by_budget, objective),
            "beyond_the_margin_from": budgets.settled(by_budget, objective, c.options.margin),
        },
    }


def _entries(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows for a record, which has None for what is no number."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def printed(c: ComparisonPlan, name: str) -> list[published.Cell]:
    """Published figures of an algorithm in this scenario; none if a field was changed, unless it only adds rows."""
    record = c.scenario_record
    if not record:
        return []
    named = find(record["scenario_name"])
    same = record["scenario"] | {"all_classes": named.all_classes} == vars(named)
    return published.of(record["scenario_name"], name) if same else []


def _made(record: dict[str, Any], searches: Iterable[Path], fresh: Sequence[Outcome], searched: float) -> str:
    """Which command made it, with what code, and how long that took."""
    of_searches = [RunFiles(run).record for run in searches]
    origin = provenance_line(record, [*(c for r in of_searches for c in commits_of(r)), *(o.commit for o in fresh)])
    spent = sum(o.seconds for o in fresh)
    return f"{origin}, {searched:.0f} s of searches and {spent:.0f} s of runs on fresh seeds, all processes together"


def _metric(table: pd.DataFrame) -> str:
    return str(table["metric"].iloc[0]) if "metric" in table and len(table) else "test accuracy"


def compared(table: pd.DataFrame, goal: Goal) -> str:
    """What a comparison's first table shows: test accuracy only where programs report it."""
    return f"{_metric(table)} on" if goal == BY_ACCURACY else f"{_metric(table)}, searched for {goal.in_words}, on"


def _titled(
    c: ComparisonPlan,
    table: pd.DataFrame,
    pairs: pd.DataFrame,
    against: pd.DataFrame,
    twice: pd.DataFrame,
    by_budget: pd.DataFrame,
) -> list[tuple[str, pd.DataFrame]]:
    """The tables as text, each under its title; without those that are empty."""
    goal = c.first.goal
    unit = "in %, " if comparison_text.in_percent(table) else ""
    searches = len(c.searches)
    over = f"{c.options.seeds} fresh seeds" + ", each with its own partition" * bool(c.scenario_record)
    on = c.scenario_words
    over = over if searches == 1 else f"{searches} searches, of each the mean over {over}"
    paired = comparison_text.paired(pairs, searches, c.options.margin)
    few = f"; those with {pairs['algorithm'].iloc[0]} of {len(pairs)}" if len(pairs) > comparison_text.MANY else ""
    titled = [
        (f"{compared(table, goal)} {on} {unit}mean ± 95 % interval over {over}", comparison_text.shown(table)),
        (
            f"tuned, {paired}{few}: ± of each pair by itself, p corrected by Holm for all pairs",
            comparison_text.shown_pairs(pairs),
        ),
        (
            f"against {' and '.join(c.baselines)}, tuned: p corrected by Holm for these {len(against)}",
            comparison_text.shown_pairs(against, every=True),
        ),
        (comparison_text.OF_CONTROL, comparison_text.of_control(twice)),
        (comparison_text.of_budget(by_budget), comparison_text.against_budget(by_budget)),
        (
            f"cost; each search had {several(c.trials, 'trial')} of at most {_budget(c.first)} each{_choice(c.first)}",
            comparison_text.costs(table),
        ),
        ("what the searches found", comparison_text.searched(table)),
    ]
    return [(title, text) for title, text in titled if not text.empty]


def _budget(p: SearchPlan) -> str:
    """A trial's largest budget."""
    unit = {"mb": "MB", "seconds": "s"}.get(p.budget.unit, "rounds")
    return f"{p.budget.limit:g} {unit}"


def _choice(p: SearchPlan) -> str:
    """How many seeds each search's choice cost."""
    more = several(len(p.choosing), f"more {p.run_word}")
    return f", and trained the best {TOP} on {more}" if p.choosing else ""


def _show(titled: list[tuple[str, pd.DataFrame]], notes: dict[str, list[str]]) -> None:
    """Print the tables, and the notes below them under their headings."""
    for title, text in titled:
        shown = Table(title=title, title_justify="left")
        for i, column in enumerate(text):
            is_text = i == 0 or "hyper" in column
            shown.add_column(column, justify="left" if is_text else "right", no_wrap=i == 0)
        for row in text.itertuples(index=False):
            shown.add_row(*row)
        terminal.console().print(shown)
    for heading, lines in notes.items():
        if lines:
            say(heading)
            say("\n".join(f"- {line}" for line in lines))


def _write(
    c: ComparisonPlan, titled: list[tuple[str, pd.DataFrame]], sentences: list[str], lines: list[str], made: str
) -> None:
    """table.md and table.tex.  sentences: the result.  lines: warnings and notes below the tables."""
    title = f"# {comparison_text.who(list(c.compared))} on {c.scenario_words}"
    heading = "\n\n".join([title, f"{made}.", *map(comparison_text.in_markdown, sentences)]) + "\n"
    parts = [f"**{title}**\n\n{comparison_text.markdown(text)}" for title, text in titled]
    text = "\n".join([heading, *parts, *(f"- {line}\n" for line in lines)])
    write_whole(RunFiles(c.folder).markdown_file, text)
    label = f"tab:{plain_name(c.folder.name)}"
    latex = [comparison_text.latex_float(title, text, f"{label}-{i}") for i, (title, text) in enumerate(titled, 1)]
    notes = [f"% {' '.join(line.split())}\n" for line in (PACKAGES, *sentences, *lines, made)]
    write_whole(RunFiles(c.folder).latex_file, "\n".join([notes[0], *latex, *notes[1:]]))


def _write_method(c: ComparisonPlan, sentences: Sequence[str], version: str) -> None:
    """method.md, method.tex and references.bib.  sentences: the method.  version: of fedtune."""
    files = RunFiles(c.folder)
    write_whole(files.method_file, citations.markdown(sentences))
    write_whole(files.method_latex_file, citations.latex(sentences))
    write_whole(files.references_file, citations.bibtex(sentences, version))
