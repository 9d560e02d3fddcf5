"""The parts of a report: a search or a comparison, with its figures, tables and provenance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from fedtune.analysis import frames, plots
from fedtune.core.objectives import ACCURACY
from fedtune.core.statistics import number
from fedtune.core.terminal import several, short
from fedtune.reporting import advice, findings, provenance, sampling, words
from fedtune.reporting import figures as report_figures
from fedtune.reporting.advice import Advice
from fedtune.reporting.figures import Shown
from fedtune.reporting.findings import Findings
from fedtune.reporting.provenance import Provenance
from fedtune.reporting.templates import TextTable, link
from fedtune.runs import reading
from fedtune.runs.choice import OWN
from fedtune.runs.files import COMPARISON, RunFiles, search_name, search_of, searches_of
from fedtune.runs.tables import DEFAULT, SEARCH
from fedtune.studies.comparison import text as comparison_text
from fedtune.studies.comparison.results import Results
from fedtune.user_code import user_files

METRICS_SHOWN = ("last_val_acc", "last_test_acc", "best_val_acc", "comm_mb")  # in the table of trials, if there are any


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page: a search's or a comparison's."""

    anchor: str
    name: str  # of the study's folder
    title: str  # the algorithms and their scenario, in words
    state: str  # finished, running, interrupted, …
    figures: list[Shown]
    provenance: Provenance
    advice: list[Advice]
    is_comparison: ClassVar[bool]


@dataclass(frozen=True, kw_only=True)
class SearchSection(Section):
    """A search's part of the page."""

    findings: Findings
    trials: TextTable
    mattered: str  # the most important hyperparameter, and how sure that is; "" if it cannot be told
    is_comparison = False

    @property
    def lead(self) -> str:
        """What tuning gained, what mattered, and how sure both are, in a sentence."""
        f = self.findings
        if f.best is None:
            return f"Nothing was found: {f.nothing}."
        more = f", {self.mattered}" if self.mattered else ""
        if f.check:
            return f"{f.check.verdict()}{more}."
        best = f"{f.in_words} {f.score:.4f} after {several(f.best['rounds'], 'round')}"
        return f"Best so far in the search: {best}{more}. It has not been checked on other seeds."

    @property
    def tables(self) -> list[TextTable]:
        """The best configuration, and its check on fresh seeds."""
        f = self.findings
        if f.best is None:
            return []
        checked = [f.check.table(), f.check.spread()] if f.check else []
        return [f.answer(), *(TextTable(*table, words=table[1][:1]) for table in checked)]

    @property
    def choice(self) -> TextTable | None:
        """The trials that were trained on more seeds before one was named; None without any."""
        goal, rows = self.findings.goal, self.findings.record.get("choice") or []
        if not rows:
            return None
        each = [n for n in rows[0] if n not in ("trial", "reason", OWN, *goal.names)]
        figures = [OWN, *each, goal.first.name]
        names = ["trial", "in the search", *each, "mean over all", "why it was not chosen"]
        text = [[str(r["trial"]), *(number(r[n], ".4f") for n in figures), str(r["reason"])] for r in rows]
        caption = f"The best finished trials on more seeds: {self.findings.in_words}, last round"
        return TextTable(caption, names, text, (names[0], names[-1]))


@dataclass(frozen=True, kw_only=True)
class Comparison(Section):
    """A comparison's part of the page."""

    lead: str
    command: str
    warnings: list[str]
    tables: list[TextTable]
    best: tuple[str, str]  # the algorithm of highest tuned accuracy with it, and its default's; "" before there is one
    searches: list[SearchSection]
    method: str = ""  # in Markdown, for a paper
    is_comparison = True


