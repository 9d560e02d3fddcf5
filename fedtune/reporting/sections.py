"""The parts of a report: a search or a comparison, with its figures, tables and provenance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from fedtune.analysis import frames, plots
from fedtune.core.objectives import ACCURACY
from fedtune.core.statistics import figure, number, unit_of
from fedtune.core.terminal import several, short
from fedtune.reporting import advice, findings, provenance, sampling
from fedtune.reporting import figures as report_figures
from fedtune.reporting.advice import Advice
from fedtune.reporting.figures import Shown
from fedtune.reporting.findings import Findings
from fedtune.reporting.provenance import Provenance
from fedtune.reporting.templates import TextTable, code, link
from fedtune.runs import pareto, reading
from fedtune.runs.choice import OWN
from fedtune.runs.files import BROKEN_OFF, COMPARISON, OVER, RunFiles, levels_of, search_name, search_of, searches_of
from fedtune.runs.tables import DEFAULT, SEARCH
from fedtune.studies.comparison import text as comparison_text
from fedtune.studies.comparison.level_results import LevelResults
from fedtune.studies.comparison.results import OF_PAIRS, OF_TUNED, Results
from fedtune.user_code import user_files


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page: a search's or a comparison's."""

    anchor: str
    name: str  # of the study's folder
    title: str  # the algorithms and their scenario, in words
    state: str  # finished, running, interrupted, …
    lead: str  # the result in a sentence, and how sure it is
    tables: list[TextTable]
    figures: dict[str, list[Shown]]  # by what they tell, or the heading that they stand under
    provenance: Provenance
    advice: list[Advice]
    is_comparison: ClassVar[bool]


@dataclass(frozen=True, kw_only=True)
class SearchSection(Section):
    """A search's part of the page."""

    findings: Findings
    trials: TextTable
    front: TextTable | None  # some of its points, with several objectives
    choice: TextTable | None  # trials that were trained on more seeds before one was named
    is_comparison = False


@dataclass(frozen=True, kw_only=True)
class Comparison(Section):
    """A comparison's part of the page."""

    done: str  # what was done
    command: str
    warnings: list[str]  # what concerns the whole first
    folded: dict[str, list[TextTable]] = field(default_factory=dict)  # the other tables, by the heading above them
    best: tuple[str, str] = ("", "")  # the algorithm of highest tuned accuracy with it, and its default's
    searches: Sequence[SearchSection] = ()
    method: str = ""  # in Markdown, for a paper
    few: ClassVar[int] = comparison_text.SHOWN  # warnings that are not folded
    is_comparison = True


def read(
    run: Path, anchor: str, with_searches: bool = True, logs: Mapping[str, str] | None = None
) -> SearchSection | Comparison:
    """The part of a study's folder; UserError if it is none.  anchor: the name that links lead to.

    with_searches: whether a comparison's part has those of its searches.
    logs: where a search's trials have pages of their own, or a budget study's levels.
    """
    if levels_of(run):
        return _levels(run, anchor, logs or {})
    if RunFiles(run).is_comparison:
        return _comparison(run, anchor, with_searches)
    around = run.absolute().parent  # a comparison's searches lie in its folder, and their check there
    inner = RunFiles(around).is_comparison
    checked = _check(Results.read(around).evaluations, *search_of(run.absolute())) if inner else None
    return _search(findings.read(run, checked), anchor, logs)


def _search(f: Findings, anchor: str, logs: Mapping[str, str] | None = None) -> SearchSection:
    study = plots.study(f.run)
    importance = plots.mattered(study)
    checked = [f.check.table(), f.check.spread()] if f.check and f.best is not None else []
    return SearchSection(
        anchor=anchor,
        name=f.name,
        title=f.title,
        state=f.state,
        lead=lead(f),
        tables=[TextTable(*t, words=t[1][:1]) for t in checked],
        findings=f,
        figures=report_figures.of_search(f, study, importance),
        trials=_trials(f, logs),
        front=_front(f),
        choice=_choice(f),
        provenance=provenance.of(f.record, f),
        advice=advice.of_search(f, importance),
    )


def lead(f: Findings) -> str:
    """What tuning gained, and how sure that is, in a sentence."""
    if f.best is None:
        return f"Nothing was found{' yet' if f.state not in OVER else ''}: {f.nothing}."
    if f.check:
        means = [figure(f.check.column, f.check.of(n).mean(skipna=False)) for n in f.check.names]
        both = f" It has {means[0]}, the default {means[1]}." if len(means) > 1 and "–" not in means else ""
        return f"{f.check.verdict()}.{both}"
    after = f"{f.scored} after {several(f.best['rounds'], 'round')}"
    trials = several(len(f.trials), "trial") + " so far" * (f.state not in OVER)
    return f"The best of {trials} has {after}, which has not been checked on fresh seeds."


