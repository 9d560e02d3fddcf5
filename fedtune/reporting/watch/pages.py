"""The pages: what stands at the top of each, what is drawn below, and whether either has changed."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from fedtune.core.errors import UserError
from fedtune.reporting import templates
from fedtune.reporting.watch import history, trial_log
from fedtune.reporting.watch.history import History, HistoryRow, StudyFolders
from fedtune.runs import reading
from fedtune.runs.files import REPRODUCTION, RunFiles, kind_of
from fedtune.runs.overview import ComparisonStatus, Reader, ReproductionStatus, SearchStatus, Status
from fedtune.runs.trial_states import ALIVE

MOST = 12  # runs that are shown together
DASHBOARD = re.compile(r"https?://[\w.:\[\]-]{1,200}")
WATCHED = ("*/result.json", "*.parquet", "*.journal", "*.csv", "*.yaml", "*.json", "*/*.json", "*/trials.parquet")


class Page:
    """A page: its own template's top is written anew whenever something changes, and figures below it are drawn."""

    kind = ""
    title = "fedtune watch"
    runs: dict[str, Path]  # by name, those that figures are drawn of; none: the page has no figures

    def top(self) -> str:
        """The HTML of what stands at the top."""
        raise NotImplementedError

    def first(self) -> str:
        """The HTML that stands there until the top has been read."""
        return _rendered("waiting")

    def drawing(self) -> dict[str, Any]:
        """What to draw below; nothing if there are no figures."""
        return {}

    def version(self) -> str:
        """Changes when the figures do."""
        return _signature(*self.runs.values())


class HistoryPage(Page):
    """All runs, to be searched and chosen from."""

    kind, runs = "history", {}

    def __init__(self, runs: StudyFolders, reader: Reader) -> None:
        """reader: what has been read of runs that go on."""
        self._history = History(runs, reader)

    def top(self) -> str:
        """A table of the runs, the latest first."""
        return self._table(list(self._history.rows()))

    def first(self) -> str:
        """The top without what only the logs of trials tell."""
        return self._table(list(self._history.rows(at_once=True)))

    def _table(self, rows: list[HistoryRow]) -> str:
        columns = ["run", "status", "best", "metric", "done", "what", "started", "minutes"]
        numeric = {"best": 4, "minutes": None}
        content = {
            "columns": [{"name": n, "numeric": n in numeric, "digits": numeric.get(n)} for n in columns],
            "rows": rows,
            "links": [run_address(row.name) for row in rows],
            "sort": columns.index("started"),
            "rising": False,
            "best": None,
            "picks": True,
        }
        return _rendered("history_top", content=templates.embedded_json(content), most=MOST)


class RunPage(Page):
    """A search, a comparison or a reproduction."""

    kind = "run"

    def __init__(self, name: str, run: Path, reader: Reader) -> None:
        """name: in addresses."""
        self.title, self._run, self._reader = name, run, reader
        self.runs = {} if kind_of(run) == REPRODUCTION else {name: run}
        self._name = name

    def top(self) -> str:
        """How the run stands."""
        status = self._reader.read(self._run)
        shown = {"s": status, "about": history.title(self._name, status), "dashboard": self._dashboard(status)}
        if isinstance(status, ComparisonStatus):
            inner = [Inner(f"{self._name}/{s.run.name}", s) for s in status.searches]
            return _rendered("comparison_top", **shown, inner=inner)
        if isinstance(status, ReproductionStatus):
            text = reading.text(status.tables) if status.tables else ""
            return _rendered("reproduction_top", **shown, tables=text)
        assert isinstance(status, SearchStatus)
        return _rendered("search_top", **shown, inner=Inner(self._name, status), links=self._links())

    def drawing(self) -> dict[str, Any]:
        """The run's part of a report."""
        return {"runs": _as_text(self.runs), "links": self._links(), "together": False} if self.runs else {}

    def _links(self) -> dict[str, str]:
        return {trial: trial_address(self._name, trial) for trial in trial_log.folders(self._run)}

    def _dashboard(self, status: Status) -> str:
        """Where the Ray dashboard of a run that goes on is; "" if there is none."""
        if status.over:
            return ""
        places = [RunFiles(folder).dashboard_file for folder in (self._run, self._run.absolute().parent)]
        text = next((reading.text(file).strip() for file in places if file.is_file()), "")
        return text if DASHBOARD.fullmatch(text) else ""


