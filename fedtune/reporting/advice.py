"""What to try next, by rule: each rule reads a search's or a comparison's findings, and gives advice with its reason.

A rule says what the figures show, how sure that is, and the command that acts on it; it says so where they cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from fedtune.analysis.plots import RESAMPLES, Importance
from fedtune.core.errors import UserError
from fedtune.core.objectives import ACCURACY
from fedtune.core.statistics import EQUAL, gained
from fedtune.core.terminal import several, short
from fedtune.data import datasets
from fedtune.reporting import findings
from fedtune.reporting.findings import Findings
from fedtune.reporting.provenance import command_again
from fedtune.runs import tables
from fedtune.runs.files import BROKEN_OFF, OVER, RunFiles, lineage, resumed_as
from fedtune.studies.comparison import text as comparison_text
from fedtune.studies.comparison.tables import UNTOLD
from fedtune.tuning import ranges, verdict

SURE = 0.95  # share of resamples in which it must rank first; below, what mattered most cannot be told
LITTLE = 0.05  # share of the variance: a hyperparameter that surely has less can be fixed
SEEDS_AT_MOST = 10  # seeds per trial; two configurations that need more to be told apart are as good as each other
SHOWN = 4  # hyperparameters whose shares are written out
SEARCHES_AT_MOST = 20  # of an algorithm in a comparison
CHANCE = 1.5  # times 1 / classes: an accuracy up to this may be chance
OTHER_SEEDS = 100_000  # beyond every seed of a comparison


class Advice(NamedTuple):
    """What to do next, why, and the command for it."""

    todo: str  # a few words
    why: str  # sentences
    command: str = ""


def of_search(f: Findings, importance: Importance | None) -> list[Advice]:
    """What to try next after a search; nothing of a replay."""
    if f.state not in OVER:
        return to_resume(f.run, f.state, f.record)
    if "replays" in f.record:
        return []
    if (steps := smaller_steps(f)) or f.best is None:
        return steps
    return [*wider_ranges(f, matters_little(f, importance)), *seeds_or_trials(f), *what_mattered(f, importance)]


def to_resume(study: Path, state: str, record: Mapping[str, Any]) -> list[Advice]:
    """Let a study that broke off go on first, where resume does that."""
    to = resumed_as(study, record) if state in BROKEN_OFF else None
    why = "What else to try can be told when it is over."
    return [Advice("Let it go on", why, findings.command("resume", to))] if to else []


def matters_little(f: Findings, importance: Importance | None) -> list[str]:
    """The hyperparameters that surely made little difference: to be fixed, wherever in its range the best lies."""
    return [n for n, (_, high) in importance.ranges.items() if high < LITTLE and n in f.config] if importance else []


def smaller_steps(f: Findings) -> list[Advice]:
    """A smaller learning rate where the best diverged on fresh seeds, or no trial is clearly better than chance."""
    classes, lost = math.inf, f.check.lost("best") if f.check and f.best is not None else ""
    with suppress(UserError, KeyError):  # data of one's own may be gone, and a program's are not known
        classes = datasets.describe(f.record["scenario"]["dataset"])[-1]
    diverged = int((f.trials["status"] == "diverged").sum())
    by_chance = bool(f.trials.get(ACCURACY.column, pd.Series(dtype=float)).max() <= CHANCE / classes)
    if not (by_chance or "diverged" in lost or (f.best is None and diverged)):
        return []
    why = [f"no trial is clearly better than chance, {100 / classes:.3g} %"] * by_chance
    why += [f"{diverged} of {several(len(f.trials), 'trial')} diverged"] * bool(diverged)
    text = findings.sentence("; ".join(why + [f"on fresh seeds the best {lost} runs"] * bool(lost)))
    if not (diverged or lost):
        return [Advice("Try other learning rates, or more rounds", f"{text} Steps may be too small or too large.")]
    lr = f.default.get("lr") if "scenario" in f.record and "lr" not in f.searched else None
    again = _again(f, "--set", f"lr={short(lr / 10)}") if lr else ""
    todo = "Lower the learning rate" + ", or its range" * ("lr" in f.searched)
    return [Advice(todo, f"{text} Most often the steps are too large: lower lr, and then momentum.", again)]


def _ends(f: Findings) -> dict[str, tuple[str, str]]:
    """The hyperparameters whose best value lies at an end of its range: at which, and a sentence's part on it."""
    space = f.record.get("space") or {}
    ends = {n: ranges.edge(f.config.get(n), space.get(n, "")) for n in f.searched}
    return {n: (e, f"{n} = {short(f.config[n])} at the {e} end of {space[n]}") for n, e in ends.items() if e}


