"""fedtune privacy: what rounds cost in ε, or the noise for a target, before any training."""

from __future__ import annotations

import argparse
from typing import Any

from fedtune.core.importing import quick_imports
from fedtune.core.terminal import say, say_table, short
from fedtune.tuning.options import arguments

ROUNDS = [k * 10**e for e in range(7) for k in (1, 2, 5)]  # after which ε is shown, and after the last


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune privacy`."""
    p = arguments.Parser(
        prog="fedtune privacy",
        description="Show what rounds with privacy of clients cost, or the noise for a target; nothing is trained.",
        examples=(
            "fedtune privacy --clients 100 --participation 0.1 --rounds 60 --noise 1",
            "fedtune privacy --population 1000000 --cohort 1000 --epsilon 2",
        ),
    )
    p.add_argument("--clients", type=int, metavar="K", help="number of clients (default 100)")
    p.add_argument("--participation", type=float, metavar="SHARE", help="q, their share in a round (default 1)")
    p.add_argument("--rounds", type=int, metavar="T", help="number of rounds (default 60)")
    p.add_argument("--delta", type=float, metavar="δ", help="δ of (ε, δ) (default clients^-1.1)")
    p.add_argument("--population", type=int, metavar="N", help="as if there were so many clients")
    p.add_argument("--cohort", type=int, metavar="M", help="as if so many of the population took part in a round")
    which = p.add_mutually_exclusive_group(required=True)
    which.add_argument("--noise", type=float, metavar="Z", help="noise on a round's sum, in units of the bound")
    which.add_argument("--epsilon", type=float, metavar="ε", help="the target ε at the last round, for its noise")
    p.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune privacy` and return its exit status."""
    given = {name: value for name, value in vars(parser().parse_args(argv)).items() if value is not None}
    renamed = {"delta": "privacy_delta", "noise": "update_noise"}
    values: dict[str, Any] = {"clients": 100, "privacy": "client", "update_clip": 1.0}
    values |= {renamed.get(name, name): value for name, value in given.items() if name != "debug"}
    with quick_imports():
        from fedtune.core.accounting import accountant
        from fedtune.experiment.privacy import Privacy
        from fedtune.experiment.scenario import Scenario

    private = Privacy.of(Scenario(**values))
    assert private
    if private.as_if:
        say(private.as_if)
    costs = f"δ = {private.delta:.4g}, by {accountant(private.noise).upper()}"
    if "epsilon" in given:
        say(f"noise: update_noise {private.noise:.4f} keeps ε at {given['epsilon']:g} at most; {costs}")
    else:
        say(f"a client takes part in a round with probability {short(private.sample_rate)}; {costs}")
    rounds = [*(t for t in ROUNDS if t < private.rounds), private.rounds]
    say_table("what rounds cost", ["rounds", "ε"], [(str(t), f"{private.epsilon(t):#.4g}") for t in rounds])
    return 0
