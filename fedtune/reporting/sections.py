"""The parts of a report: a search or a comparison, with its figures, tables and provenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from fedtune.analysis import frames, plots
from fedtune.core.metrics import limits
from fedtune.core.objectives import ACCURACY, Goal, Objective
from fedtune.core.statistics import interval, number
from fedtune.core.terminal import several
from fedtune.experiment.scenarios import in_words
from fedtune.reporting import advice, findings, provenance, sampling, words
from fedtune.reporting import figures as report_figures
from fedtune.reporting.advice import Advice
from fedtune.reporting.figures import Shown
from fedtune.reporting.findings import Findings
from fedtune.reporting.provenance import Provenance
from fedtune.reporting.templates import TextTable, embedded_json, link
from fedtune.runs import reading
from fedtune.runs.choice import OWN
from fedtune.runs.files import COMPARISON, RunFiles, search_name, search_of, searches_of
from fedtune.runs.tables import DEFAULT, SEARCH
from fedtune.studies.comparison import files as comparison_files
from fedtune.studies.comparison import tables as comparison_tables
from fedtune.studies.comparison import text as comparison_text
from fedtune.studies.comparison.text import shown_pairs
from fedtune.user_code import user_files

METRICS_SHOWN = ("last_val_acc", "last_test_acc", "best_val_acc", "comm_mb")  # in the table of trials, if there are any


@dataclass(frozen=True, kw_only=True)
class SearchSection:
    """A search's part of the page."""

    anchor: str
    findings: Findings
    figures: list[Shown]
    trials: str  # JSON of the table of its trials
    provenance: Provenance
    mattered: str  # the most important hyperparameter, and how sure that is; "" if it cannot be told
    advice: list[Advice]
    is_comparison: bool = False

    @property
    def lead(self) -> str:
        """What tuning gained, what mattered, and how sure both are, in a sentence."""
        if self.findings.best is None:
            return f"Nothing was found: {self.findings.nothing}."
        more = f", {self.mattered}" if self.mattered else ""
        if self.findings.check:
            return f"{self.findings.check.verdict()}{more}."
        return (
            f"Best so far in the search: {self.findings.in_words} {self.findings.score:.4f} after "
            f"{several(self.findings.best['rounds'], 'round')}{more}. It has not been checked on other seeds."
        )

    @property
    def tables(self) -> list[TextTable]:
        """The best configuration, and its check on fresh seeds."""
        f = self.findings
        if f.best is None:
            return []
        return [f.answer(), *([f.check.table(), f.check.spread()] if f.check else [])]

    @property
    def choice(self) -> TextTable | None:
        """The trials that were trained on more seeds before one was named; None without any."""
        rows = self.findings.record.get("choice") or []
        if not rows:
            return None
        first = self.findings.goal.first.name
        each = [n for n in rows[0] if n not in ("trial", "reason", OWN, *self.findings.goal.names)]
        figures = [OWN, *each, first]
        names = ["trial", "in the search", *each, "mean over all", "why it was not chosen"]
        text = [[str(r["trial"]), *(number(r[n], ".4f") for n in figures), str(r["reason"])] for r in rows]
        caption = f"The best finished trials on more seeds: {self.findings.in_words}, last round"
        return TextTable(caption, names, text, (names[0], names[-1]))

    @property
    def name(self) -> str:
        """The name of the study's folder."""
        return self.findings.name

    @property
    def title(self) -> str:
        """The algorithm and its scenario, in words."""
        return self.findings.title

    @property
    def state(self) -> str:
        """How the search stands: finished, running, interrupted, …"""
        return self.findings.state


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison's part of the page."""

    anchor: str
    name: str
    title: str
    state: str
    lead: str
    command: str
    warnings: list[str]
    tables: list[TextTable]
    best: tuple[str, str]  # the algorithm of highest tuned accuracy with it, and its default's; "" before there is one
    figures: list[Shown]
    searches: list[SearchSection]
    provenance: Provenance
    advice: list[Advice]
    method: str = ""  # in Markdown, for a paper
    is_comparison: bool = True