def wider_ranges(f: Findings, fixed: Sequence[str] = ()) -> list[Advice]:
    """Where the best value lies at an end of its range, the optimum may lie beyond: a range that goes further.

    fixed: hyperparameters to be fixed, whose ranges are left alone.
    """
    declared, new, said, at_limit, advice = findings.hyperparameters(f.record), {}, [], [], []
    for name, (end, text) in _ends(f).items():
        hp = declared.get(name)
        old = ranges.of_text(f.record["space"][name], hp) if hp else None
        if name in fixed:
            continue
        if further := ranges.wider(old, hp, frozenset({end})) if old and hp else None:
            new[name] = further.text()
            said.append(text)
        else:
            at_limit.append(text)
    if new:
        todo = f"Widen {' and '.join(f'{n} to {text}' for n, text in new.items())}"
        given = {text.partition("=")[0]: text for text in (f.record.get("options") or {}).get("vary", ())}
        given |= {n: f"{n}={text}" for n, text in new.items()}
        command = _again(f, *(word for text in given.values() for word in ("--vary", text)))
        advice.append(Advice(todo, f"The best has {'; '.join(said)}, and may be better beyond.", command))
    if at_limit:
        why = f"The best has {'; '.join(at_limit)}. That is all that is declared for it, or the program's own range."
        advice.append(Advice("Look beyond the declared range", why))
    return advice


def seeds_or_trials(f: Findings) -> list[Advice]:
    """More seeds where chance could have put the best before the runner-up; more trials where they still bring more.

    Chance is the spread of best − default over the fresh seeds: two configurations that differ by less than `half` on
    the search's seeds are not significantly different (Student's t, 5 %).  What more trials bring is told by the last
    doubling: the best of all trials minus the expected best of half of them, in closed form.
    """
    chosen, first, trials = f.record.get("choice") or [], f.goal.first, several(len(f.trials), "trial")
    ranked = tables.best_trials(f.trials, findings.unit_of(f.record), f.goal)
    ranked = ranked[~ranked["trial"].isin([row["trial"] for row in chosen if row["reason"]])]
    values = first.sign * ranked[first.column].to_numpy(float)
    if len(values) < 2:
        return [Advice("Give more trials", "There is only one trial to choose from.", _more(f))]
    seeds, todo, option = int(f.record.get("seeds_per_trial") or 1), "Judge each trial", "--seeds-per-trial"
    (gap, runner_up), one_seed = (values[0] - values[1], ranked.iloc[1]["trial"]), _of_chance(f)
    means = [(-first.sign * row[first.name], row["trial"]) for row in chosen if not row["reason"]]
    stand = sorted(means, key=lambda of: of[0])
    if len(stand) > 1:  # trials that were trained on more seeds, the best first
        gap, runner_up, seeds = stand[1][0] - stand[0][0], stand[1][1], seeds + int(f.record["choose_seeds"]) - 1
        todo, option = "Choose among the best", "--choose-seeds"
    apart = partial(gained, first.name, sign="")
    behind = f"The runner-up (trial {runner_up}) is {apart(gap)} behind"
    if one_seed is None and f.is_in_comparison and not f.check:
        return []  # the comparison makes that check
    if one_seed is None:
        why = f"{behind}. Whether that is more than chance cannot be told"
        if f.check and f.check.seeds > 1:
            return [Advice("More seeds or more trials", f"{why}: the check does not show how much seeds vary.")]
        again = _again(f, "--final-seeds", "5")
        return [Advice("Check on fresh seeds", f"{why} without a check on two or more fresh seeds.", again)]
    half, advice = one_seed / math.sqrt(seeds), []
    chance = f"as much as {apart(half)} can be chance"
    if gap < half:
        needed = (one_seed / gap) ** 2 if gap > 0 else math.inf
        why = f"{behind}, and {chance} on {several(seeds, 'seed')}"
        if needed > SEEDS_AT_MOST:
            advice.append(Advice("Take either of the best two", f"{why}: no affordable number of seeds would tell."))
        else:
            count = several(math.ceil(needed), "seed")
            again = _again(f, option, str(math.ceil(needed)))
            advice.append(Advice(f"{todo} on {count}", f"{why}: about {count} per trial would tell them apart.", again))
    every = np.concatenate([values, np.full(max(0, len(f.trials) - len(values)), values[-1])])
    gain = 0.0 if f.record.get("whole") else last_doubling(every)  # a whole grid has no more trials
    brought = apart(gain)
    if gain > half:
        half_of = f"the best of {len(every) // 2} of them on average"
        why = f"The best of {trials} is {brought} better than {half_of}, and {chance}. "
        advice.append(Advice("Give more trials", f"{why}Twice as many trials may bring as much again.", _more(f)))
    if not advice:
        why = f"{behind}, and {chance}. The second half of {trials} brought {brought}, not more than chance."
        advice.append(Advice("Neither more seeds nor more trials are needed in these ranges", why))
    return advice


