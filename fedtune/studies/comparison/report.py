"""The results of a comparison: its tables with published figures, in every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedtune.core.terminal import command_line, near, say, say_table, several
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
from fedtune.studies.comparison.results import SEARCHED, Results, searched_in
from fedtune.studies.ray_tasks import Outcome
from fedtune.user_code.user_files import plain_name

PACKAGES = "for a paper; needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}"


def report(
    c: ComparisonPlan, evaluations: pd.DataFrame, outcomes: Sequence[Outcome], record: dict[str, Any]
) -> dict[str, Any]:
    """Write and show a comparison's tables; returns the results for its record.

    evaluations: a row for every algorithm, configuration and fresh seed.  outcomes: the runs that these stand for.
    """
    runs = {name: [of[name].folder for of in c.searches] for name in c.plans}
    cells = {name: printed(c, name) for name in runs}
    found, files = _results(c, evaluations, cells, record), RunFiles(c.folder)
    for file, frame in (
        (files.table_file, found.table),
        (files.pairs_file, found.pairs),
        (files.against_file, found.against),
        (files.budget_file, found.by_budget),
    ):
        write_whole(file, frame.to_csv(index=False))
    folders = {p.options.name or n: p.folder for of in c.searches for n, p in of.items()}
    records = [RunFiles(folder).record for folder in folders.values()]
    unequal = comparison_tables.unequal(folders, c.trials, c.first.budget)
    warnings = [f"warning: budgets were not equal: {'; '.join(unequal)}"] if unequal else []
    notes = list(dict.fromkeys(published.note(v) for figures in cells.values() for v in figures))
    caveats = found.caveats({name: RunFiles(of[0]).record for name, of in runs.items()})
    origin = provenance_line(record, [*(n for r in records for n in commits_of(r)), *(o.commit for o in outcomes)])
    searched, spent = found.table["search_seconds"].sum(), sum(o.seconds for o in outcomes)
    took = f"{searched:.0f} s of searches and {spent:.0f} s of runs on fresh seeds, all processes together"
    _write(files, found, [*warnings, *notes, *caveats], f"{origin}, {took}")
    ran = method.Ran(unequal=unequal, records=records, rungs=overview.rungs(folders.values()))
    sentences = method.sentences(c, found, ran)
    write_whole(files.method_file, citations.markdown(sentences))
    write_whole(files.method_latex_file, citations.latex(sentences))
    version = record.get("versions", {}).get("fedtune", "")
    write_whole(files.references_file, citations.bibtex(sentences, version))
    _show(found, files, [*warnings, *caveats])
    return {
        "unequal": unequal,
        "outcome": found.outcome,
        "contrasts": _entries(found.pairs),
        "control_contrast": _entries(found.twice),
    }


def _show(found: Results, files: RunFiles, known: Sequence[str]) -> None:
    """Print the sentence, the table and few lines.  known: what to know before one trusts the comparison."""
    if found.outcome:
        say(f"\n{found.outcome}")
    for title, table, _ in found.titled[:1]:
        say_table(title, table, table.values.tolist(), optional=list(table)[3:])
    for line in known[: comparison_text.SHOWN]:
        say(line)
    if (more := len(known) - comparison_text.SHOWN) > 0:
        say(f"{several(more, 'more line')} of this kind in {near(files.markdown_file)} and the report")
    say(f"folder: {near(files.path)}")
    say(f"report: {command_line('report', files.path)}")
    say(f"for a paper: {near(files.latex_file)}, {files.method_latex_file.name}, {files.references_file.name}")


def _results(
    c: ComparisonPlan, evaluations: pd.DataFrame, cells: Mapping[str, list[published.Cell]], record: dict[str, Any]
) -> Results:
    texts = {n: "; ".join(f"({v.text})" if v.stands_in else v.text for v in figures) for n, figures in cells.items()}
    costs = {name: comparison_tables.search_costs([of[name].folder for of in c.searches]) for name in c.plans}
    objective, margin = c.first.goal.first, c.options.margin
    compared = evaluations[evaluations["algorithm"].isin(list(c.compared))]
    table = comparison_tables.table(evaluations, costs, texts, objective, c.lender)
    return Results(
        record=record | {SEARCHED: searched_in(c.folder)},
        evaluations=evaluations,
        table=comparison_tables.control_last(table, c.control),
        pairs=comparison_tables.pairs(compared, objective, margin),
        against=comparison_tables.against(compared, c.baselines, objective, margin),
        twice=comparison_tables.control(evaluations, c.control, objective, margin),
        by_budget=budgets.table([{n: of[n] for n in c.compared} for of in c.searches]),
    )


def _entries(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def printed(c: ComparisonPlan, name: str) -> list[published.Cell]:
    """Published figures of an algorithm in this scenario; none if a field was changed, unless it only adds rows."""
    record = c.scenario_record
    if not record:
        return []
    named = find(record["scenario_name"])
    same = record["scenario"] | {"all_classes": named.all_classes} == vars(named)
    return published.of(record["scenario_name"], name) if same else []


def _write(files: RunFiles, found: Results, lines: list[str], made: str) -> None:
    titled, sentences = [of[:2] for of in found.titled], [*filter(None, [found.outcome])]
    heading = "\n\n".join([f"# {found.title}", f"{made}.", *map(comparison_text.in_markdown, sentences)]) + "\n"
    parts = [f"**{title}**\n\n{comparison_text.markdown(text)}" for title, text in titled]
    write_whole(files.markdown_file, "\n".join([heading, *parts, *(f"- {line}\n" for line in lines)]))
    label = f"tab:{plain_name(files.name)}"
    latex = [comparison_text.latex(title, text, f"{label}-{i}") for i, (title, text) in enumerate(titled, 1)]
    notes = [f"% {' '.join(line.split())}\n" for line in (PACKAGES, *sentences, *lines, made)]
    write_whole(files.latex_file, "\n".join([notes[0], *latex, *notes[1:]]))
