"""A trained model in a file: the experiment, its configuration and its state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from fedtune.core import about as package
from fedtune.core.errors import UserError
from fedtune.engine.simulation import Simulation
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.user_code import user_files


def write(path: Path, experiment: Experiment, config: dict[str, Any], simulation: Simulation) -> None:
    """Write a file that loads without running code; the user's code that it contains runs only when it is used."""
    about = experiment.to_plain() | {"own": [tuple(file) for file in experiment.own]}
    content = {"fedtune": package.VERSION, "format": package.FORMAT, "experiment": about, "config": config}
    torch.save(content | {"state": simulation.state_dict()}, path)


def read(path: Path) -> tuple[Experiment, dict[str, Any], dict[str, Any]]:
    """The experiment (on a CPU), the configuration and the state; UserError if `write` did not make the file."""
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
        package.require_format(path, content.get("format", package.FORMAT), content["fedtune"])  # none at first
        about = dict(content["experiment"])
        files = tuple(user_files.UserFile(*file) for file in about.get("own", ()))
        if files and hasattr(os, "getuid") and path.stat().st_uid != os.getuid():
            raise UserError(
                f"{path} belongs to another user and holds code that would run; train that configuration yourself"
            )
        about["own"] = user_files.unchanged(files, f"the model in {path}")
        about |= {"scenario": Scenario(**about["scenario"]), "given": tuple(about["given"]), "device": "cpu"}
        return Experiment(**about), dict(content["config"]), dict(content["state"])
    except UserError:
        raise
    except Exception as error:  # a file of another program or version, truncated, or with code in it
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"a saved model must come from fedtune run --save, but {path} does not: {reason}") from error
