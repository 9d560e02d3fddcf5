"""A search's results as tables: a row per round, a row per trial, and the best trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import yaml

from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.metrics import METRIC, METRICS, is_own, metrics_in
from fedtune.core.objectives import ACCURACY, BY_ACCURACY, TEST, Goal, Objective, final
from fedtune.core.terminal import one_line
from fedtune.runs import reading, user_copies
from fedtune.runs.files import RunFiles, write_whole
from fedtune.runs.trial_states import OPEN, reason, status

if TYPE_CHECKING:
    from ray.tune import ResultGrid

    from fedtune.core.workload import Workload

CONFIG = "config/"  # prefix of hyperparameter columns
UNTUNED = DEFAULT, BORROWED = "default", "borrowed"  # configurations, in runs on fresh seeds, that no search chose
SEARCH = "search"  # the column with a search's number, 1, 2, …
CHOICE = "choice_mean"  # the column with the objective's mean over all seeds, of trials that were chosen among

Figures = Callable[[Mapping[str, Any]], list[str]]  # the names of the metrics that are kept of a run's last row

# the table of clients: all that were scored in the last and the best round of every run on fresh seeds
CLIENTS: dict[str, str] = {  # column -> dtype; your own metrics' val_NAME and test_NAME follow
    "run": "str",  # the folder's name
    "algorithm": "str",
    "configuration": "str",  # best or default; in a comparison default, top 1, …, borrowed
    "seed": "int64",
    "scored": "str",  # last, or best: the round of the best objective
    "round": "int64",
    "client": "int64",
    "owner": "str",  # the owner of its rows, by name; empty if the data have no owners
    "val_rows": "int64",
    "val_acc": "float64",
    "test_rows": "int64",
    "test_acc": "float64",
}

KINDS = {name: reading.TEXT if kind == "str" else reading.NUMBER for name, kind in CLIENTS.items()}


def rounds_frame(reported: Mapping[str, list[dict[str, Any]]]) -> pd.DataFrame:
    """A row per trial and round: trial, round, and every metric.  Empty if nothing was reported.

    reported: each trial's results as the driver received them; only metrics are used.  (Tune's own log of a trial is
    rewritten from a stale copy whenever population based training restores it.)  If a round was trained again, the last
    result counts.
    """
    frames = []
    for trial, results in reported.items():
        rows = [r for r in results if "round" in r]
        if not rows:
            continue
        frame = pd.DataFrame([metrics_in(row) for row in rows])
        frames.append(frame.drop_duplicates("round", keep="last").sort_values("round").assign(trial=trial))
    if not frames:
        return pd.DataFrame(columns=["trial", "round", *METRICS])
    all_rows = pd.concat(frames, ignore_index=True)
    first = ["trial", "round", *(m for m in METRICS if m in all_rows)]
    return all_rows[first + [c for c in all_rows if c not in first]]


def frames(
    grid: ResultGrid,
    reported: Mapping[str, list[dict[str, Any]]],
    earlier: Path | None,
    onward: list[str],
    goal: Goal = BY_ACCURACY,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of rounds and trials, including those of an earlier run that this one extends.

    onward: earlier trials that our trials continue, in our trials' order.  Such a trial appears once, under our name,
    with its earlier rounds; `continues` has the earlier name.  Earlier trials that had finished and are not continued
    count as stopped, because they are shorter than trials are now; so do open ones of an extension that broke off.
    """
    rounds = rounds_frame(reported)
    if not earlier:
        return rounds, trials_frame(grid, rounds, goal)
    of_earlier = RunFiles(earlier)
    old_rounds, old_trials = pd.read_parquet(of_earlier.rounds_file), pd.read_parquet(of_earlier.trials_file)
    new_names = {old: trial_id(grid[i]) for i, old in enumerate(onward[: len(grid)])}
    old_trials = old_trials.drop(columns=CHOICE, errors="ignore")  # the choice is made anew
    old_trials["status"] = old_trials["status"].replace(OPEN, "stopped")  # nothing goes on with them
    old_rounds["trial"] = old_rounds["trial"].replace(new_names)
    # rounds that were trained again may have test metrics in only one of the two
    rounds = pd.concat([old_rounds, rounds], ignore_index=True).groupby(["trial", "round"], as_index=False).last()
    trials = trials_frame(grid, rounds, goal)
    if onward:
        trials["continues"] = trials["trial"].map({new: name for name, new in new_names.items()})
        old_trials = old_trials[~old_trials["trial"].isin(new_names)]
        short = old_trials["status"] == "finished"
        old_trials.loc[short, "reason"] = "had finished a shorter run"
        old_trials.loc[short, "status"] = "stopped"
    return rounds, pd.concat([old_trials, trials], ignore_index=True)