def read(
    run: Path, anchor: str, with_searches: bool = True, logs: Mapping[str, str] | None = None
) -> SearchSection | Comparison:
    """The part of a study's folder; UserError if it is none.  anchor: the name that links lead to.

    with_searches: whether a comparison's part has those of its searches.
    logs: where a search's trials have pages of their own.
    """
    if RunFiles(run).is_comparison:
        return _comparison(run, anchor, with_searches)
    return _search(read_findings(run), anchor, logs)


def read_findings(run: Path) -> Findings:
    """A search's findings, with its check on fresh seeds wherever that lies; UserError if the folder has no search."""
    around = run.absolute().parent  # a comparison's searches lie in its folder, and their check there
    evaluations = _evaluations(around) if RunFiles(around).is_comparison else None
    return findings.read(run, _check(evaluations, *search_of(run.absolute())))


def _search(f: Findings, anchor: str, logs: Mapping[str, str] | None = None) -> SearchSection:
    study = plots.study(f.run)
    importance = plots.mattered(study)
    return SearchSection(
        anchor=anchor,
        findings=f,
        figures=report_figures.of_search(f, study, importance),
        trials=_trials(f, logs),
        provenance=provenance.of(f.record, f),
        mattered=words.mattered(importance),
        advice=advice.of_search(f, importance),
    )


def _trials(f: Findings, logs: Mapping[str, str] | None = None) -> Markup:
    """The table of trials as JSON: columns (name, numeric, digits), rows, the best trial, the column sorted by.

    logs: where rows lead to, by trial.
    """
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
    columns, cells, some = [], [], sampling.listed(f)
    none = {name for name in METRICS_SHOWN if len(some) and some[name].isna().all()} - {first.column}
    named = [column for column in named if column[1] not in none]
    for name, source, digits in named:
        values = [_value(v) for v in some[source]]
        numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values if v is not None)
        columns.append({"name": name, "numeric": numeric and source not in ("trial", "reason"), "digits": digits})
        cells.append(values)
    content: dict[str, Any] = {
        "columns": columns,
        "rows": list(zip(*cells, strict=True)),
        "sort": 3,
        "rising": f.goal.first.sign < 0,
        "best": None if f.best is None else f.best["trial"],
    }
    if logs:
        content["links"] = [logs.get(row[0]) for row in content["rows"]]
    return embedded_json(content)


def _value(value: Any) -> Any:
    """A cell: a number that is one, a string, a truth value, or None."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | bool | int) else str(value)


def overview(parts: Sequence[SearchSection | Comparison], address: Callable[[str], str] = "#{}".format) -> TextTable:
    """The table that opens a page on several runs, a row per run.  address: where an anchor leads."""
    columns = ["run", "what", "state", "trials", "in the search", "best, fresh seeds", "default, fresh seeds"]
    rows = []
    for part in parts:
        row = [link(part.name, address(part.anchor)), part.title, part.state]
        if isinstance(part, SearchSection):
            f = part.findings
            best = "" if f.best is None else f"{f.goal.first.name} {f.score:.4f}"
            fresh = [f.check.text(n) if f.check and n in f.check.names else "" for n in ("best", "default")]
            row += [str(len(f.trials)), best, *fresh]
        else:
            row += ["", "", *part.best]
        rows.append(row)
    return TextTable("All runs", columns, rows, columns[:3])


def _comparison(run: Path, anchor: str, with_searches: bool) -> Comparison:
    """A comparison's folder; UserError if it cannot be read."""
    files = RunFiles(run, COMPARISON)
    record = files.record_with("algorithms")
    try:
        algorithms, scenario = [str(a) for a in record["algorithms"]], record.get("scenario")
        place = "their own data"
        if scenario:
            place = in_words(record.get("scenario_name") or scenario["dataset"], scenario, findings.given(record))
        searches, margin = int(record.get("searches", 1)), float(record.get("margin", 0.0))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise files.damaged(error) from error
    state, evaluations = findings.state(run, record), _evaluations(run)
    first, budget = Goal.from_record(record).first, _by_budget(run)
    leading = "" if budget is None else comparison_text.by_budget(budget, first, margin)
    twice = list(record.get("control", []))
    first_lines = [_outcome(run, twice), leading] if state == "finished" else []
    lead = " ".join(filter(None, [*first_lines, _lead(record, state, evaluations is not None)]))
    numbers = range(searches)
    begun = {(a, k): searches_of(run, search_name(user_files.plain_name(a), k)) for a in algorithms for k in numbers}
    folders = {search: of[-1] for search, of in begun.items() if of}
    searched = {a for a, _ in folders}
    of_searches = [findings.read(folder, _check(evaluations, *search)) for search, folder in folders.items()]
    own = [f for f, (a, _) in zip(of_searches, folders, strict=True) if a not in twice[1:]]
    warnings = [*findings.of_state(run, state, record), *map(str, record.get("unequal") or [])]
    compared, pair = _without_control(evaluations, twice, first, margin)
    if compared is not None and of_searches:
        records: dict[str, Any] = {}
        for f in of_searches:
            records.setdefault(f.record["algorithm"], f.record)
        lines = [f"Ranges were widened: {why}" for why in record.get("widened") or []]
        lines += comparison_text.unlike(record.get("unlike") or [], (record.get("options") or {}).get("preset"))
        lines += comparison_text.control(pair)
        lines += comparison_text.caveats(records, int(record.get("trials") or 0), compared)
        warnings += [findings.sentence(line, algorithms) for line in lines]
    if lacking := [a for a in algorithms if a not in searched]:
        warnings.append(f"The folder has no search for {', '.join(lacking)}.")
    return Comparison(
        anchor=anchor,
        name=run.absolute().name,
        title=f"{comparison_text.who(reading.compared_in(record))} on {place}",
        state=state,
        lead=lead,
        command=provenance.command_again(record),
        warnings=warnings,
        tables=[*_tables(run, budget, twice, searches, margin), *_of_control(pair)],
        best=_winner(run, twice),
        figures=[] if compared is None else report_figures.of_comparison(compared, first, budget, margin),
        searches=[_search(f, f"{anchor}-{i}") for i, f in enumerate(of_searches, 1)] if with_searches else [],
        provenance=provenance.of(record),
        advice=advice.of_comparison(record, _pairs(run), own) if state == "finished" else [],
        method=reading.text(files.method_file) if state == "finished" else "",
    )


