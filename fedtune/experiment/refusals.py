"""Which part of the round takes which algorithm, and why not the others."""

from __future__ import annotations

from fedtune.core.errors import UserError
from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.scenario import Scenario


def require_codec(alg: Algorithm, name: str, scenario: Scenario, received: bool) -> None:
    """UserError unless a codec of updates finds updates.  received: whether clients train what they received.

    An algorithm that sends nothing takes any codec.
    """
    if scenario.compress in ("none", "fp16", "int8") or alg.releases == "nothing":
        return
    why = "" if alg.shared else "shares no parameters; its clients send other messages"
    if alg.shared and not received:
        why = "gives its clients no model that an update could refer to"
    if why:
        raise UserError(
            f"--compress {scenario.compress} is for updates of shared parameters, but {name} {why}; use fp16 or int8, "
            "which take all that is sent, or another algorithm, fedavg for instance"
        )
