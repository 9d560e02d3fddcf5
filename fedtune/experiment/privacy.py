"""Privacy of clients as a scenario has it: the noise of a round, and what the rounds of a run cost."""

from __future__ import annotations

from typing import NamedTuple

from fedtune.core.accounting import epsilon_of, noise_for
from fedtune.core.errors import UserError
from fedtune.experiment.scenario import Scenario

ENOUGH = 1000  # clients, of which the noise in a mean is small
LARGE = 0.01  # δ, above which ε says little, however few clients there are
VAGUE = 0.1  # deviation of the share of updates within the bound, above which a bound that follows it wanders
START = 0.1  # the first bound, where it adapts and none is given (Andrew et al. 2021)


class Privacy(NamedTuple):
    """How a run keeps its clients private.  Neighbours: one client more or less."""

    noise: float  # z: what a round releases costs as much as one sum with noise of z bounds
    update_noise: float  # the noise on the sum of updates, in bounds: above z where the bound's count costs something
    count_noise: float  # σ_b: the noise on the number of updates within the bound
    clip: float  # C, or its start
    quantile: float  # γ: the share of updates that the bound should leave as they are; 0: C stays
    clip_rate: float  # η_C
    sample_rate: float  # q, of a client in a round
    expected: float  # qK, the clients expected in a round: the denominator of means
    cohort: float  # M, those expected if there were `population` clients; qK without it
    delta: float  # δ
    rounds: int  # T
    as_if: str  # "as if 1,000 of 1,000,000 clients took part", where a population is given; else ""

    @classmethod
    def of(cls, scenario: Scenario) -> Privacy | None:
        """What a scenario asks for; None without privacy.  UserError for what contradicts itself."""
        s = scenario
        if s.privacy == "none":
            return None
        _require(s)
        population, expected = s.population or s.clients, float(s.participants)
        cohort = float(s.cohort or expected)
        q, delta = cohort / population, s.privacy_delta or population**-1.1
        noise = noise_for(q, s.epsilon, s.rounds, delta) if s.epsilon else s.update_noise
        of_count = max(cohort / 20, 5 * noise) if s.clip_quantile else 0.0
        return cls(
            noise=noise,
            update_noise=beside_count(noise, of_count) if of_count else noise,
            count_noise=of_count,
            clip=s.update_clip or START,
            quantile=s.clip_quantile,
            clip_rate=s.clip_rate,
            sample_rate=q,
            expected=expected,
            cohort=cohort,
            delta=delta,
            rounds=s.rounds,
            as_if=f"as if {s.cohort:,} of {s.population:,} clients took part" if s.population else "",
        )

    def epsilon(self, rounds: int) -> float:
        """ε after so many rounds."""
        return epsilon_of(self.sample_rate, self.noise, rounds, self.delta)


def spent(releases: str, scenario: Scenario, rounds: int) -> dict[str, float]:
    """The metric `epsilon` after so many rounds; none without privacy.  releases: what the algorithm's server uses."""
    if scenario.privacy == "none":
        return {}
    private = None if releases == "nothing" else Privacy.of(scenario)
    return {"epsilon": private.epsilon(rounds) if private else 0.0}


def notes(releases: str, scenario: Scenario) -> list[str]:
    """What to know of privacy with few clients, a line each."""
    s, private = scenario, None if releases == "nothing" else Privacy.of(scenario)
    if private is None:
        return []
    share, lines = private.count_noise / private.cohort, list[str]()
    if private.delta > (most := min(1 / (s.population or s.clients), LARGE)):
        far = f"δ = {private.delta:.2g} is large: with that chance the bound may fail; it should be below {most:.2g}"
        lines.append(f"{far}: --set privacy_delta={most / 10:.0e}")
    if share > VAGUE:
        known = f"with {private.cohort:g} clients a round the share of updates within it is known to ± {share:.2g}"
        lines.append(f"the adapting bound will wander: {known}; a fixed one does not: --set update_clip=1 alone")
    if s.population or s.clients >= ENOUGH:
        return lines
    deviation = f" ({private.update_noise / private.cohort:.2g} of the bound at update_noise {private.noise:g})"
    few = f"{s.clients} clients are few for privacy: the noise is large in every number of the mean"
    return [*lines, f"{few}{deviation * (private.noise > 0)}; for thousands, as if, see --population and --cohort"]


def beside_count(noise: float, of_count: float) -> float:
    """The noise on the sum with which it and a count with noise σ_b cost what a sum alone with noise z costs.

    A centred bit has sensitivity ½: z_Δ = (z⁻² − (2σ_b)⁻²)^−½ (Andrew et al. 2021, theorem 1).
    """
    if 2 * of_count <= noise:
        raise UserError(f"the count's noise must be above half of update_noise, {noise:g}, but got {of_count:g}")
    return (noise**-2 - (2 * of_count) ** -2) ** -0.5 if noise else 0.0


def _require(s: Scenario) -> None:
    if s.epsilon and s.update_noise:
        rule = "--epsilon sets update_noise, so only one of them can be given"
        raise UserError(f"{rule}, but got {s.epsilon:g} and {s.update_noise:g}; leave one out")
    if not (s.update_clip or s.clip_quantile):
        raise UserError("privacy needs a bound on updates, but update_clip is 0; give --set update_clip=1, or vary it")
    if bool(s.population) != bool(s.cohort):
        raise UserError(f"population and cohort go together, but got {s.population} and {s.cohort}; give both")
    if s.population and not (s.clients <= s.population and s.cohort <= s.population):
        rule = f"population must be at least the {s.clients} clients and the cohort of {s.cohort}"
        raise UserError(f"{rule}, but got {s.population}")
    if s.clients < 2:
        raise UserError(f"privacy of clients needs two or more, but got {s.clients}; give more --clients")