def _evaluations(run: Path) -> pd.DataFrame | None:
    """The runs on fresh seeds; None if they have not all ended."""
    file = RunFiles(run).evaluations_file
    return reading.table(file, ("algorithm", "configuration", "seed")) if file.exists() else None


def _without_control(
    evaluations: pd.DataFrame | None, control: Sequence[str], objective: Objective, margin: float
) -> tuple[pd.DataFrame | None, pd.DataFrame]:
    """The runs on fresh seeds of all but the control; and how far it is from the algorithm that it is."""
    if evaluations is None:
        return None, pd.DataFrame()
    compared = evaluations[~evaluations["algorithm"].isin(control[1:])]
    return compared, comparison_tables.control(evaluations, control, objective, margin)


def _of_control(pair: pd.DataFrame) -> list[TextTable]:
    """The control's table; none without.  pair: `tables.control`."""
    title = comparison_text.OF_CONTROL
    return [] if pair.empty else [_plain(title[0].upper() + title[1:], comparison_text.of_control(pair))]


def _check(evaluations: pd.DataFrame | None, algorithm: str, number: int) -> list[dict[str, Any]]:
    """The rows of a comparison that are what a search's own final check would be: of its best trial, and the default.

    The comparison may have chosen another of the search's best ones since; its own tables say.
    """
    if evaluations is None:
        return []
    names = {"top 1": "best", DEFAULT: "default"}
    rows = evaluations[(evaluations["algorithm"] == algorithm) & evaluations["configuration"].isin(list(names))]
    rows = rows[rows[SEARCH] == number + 1] if SEARCH in rows else rows
    return rows.assign(configuration=rows["configuration"].map(names)).to_dict("records")


