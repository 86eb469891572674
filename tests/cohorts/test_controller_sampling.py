"""Controllers with sampling schemes: what they sample, resumes, and tests of the distribution."""

import warnings

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmf
from fedmf.cohorts.availability import Independent
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.privacy.sampling import (
    CyclicFixedSize,
    CyclicPoisson,
    CyclicRandomAllocation,
    MinSepPoisson,
)
from tests.power import (
    FALSE_POSITIVE_RATE,
    draws_that_detect,
    preference_probabilities,
)
from tests.refusals import refusal

SCHEMES = {
    "poisson": CyclicPoisson(population=60, cohort_size=6, partitions=3),
    "fixed size": CyclicFixedSize(population=61, cohort_size=6, partitions=3),
    "random-allocation": CyclicRandomAllocation(population=62, cohort_size=6, partitions=5),
}


def controller_of(scheme, rounds=40, seed=1, **more):
    """Returns a controller of a sampling scheme."""
    arguments = {"population": scheme.population, "cohort_size": scheme.cohort_size, **more}
    participation = arguments.pop("participation", None) or scheme.participation(rounds)
    return fedmf.ParticipationController(participation, sampling=scheme, seed=seed, **arguments)


def controller_resumed_from(controller, ledger):
    """Returns the controller after it resumed from a ledger."""
    controller.resume_from(ledger)
    return controller


