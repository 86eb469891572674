"""Epsilons of sampled Gaussian releases, and what an attacker can learn, by fedmf and by others.

Every epsilon is an upper bound; of several, the lowest is the tightest. Each side's function is
called in a process of its own environment, and imports its library before the clock starts.
"""

import functools
import math
import os
from typing import Any

from benchmarks.compare.sitting import Case, Side
from benchmarks.compare.worker import Work

# The share of clients that are not there, which the attacker accuses.
_FALSE_POSITIVES = 0.01


def sqrt_coefficients(bands: int) -> list[float]:
    """The first of (1 - x)^(-1/2): an encoder for prefix sums that all sides can be given.

    Without numpy, whose build need not fit the Python that opake runs on.
    """
    found = [1.0]
    for i in range(1, bands):
        found.append(found[-1] * (2 * i - 1) / (2 * i))
    return found


def bin_gram(rounds: int, bands: int, bins: int) -> list[float]:
    """Inner products, row by row, of the bins' sums of columns of the encoder."""
    coefficients = sqrt_coefficients(bands)
    sums = [[0.0] * rounds for _ in range(bins)]
    for column in range(rounds):
        for lag, coefficient in enumerate(coefficients[: rounds - column]):
            sums[column % bins][column + lag] += coefficient
    return [math.fsum(map(math.prod, zip(a, b, strict=True))) for a in sums for b in sums]


def _identity(rounds: int) -> Any:
    import fedmf

    return fedmf.fit(
        fedmf.prefix_sum(rounds),
        fedmf.Participation(rounds=rounds, schema="single"),
        family="identity",
    )


def _toeplitz(rounds: int, bands: int) -> Any:
    import fedmf

    return fedmf.fit(
        fedmf.prefix_sum(rounds),
        fedmf.Participation(rounds=rounds, schema="single"),
        family="toeplitz",
        bands=bands,
        coefficients="sqrt",
        cache=False,
    )


def _keep_nothing() -> None:
    os.environ["FEDMF_CACHE"] = ""


# Random allocation: one of `positions` Gaussian releases has the client.


def fedmf_allocation(noise: float, positions: int, delta: float) -> Work:
    """fedmf: bounded from above on a grid, without simulation."""
    from fedmf.privacy.random_allocation import random_allocation_epsilon

    return lambda _: {"value": random_allocation_epsilon(noise, delta, positions=positions)}


def opake_allocation(noise: float, positions: int, delta: float) -> Work:
    """opake-accounting, exact for one out of t, at its default discretization."""
    import opake.accounting
    from opake.api.accounting.core import opake_accounting as opake

    config = opake.DiscretizationConfig()
    return lambda _: {
        "value": opake.random_allocation_gaussian_pld(noise, positions, 1, config).epsilon_at(delta)
    }


def pld_accounting_allocation(noise: float, positions: int, delta: float) -> Work:
    """PLD_accounting, refined to its default relative accuracy; its lower bound in the note."""
    from PLD_accounting import gaussian_allocation_epsilon_range

    def work(_: dict[str, Any]) -> dict[str, Any]:
        high, low = gaussian_allocation_epsilon_range(delta=delta, sigma=noise, num_steps=positions)
        return {"value": high, "note": f"at least {low:.4f}"}

    return work


# Balls in bins: the client is in one of `bins` residues of the rounds, drawn once.


def fedmf_bins(noise: float, rounds: int, bands: int, bins: int, delta: float) -> Work:
    """fedmf, simulated; its failure probability is fixed."""
    _keep_nothing()
    from fedmf.privacy.monte_carlo import FAILURE
    from fedmf.privacy.sampling import BallsInBins

    mechanism, scheme = _toeplitz(rounds, bands), BallsInBins(population=1000, bins=bins)
    scale = mechanism.encoder()[0, 0]  # the others' encoder has 1 there
    return lambda _: {
        "value": scheme.epsilon(mechanism, noise * scale, delta),
        "failure": FAILURE,
    }


def opake_bins(noise: float, rounds: int, bands: int, bins: int, delta: float) -> Work:
    """opake-accounting, simulated with its default failure probability and a tenth of delta
    unresolved, which at delta 1e-4 is its default too.
    """
    import opake.accounting
    from opake.api.accounting.core import opake_accounting as opake

    gram = bin_gram(rounds, bands, bins)
    config = opake.DiscretizationConfig(mc_resolution=delta / 10)

    def work(_: dict[str, Any]) -> dict[str, Any]:
        law = opake.bnb_mc_pld(gram, bins, noise, config)
        return {"value": law.epsilon_at(delta), "failure": law.mc_failure_probability}

    return work


