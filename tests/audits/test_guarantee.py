"""Audits of observed participation: the achieved guarantee, and contradictions of the plan."""

import re

import numpy as np
import pytest

import fedmf
from fedmf.audits.guarantee import audit_ledger, audit_log
from fedmf.mechanisms import IdentityMechanism
from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.privacy.plan import unamplified_epsilon
from fedmf.privacy.sampling.base import FALSE_POSITIVE_RATE
from tests.mechanisms.schemas import epochs, separated, single
from tests.paper_figures import BANDED_SECTION_6
from tests.privacy.plans import banded, ledger_of, plan, two_bands


def plan_of(mechanism, **changes):
    """Returns a plan of a mechanism, with changes."""
    num_rounds = mechanism.rounds
    plan_values = {
        "participation": separated(num_rounds, min(4, num_rounds)),
        **changes,
    }
    return plan(mechanism=mechanism, **plan_values)


class TestWithoutSampling:
    def test_a_log_and_a_ledger_agree(self, tmp_path):
        rng = np.random.default_rng(1)
        ledger = ledger_of(
            [np.sort(rng.choice(9, rng.integers(0, 4), replace=False)) for _ in range(11)] + [[3]],
            3,
        )
        log_path = tmp_path / "log.csv"
        log_path.write_text(ledger.to_csv())
        for mechanism in (two_bands(12), IdentityMechanism(rounds=12)):
            plan = plan_of(mechanism)
            ledger_audit = audit_ledger(ledger, plan)
            log_audit = audit_log(log_path, plan)
            # Clients of a CSV are texts.
            ledger_clients = str(ledger_audit.values()["noncompliant_clients"]).replace(
                "'client': 5", "'client': '5'"
            )
            assert ledger_clients == str(log_audit.values()["noncompliant_clients"])
            assert ledger_audit.values() | {"noncompliant_clients": None} == log_audit.values() | {
                "noncompliant_clients": None
            }
            assert ledger_audit.achieved.noise_multiplier == log_audit.achieved.noise_multiplier
            assert ledger_audit.contradictions

    @pytest.mark.parametrize(
        ("participation", "cohorts", "words"),
        [
            (separated(8, 3), [[1], [], [1]], "2 apart where at least 3"),
            (single(8), [[1], [], [1]], "2 times where at most 1 .*; .*2 apart where at least"),
            (separated(8, 1, 2), [[1], [1], [1]], "3 times where at most 2"),
            (epochs(8, 2), [[1], [2], [], [1, 2]], "1 separations .* no multiples of 2"),
            (epochs(8, 2, 2), [[1], [], [], [], [1]], "span 5, more than the 2 epochs of 2"),
        ],
    )
    def test_contradictions_are_named(self, participation, cohorts, words):
        tested_plan = plan(participation)
        contradictions = audit_ledger(ledger_of(cohorts, None), tested_plan).contradictions
        assert len(contradictions) == 1 + words.count(";")
        assert re.search(words, "; ".join(contradictions))

    def test_sensitivity_grows_as_in_the_banded_papers_example(self):
        # Banded paper, Sec. 6: 400 bands, planned separation 400, achieved 385, so that columns of
        # one client overlap. A tenth of the size, same proportions: 200 rounds, 40 bands, planned
        # 40, achieved 38.
        figures = {name: round(value / 10) for name, value in BANDED_SECTION_6.items()}
        rounds = figures["rounds"]
        achieved = figures["achieved"]
        bands = figures["bands"]
        mechanism = banded(rounds, *[bands**-0.5] * bands)
        plan = plan_of(mechanism, participation=separated(rounds, figures["planned"]))
        assert plan.sensitivity.exact
        # 5 participations, columns of norm 1
        assert plan.sensitivity.value == pytest.approx(5**0.5)
        for times in (2, 5):
            audit = audit_ledger(ledger_of([[t % achieved] for t in range(times * achieved)]), plan)
            assert audit.observed.min_separation == achieved == 38
            assert audit.observed.max_participations == times
            client_columns = mechanism.encoder()[:, : times * achieved : achieved]
            worst_norm = np.linalg.norm(client_columns.sum(axis=1))
            assert worst_norm > times**0.5  # The overlap increases epsilon.
            assert audit.achieved.sensitivity.value == pytest.approx(worst_norm, rel=1e-12)
            noise_multiplier = plan.noise_multiplier * 5**0.5 / worst_norm
            assert audit.epsilon == pytest.approx(
                gaussian_epsilon(noise_multiplier, 1e-6), rel=1e-6
            )
        assert audit.epsilon > plan.epsilon

    def test_noncompliant_clients_affect_only_their_own_guarantee(self):
        plan = plan_of(two_bands(12))
        ledger = fedmf.ParticipationLedger(cohort_size=2)
        for t in range(12):
            # Client 100 comes every round; the others keep four rounds apart.
            ledger.append(np.array([t % 4, 100]), noncompliant=np.array([100]))
        audit = audit_ledger(ledger, plan)
        assert audit.contradictions == ()
        assert audit.epsilon == plan.epsilon
        assert (audit.observed.min_separation, audit.everyone.observed.min_separation) == (4, 1)
        assert audit.everyone.epsilon > plan.epsilon
        assert len(audit.everyone.contradictions) == 2
        assert [client.client for client in audit.noncompliant_clients.first] == [100]
        assert audit.noncompliant_clients.others.epsilon == audit.epsilon
        assert audit.values()["epsilon_achieved_of_all_clients"] == audit.everyone.epsilon
        statement_text = audit.statement()
        assert "known to have broken the plan" in " ".join(statement_text.split())
        assert "Not as planned" not in statement_text