def read(
    run: Path, anchor: str, with_searches: bool = True, logs: Mapping[str, str] | None = None
) -> SearchSection | Comparison:
    """The part of a study's folder; UserError if it is none.  anchor: the name that links lead to.

    with_searches: whether a comparison's part has those of its searches.
    logs: where a search's trials have pages of their own.
    """
    if RunFiles(run).is_comparison:
        return _comparison(run, anchor, with_searches)
    around = run.absolute().parent  # a comparison's searches lie in its folder, and their check there
    inner = RunFiles(around).is_comparison
    checked = _check(Results.read(around).evaluations, *search_of(run.absolute())) if inner else None
    return _search(findings.read(run, checked), anchor, logs)


def _search(f: Findings, anchor: str, logs: Mapping[str, str] | None = None) -> SearchSection:
    study = plots.study(f.run)
    importance = plots.mattered(study)
    return SearchSection(
        anchor=anchor,
        name=f.name,
        title=f.title,
        state=f.state,
        findings=f,
        figures=report_figures.of_search(f, study, importance),
        trials=_trials(f, logs),
        provenance=provenance.of(f.record, f),
        mattered=words.mattered(importance),
        advice=advice.of_search(f, importance),
    )


def _trials(f: Findings, logs: Mapping[str, str] | None = None) -> TextTable:
    first = f.goal.first
    of_test = [(first.tested, f"last_{first.tested}", 4)] * (f"last_{first.tested}" in f.trials)
    objective = [] if first == ACCURACY else [(first.name, first.column, 4), *of_test * (first.tested != "test_acc")]
    named = [
        ("trial", "trial", None),
        ("status", "status", None),
        ("rounds", "rounds", None),
        *objective,
        ("val_acc", "last_val_acc", 4),
        ("test_acc", "last_test_acc", 4),
        ("best val_acc", "best_val_acc", 4),
        ("in round", "best_round", None),
        ("MB", "comm_mb", 2),
        ("s", "seconds", 1),
        *((n, frames.CONFIG + n, None) for n in f.searched if frames.CONFIG + n in f.trials),
    ]
    if (f.trials["test_round"].dropna() != f.trials["rounds"][f.trials["test_round"].notna()]).any():
        at = next(i for i, (name, *_) in enumerate(named) if name == "test_acc")
        named.insert(at + 1, ("tested in round", "test_round", None))
    if (f.trials["reason"] != "").any():
        named.append(("reason", "reason", None))
    some = sampling.listed(f)
    none = {name for name in METRICS_SHOWN if len(some) and some[name].isna().all()} - {first.column}
    named = [column for column in named if column[1] not in none]
    cells = [[_cell(v, digits) for v in some[source]] for _, source, digits in named]
    best = cells[0].index(f.best["trial"]) if f.best is not None and f.best["trial"] in cells[0] else None
    cells[0] = [link(trial, (logs or {}).get(trial)) for trial in cells[0]]
    words = [name for name, source, _ in named if some[source].infer_objects().dtype.kind not in "iuf"]
    names, rows = [name for name, *_ in named], list(zip(*cells, strict=True))
    by = {named[3][0]: "ascending" if first.sign < 0 else "descending"}
    return TextTable(f"Trials of {f.name}", names, rows, words, best, by)


def _cell(value: Any, digits: int | None) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or number and not math.isfinite(value):
        return ""
    return short(value) if digits is None or not number else f"{value:.{digits}f}"


def overview(parts: Sequence[SearchSection | Comparison]) -> TextTable | None:
    """The table that opens a page on several runs; None for one."""
    columns = ["run", "what", "state", "trials", "in the search", "best, fresh seeds", "default, fresh seeds"]
    rows = [[link(p.name, f"#{p.anchor}"), p.title, p.state, *_glance(p)] for p in parts]
    return TextTable("All runs", columns, rows, columns[:3]) if len(parts) > 1 else None


def _glance(part: SearchSection | Comparison) -> list[str]:
    if isinstance(part, Comparison):
        return ["", "", *part.best]
    f = part.findings
    best = "" if f.best is None else f"{f.goal.first.name} {f.score:.4f}"
    fresh = [f.check.text(n) if f.check and n in f.check.names else "" for n in ("best", "default")]
    return [str(len(f.trials)), best, *fresh]