@dataclass
class Inner:
    """A search as a page shows it, with how many of its trials are over."""

    name: str
    status: SearchStatus
    address: str = field(init=False)
    ended: int = field(init=False)

    def __post_init__(self) -> None:
        """Count."""
        self.address = run_address(self.name)
        self.ended = sum(n for how, n in self.status.counts.items() if how not in (*ALIVE.values(), "open"))


class TrialPage(Page):
    """A trial's log."""

    kind, runs = "trial", {}

    def __init__(self, name: str, run: Path, trial: str) -> None:
        """name: the run's, in addresses.  KeyError if the run has no folder of the trial."""
        self.title, self._name, self._run, self._trial = f"{name}: trial {trial}", name, run, trial
        _ = trial_log.folders(run)[trial]

    def top(self) -> str:
        """The log."""
        return _rendered("trial_top", log=trial_log.read(self._run, self._trial), back=run_address(self._name))


class TogetherPage(Page):
    """Several runs beside one another."""

    kind, title = "together", "Runs beside one another"

    def __init__(self, runs: dict[str, Path]) -> None:
        """runs: by their names in addresses.  UserError for too few or too many."""
        if not 2 <= len(runs) <= MOST:
            raise UserError(f"choose 2 to {MOST} runs to set beside one another, not {len(runs)}")
        self.runs = runs

    def top(self) -> str:
        """The names of the runs."""
        return _rendered("together_top", runs=[(name, run_address(name)) for name in self.runs])

    def drawing(self) -> dict[str, Any]:
        """Tables and figures."""
        return {"runs": _as_text(self.runs), "links": {}, "together": True}


def run_address(name: str) -> str:
    """Where a run's page is."""
    return f"/run/{quote(name)}"


def trial_address(name: str, trial: str) -> str:
    """Where a trial's log is."""
    return f"/trial/{quote(name)}?{urlencode({'trial': trial})}"


def _as_text(runs: dict[str, Path]) -> dict[str, str]:
    return {name: str(run.absolute()) for name, run in runs.items()}


def _rendered(name: str, **content: Any) -> str:
    return templates.ENVIRONMENT.get_template(f"watch/{name}.html").render(
        **content, trial_address=trial_address, run_address=run_address
    )


def _signature(*runs: Path) -> str:
    """What figures are made of, as sizes and times: another if a file has changed."""
    seen = []
    for run in runs:
        for pattern in WATCHED:
            for file in run.glob(pattern):
                try:
                    stat = file.stat()
                except OSError:
                    continue
                seen.append((stat.st_size, stat.st_mtime_ns))
    return f"{hash(tuple(sorted(seen))):x}"


def html(page: Page, top: str, address: str, now: float) -> str:
    """A page, whole, as it is first shown.  top: of our templates.  address: its own."""
    shown = {"address": address, "now": now, "version": _version(top), "is_drawn": bool(page.runs)}
    return _rendered("page", page=page, top=Markup(top), **shown)


def _version(text: str) -> str:
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


def problem(error: Exception) -> str:
    """What stands in place of a part that cannot be made."""
    kind = "" if isinstance(error, UserError | OSError) else f"{type(error).__name__}: "
    return _rendered("problem", text=kind + " ".join(str(error).split())[:500])


def top_event(top: str, now: float) -> str:
    """The event of a new top."""
    return event("top", now=now, version=_version(top), html=top)


def event(name: str, **content: Any) -> str:
    """A server-sent event."""
    return f"event: {name}\ndata: {json.dumps(content)}\n\n"
