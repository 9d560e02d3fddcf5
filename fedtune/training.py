"""A configuration trained in this process, from Python: `fedtune.train`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from fedtune.core.errors import UserError, unknown
from fedtune.core.hyper import hyperparameters, typed
from fedtune.core.process import at_work, one_thread
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning, registry
from fedtune.experiment.scenario import Scenario
from fedtune.programs.naming import is_file, is_program
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.user_code import user_files

Options = TypeVar("Options", bound=ExperimentOptions)
Algo = str | Path | type  # a name, a file, or an Algorithm's class


def train(
    algo: Algo,
    scenario: str = "",
    config: Mapping[str, Any] | None = None,
    save: str | Path | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Train one configuration from its first round to its last, without Ray.  Returns one row of metrics per round.

    PyTorch uses one thread meanwhile, as in a trial.

    algo      a name, FILE.py[:NAME], or an Algorithm's class
    config    hyperparameters of the algorithm or the scenario; the others have their defaults
    save      a new file for the trained model: for `start_from` of another call, or `fedtune.analysis.models.load`
    options   seed, device, data_dir, start_from, …, the scenario's fields, and hyperparameters as in config

    UserError for invalid arguments; Diverged if a loss or weights become NaN or infinite.

    >>> import fedtune
    >>> rows = fedtune.train("fedprox", "digits-w4", {"mu": 0.1}, rounds=2, clients=4, seed=3)
    >>> rows["round"].tolist()
    [1, 2]
    >>> bool(rows["val_acc"].between(0, 1).all())
    True
    """
    with at_work(), one_thread():
        given = options_of(ExperimentOptions, algo, scenario, options)
        experiment = given.experiment()
        values = typed(experiment.hyperparameters(), {} if config is None else config)
        if save and Path(save).exists():
            raise UserError(f"save needs a new file, but {save} exists; give another")
        data = partitioning.make(experiment.scenario, experiment.seed, given.data_dir, given.download)
        simulation = Simulation(experiment, values, data)
        rows = pd.DataFrame(simulation.step() for _ in range(simulation.setup.scenario.rounds))
        if save:
            from fedtune.engine import model_file

            model_file.write(Path(save), experiment, values, simulation)
    return rows


def options_of(cls: type[Options], given_algo: Algo, scenario: str, given: Mapping[str, Any]) -> Options:
    """Options from arguments of Python: options by name, scenario fields, and searchable to hold fixed."""
    algo = str(given_algo)
    if isinstance(given_algo, type):
        from fedtune.experiment import user_algorithms

        algo = user_algorithms.name_of(given_algo)
    if is_program(algo):
        from fedtune.programs import program_file

        theirs, searchable = ["rounds"], list(program_file.read(algo).hyper) if is_file(algo) else []
    else:
        theirs = [f.name for f in dataclasses.fields(Scenario)]
        searchable = list(hyperparameters(registry.find(user_files.take_each(algo, registry.names())[0])))
    # start="own" is an option, but start=2 is GFPL's hyperparameter
    own = [
        f.name
        for f in dataclasses.fields(cls)
        if f.name not in searchable or given.get(f.name) in f.metadata.get("choices", ())
    ]
    values = {name: value for name, value in given.items() if name in own}
    fields, pinned = dict(values.pop("fields", {})), dict(values.pop("set", {}))
    for name, value in given.items():
        if name in theirs:
            fields[name] = value
        elif name in searchable and name not in own:
            pinned[name] = value
        elif name not in own:
            raise unknown("argument", name, [*own, *theirs, *searchable])
    return cls(algo=algo, scenario=scenario, fields=fields, set=pinned, **values)
