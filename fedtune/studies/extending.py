"""More trials, or more rounds for the best ones, in a new folder beside a search that is over."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fedtune.core import terminal
from fedtune.core.errors import UserError
from fedtune.core.terminal import command_line, several
from fedtune.runs import frames, tables, trial_states
from fedtune.runs.files import lineage, resumed_as
from fedtune.runs.folder import StudyFolder
from fedtune.runs.logs import suggestions
from fedtune.runs.reading import rounds_of
from fedtune.studies import resuming, search_study
from fedtune.tuning import plan, schedulers, searchers, space_facts
from fedtune.tuning.options.search import SearchOptions
from fedtune.tuning.searchers import EXTENDABLE


def more_trials(path: Path, count: int, name: str | None, changed: Mapping[str, Any], trust: bool = False) -> int:
    """Give a finished search more trials, in a new folder; the exit status.

    name: of the new folder.  changed: options with new values.  trust: also if another user wrote the folder.
    """
    run, options = _finished(path, changed, trust)
    options = dataclasses.replace(options, name=name or f"{options.name}+{count}", trials=count)
    tried = {space_facts.key(t.params) for t in run.study.trials if t.state.is_finished()} if run.study else set()
    planned = plan.make(options, after=plan.EarlierSearch(path.absolute(), tried=frozenset(tried)))
    return search_study.run_with_ray(planned, {"extends": run.name})


def more_rounds(
    path: Path, count: int, top: int | None, name: str | None, changed: Mapping[str, Any], trust: bool = False
) -> int:
    """Train a finished search's best trials for more rounds, in a new folder; the exit status.

    top: how many of them; None: a third.  Other arguments as for `more_trials`.
    """
    run, options = _finished(path, changed, trust)
    fields = {**options.fields, "rounds": rounds_of(run.record) + count}
    options = dataclasses.replace(options, name=name or f"{options.name}+{count}rounds", fields=fields)
    with terminal.silent():  # it is planned again below
        trials = longer(plan.make(options), run, top)
    planned = plan.make(options, after=plan.EarlierSearch(path.absolute(), trials))
    return search_study.run_with_ray(planned, {"extends": run.name})


def _finished(path: Path, changed: Mapping[str, Any], trust: bool) -> tuple[StudyFolder, SearchOptions]:
    run = StudyFolder(path)
    record = resuming.record_of(run, trust, "scheduler", "searcher")
    if not searchers.extendable(record["searcher"], record["scheduler"]):
        how = record["searcher" if record["searcher"] not in EXTENDABLE else "scheduler"]
        raise UserError(
            f"only a search by {', '.join(EXTENDABLE)} can be extended, but {path} used {how}; start a new search"
        )
    if record["options"].get("trials_drawn"):
        raise UserError(f"more trials would void the ε of the choice, but {path} drew their number; start a new search")
    open_trials = trial_states.OPEN in trial_states.trial_statuses(path, {}, record["state"]).values()
    if record["state"] == "running" or (open_trials and resumed_as(path, record)):
        raise UserError(
            f"only a finished search can be extended, but {path} is {record['state']}; {command_line('resume', path)}"
        )
    try:
        trials, _ = frames.trials_table(run), frames.rounds_table(run)
        known = {t.user_attrs["trial"] for t in run.study.trials if t.state.is_finished()} if run.study else set()
        if lost := set(trials["trial"][trials["status"].isin(["finished", "stopped"])]) - known:
            raise ValueError(f"the study lacks {several(len(lost), 'trial')}")
    except (ValueError, KeyError) as error:
        raise UserError(
            "a search is extended from its trials.parquet, rounds.parquet and study.journal, but one in "
            f"{path} cannot be read ({error}); Ray's logs can: {command_line('status', path)}"
        ) from error
    return run, resuming.options_of(run, changed)


def longer(p: plan.SearchPlan, run: StudyFolder, top: int | None) -> tuple[plan.EarlierTrial, ...]:
    """A run's best finished trials, which a search planned like this trains further, each to its new end."""
    if p.budget.unit != "rounds":
        raise UserError(f"--rounds needs a search whose budget is in rounds, but {run.path} has one in {p.budget.unit}")
    if p.workload.traits.depends_on_horizon:
        by = "the noise of --epsilon depends" if p.options.fields.get("epsilon") else f"{p.workload.name} may depend"
        raise UserError(
            f"{by} on how many rounds a trial has, so a longer one may differ from the start; search again with "
            f"--rounds {p.workload.rounds}"
        )
    trials, rounds = frames.trials_table(run), frames.rounds_table(run)
    configs = {t["trial"]: t["config"] for folder in lineage(run) for t in suggestions(folder.path)}
    finished = trials[(trials["status"] == "finished") & trials["trial"].isin(configs)]
    best = tables.ranked(tables.keeping(finished, p.goal), p.goal)
    best = best[: top or max(1, len(best) // schedulers.REDUCTION)]
    if best.empty:
        raise UserError(
            f"only finished trials can be trained further, but {run.path} has none; fedtune resume it, or add --trials"
        )
    saved_round = p.workload.trainer.saved_round
    return tuple(
        plan.EarlierTrial(t.trial, configs[t.trial], int(t.rounds), *checkpoint(run, t.trial, rounds, saved_round))
        for t in best.itertuples()
    )


def checkpoint(
    run: StudyFolder, trial: str, rounds: pd.DataFrame, saved_round: Callable[[Path], int]
) -> tuple[str | None, float]:
    """The folder of a trial's last checkpoint that can be read, and the seconds that its rounds up to there took.

    None: it is trained again from its first round.
    """
    of_trial = rounds[rounds["trial"] == trial]
    for folder in lineage(run):
        for file in sorted(folder.path.absolute().glob(f"*-{glob.escape(trial)}/checkpoint_*"), reverse=True):
            try:
                last_round = saved_round(file)
            except Exception:  # whatever a damaged file raises
                continue
            before = of_trial[of_trial["round"] <= last_round]
            return str(file), float(before["seconds"].sum() + before["eval_seconds"].sum())
    return None, 0.0