def all_cohorts(controller):
    """Returns the cohorts of a run, which must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [controller.cohort(t) for t in range(controller.participation.rounds)]


@st.composite
def schemes(draw):
    kind = draw(st.sampled_from([CyclicPoisson, CyclicFixedSize, CyclicRandomAllocation]))
    groups = draw(st.integers(1, 4))
    size = draw(st.integers(1, 3))
    population = draw(st.integers(groups * size, 40))
    if kind is CyclicRandomAllocation:
        population = draw(st.integers(1, 4)) * groups * size + draw(st.integers(0, size - 1))
    return kind(population=population, cohort_size=size, partitions=groups)


class TestEveryScheme:
    @settings(max_examples=200)
    @given(schemes(), st.integers(1, 14), st.integers(0, 5))
    def test_every_sample_satisfies_the_participation_of_the_scheme(self, scheme, rounds, seed):
        """Round t samples from partition t mod partitions (banded paper, Alg. 6)."""
        cohorts = all_cohorts(controller_of(scheme, rounds, seed))
        participation = scheme.participation(rounds)
        for t, cohort in enumerate(cohorts):
            assert (cohort % scheme.partitions == t % scheme.partitions).all()
        for client in range(scheme.population):
            assert participation.allows([t for t, cohort in enumerate(cohorts) if client in cohort])

    @pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
    def test_a_new_controller_resumes_from_the_ledger(self, scheme):
        expected_cohorts = [cohort.tolist() for cohort in all_cohorts(controller_of(scheme))]
        first_controller = controller_of(scheme)
        for t in range(17):
            first_controller.cohort(t)
        ledger = fedmf.ParticipationLedger.from_csv(
            first_controller.ledger.to_csv(),
            rounds=17,
            cohort_size=first_controller.ledger.cohort_size,
        )
        cohorts = all_cohorts(controller_resumed_from(controller_of(scheme), ledger))
        assert [cohort.tolist() for cohort in cohorts] == expected_cohorts

    def test_sampled_clients_that_dropped_out_stay_ineligible_after_a_resume(self):
        scheme = MinSepPoisson(population=300, cohort_size=50, min_sep=3)
        whole_controller, first_controller, later_controller = (
            controller_of(scheme, 9, behavior=DeviceBehavior(dropout=0.5)) for _ in range(3)
        )
        cohorts = [whole_controller.cohort(t).tolist() for t in range(9)]
        for t in range(4):
            first_controller.cohort(t)
        text = first_controller.ledger.to_csv()
        later_controller.resume_from(
            fedmf.ParticipationLedger.from_csv(text, rounds=4, cohort_size=None)
        )
        assert [later_controller.cohort(t).tolist() for t in range(9)] == cohorts
        for t in range(9):
            assert (
                later_controller.ledger.selected(t).tolist()
                == whole_controller.ledger.selected(t).tolist()
            )

    @pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
    def test_resume_refuses_clients_of_another_partition(self, scheme):
        first_controller = controller_of(scheme)
        cohort = first_controller.cohort(0)
        ledger = fedmf.ParticipationLedger(
            cohort_size=scheme.cohort_size, cohorts=[np.zeros(0, np.int64), cohort]
        )
        with refusal("round 1 has client"):
            controller_of(scheme).resume_from(ledger)

    @pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
    def test_seeds_and_epochs_have_different_cohorts(self, scheme):
        first_cohorts, second_cohorts = (
            all_cohorts(controller_of(scheme, seed=seed)) for seed in (0, 1)
        )
        assert first_cohorts[0].tolist() != second_cohorts[0].tolist()
        assert first_cohorts[0].tolist() != first_cohorts[getattr(scheme, "epoch", 30)].tolist()


class TestPoisson:
    """Clients of a partition are sampled independently (banded paper, Cor. F.1).

    The number of rounds suffices to distinguish a probability of 0.35 from one of 0.3 by the cohort
    sizes. The other mistakes below are larger.
    """

    scheme = SCHEMES["poisson"]  # 20 clients in a partition, q = 0.3
    _likely = scipy.stats.binom.pmf(np.arange(2, 11), 20, [[0.3], [0.35]])
    rounds = 3 * draws_that_detect(
        *np.column_stack([_likely, 1 - _likely.sum(axis=1)]), FALSE_POSITIVE_RATE / 4
    )

    def matrix(self, **more):
        """Returns whether clients of partition 0 are sampled in its rounds, (rounds, clients)."""
        cohorts = all_cohorts(controller_of(self.scheme, self.rounds, **more))
        is_sampled = np.zeros((self.rounds // 3, 20), bool)
        for i, cohort in enumerate(cohorts[::3]):
            is_sampled[i, cohort // 3] = True
        return is_sampled

    @staticmethod
    def p_values(is_sampled, q):
        """Returns p-values of frequencies, cohort sizes, and dependence of clients and rounds."""
        rounds, clients = is_sampled.shape
        variance = q * (1 - q)
        frequencies = ((is_sampled.sum(axis=0) - rounds * q) ** 2).sum() / (rounds * variance)
        expected = rounds * scipy.stats.binom.pmf(np.arange(clients + 1), clients, q)
        likely = expected > 5
        sizes = np.bincount(is_sampled.sum(axis=1), minlength=clients + 1)
        table = (
            np.append(sizes[likely], sizes[~likely].sum()),
            np.append(expected[likely], expected[~likely].sum()),
        )
        normal = (is_sampled - q) / np.sqrt(variance)
        pairs = (normal.T @ normal)[np.triu_indices(clients, 1)] / np.sqrt(rounds)
        next_round = (normal[:-1] * normal[1:]).sum() / np.sqrt((rounds - 1) * clients)
        return {
            "frequencies": scipy.stats.chi2.sf(frequencies, clients),
            "sizes": scipy.stats.chisquare(*table).pvalue,
            "pairs": scipy.stats.chi2.sf((pairs**2).sum(), len(pairs)),
            "rounds": 2 * scipy.stats.norm.sf(abs(next_round)),
        }

    def test_clients_are_sampled_independently(self):
        assert (
            min(self.p_values(self.matrix(), self.scheme.probability).values())
            > FALSE_POSITIVE_RATE / 4
        )

    @pytest.mark.parametrize(
        ("mistake", "caught"),
        {
            "fixed size": ("fixed", "sizes"),
            "probability of cohort over population": (0.1, "frequencies"),
            "a sixth too likely": (0.35, "sizes"),
            "clients in pairs": ("pairs", "pairs"),
            "the same round twice": ("repeated", "rounds"),
        }.values(),
    )
    def test_cohorts_sampled_by_mistake_fail_the_tests(self, mistake, caught):
        rng = np.random.default_rng(8)
        uniform_numbers = rng.random((self.rounds // 3, 20))
        if mistake == "fixed":
            is_sampled = uniform_numbers.argsort(axis=1).argsort(axis=1) < 6
        elif mistake == "pairs":
            is_sampled = np.repeat(uniform_numbers[:, :10], 2, axis=1) < 0.3
        elif mistake == "repeated":
            is_sampled = np.repeat(uniform_numbers[::2], 2, axis=0)[: len(uniform_numbers)] < 0.3
        else:
            is_sampled = uniform_numbers < mistake
        assert self.p_values(is_sampled, 0.3)[caught] < FALSE_POSITIVE_RATE / 4

    def test_unavailable_clients_are_not_replaced(self):
        # With availability a, each client takes part independently with probability q a, which the
        # guarantee for q covers.
        is_sampled = self.matrix(
            availability=Independent(probability=0.6, seed=3),
            behavior=DeviceBehavior(dropout=0.25, seed=4),
        )
        assert min(self.p_values(is_sampled, 0.3 * 0.6 * 0.75).values()) > FALSE_POSITIVE_RATE / 4

    def test_the_sample_does_not_depend_on_availability(self):
        always_available = controller_of(self.scheme)
        partly_available = controller_of(
            self.scheme,
            availability=Independent(probability=0.5, seed=9),
            behavior=DeviceBehavior(dropout=0.1),
        )
        assert {len(cohort) < 6 for cohort in all_cohorts(always_available)} == {True, False}
        assert always_available.ledger.observed().short_rounds == 0
        all_cohorts(partly_available)
        for t in range(40):
            assert (
                partly_available.ledger.selected(t).tolist()
                == always_available.ledger.cohort(t).tolist()
            )
            assert set(partly_available.ledger.cohort(t)) <= set(
                partly_available.ledger.selected(t)
            )
        assert partly_available.ledger.observed().short_rounds > 30
        assert (
            partly_available.ledger.planned().observed().summary()
            == always_available.ledger.observed().summary()
        )


class TestFixedSize:
    def test_samples_are_uniform_subsets_of_the_partition(self):
        """Banded paper, Alg. 2."""
        scheme = CyclicFixedSize(population=10, cohort_size=2, partitions=2)
        cohorts = all_cohorts(
            controller_of(
                scheme,
                rounds=2
                * draws_that_detect(*preference_probabilities(5, 1.5, 2), FALSE_POSITIVE_RATE / 2),
            )
        )
        for partition in (0, 1):
            _, counts = np.unique(np.array(cohorts[partition::2]), axis=0, return_counts=True)
            assert len(counts) == 10  # of 2 out of 5
            assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE / 2
