"""The pages: what stands at the top of each, and of which runs a report is drawn below."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

from markupsafe import Markup

from fedtune.core.errors import UserError
from fedtune.core.statistics import figure, unit_of
from fedtune.reporting import templates
from fedtune.reporting.templates import TextTable, link, part
from fedtune.reporting.watch import history, trial_log
from fedtune.reporting.watch.history import StudyFolders
from fedtune.runs import reading
from fedtune.runs.files import REPRODUCTION, RunFiles, kind_of, levels_of
from fedtune.runs.overview import BudgetStudyStatus, ComparisonStatus, Reader, SearchStatus, Status
from fedtune.runs.trial_states import ALIVE

MOST = 12  # runs that are shown together
DASHBOARD = re.compile(r"https?://[\w.:\[\]-]{1,200}")
WATCHED = ("*/result.json", "*.parquet", "*.journal", "*.csv", "*.yaml", "*.json", "*/*.json", "*/trials.parquet")


class Page(NamedTuple):
    """A page."""

    title: str
    top: Callable[[], str]  # makes the HTML of what stands at its top
    runs: Mapping[str, Path] = {}  # by name, those of which a report is drawn below


def of_history(runs: StudyFolders, reader: Reader) -> Page:
    """All runs, to be searched and chosen from, the latest first."""
    columns = ["", "run", "status", "best", "metric", "done", "what", "started", "minutes"]
    words = [name for name in columns if name not in ("best", "minutes")]

    def top() -> str:
        rows = []
        for row in sorted(history.rows(runs, reader), key=lambda row: row.started, reverse=True):
            box = Markup('<input type="checkbox" name="run" value="{0}" aria-label="choose {0}">').format(row.name)
            scale, form, unit = unit_of(row.metric)
            named = link(row.name, run_address(row.name))
            best = "" if row.best is None else f"{scale * row.best:{form}}"
            minutes = "" if row.minutes is None else f"{row.minutes:g}"
            rows.append([box, named, row.state, best, row.metric + unit, row.done, row.what, row.started, minutes])
        return part("history", TextTable("Runs", columns, rows, words, sorted={"started": "descending"}), MOST)

    return Page("Runs", top)


def of_run(name: str, run: Path, reader: Reader) -> Page:
    """A search, a comparison or a reproduction.  name: in addresses.  reader: what has been read of runs that go on."""
    drawn = {} if kind_of(run) == REPRODUCTION else {name: run}
    return Page(name, lambda: _state(name, run, reader.read(run)), drawn)


def of_trial(name: str, run: Path, trial: str) -> Page:
    """A trial's log.  name: the run's, in addresses.  KeyError if the run has no folder of the trial."""
    _ = trial_log.folders(run)[trial]

    def top() -> str:
        log = trial_log.read(run, trial)
        before = f" ({log.left_out} earlier ones are not shown)" if log.left_out else ""
        rounds = TextTable(f"Rounds, the last first{before}", log.columns, log.rounds)
        return part("trial", log, rounds, run_address(name))

    return Page(f"{name}: trial {trial}", top)


def of_several(runs: Mapping[str, Path]) -> Page:
    """Several runs beside one another, by their names in addresses.  UserError for too few or too many."""
    if not 2 <= len(runs) <= MOST:
        raise UserError(f"choose 2 to {MOST} runs to set beside one another, not {len(runs)}")
    return Page("Runs beside one another", lambda: part("links", {n: run_address(n) for n in runs}), runs)


def _state(name: str, run: Path, status: Status) -> str:
    tables, bar = [], Markup()
    if isinstance(status, SearchStatus):
        tables, bar = _of_search(status, log_links(name, run)), _progress(status)
    elif isinstance(status, ComparisonStatus):
        tables = _of_comparison(name, status)
    elif isinstance(status, BudgetStudyStatus):
        rows = [[link(s.run.name, run_address(f"{name}/{s.run.name}")), s.state, s.counted] for s in status.levels]
        tables = [TextTable("Levels", columns := ("level", "state", "searches"), rows, columns)]
    text = reading.text(RunFiles(run).markdown_file) if kind_of(run) == REPRODUCTION else ""
    return part("state", status, _dashboard(run, status), bar, some=tables, text=text)


def _of_search(status: SearchStatus, links: Mapping[str, str]) -> list[TextTable]:
    tables = []
    if status.best:
        best = status.best
        title = f"{'Best trials' if status.over else 'Best so far'}: {best.title}"
        rows = [[link(row[0], links.get(row[0])), *row[1:]] for row in best.rows]
        tables.append(TextTable(title, best.columns, rows, best.columns[:2], best=0))
    if status.workers and not status.over:
        tables.append(_of_workers("What each worker does", status, links))
    if status.counts:
        columns = ("at", "reached", "went on", "", "stopped there", f"best {status.objective} there", "trial")
        rungs = [
            [r.where, str(r.reached), str(r.went_on), part("bar", r.went_on, r.reached, f"went on from {r.where}")]
            + [str(r.stopped), figure(status.objective, r.value) if r.best else "", link(r.best, links.get(r.best))]
            for r in status.rungs
        ]
        tables.append(TextTable("Rungs", columns, rungs, ("at", "", "trial")))
    return tables


def _of_workers(caption: str, status: SearchStatus, links: Mapping[str, str]) -> TextTable:
    said = ["it says"] * bool(status.says)
    rows = [
        [link(w.trial, links.get(w.trial)), f"{w.round}/{status.rounds}"]
        + ["" if w.pace is None else f"{w.pace:.3g}", part("since", w.since), w.where]
        + [status.says.get(w.trial, "")] * bool(said)
        for w in status.workers
    ]
    columns = ["trial", "round", "s a round", "last round", "where", *said]
    return TextTable(caption, columns, rows, ("trial", "last round", "where", "it says"))


def _of_comparison(name: str, status: ComparisonStatus) -> list[TextTable]:
    rows = []
    for s, called in zip(status.searches, status.called, strict=True):
        counted = Markup("{}{}").format(s.counted, _progress(s))
        best = s.best.rows[0][3] if s.best else ""
        rows.append([link(called, run_address(f"{name}/{s.run.name}")), s.state, counted, best])
    columns = ("search", "state", "trials", "best so far")
    going = [s for s in status.searches if s.workers and not s.over]
    workers = [_of_workers(f"{s.run.name}: what each worker does", s, {}) for s in going]
    return [TextTable("Searches", columns, rows, columns[:3]), *workers]


def _progress(status: SearchStatus) -> Markup:
    ended = sum(n for how, n in status.counts.items() if how not in (*ALIVE.values(), "open"))
    return part("bar", ended, status.planned, "trials that are over")


def _dashboard(run: Path, status: Status) -> str:
    """Where the Ray dashboard of a run that goes on is; "" if there is none."""
    if status.over:
        return ""
    places = [RunFiles(folder).dashboard_file for folder in (run, run.absolute().parent)]
    text = next((reading.text(file).strip() for file in places if file.is_file()), "")
    return text if DASHBOARD.fullmatch(text) else ""


def run_address(name: str) -> str:
    """The address of a run's page."""
    return f"/run/{quote(name)}"


def log_links(name: str, run: Path) -> dict[str, str]:
    """The addresses of its trials' pages, by trial; of a budget study those of its levels."""
    if levels := levels_of(run):
        return {level.name: run_address(f"{name}/{level.name}") for level in levels}
    return {t: f"/trial/{quote(name)}?{urlencode({'trial': t})}" for t in trial_log.folders(run)}


def signature(page: Page) -> str:
    """What a page's report is made of, as sizes and times: another if a file has changed."""
    seen = []
    for file in (file for run in page.runs.values() for pattern in WATCHED for file in run.glob(pattern)):
        try:
            stat = file.stat()
        except OSError:
            continue
        seen.append((stat.st_size, stat.st_mtime_ns))
    return f"{hash(tuple(sorted(seen))):x}"


def problem(error: Exception) -> str:
    """What stands in place of a part that cannot be made."""
    kind = "" if isinstance(error, UserError | OSError) else f"{type(error).__name__}: "
    return part("problem", kind + " ".join(str(error).split())[:500])


def html(page: Page, top: str, address: str) -> str:
    """A page, whole, as it is first shown.  top: of our templates.  address: its own."""
    whole = templates.ENVIRONMENT.get_template("watch.html")
    return whole.render(page=page, top=Markup(top), address=address)