def trials_frame(grid: ResultGrid, rounds: pd.DataFrame, goal: Goal = BY_ACCURACY) -> pd.DataFrame:
    """A row per trial: status, configuration, best and last metrics, rounds, seconds, communication, reason.

    A trial's best round is that of the best objective; its test accuracy there is only reported.  No rows if the search
    was interrupted before its first trial.
    """
    by_trial = dict(iter(rounds.groupby("trial")))
    rows = []
    for result in (grid[i] for i in range(len(grid))):
        name, last = trial_id(result), result.metrics or {}
        why = str(last.get("reason") or (result.error and one_line(reason(str(result.error)))) or "")
        how = "failed" if result.error is not None else status(last) if last else "not started"
        rows.append(trial_row(name, how, result.config or {}, by_trial.get(name), goal, why))
    return pd.DataFrame(rows, columns=None if rows else ["trial", "status", "rounds", "reason"])


def with_open(trials: pd.DataFrame, how: Mapping[str, str]) -> pd.DataFrame:
    """The table of a search that broke off, with the trials as open that had not ended.  how: `trial_statuses`."""
    left = trials["trial"].map(how).eq(OPEN) & ~trials["status"].isin(["finished", "diverged"])
    return trials.assign(status=trials["status"].mask(left, OPEN))


def trial_row(
    trial: str, status: str, config: Mapping[str, Any], rounds: pd.DataFrame | None, goal: Goal, reason: str
) -> dict[str, Any]:
    """A row of the table of trials."""
    configured = {CONFIG + name: value for name, value in config.items()}
    return {"trial": trial, "status": status} | configured | trial_summary(rounds, goal) | {"reason": reason}


def trial_summary(rounds: pd.DataFrame | None, goal: Goal = BY_ACCURACY) -> dict[str, Any]:
    """A trial's rounds as one row: their number, last and best metrics, seconds and communication.

    Its last test metrics are those of `test_round`, the last round in which test rows were scored; they may be missing
    in the best round.
    """
    if rounds is None or rounds.empty:
        return {"rounds": 0}
    first = goal.first
    values = first.sign * (rounds[first.name].cumsum() if first.name == "seconds" else rounds[first.name])
    end, best = rounds.iloc[-1], rounds.loc[values.idxmax()]
    row: dict[str, Any] = {"rounds": int(rounds["round"].max())}
    tested = rounds[rounds["test_acc"].notna()] if "test_acc" in rounds else rounds.iloc[:0]
    if len(tested):
        of_tests = [name for name in rounds if name.startswith(TEST)]
        end = end.mask(end.index.isin(of_tests), tested.iloc[-1])
        row["test_round"] = int(tested["round"].iloc[-1])
    row |= {f"last_{name}": end[name] for name, m in METRICS.items() if m.last and name in end}
    row |= {f"best_{name}": best[name] for name in ("round", *(n for n, m in METRICS.items() if m.best and n in best))}
    others = [name for name in rounds if is_own(name)] + [n for n in goal.names if final(n) == f"last_{n}"]
    row |= {f"last_{name}": end[name] for name in others if name in end}
    row |= {f"best_{first.name}": best[first.name]} if f"last_{first.name}" in row else {}
    return row | {
        "seconds": rounds["seconds"].sum() + rounds["eval_seconds"].sum(),
        "comm_mb": end.get("comm_mb", math.nan),
    }


def best_trial(trials: pd.DataFrame, unit: str = "rounds", goal: Goal = BY_ACCURACY) -> pd.Series | None:
    """The best trial, the first of `best_trials`; None if there is none."""
    ranked = best_trials(trials, unit, goal)
    return None if ranked.empty else ranked.iloc[0]


def best_trials(trials: pd.DataFrame, unit: str = "rounds", goal: Goal = BY_ACCURACY) -> pd.DataFrame:
    """The trials of `to_choose_from` that keep the constraints, by the last value of the first objective, best first.

    Ties are broken by the lower validation loss.  unit: of the trials' budget.
    """
    return ranked(keeping(to_choose_from(trials, unit), goal), goal)


def to_choose_from(trials: pd.DataFrame, unit: str = "rounds") -> pd.DataFrame:
    """The finished trials, or else those that trained longest; none if no trial reported a finite value.

    A trial that was stopped early is never chosen over one that was not: its figure is from a shorter training.
    """
    fine = trials[~trials["status"].isin(["diverged", "failed"]) & (trials["rounds"] > 0)]
    longest = fine[fine["status"] == "finished"]
    if longest.empty and len(fine):
        used = fine[{"mb": "comm_mb", "sim_seconds": final("sim_seconds")}.get(unit, unit)]
        longest = fine[used == used.max()]
    return longest