def last_doubling(values: Sequence[float] | np.ndarray) -> float:
    """The best of N values minus the expected best of ⌊N/2⌋ of them, drawn without replacement.

    The i-th best (from 0) is the best of m drawn ones with probability C(N−1−i, m−1) / C(N, m).
    """
    ordered = np.sort(np.asarray(values, float))[::-1]
    n, m = len(ordered), max(1, len(ordered) // 2)
    chances = np.array([math.comb(n - 1 - i, m - 1) / math.comb(n, m) for i in range(n)])
    return float(ordered[0] - chances @ ordered)


def what_mattered(f: Findings, importance: Importance | None) -> list[Advice]:
    """Which hyperparameters to search more closely, and which to fix: only where resampling the trials agrees."""
    if importance is None:
        return [Advice("Importance cannot be told", "Too few trials can be compared, or all have the same score.")]
    shown = "; ".join(
        f"{name} {100 * importance.shares[name]:.0f} % ({100 * low:.0f} to {100 * high:.0f} %)"
        for name, (low, high) in [*importance.ranges.items()][:SHOWN]
    )
    first, count = next(iter(importance.shares)), several(importance.trials, "trial")
    why = f"Shares of the variance between {count}: {shown}. In brackets: where 90 % of {RESAMPLES} resamples lie."
    unsure = "Which hyperparameter matters most cannot be told"
    todo = f"Search {first} most closely" if importance.first >= SURE * RESAMPLES else unsure
    advice = [Advice(todo, f"{why} {first} ranks first in {importance.first} of {RESAMPLES}.")]
    if small := matters_little(f, importance):
        fixed = [word for n in small for word in ("--set", f"{n}={short(f.config[n])}")]
        todo = f"Fix {', '.join(small)}: a smaller space needs fewer trials"
        why = f"Even the upper ends of their shares are below {100 * LITTLE:.0f} % of the variance."
        advice.append(Advice(todo, why, _again(f, *fixed)))
    return advice


def of_comparison(record: Mapping[str, Any], pairs: pd.DataFrame, searches: Sequence[Findings]) -> list[Advice]:
    """What to try next after a comparison: wider ranges for all that share them, and more searches."""
    return [*wider_for_all(record, searches), *more_searches(record, pairs)]


def wider_for_all(record: Mapping[str, Any], searches: Sequence[Findings]) -> list[Advice]:
    """Where an algorithm's best lies at an end of a range, that end may have decided its rank: wider for all alike."""
    ends = [f"{f.record['algorithm']} has {text}" for f in searches for _, text in _ends(f).values()]
    if not ends or "widened" in record:
        return []
    return [Advice("Widen ranges for all that share them", f"{'; '.join(ends)}.", command_again(record, "--widen"))]


def more_searches(record: Mapping[str, Any], pairs: pd.DataFrame) -> list[Advice]:
    """More searches of each algorithm where a pair with the first has no verdict, or a verdict that cannot be told.

    From other seeds, because a look at the result has decided to go on: with the first searches among them, a verdict
    would be wrong more often than in 5 %.
    """
    if pairs.empty or "verdict" not in pairs:
        return []
    if not comparison_text.judged(pairs):
        why = "Each algorithm was searched once: another search may find another order, so there is no verdict."
        return [Advice("Search each algorithm three times", why, command_again(record, "--searches", "3"))]
    first = pairs[(pairs["algorithm"] == pairs["algorithm"].iloc[0]) & (pairs["verdict"] == UNTOLD)]
    searches = int(record.get("searches", 1))
    if first.empty or searches < 2:
        return []
    pair = first.loc[first["difference"].abs().idxmin()]
    names, margin = f"{pair['algorithm']} and {pair['other']}", comparison_text.sized(record.get("margin", 0.0), pairs)
    why = f"After {several(searches, 'search')} it cannot be told whether they differ by more than {margin}."
    if 2 * searches > SEARCHES_AT_MOST:
        return [Advice(f"Leave {names} undecided", why)]
    todo = f"Search each algorithm {2 * searches} times, from other seeds: that may tell {names} apart"
    why += " It takes other seeds, as the 5 % hold only for a number of searches that was decided beforehand."
    again = "--searches", str(2 * searches), "--seed", str(int(record.get("seed", 0)) + OTHER_SEEDS)
    return [Advice(todo, why, command_again(record, *again))]


def _of_chance(f: Findings) -> float | None:
    """Half the 95 % interval of a difference between two configurations on one seed; None if it is unknown."""
    if f.check is None or f.check.names != ["best", "default"]:
        return None
    name = f.goal.first.name
    column = name if name in f.check.runs else f.check.column
    each = f.check.of("best", column) - f.check.of("default", column)
    if len(each) < 2 or each.isna().any() or np.ptp(each) < EQUAL:
        return None
    return float(special.stdtrit(len(each) - 1, 0.975) * each.std(ddof=1))


def _more(f: Findings) -> str:
    more = verdict.lacking(str(f.record.get("searcher")), len(f.trials)) or len(f.trials)
    if f.is_extendable:
        return findings.command("resume", f.run, "--trials", f"+{more}")
    return _again(f, "--trials", str(len(f.trials) + more))


def _again(f: Findings, *words: str) -> str:
    """A search's command with these words; of an extension the first search's command, "" if that is gone."""
    record = f.record
    if "extends" in record:
        with suppress(UserError):  # an earlier folder is damaged
            *_, first = lineage(RunFiles(f.run))
            record = first.record
    return "" if "extends" in record else command_again(record, *words)
