"""ε of rounds, by dp-accounting: reference values, the closed form where nobody is left out, and limits."""

import math

import pytest
from scipy.special import ndtr

from fedtune.core import accounting
from fedtune.core.accounting import Ledger, accountant, epsilon_of, noise_for
from fedtune.core.errors import UserError
from fedtune.core.randomness import numpy_stream

OF_DIGITS = dict(abs=5e-5)

# q, z, rounds, δ, ε by RDP, by PLD
REFERENCE = [
    (0.1, 1, 60, 1e-3, 4.3810, 3.6404),
    (0.1, 2, 60, 1e-3, 1.3658, 1.1578),
    (0.1, 4, 60, 1e-3, 0.5458, 0.4607),
    (0.1, 0.5, 60, 1e-3, 21.5219, 17.0262),
    (0.1, 1, 100, 1e-5, 7.9039, 7.0466),
    (0.5, 2, 50, 1e-3, 7.9924, 6.9811),
    (0.01, 4, 10_000, 1e-5, 1.0355, 0.9470),
    (256 / 60_000, 1.1, 14_062, 1e-5, 2.5966, 2.3817),
    (1, 10, 100, 1e-5, 4.7285, 4.3772),
    (1, 5, 100, 1e-3, 8.4165, 7.5813),
    (1, 10, 60, 1e-2, 1.9787, 1.6469),
]


@pytest.mark.parametrize(("q", "z", "rounds", "delta", "rdp", "pld"), REFERENCE)
def test_rounds_cost_what_the_reference_says(
    q: float, z: float, rounds: int, delta: float, rdp: float, pld: float
) -> None:
    assert epsilon_of(q, z, rounds, delta) == pytest.approx(pld, **OF_DIGITS)
    assert epsilon_of(q, z, rounds, delta, "rdp") == pytest.approx(rdp, **OF_DIGITS)


@pytest.mark.parametrize(("z", "rounds"), [(10.0, 60), (1.0, 1), (0.3, 2)])
def test_where_all_take_part_the_closed_form_holds(z: float, rounds: int) -> None:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ = √T / z (Balle and Wang 2018, theorem 8)."""
    mu = math.sqrt(rounds) / z
    epsilon = epsilon_of(1.0, z, rounds, 1e-3)
    delta = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-3, rel=2e-3) and delta <= 1e-3  # ε is an upper bound


def test_limits_and_directions() -> None:
    assert epsilon_of(0.1, 0.0, 60, 1e-3) == math.inf == Ledger({(0.1, 0.0): 1}).epsilon(1e-3)
    assert epsilon_of(0.1, 0.0, 0, 1e-3) == epsilon_of(0.0, 0.0, 60, 1e-3) == Ledger().epsilon(1e-3) == 0
    assert epsilon_of(0.1, 1.0, 60, 1e-3) > epsilon_of(0.1, 1.1, 60, 1e-3) > epsilon_of(0.09, 1.1, 60, 1e-3)
    # the accountant is one for all rounds, so that ε never falls; and where it changes, the other's is larger
    curve = [epsilon_of(0.1, 1.0, t, 1e-3) for t in (*range(12), 59, 60)]
    assert curve == sorted(curve) and len({accountant(z) for z in (0.3, 1.0, 10.0)}) == 1
    assert accountant(0.05) == "rdp" and epsilon_of(0.1, 0.0999, 2, 1e-3) > epsilon_of(0.1, 0.1, 2, 1e-3)


@pytest.mark.parametrize(
    ("q", "rounds", "delta", "by", "noises"),
    [
        (0.1, 60, 1e-3, "rdp", (2.5028, 1.5535, 1.0477, 0.7514)),
        (1.0, 60, 1e-3, "pld", (19.943, 11.195, 6.376, 3.718)),
        (1.0, 60, 1e-2, "pld", (14.546, 8.646, 5.182, 3.163)),
        (0.001, 1500, 1e-6, "rdp", (0.9403, 0.7138, 0.5579, 0.4454)),
    ],
)
def test_the_noise_for_a_target_is_the_least_of_four_digits(
    q: float, rounds: int, delta: float, by: str, noises: tuple[float, ...]
) -> None:
    for epsilon, noise in zip((1, 2, 4, 8), noises, strict=True):
        found = noise_for(q, epsilon, rounds, delta, by)
        assert found == pytest.approx(noise, abs=6e-4 if by == "pld" else 1.01e-4) and round(found, 4) == found
        assert epsilon_of(q, found, rounds, delta, by) <= epsilon < epsilon_of(q, found - 1e-4, rounds, delta, by)


def test_rounds_of_a_whole_search_compose() -> None:
    assert Ledger({(0.1, 2.0): 1920}).epsilon(1e-3) == pytest.approx(10.4255, **OF_DIGITS)
    assert Ledger({(0.1, 2.0): 438}).epsilon(1e-3) == pytest.approx(4.1692, **OF_DIGITS)
    both = Ledger({(0.1, 2.0): 60, (0.2, 1.0): 30})
    assert both.epsilon(1e-3) > max(Ledger({key: n}).epsilon(1e-3) for key, n in both.items())


@pytest.mark.parametrize(
    ("shape", "mean", "epsilon"),
    [
        *[(1, mean, e) for mean, e in ((8, 3.2406), (16, 3.6229), (32, 3.9728), (100, 4.4991))],
        *[(0, mean, e) for mean, e in ((32, 3.1853), (100, 3.5292))],
        (0.5, 32, 3.592),
        *[(math.inf, mean, e) for mean, e in ((32, 7.212), (100, 13.109))],
    ],
)
def test_the_best_of_a_random_number_of_runs(shape: float, mean: float, epsilon: float) -> None:
    assert Ledger({(0.1, 2.0): 60}).epsilon(1e-3, mean, shape) == pytest.approx(epsilon, abs=6e-4)


@pytest.mark.parametrize(("shape", "mean"), [("geometric", 8), ("logarithmic", 8), ("poisson", 8), ("logarithmic", 2)])
def test_numbers_of_trials_are_drawn_with_their_mean_and_distribution(shape: str, mean: float) -> None:
    drawn = [accounting.drawn(shape, mean, numpy_stream(i, "trials")) for i in range(20_000)]
    gamma = {("logarithmic", 8): 0.036339, ("logarithmic", 2): 0.284668}.get((shape, mean), 1 / mean)
    ones = {"geometric": gamma, "logarithmic": (1 - gamma) / -math.log(gamma), "poisson": mean * math.exp(-mean)}[shape]
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.04) and type(drawn[0]) is int
    assert drawn.count(1) / len(drawn) == pytest.approx(ones, abs=0.012)


def test_without_the_package_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    accounting._library.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'fedtune\[privacy\]'"):
        Ledger({(0.1, 2.0): 7}).epsilon(1e-3)


def test_orders_that_are_left_out_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    epsilon_of(0.1, 1.0, 61, 1e-3, "rdp")
    assert not caplog.records