def _comparison(run: Path, anchor: str, with_searches: bool) -> Comparison:
    found, files = Results.read(run), RunFiles(run, COMPARISON)
    record = dict(found.record)
    state = findings.state(run, record)
    over, algorithms = state == "finished", [str(a) for a in record["algorithms"]]
    begun = {
        (a, k): of[-1]
        for a in algorithms
        for k in range(found.searches)
        if (of := searches_of(run, search_name(user_files.plain_name(a), k)))
    }
    of_searches = {
        search: findings.read(folder, _check(found.evaluations, *search)) for search, folder in begun.items()
    }
    own = [f for (a, _), f in of_searches.items() if a not in found.control[1:]]
    warnings = [*findings.of_state(run, state, record), *map(str, record.get("unequal") or [])]
    records = {f.record["algorithm"]: f.record for (_, number), f in of_searches.items() if number == 0}
    if records and len(found.evaluations):
        warnings += [findings.sentence(line, algorithms) for line in found.caveats(records)]
    if lacking := [a for a in algorithms if a not in {a for a, _ in begun}]:
        warnings.append(f"The folder has no search for {', '.join(lacking)}.")
    return Comparison(
        anchor=anchor,
        name=run.absolute().name,
        title=found.title,
        state=state,
        lead=" ".join([*found.sentences * over, _lead(record, state, len(found.evaluations) > 0)]),
        command=provenance.command_again(record),
        warnings=warnings,
        tables=[_table(title, frame) for title, frame in found.titled()],
        best=found.best,
        figures=report_figures.of_comparison(found),
        searches=[_search(f, f"{anchor}-{i}") for i, f in enumerate(of_searches.values(), 1)] if with_searches else [],
        provenance=provenance.of(record),
        advice=advice.of_comparison(record, found.pairs, own) if over else [],
        method=reading.text(files.method_file) if over else "",
    )


def _table(title: str, frame: pd.DataFrame) -> TextTable:
    return TextTable(f"{title[0].upper()}{title[1:]}", [*map(str, frame)], frame.values.tolist(), comparison_text.WORDS)


def _check(evaluations: pd.DataFrame, algorithm: str, number: int) -> list[dict[str, Any]]:
    """The rows of a comparison that are what a search's own final check would be: of its best trial, and the default.

    The comparison may have chosen another of the search's best ones since; its own tables say.
    """
    if evaluations.empty:
        return []
    names = {"top 1": "best", DEFAULT: "default"}
    rows = evaluations[(evaluations["algorithm"] == algorithm) & evaluations["configuration"].isin(list(names))]
    rows = rows[rows[SEARCH] == number + 1] if SEARCH in rows else rows
    return rows.assign(configuration=rows["configuration"].map(names)).to_dict("records")


def _lead(record: dict[str, Any], state: str, evaluated: bool) -> str:
    """What was done; for a comparison that is not over, what will be done.

    evaluated: whether there are runs on fresh seeds.
    """
    trials, names = record.get("trials"), several(len(reading.compared_in(record)), "algorithm")
    again = "trained again on fresh seeds together with the defaults"
    if state != "finished":
        earlier, missing = "the figures on fresh seeds below are from an earlier run", "this has not been done yet"
        return f"{names} will be tuned, and {again}; {earlier if evaluated else missing}."
    searches = record.get("searches", 1)
    each = "each tuned" + (f" by {searches} searches" if searches > 1 else "")
    equal = "with the same budget" + (f" of {several(trials, 'trial')}" if trials else "")
    budget = f"{each}, but with unequal budgets" if record.get("unequal") else f"{each} {equal}"
    on_test = (record.get("options") or {}).get("selects_on_test")
    return f"{names}, {budget}{'' if on_test else ', selected on validation rows'}, and {again}."