ROUNDS = 64
POPULATION = 400
COHORT = 10
GROUPS = 2
PARTS = [np.arange(part, POPULATION, GROUPS) for part in range(GROUPS)]


def sampled_plan(kind=fedmf.CyclicPoisson, **changes):
    """Returns a plan with sampling."""
    sampling_values = {"population": POPULATION, "cohort_size": COHORT, **changes}
    return plan_of(
        two_bands(ROUNDS),
        participation=None,
        sampling=kind(**sampling_values),
        noise_multiplier=4.0,
    )


def poisson_cohorts(plan, seed):
    """Samples the cohorts of a cyclic Poisson scheme."""
    rng = np.random.default_rng(seed)
    q = plan.sampling.probability
    return [PARTS[t % GROUPS][rng.random(POPULATION // GROUPS) < q] for t in range(ROUNDS)]


def fixed_cohorts(seed, size=COHORT):
    """Samples cohorts of a fixed size."""
    rng = np.random.default_rng(seed)
    return [rng.choice(PARTS[t % GROUPS], size, replace=False) for t in range(ROUNDS)]


class TestWithSampling:
    def test_audit_gives_both_guarantees_of_a_sampled_plan(self):
        plan = sampled_plan()
        audit = audit_ledger(ledger_of(poisson_cohorts(plan, 1)), plan)
        assert audit.contradictions == ()
        assert audit.amplified_epsilon == plan.epsilon < 0.6 * unamplified_epsilon(plan)
        # No client was drawn as often as possible, so that less than the unamplified epsilon is
        # achieved, even if the draw is not trusted.
        assert plan.epsilon < audit.epsilon <= unamplified_epsilon(plan)

    def test_honest_sampling_is_not_contradicted(self):
        # 60 runs of two schemes at a false-positive rate of 1e-6 each: one contradiction has
        # probability below 1.3e-4.
        poisson_plan = sampled_plan()
        fixed_plan = sampled_plan(fedmf.CyclicFixedSize)
        assert FALSE_POSITIVE_RATE <= 1e-6
        for seed in range(60):
            assert audit_contradictions(poisson_cohorts(poisson_plan, seed), poisson_plan) == ()
            assert audit_contradictions(fixed_cohorts(seed), fixed_plan) == ()

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda c: [*c[:5], np.append(c[5], c[4][:1]), *c[6:]], "no multiples of 2"),
            (
                lambda c: [np.union1d(cohort, [t % 2]) for t, cohort in enumerate(c)],
                "a client took part 32 times",
            ),
            (lambda c: [PARTS[0], *c[1:]], "a round has 200 clients"),
            (
                lambda c: [np.union1d(x, y) for x, y in zip(c, [*c[2:], *c[:2]], strict=True)],
                "participations, which",
            ),
            (
                lambda c: [cohort + 1000 * t * (t < 60) for t, cohort in enumerate(c)],
                "clients took part where the population is 400",
            ),
        ],
        ids=[
            "outside its part",
            "a favourite",
            "everybody at once",
            "twice as many",
            "more than there are",
        ],
    )
    def test_other_cohorts_contradict_the_sampling(self, change, words):
        plan = sampled_plan()
        audit = audit_ledger(ledger_of(change(poisson_cohorts(plan, 2))), plan)
        assert words in "; ".join(audit.contradictions)
        assert audit.amplified_epsilon is None
        assert audit.values()["epsilon_achieved_if_sampled_as_planned"] is None
        assert audit.epsilon > plan.epsilon

    def test_cohorts_of_fixed_size_may_be_smaller_but_not_larger(self):
        plan = sampled_plan(fedmf.CyclicFixedSize)
        assert (
            "a round has 11 clients where 10"
            in audit_contradictions(fixed_cohorts(1, size=11), plan)[0]
        )
        # Drawn clients may drop out.
        assert audit_contradictions(fixed_cohorts(1, size=9), plan) == ()


def audit_contradictions(cohorts, plan):
    """Returns the contradictions of an audit of these cohorts."""
    return audit_ledger(ledger_of(cohorts, None), plan).contradictions


def test_random_allocation_keeps_a_client_in_its_partition():
    """Tests that rounds of one client are multiples of the number of groups apart.

    That holds also if every epoch has a new order.
    """
    plan = plan_of(
        IdentityMechanism(rounds=40),
        participation=None,
        sampling=fedmf.CyclicRandomAllocation(population=20, cohort_size=2, partitions=2),
    )

    def contradictions(second):
        cohorts = [[0] if t in (0, second) else [] for t in range(40)]
        return audit_ledger(ledger_of(cohorts, 2), plan).contradictions

    assert contradictions(14) == ()
    assert "no multiples of 2" in contradictions(13)[0]