# Min-sep Poisson: a client that was in none of the last bands - 1 rounds comes with a chance.


def fedmf_min_sep(noise: float, rounds: int, bands: int, cohort: int, delta: float) -> Work:
    """fedmf, simulated; of a population of 1000."""
    _keep_nothing()
    from fedmf.privacy.monte_carlo import FAILURE
    from fedmf.privacy.sampling import MinSepPoisson

    mechanism = _toeplitz(rounds, bands)
    scheme = MinSepPoisson(population=1000, cohort_size=cohort, min_sep=bands)
    scale = mechanism.encoder()[0, 0]
    return lambda _: {
        "value": scheme.epsilon(mechanism, noise * scale, delta),
        "failure": FAILURE,
    }


def opake_min_sep(noise: float, rounds: int, bands: int, cohort: int, delta: float) -> Work:
    """opake-accounting, simulated as `opake_bins` is; warm start is the stationary state."""
    import opake.accounting
    from opake.api.accounting.core import opake_accounting as opake

    chance = cohort / (1000 - (bands - 1) * cohort)
    config = opake.DiscretizationConfig(mc_resolution=delta / 10)
    coefficients = sqrt_coefficients(bands)

    def work(_: dict[str, Any]) -> dict[str, Any]:
        law = opake.bandmf_b_min_sep_warm_mc_pld(coefficients, rounds, chance, noise, config)
        return {"value": law.epsilon_at(delta), "failure": law.mc_failure_probability}

    return work


# Poisson samples of a fixed probability, round by round.


def fedmf_poisson(noise: float, rounds: int, chance: float, delta: float) -> Work:
    """fedmf: dp_accounting 0.4.3, on a grid that is refined as epsilon asks."""
    from fedmf.privacy.amplification import sampled_gaussian_epsilon

    options = {"probability": chance, "compositions": rounds}
    return lambda _: {"value": sampled_gaussian_epsilon(noise, delta, **options)}


