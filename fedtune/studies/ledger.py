"""What a search's models cost in privacy: the chosen one alone, all that were trained, and their choice.

The chosen configuration depends on every trial, so its own ε understates what was released of the clients' rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedtune.core.accounting import SHAPES, Ledger, accountant
from fedtune.core.terminal import several
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.privacy import Privacy, spent
from fedtune.runs.files import RunFiles, lineage, write_json
from fedtune.runs.trial_states import UNTRAINED
from fedtune.studies import fresh_seeds
from fedtune.tuning.plan import SearchPlan
from fedtune.tuning.space import Config

BUT_SCORES = "without the validation scores, which were not private"
TRAINED = "trained"  # the column with a trial's rounds where some were copied, or trained again after a copy: of PBT


def rounds_in(reported: Sequence[Mapping[str, Any]]) -> int:
    """How many rounds a trial trained, by what it reported."""
    return sum("round" in row for row in reported)


def write(p: SearchPlan, config: Config, best: pd.Series, trials: pd.DataFrame, checked: int) -> list[str]:
    """Write privacy.json into a search's folder; its lines.  Nothing without privacy.

    best: the chosen trial.  trials: all of them.  checked: how many runs its final check had.
    """
    workload = p.workload
    if not isinstance(workload, Experiment) or (private := Privacy.of(workload.resolve(config)[1])) is None:
        return []
    ledger, rounds = trained(p, workload, trials)
    of_model = spent(*workload.released(config), int(best["rounds"]))["epsilon"]
    composed, selected, choice = ledger.epsilon(private.delta), None, "has no ε of its own, which takes --trials-drawn"
    if shape := p.options.trials_drawn:
        mean = p.options.trials or 32
        whole = Ledger({(private.sample_rate, private.noise): p.seeds * private.rounds} if ledger else {})
        selected = whole.epsilon(private.delta, mean, SHAPES[shape])
        choice = f"cost ε = {selected:.4g}, by RDP: the number of trials was drawn ({shape}, with mean {mean})"
    by = accountant(private.noise).upper()
    as_if = f", {private.as_if}" if private.as_if else ""
    runs = f"{several(checked, 'run')} on fresh seeds"
    runs = "the comparison's own runs on fresh seeds" if RunFiles(p.folder.parent).is_comparison else runs
    lines = [
        f"privacy of this model alone, if its hyperparameters had been known: ε = {of_model:.4g} at δ = "
        f"{private.delta:.3g}, by {by}{as_if}",
        f"{BUT_SCORES}: the search cost ε = {composed:.4g}, composed by RDP over {several(rounds, 'round')} that it "
        f"trained; {runs}, which a deployment would not have, not counted",
        f"{BUT_SCORES}: the choice {choice}",
    ]
    found = {"delta": private.delta, "model": of_model, "accountant": by, "composed": composed, "rounds": rounds}
    finite = {name: None if value == math.inf else value for name, value in (found | {"selected": selected}).items()}
    more = {"population": workload.scenario.population, "cohort": workload.scenario.cohort, "scores": "not private"}
    write_json(p.files.privacy_file, finite | more | {"lines": lines})
    return lines


def trained(p: SearchPlan, workload: Experiment, trials: pd.DataFrame) -> tuple[Ledger, int]:
    """All rounds that were trained on the search's clients, and how many they are: of trials and of their choice."""
    ledger, rounds = Ledger(), 0
    more: dict[str, int] = {}  # how many further seeds a trial was trained on, here or in an earlier search
    for record in (run.record for run in lineage(p.files)):
        for row in record.get("choice") or []:
            more[row["trial"]] = max(more.get(row["trial"], 0), record["choose_seeds"] - 1)
    for row in trials.to_dict("records"):
        if str(row["reason"]).startswith(UNTRAINED):
            continue
        # what diverged or failed has lost its last round, which counts all the same
        length = int(row.get(TRAINED, row["rounds"])) + (row["status"] in ("diverged", "failed"))
        runs = p.seeds + max(more.get(name, 0) for name in (row["trial"], row.get("continues")))
        (releases, scenario), rounds = workload.released(fresh_seeds.values(p, row)), rounds + runs * length
        if (private := Privacy.of(scenario)) and releases != "nothing":
            ledger[private.sample_rate, private.noise] += runs * length
    return ledger, rounds
