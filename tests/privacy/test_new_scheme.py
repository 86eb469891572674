"""A sampling scheme is one class: one that only this file defines works in calibration, controller,
audit, statement, config and command line.
"""

import dataclasses
import json
import math

import numpy as np
import pytest

import fedmf
from fedmf.mechanisms.leading import column_norm
from fedmf.privacy.amplification import sampled_gaussian_epsilon
from fedmf.privacy.describe import calibrate_command, plan_summary, statement_values
from fedmf.privacy.plan import cohort_scale, dp_event, unamplified_epsilon
from fedmf.privacy.sampling import SCHEMES, Sampling
from fedmf.privacy.sampling.description import Description
from fedmf.privacy.sampling.draws import Draws
from fedmf.privacy.sampling.randomness import SamplingRandomness
from tests.cli.program import printed_by
from tests.cohorts.controllers import FunctionAvailability

ROUNDS = 12
POPULATION = 60
COHORT = 6


@dataclasses.dataclass(frozen=True)
class Coins(Draws):
    """Each client of the population is sampled with the same probability."""

    population: int
    probability: float
    seed: int

    def clients(self, t):
        generator = SamplingRandomness(self.seed).of_round(t)
        return np.flatnonzero(generator.random(self.population) < self.probability)

    def can_draw(self, t, clients):
        return np.ones(len(clients), bool)


@pytest.fixture
def bernoulli():
    """Registers Poisson sampling of the whole population in every round, for one band (Abadi et al.
    2016).
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Bernoulli(Sampling):
        name = "bernoulli"
        independent = True
        population: int
        cohort_size: int

        @property
        def probability(self):
            return self.cohort_size / self.population

        def for_mechanism(self, mechanism):
            if mechanism.bands != 1:
                raise ValueError(f"mechanism has {mechanism.bands} bands: fit one of a single band")
            return self

        def participation(self, rounds):
            return fedmf.Participation(rounds=rounds, schema="every_round")

        def epsilon(self, mechanism, noise, delta):
            sigma = noise / column_norm(mechanism)
            return sampled_gaussian_epsilon(
                sigma, delta, probability=self.probability, compositions=mechanism.rounds
            )

        def draws(self, seed):
            return Coins(self.population, self.probability, seed)

        def description(self, mechanism, noise):
            return Description(
                selection="each client tosses a coin",
                accountant="privacy loss distributions",
                accounted=f"{mechanism.rounds} coins",
            )

    yield Bernoulli
    del SCHEMES["bernoulli"]


@pytest.fixture
def plan(bernoulli):
    single_participation = fedmf.Participation(rounds=ROUNDS, schema="single")
    mechanism = fedmf.fit(fedmf.prefix_sum(ROUNDS), single_participation, family="identity")
    sampling = bernoulli(population=POPULATION, cohort_size=COHORT)
    return fedmf.calibrate(mechanism, None, epsilon=2.0, delta=1e-6, sampling=sampling)


@pytest.mark.slow
def test_a_scheme_from_outside_is_calibrated_sampled_audited_and_stated(plan):
    assert 1.99 < plan.epsilon <= 2.0 < 0.5 * unamplified_epsilon(plan)
    assert plan.participation.schema == "every_round"
    assert dp_event(plan).noise_multiplier == plan.noise_multiplier
    assert plan.group_epsilon(2) > 4.0
    controller = fedmf.ParticipationController(
        plan.participation,
        population=POPULATION,
        cohort_size=COHORT,
        seed=3,
        sampling=plan.sampling,
        availability=FunctionAvailability(lambda t, clients: clients > 0),
    )
    cohorts = [controller.cohort(t) for t in range(ROUNDS)]
    assert len({len(cohort) for cohort in cohorts}) > 1
    assert not any(0 in cohort for cohort in cohorts)
    audit = controller.audit(plan)
    assert audit.contradictions == ()
    assert audit.amplified_epsilon == plan.epsilon
    text = " ".join(audit.statement(cohort_size=COHORT).split())
    assert "Privacy loss distributions for (epsilon, delta), of 12 coins. The smaller of it" in text
    assert "The accountant bounds the loss from adding or removing a client." in text
    assert (
        "Each client tosses a coin. The sampled clients stay secret, and so does how many are in "
        "any round" in text
    )
    assert audit.statement_values(cohort_size=COHORT)["observed"]["short_rounds"] is None
    json.dumps(plan_summary(plan), allow_nan=False)


def test_a_config_takes_a_scheme_from_outside(bernoulli):
    config = fedmf.TrainConfig(
        rounds=ROUNDS, cohort_size=3, claimed_cohort=COHORT, family="identity", epsilon=2.0,
        sampling="bernoulli", population=POPULATION,
    )  # fmt: skip
    assert config.scheme() == bernoulli(population=POPULATION, cohort_size=COHORT)
    assert config.plan().epsilon <= 2.0
    assert math.isclose(cohort_scale(config.plan()), 0.5)


def test_the_command_line_takes_a_scheme_from_outside(plan, tmp_path):
    plan.mechanism.save(tmp_path / "identity.npz")
    size = f"--rounds {ROUNDS} --population {POPULATION} --cohort-size {COHORT}"
    scheme = f"{size} --sampling bernoulli"
    printed_values = printed_by(f"calibrate {tmp_path}/identity.npz {scheme} --epsilon 2")
    assert printed_values["sampling"]["scheme"] == "Bernoulli"
    assert printed_values["stddev"] == plan.stddev
    repeated = printed_by(calibrate_command(plan, str(tmp_path / "identity.npz")))
    assert repeated["statement_values"]["guarantee"] == statement_values(plan)["guarantee"]
    forecast = printed_by(f"plan participation {scheme}")
    assert forecast["sampling"] == "bernoulli"