def keeping(trials: pd.DataFrame, goal: Goal) -> pd.DataFrame:
    """The trials that keep every constraint."""
    for constraint in goal.constraints:
        trials = trials[trials[constraint.column].map(constraint.excess) <= 0] if len(trials) else trials
    return trials


def ranked(trials: pd.DataFrame, goal: Goal) -> pd.DataFrame:
    """Trials by the last value of the first objective, best first; ties are broken by the lower validation loss."""
    if trials.empty:
        return trials  # it may lack the columns to sort by
    by = {goal.first.column: goal.first.mode == "min"}
    by |= {"last_val_loss": True} if "last_val_loss" not in by and "last_val_loss" in trials else {}
    return trials.sort_values(list(by), ascending=list(by.values()), kind="stable")


def plain(config: dict[str, Any]) -> dict[str, Any]:
    """Values as Python's own types, without columns that do not apply to this trial (NaN or None)."""
    values = {k: v.item() if hasattr(v, "item") else v for k, v in config.items()}
    return {k: v for k, v in values.items() if v is not None and not (isinstance(v, float) and math.isnan(v))}


def trial_id(result: Any) -> str:
    """A trial's id; if it never reported, from its folder's name."""
    return str((result.metrics or {}).get("trial_id") or Path(result.path).name.split("-")[-1])


def write_best(
    run: Path, workload: Workload, scenario: str, best: pd.Series, budget: Budget, goal: Goal = BY_ACCURACY, **how: Any
) -> dict[str, Any]:
    """Write best.yaml: everything that `fedtune run --config` needs to train the configuration again, and how it was
    found.

    If trials were not limited by rounds, the rounds are those of the best trial.  how: further entries about how it was
    found.  Returns the values of the searched hyperparameters.
    """
    config = plain({k.removeprefix(CONFIG): best[k] for k in best.index if k.startswith(CONFIG)})
    finding = {"trial": best["trial"], "rounds": int(best["rounds"])}
    finding |= {METRIC: float(best[final(METRIC)])} if final(METRIC) in best else {}
    finding |= tested(best, goal.first) | {"run": run.name} | how
    finding |= {name: float(best[final(name)]) for name in goal.names if name != METRIC}
    content = workload.to_best(scenario, config, None if budget.unit == "rounds" else int(best["rounds"]))
    content |= {"found": finding} | ({"own": user_copies.to_record(workload.own)} if workload.own else {})
    write_whole(RunFiles(run).best_file, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return {n: v for n, v in workload.configuration(config).items() if n in config}


def tested(trial: pd.Series, objective: Objective = ACCURACY) -> dict[str, Any]:
    """A trial's last test metrics: the objective's and accuracy, with their round if it is not the last; {} without."""
    values = {n: float(trial.get(f"last_{n}", math.nan)) for n in (objective.tested, ACCURACY.tested)}
    figures: dict[str, Any] = {n: v for n, v in values.items() if not math.isnan(v)}
    at, rounds = trial.get("test_round", math.nan), trial["rounds"]
    return figures | ({} if not figures or math.isnan(at) or at == rounds else {"test_round": int(at)})


def clients_frame(runs: Iterable[tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]]) -> pd.DataFrame:
    """A row per run, scored round and client.

    runs: the columns that identify a run, and its clients as an outcome has them.
    """
    parts = [pd.DataFrame(columns).assign(**run) for run, scored in runs for columns in scored]
    if not parts:
        return pd.DataFrame(columns=[name for name in CLIENTS if name != "run"])
    all_rows = pd.concat(parts, ignore_index=True)
    first = [name for name in CLIENTS if name in all_rows]
    return all_rows[first + [name for name in all_rows if name not in first]]


def load_clients(*runs: str | Path) -> pd.DataFrame:
    """The clients of these runs; UserError for a folder that has no table of them."""
    found = []
    for files in map(RunFiles, runs):
        if not files.clients_file.exists():
            raise UserError(
                f"{files.path} has no {files.clients_file.name}: it is written when a search's final check "
                "(--final-seeds) or a comparison has ended"
            )
        found.append(reading.table(files.clients_file, kinds=KINDS).assign(run=files.name))
    if not found:
        raise UserError("there must be at least one study's folder, but none was given")
    all_rows = pd.concat(found, ignore_index=True)
    all_rows = all_rows.reindex(columns=[*CLIENTS, *(c for c in all_rows if c not in CLIENTS)])
    return all_rows.fillna({n: "" for n, kind in CLIENTS.items() if kind == "str"}).astype(CLIENTS)