def _front(f: Findings) -> TextTable | None:
    if not (file := RunFiles(f.run).front_file).exists():
        return None
    points = reading.table(file, ("trial", "round", *(o.name for o in f.goal.objectives)))
    columns, rows = pareto.front_table(points, f.searched)
    return TextTable(f"{len(rows)} of {several(len(points), 'point')} of the front", columns, rows, columns[:1])


def _choice(f: Findings) -> TextTable | None:
    if not (rows := f.record.get("choice")):
        return None
    each = [n for n in rows[0] if n not in ("trial", "reason", OWN, *f.goal.names)]
    out = any(r["reason"] for r in rows)
    names = ["trial", "in the search", *each, "mean over all", *["why it cannot be chosen"] * out]
    scale, form, unit = unit_of(f.goal.first.name)
    figures = scale * pd.DataFrame(rows)[[OWN, *each, f.goal.first.name]].astype(float)
    text = [[r["trial"], *(number(v, form) for v in figures.loc[i]), *[r["reason"]] * out] for i, r in enumerate(rows)]
    caption = f"The best finished trials on more seeds: {f.in_words}{unit and ' in %'}, last round"
    return TextTable(caption, names, text, (names[0], *names[-1:] * out), _marked(f, [r["trial"] for r in rows]))


def _marked(f: Findings, trials: Sequence[str]) -> int | None:
    return trials.index(f.best["trial"]) if f.best is not None and f.best["trial"] in trials else None


def _trials(f: Findings, logs: Mapping[str, str] | None = None) -> TextTable:
    """The table of trials: the best first, without columns of metrics that none has, nor links where there are none."""
    first, some = f.goal.first, sampling.listed(f)
    tested = f.trials["test_round"].dropna()
    objective = [(first.name, first.column, 4)] * (first != ACCURACY)
    objective += [(first.tested, f"last_{first.tested}", 4)] * (first != ACCURACY and first.tested != "test_acc")
    columns = [
        ("trial", "trial", None),
        ("status", "status", None),
        ("rounds", "rounds", None),
        *objective,
        ("val_acc", "last_val_acc", 4),
        ("test_acc", "last_test_acc", 4),
        *[("tested in round", "test_round", None)] * bool((tested != f.trials["rounds"][tested.index]).any()),
        ("best val_acc", "best_val_acc", 4),
        ("in round", "best_round", None),
        ("MB", "comm_mb", 2),
        ("s", "seconds", 1),
        *((n, frames.CONFIG + n, None) for n in f.searched),
        *[("reason", "reason", None)] * bool((f.trials["reason"] != "").any()),
    ]
    optional = {"last_val_acc", "last_test_acc", "best_val_acc", "comm_mb"} - {first.column}
    lacking = {c for c in optional if len(some) and some[c].isna().all()}
    columns = [column for column in columns if column[1] in some and column[1] not in lacking]
    scales = [unit_of(source.removeprefix("last_").removeprefix("best_")) for _, source, _ in columns]
    cells = [
        [_cell(scale * v if unit else v, 2 if unit else digits) for v in some[source]]
        for (_, source, digits), (scale, _, unit) in zip(columns, scales, strict=True)
    ]
    columns = [(f"{c[0]}{unit}", c[1], c[2]) for c, (*_, unit) in zip(columns, scales, strict=True)]
    best = _marked(f, cells[0])
    cells = [[*map(code, of)] if source == "reason" else of for of, (_, source, _) in zip(cells, columns, strict=True)]
    cells[0] = [link(trial, (logs or {}).get(trial)) for trial in cells[0]]
    words = [name for name, source, _ in columns if some[source].infer_objects().dtype.kind not in "iuf"]
    by = {columns[3][0]: "ascending" if first.sign < 0 else "descending"}
    rows = list(zip(*cells, strict=True))
    return TextTable(f"Trials of {f.name}", [name for name, *_ in columns], rows, words, best, by)


def _cell(value: Any, digits: int | None) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or is_number and not math.isfinite(value):
        return ""
    # with a plain minus, as the page sorts by it
    return short(value) if digits is None or not is_number else number(value, f".{digits}f").replace("−", "-")


def overview(parts: Sequence[SearchSection | Comparison]) -> TextTable | None:
    """The table that opens a page on several runs; None for one."""
    columns = ["run", "what", "state", "trials", "in the search", "best, fresh seeds", "default, fresh seeds"]
    rows = [[link(p.name, f"#{p.anchor}"), p.title, p.state, *_glance(p)] for p in parts]
    return TextTable("All runs", columns, rows, columns[:3]) if len(parts) > 1 else None


def _glance(part: SearchSection | Comparison) -> list[str]:
    if isinstance(part, Comparison):
        return ["", "", *part.best]
    f = part.findings
    best = "" if f.best is None else f.scored
    return [
        str(len(f.trials)),
        best,
        *(f.check.text(n) if f.check and n in f.check.names else "" for n in CHECKED.values()),
    ]


CHECKED = {"top 1": "best", DEFAULT: "default"}  # the runs of a comparison that are a search's own final check