def _tables(
    run: Path, budget: pd.DataFrame | None, control: Sequence[str], searches: int, margin: float
) -> list[TextTable]:
    """A comparison's tables for readers, as far as they exist.  budget: what its searches had found by trials."""
    files, shown, pairs = RunFiles(run), [], _pairs(run)
    paired = "" if pairs is None else comparison_text.paired(pairs, searches, margin)
    for caption, file, readable in (
        ("Test accuracy on fresh seeds in %, mean ± 95 % interval", files.table_file, comparison_text.shown),
        (f"Differences between tuned algorithms, {paired}", files.pairs_file, shown_pairs),
        (
            "Against the baselines, p corrected for these tests alone",
            files.against_file,
            partial(shown_pairs, every=True),
        ),
        ("Cost of the tuned configurations, and of each search", files.table_file, comparison_text.costs),
        ("What each search found", files.table_file, comparison_text.searched),
    ):
        if file.exists():
            of_pairs = file in (files.pairs_file, files.against_file)
            frame = comparison_files.pairs(file) if of_pairs else _table(file, control)
            part = readable(frame)
            some = f" (those with {frame['algorithm'].iloc[0]}, of {len(frame)})" if len(part) < len(frame) else ""
            if "metric" in frame and len(frame):
                caption = caption.replace("Test accuracy", frame["metric"].iloc[0])
                caption = caption if comparison_text.in_percent(frame) else caption.replace(" in %", "")
            shown.append(_plain(caption + some, part))
    if budget is not None:
        of = comparison_text.of_budget(budget)
        shown.append(_plain(of[0].upper() + of[1:], comparison_text.against_budget(budget)))
    return shown


def _table(file: Path, control: Sequence[str]) -> pd.DataFrame:
    """A comparison's table, the best algorithm first."""
    return comparison_tables.control_last(comparison_files.table(file), control)


def _by_budget(run: Path) -> pd.DataFrame | None:
    """What a comparison's searches had found after so many trials; None if that is not known."""
    return comparison_files.by_budget(run) if RunFiles(run).budget_file.exists() else None


def _pairs(run: Path) -> pd.DataFrame | None:
    """A comparison's pairs; None if they do not exist yet."""
    file = RunFiles(run).pairs_file
    return comparison_files.pairs(file) if file.exists() else None


def _outcome(run: Path, control: Sequence[str]) -> str:
    """A comparison's results as further sentences; "" if some of its tables do not exist yet."""
    files = RunFiles(run)
    if not all(file.exists() for file in (files.table_file, files.pairs_file, files.against_file)):
        return ""
    pairs, against = map(comparison_files.pairs, (files.pairs_file, files.against_file))
    return comparison_text.outcome(_table(files.table_file, control), pairs, against)


def _winner(run: Path, control: Sequence[str]) -> tuple[str, str]:
    """The best algorithm with its tuned figure, and that of its default, as a search's are written."""
    file = RunFiles(run).table_file
    if not file.exists():
        return "", ""
    table = comparison_files.table(file)
    table = table[~table["algorithm"].isin(control[1:])]
    if table["tuned"].isna().all():
        return "", ""
    row = table.iloc[0] if "metric" in table else table.loc[table["tuned"].idxmax()]  # the best stands first
    within = limits(row["metric"] if "metric" in table else "test_acc")
    tuned, default = (interval(row[n], row[f"{n}_half"], ".4f", within=within) for n in ("tuned", "default"))
    return f"{row['algorithm']} {tuned}", default


def _plain(caption: str, frame: pd.DataFrame) -> TextTable:
    """A table of text; columns without any are left out."""
    frame = frame.dropna(axis=1, how="all").astype(object)
    rows = frame.where(frame.notna(), "").astype(str).values.tolist()
    return TextTable(caption, [*map(str, frame)], rows, comparison_text.WORDS)


def _lead(record: dict[str, Any], state: str, evaluated: bool) -> str:
    """What was done; for a comparison that is not over, what will be done.

    evaluated: whether there are runs on fresh seeds.
    """
    trials, names = record.get("trials"), several(len(reading.compared_in(record)), "algorithm")
    searches = record.get("searches", 1)
    if state != "finished":
        earlier, missing = "; the figures on fresh seeds below are from an earlier run", "; this has not been done yet"
        end = earlier if evaluated else missing
        return f"{names} will be tuned, and trained again on fresh seeds together with the defaults{end}."
    if record.get("unequal"):
        budget = "each tuned, but with unequal budgets"
    else:
        budget = "each tuned with the same budget" + (f" of {several(trials, 'trial')}" if trials else "")
    if searches > 1:
        budget = budget.replace("each tuned", f"each tuned by {searches} searches", 1)
    on_test = (record.get("options") or {}).get("selects_on_test")
    selected = "" if on_test else ", selected on validation rows"
    return f"{names}, {budget}{selected}, and trained again on fresh seeds together with the defaults."
