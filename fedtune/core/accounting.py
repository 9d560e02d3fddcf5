"""What privacy costs: ε of rounds and the noise for a target ε, both computed by Google's dp-accounting.

A round releases the sum of clipped updates, where each client takes part with probability q, plus Gaussian noise with
standard deviation z times the bound.  Neighbours: one client more or less.  Privacy loss distributions (PLD) are the
tightest; the Rényi accountant (RDP) stands in for noise so small that they would take minutes, and composes rounds
that differ.  Which one counts depends on q and z alone, so that ε never falls from round to round.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedtune.core.errors import UserError

if TYPE_CHECKING:
    from numpy.random import Generator

LEAST_FOR_PLD = 0.1  # the smallest z for which a distribution is computed
MOST_NOISE = 1e6  # the largest z that a target may need
DIGITS = 10_000  # z has four decimal places
# distributions of a number of trials -> their shape (Papernot and Steinke 2022)
SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}


def accountant(z: float) -> str:
    """Which accountant counts: pld, or rdp."""
    return "pld" if z >= LEAST_FOR_PLD else "rdp"


@lru_cache(maxsize=4096)
def epsilon_of(q: float, z: float, rounds: int, delta: float, by: str = "") -> float:
    """ε of so many rounds at δ.  by: pld or rdp; "": as `accountant` says.  Infinite without noise."""
    if not (q and rounds):
        return 0.0
    if not z:
        return math.inf
    if (by or accountant(z)) == "rdp":
        return Ledger({(q, z): rounds}).epsilon(delta)
    return float(_loss(q, z).self_compose(rounds).get_epsilon_for_delta(delta))


@lru_cache(maxsize=256)
def noise_for(q: float, epsilon: float, rounds: int, delta: float, by: str = "") -> float:
    """The smallest z, of four decimal places, with which so many rounds cost at most ε at δ."""
    low, high = 0, DIGITS
    while epsilon_of(q, high / DIGITS, rounds, delta, by) > epsilon:
        low, high = high, 2 * high
        if high > MOST_NOISE * DIGITS:
            raise UserError(f"ε must be one that some noise reaches, but got {epsilon:g} at δ = {delta:g}")
    while high - low > 1:
        middle = (low + high) // 2
        enough = epsilon_of(q, middle / DIGITS, rounds, delta, by) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high / DIGITS


def drawn(shape: str, mean: float, stream: Generator) -> int:
    """A random number of trials: one of SHAPES with this mean."""
    if shape == "poisson":
        return int(stream.poisson(mean))
    if shape == "geometric":
        return int(stream.geometric(1 / mean))
    low, high = 1e-12, 1 - 1e-12  # γ of the logarithmic one, whose mean (1/γ - 1) / log(1/γ) falls in it
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / middle - 1) / -math.log(middle) > mean else (low, middle)
    return int(stream.logseries(1 - low))


class Ledger(Counter[tuple[float, float]]):
    """What was released: the number of rounds with each (q, z)."""

    def epsilon(self, delta: float, runs: float = 1.0, shape: float | None = None) -> float:
        """ε of all rounds together at δ, by the Rényi accountant.

        shape: the same for the best of a random number of such runs with mean `runs`: 1 geometric, 0 logarithmic,
        infinity Poisson (Papernot and Steinke 2022, theorems 2 and 6).
        """
        if any(q and rounds and not z for (q, z), rounds in self.items()):
            return math.inf
        dp = _library()
        events = [dp.SelfComposedDpEvent(_event(dp, q, z), rounds) for (q, z), rounds in self.items() if q and rounds]
        event = dp.ComposedDpEvent(events)
        if shape is not None:
            event = dp.dp_event.RepeatAndSelectDpEvent(event, runs, shape)
        return float(dp.rdp.RdpAccountant().compose(event).get_epsilon(delta)) if events else 0.0


@lru_cache(maxsize=64)
def _loss(q: float, z: float) -> Any:
    """The distribution of one round's privacy loss.

    Its grid is a five-hundredth of the loss's standard deviation, or dp-accounting's own 1e-4 if that is more; ε is an
    upper bound whatever the grid.
    """
    _library()
    from dp_accounting.pld import privacy_loss_distribution

    deviation = min(1 / z, q * math.sqrt(math.expm1(min(z**-2, 100))))
    grid = min(max(1e-4, deviation / 500), 0.01)
    return privacy_loss_distribution.from_gaussian_mechanism(z, value_discretization_interval=grid, sampling_prob=q)


def _event(dp: ModuleType, q: float, z: float) -> Any:
    event = dp.GaussianDpEvent(z)
    return dp.PoissonSampledDpEvent(q, event) if q < 1 else event


@lru_cache(maxsize=1)
def _library() -> ModuleType:
    try:
        import dp_accounting
    except ImportError as error:
        raise UserError("ε needs a package that is not installed; pip install 'fedtune[privacy]'") from error
    # orders of Rényi divergence that it leaves out say so
    logging.getLogger("absl").addFilter(lambda record: "failed to converge" not in str(record.msg))
    return dp_accounting
