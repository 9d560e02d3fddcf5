"""A choice that stands: a search's best trials are trained on more seeds before one of them is named.

What looks best on one seed among many owes some of it to that seed (the winner's curse).  The further seeds come right
after those of the trials, and before those of the final check, which takes no part in the choice.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedtune.core.objectives import final
from fedtune.runs import choice, reading, tables
from fedtune.runs.files import RunFiles
from fedtune.studies import fresh_seeds, ray_tasks
from fedtune.tuning import messages
from fedtune.tuning.plan import SearchPlan, StartedSearch

Trial = dict[Any, Any]  # a row of the table of trials


def choose(s: StartedSearch, trials: pd.DataFrame) -> tuple[pd.Series | None, pd.DataFrame]:
    """The trial to name, None if none can be; and a row for each that was trained on more seeds, in the order of rank.

    What decides is shown, and written into the table of trials.  Each run leaves a file, and is not trained again if
    the search is resumed or gets more trials.

    Columns of the rows: trial; `own`, its first objective on its own seeds, a mean if they are several; `seed N`, the
    same on each further one; every metric of the goal, its mean over all of them; reason, why it cannot be chosen, ""
    if it can: it diverged or failed on a seed, or breaks a constraint in the mean.
    """
    p = s.plan
    if p.extended and not p.continued:
        p.files.choice_folder.mkdir(exist_ok=True)
        for file in RunFiles(p.extended).choice_folder.glob("*.json"):  # named by all that the outcome depends on
            shutil.copy(file, p.files.choice_folder)
    rows: list[dict[str, Any]] = []

    def worth(some: Sequence[Trial]) -> list[float]:
        configs = {t["trial"]: fresh_seeds.values(p, t) for t in some}
        outcomes = fresh_seeds.trained(s, configs, p.choosing, p.files.choice_folder, title="choice")
        table = [judged(p, t, {seed: outcomes[t["trial"], seed] for seed in p.choosing}) for t in some]
        rows.extend(table)
        first = p.goal.first
        return [math.nan if row["reason"] else first.sign * row[first.name] for row in table]

    ranked = tables.best_trials(trials[trials["status"] == "finished"], p.budget.unit, p.goal)
    best = choice.standing(ranked.to_dict("records"), worth)
    name, table = best and best["trial"], pd.DataFrame(rows)
    messages.show_choice(p, table, name)
    stand = table[table["reason"] == ""].set_index("trial")
    trials[tables.CHOICE] = trials["trial"].map(stand[p.goal.first.name]).astype(float)
    reading.write_table(trials, p.files.trials_file)
    return trials[trials["trial"] == name].iloc[-1] if name else None, table


def judged(p: SearchPlan, trial: Trial, more: Mapping[int, ray_tasks.Outcome]) -> dict[str, Any]:
    """A trial's row.  more: its outcome on each further seed; only validation metrics and costs are looked at."""
    goal, last = p.goal, {seed: fresh_seeds.last_round(o, p.goal, lambda _: []) for seed, o in more.items()}
    means = {
        name: (p.seeds * float(trial[final(name)]) + sum(row[name] for row in last.values())) / (p.seeds + len(last))
        for name in goal.names
    }
    lost = [f"{row['reason']} ({p.run_word} {seed})" for seed, row in last.items() if row["reason"]]
    lost += [f"it reports no {name} in its last round" for name, mean in means.items() if math.isnan(mean)]
    lost += [f"it breaks {c} in the mean: {means[c.name]:.6g}" for c in goal.constraints if c.excess(means[c.name]) > 0]
    each = {f"{p.run_word} {seed}": row[goal.first.name] for seed, row in last.items()}
    own = {choice.OWN: float(trial[goal.first.column])}
    return {"trial": str(trial["trial"])} | own | each | means | {"reason": lost[0] if lost else ""}