def _comparison(run: Path, anchor: str, with_searches: bool) -> Comparison:
    found, files = Results.read(run), RunFiles(run, COMPARISON)
    record = dict(found.record)
    state, algorithms = files.state_in(record), [str(a) for a in record["algorithms"]]
    over, of_searches = state == "finished", {}
    for search in ((a, k) for a in algorithms for k in range(found.searches)):
        name, number_of = search
        if begun := searches_of(run, search_name(user_files.plain_name(name), number_of)):
            of_searches[search] = findings.read(begun[-1], _check(found.evaluations, *search))
    warnings = [*findings.of_state(run, state, record), *map(str, record.get("unequal") or [])]
    records = {name: f.record for (name, k), f in of_searches.items() if k == 0}
    if records and len(found.evaluations):
        warnings += [findings.sentence(line, algorithms) for line in found.caveats(records)]
    if lacking := [a for a in algorithms if a not in {a for a, _ in of_searches}]:
        warnings.append(f"The folder has no search for {', '.join(lacking)}.")
    own = [f for (a, _), f in of_searches.items() if a not in found.control[1:]]
    what = done(record, over, len(found.evaluations) > 0)
    folded: dict[str, list[TextTable]] = {"": [], OF_PAIRS: [], OF_TUNED: []}
    for t, frame, under in found.titled:
        shown = TextTable(t[:1].upper() + t[1:], [*map(str, frame)], frame.values.tolist(), comparison_text.WORDS)
        folded[under].append(shown)
    return Comparison(
        anchor=anchor,
        name=run.absolute().name,
        title=found.title,
        state=state,
        lead=found.outcome * over or what,
        done=what * bool(found.outcome * over),
        command="" if state in BROKEN_OFF else provenance.command_again(record),
        warnings=warnings,
        tables=folded.pop(""),
        folded=folded,
        best=found.best,
        figures=report_figures.of_comparison(found),
        searches=[_search(f, f"{anchor}-{i}") for i, f in enumerate(of_searches.values(), 1)] if with_searches else [],
        provenance=provenance.of(record),
        advice=advice.of_comparison(record, found.pairs, own) if over else advice.to_resume(run, state, record),
        method=reading.text(files.method_file) if over else "",
    )


def _levels(run: Path, anchor: str, links: Mapping[str, str]) -> Comparison:
    """A budget study's part: what its comparisons say together, and where each of them has a page."""
    found, each = LevelResults.read(run), levels_of(run)
    record, columns = dict(found.record), ("level", "state", "outcome")
    state = RunFiles(run).state_in(record)
    rows = [[link(f.name, links.get(f.name)), f.state_in(f.record), f.record.get("outcome", "")] for f in each]
    shown = [TextTable(t[:1].upper() + t[1:], [*of], of.values.tolist(), [*of]) for t, of, _ in found.titled]
    return Comparison(
        anchor=anchor,
        name=run.absolute().name,
        title=found.title,
        state=state,
        lead=found.outcome or "No level is done yet.",
        done=f"{len(found.levels)} of {several(len(each), 'level')} are done." * (state not in OVER),
        command="" if state in BROKEN_OFF else provenance.command_again(record),
        warnings=[*findings.of_state(run, state, record), *found.notes],
        tables=[*shown, TextTable("Each level by itself, with its own correction", columns, rows, columns)],
        figures=report_figures.of_levels(found),
        provenance=provenance.of(record),
        advice=advice.to_resume(run, state, record),
    )


def _check(evaluations: pd.DataFrame, algorithm: str, number: int) -> list[dict[str, Any]]:
    """The rows of a comparison that are what a search's own final check would be: of its best trial, and the default.

    The comparison may have chosen another of the search's best ones since; its own tables say.
    """
    if evaluations.empty:
        return []
    rows = evaluations[(evaluations["algorithm"] == algorithm) & evaluations["configuration"].isin([*CHECKED])]
    rows = rows[rows[SEARCH] == number + 1] if SEARCH in rows else rows
    return rows.assign(configuration=rows["configuration"].map(CHECKED)).to_dict("records")


def done(record: dict[str, Any], over: bool, evaluated: bool) -> str:
    """What was done; for a comparison that is not over, what will be done.

    evaluated: whether there are runs on fresh seeds.
    """
    trials, names = record.get("trials"), several(len(reading.compared_in(record)), "algorithm")
    again = "trained again on fresh seeds together with the defaults"
    if not over:
        earlier, missing = "the figures on fresh seeds below are from an earlier run", "this has not been done yet"
        return f"{names} will be tuned, and {again}; {earlier if evaluated else missing}."
    searches = record.get("searches", 1)
    each = "each tuned" + (f" by {searches} searches" if searches > 1 else "")
    equal = "with the same budget" + (f" of {several(trials, 'trial')}" if trials else "")
    budget = f"{each}, but with unequal budgets" if record.get("unequal") else f"{each} {equal}"
    on_test = (record.get("options") or {}).get("selects_on_test")
    return f"{names}, {budget}{'' if on_test else ', selected on validation rows'}, and {again}."