def dp_accounting_poisson(noise: float, rounds: int, chance: float, delta: float) -> Work:
    """dp_accounting, at its default discretization."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    event = dp_accounting.PoissonSampledDpEvent(chance, dp_accounting.GaussianDpEvent(noise))

    def work(_: dict[str, Any]) -> dict[str, Any]:
        accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
        return {"value": accountant.compose(event, rounds).get_epsilon(delta)}

    return work


def opake_poisson(noise: float, rounds: int, chance: float, delta: float) -> Work:
    """opake-accounting, at its default discretization."""
    import opake.accounting
    from opake.api.accounting.core import opake_accounting as opake

    config = opake.DiscretizationConfig()

    def work(_: dict[str, Any]) -> dict[str, Any]:
        one = opake.poisson_pld(opake.gaussian_pld(noise, config), chance)
        return {"value": one.self_compose(rounds).epsilon_at(delta)}

    return work


# Attacks: the most of the clients that are there that an attacker finds.


def fedmf_attack(noise: float, rounds: int, chance: float) -> Work:
    """fedmf: without sampling at chance 1, else from the curve of Poisson samples."""
    _keep_nothing()
    from fedmf.privacy.attack_risk import AttackRisk
    from fedmf.privacy.sampling import CyclicPoisson

    mu = math.sqrt(rounds) / noise
    mechanism = _identity(rounds)
    scheme = CyclicPoisson(population=1000, cohort_size=round(1000 * chance), partitions=1)

    def work(_: dict[str, Any]) -> dict[str, Any]:
        pairs = scheme.curve(mechanism, noise) if chance < 1 else ()
        risk = AttackRisk(mu=mu, pairs=pairs)
        return {
            "value": risk.true_positive_rate(_FALSE_POSITIVES),
            "note": f"advantage {risk.advantage:.4f}",
        }

    return work


def riskcal_attack(noise: float, rounds: int, chance: float) -> Work:
    """riskcal: its closed form without sampling, else dp_accounting's losses, as its accountants
    have them.
    """
    from dp_accounting.pld import privacy_loss_distribution as losses
    from riskcal.analysis import conversions

    def work(_: dict[str, Any]) -> dict[str, Any]:
        if chance == 1:
            mu = math.sqrt(rounds) / noise
            missed = conversions.get_beta_from_gdp(mu, _FALSE_POSITIVES)
            advantage = conversions.get_advantage_from_gdp(mu)
        else:
            law = losses.from_gaussian_mechanism(noise, sampling_prob=chance).self_compose(rounds)
            missed = conversions.get_beta_from_pld(law, alpha=_FALSE_POSITIVES)
            advantage = conversions.get_advantage_from_pld(law)
        return {"value": 1 - float(missed), "note": f"advantage {float(advantage):.4f}"}

    return work


_fedmf = functools.partial(Side, label="fedmf", environment="fedmf")
_opake = functools.partial(
    Side, label="opake-accounting", environment="newer", distribution="opake-accounting"
)


def _cases() -> tuple[Case, ...]:
    cases = []
    for positions in (8, 64):
        options: dict[str, Any] = {"noise": 1.0, "positions": positions, "delta": 1e-6}
        pld = Side(
            label="PLD_accounting",
            function="accounting:pld_accounting_allocation",
            arguments=options,
            small={"positions": 2},
            distribution="PLD_accounting",
        )
        cases.append(
            Case(
                work=f"random allocation, 1 of {positions}, sigma 1, delta 1e-6",
                value="epsilon",
                sides=(
                    _fedmf(
                        function="accounting:fedmf_allocation",
                        arguments=options,
                        small={"positions": 2},
                    ),
                    _opake(
                        function="accounting:opake_allocation",
                        arguments=options,
                        small={"positions": 2},
                    ),
                    pld,
                ),
            )
        )
    small = {"rounds": 4, "bands": 2, "delta": 1e-2}
    encoder = {"noise": 2.0, "rounds": 64, "bands": 8, "delta": 1e-4}
    bins, min_sep = encoder | {"bins": 16}, encoder | {"cohort": 50}
    poisson = {"noise": 1.0, "rounds": 1000, "chance": 0.02, "delta": 1e-6}
    cases += [
        Case(
            work="balls in 16 bins, 64 rounds, 8 bands, delta 1e-4",
            value="epsilon",
            sides=(
                _fedmf(
                    function="accounting:fedmf_bins",
                    arguments=bins,
                    small=small | {"bins": 2},
                ),
                _opake(
                    function="accounting:opake_bins",
                    arguments=bins,
                    small=small | {"bins": 2},
                ),
            ),
        ),
        Case(
            work="min-sep Poisson, 64 rounds, 8 bands, rate .05, delta 1e-4",
            value="epsilon",
            sides=(
                _fedmf(function="accounting:fedmf_min_sep", arguments=min_sep, small=small),
                _opake(function="accounting:opake_min_sep", arguments=min_sep, small=small),
            ),
        ),
        Case(
            work="Poisson, 1000 rounds, q .02, sigma 1, delta 1e-6",
            value="epsilon",
            passes=3,
            sides=(
                _fedmf(
                    function="accounting:fedmf_poisson",
                    arguments=poisson,
                    small={"rounds": 4},
                ),
                Side(
                    label="dp_accounting",
                    function="accounting:dp_accounting_poisson",
                    arguments=poisson,
                    small={"rounds": 4},
                    distribution="dp-accounting",
                ),
                _opake(
                    function="accounting:opake_poisson",
                    arguments=poisson,
                    small={"rounds": 4},
                ),
            ),
        ),
    ]
    for name, noise, rounds, chance in (
        ("one release, sigma 1", 1.0, 1, 1.0),
        ("1000 Poisson rounds, q .02, sigma 1", 1.0, 1000, 0.02),
    ):
        attack = {"noise": noise, "rounds": rounds, "chance": chance}
        cases.append(
            Case(
                work=f"attack at a false-positive rate of 1%, {name}",
                value="true-positive rate at most",
                passes=3,
                sides=(
                    _fedmf(
                        function="accounting:fedmf_attack",
                        arguments=attack,
                        small={"rounds": min(rounds, 4)},
                    ),
                    Side(
                        label="riskcal",
                        function="accounting:riskcal_attack",
                        arguments=attack,
                        small={"rounds": min(rounds, 4)},
                        distribution="riskcal",
                    ),
                ),
            )
        )
    return tuple(cases)


CASES = _cases()
