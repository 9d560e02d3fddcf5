"""The results of a comparison: its tables with published figures, in every format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedtune.core.terminal import command_line, near, say, say_table
from fedtune.experiment.scenarios import find
from fedtune.runs import overview
from fedtune.runs.files import RunFiles, write_whole
from fedtune.runs.provenance import provenance_line
from fedtune.runs.reading import commits_of
from fedtune.studies import published
from fedtune.studies.comparison import budgets, citations, method
from fedtune.studies.comparison import tables as comparison_tables
from fedtune.studies.comparison import text as comparison_text
from fedtune.studies.comparison.plan import ComparisonPlan
from fedtune.studies.comparison.results import Results
from fedtune.studies.ray_tasks import Outcome
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
    compared = evaluations[evaluations["algorithm"].isin(list(c.compared))]
    table = comparison_tables.table(evaluations, costs, texts, objective)
    found = Results(
        record=record,
        evaluations=evaluations,
        table=comparison_tables.control_last(table, c.control),
        pairs=comparison_tables.pairs(compared, objective, c.options.margin),
        against=comparison_tables.against(compared, c.baselines, objective, c.options.margin),
        twice=comparison_tables.control(evaluations, c.control, objective, c.options.margin),
        by_budget=budgets.table([{n: of[n] for n in c.compared} for of in c.searches]),
    )
    files, by_budget = RunFiles(c.folder), found.by_budget
    for file, frame in (
        (files.table_file, found.table),
        (files.pairs_file, found.pairs),
        (files.against_file, found.against),
        (files.budget_file, by_budget),
    ):
        write_whole(file, frame.to_csv(index=False))
    folders = {p.options.name or n: p.folder for of in c.searches for n, p in of.items()}
    unequal = comparison_tables.unequal(folders, c.trials, c.first.budget)
    warnings = [f"warning: budgets were not equal: {u}" for u in unequal]
    notes = list(dict.fromkeys(published.note(v) for figures in cells.values() for v in figures))
    caveats = found.caveats({name: RunFiles(of[0]).record for name, of in runs.items()})
    for line in found.sentences:
        say(f"\n{line}")
    _show(found.titled(), {PUBLISHED: notes, "what to know before you trust this": caveats})
    made = _made(record, folders.values(), outcomes, table["search_seconds"].sum())
    _write(files, found, [*warnings, *notes, *caveats], made)
    ran = method.Ran(
        unequal=unequal,
        records=[RunFiles(run).record for run in folders.values()],
        rungs=overview.rungs(folders.values()),
    )
    sentences, version = method.sentences(c, found, ran), str((record.get("versions") or {}).get("fedtune", ""))
    write_whole(files.method_file, citations.markdown(sentences))
    write_whole(files.method_latex_file, citations.latex(sentences))
    write_whole(files.references_file, citations.bibtex(sentences, version))
    for line in warnings:
        say(line)
    say(f"folder: {near(c.folder)}")
    say(f"report: {command_line('report', c.folder)}")
    say(f"for a paper: {near(files.latex_file)}, {files.method_latex_file.name}, {files.references_file.name}")
    return {
        "unequal": unequal,
        "outcome": comparison_text.outcome(found.table, found.pairs, found.against),
        "contrasts": _entries(found.pairs),
        "control_contrast": _entries(found.twice),
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


def _show(titled: list[tuple[str, pd.DataFrame]], notes: dict[str, list[str]]) -> None:
    """Print the tables, and the notes below them under their headings."""
    for title, text in titled:
        say_table(title, text, text.values.tolist(), left=("tuned hyperparameters",))
    for heading, lines in notes.items():
        if lines:
            say(heading)
            say("\n".join(f"- {line}" for line in lines))


def _write(files: RunFiles, found: Results, lines: list[str], made: str) -> None:
    """table.md and table.tex.  lines: warnings and notes below the tables."""
    titled, sentences = found.titled(), found.sentences
    heading = "\n\n".join([f"# {found.title}", f"{made}.", *map(comparison_text.in_markdown, sentences)]) + "\n"
    parts = [f"**{title}**\n\n{comparison_text.markdown(text)}" for title, text in titled]
    write_whole(files.markdown_file, "\n".join([heading, *parts, *(f"- {line}\n" for line in lines)]))
    label = f"tab:{plain_name(files.name)}"
    latex = [comparison_text.latex(title, text, f"{label}-{i}") for i, (title, text) in enumerate(titled, 1)]
    notes = [f"% {' '.join(line.split())}\n" for line in (PACKAGES, *sentences, *lines, made)]
    write_whole(files.latex_file, "\n".join([notes[0], *latex, *notes[1:]]))
