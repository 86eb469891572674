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
    draws_that_see,
    preferring_the_first,
)
from tests.refusals import refusal

SCHEMES = {
    "poisson": CyclicPoisson(population=60, cohort_size=6, partitions=3),
    "fixed size": CyclicFixedSize(population=61, cohort_size=6, partitions=3),
    "random-allocation": CyclicRandomAllocation(population=62, cohort_size=6, partitions=5),
}


def controller_of(scheme, rounds=40, seed=1, **more):
    given = {"population": scheme.population, "cohort_size": scheme.cohort_size, **more}
    participation = given.pop("participation", None) or scheme.participation(rounds)
    return fedmf.ParticipationController(participation, sampling=scheme, seed=seed, **given)


def gone_on(controller, ledger):
    controller.resume_from(ledger)
    return controller


def drawn(controller):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [controller.cohort(t) for t in range(controller.participation.rounds)]


@st.composite
def schemes(draw):
    kind = draw(st.sampled_from([CyclicPoisson, CyclicFixedSize, CyclicRandomAllocation]))
    groups, size = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    population = draw(st.integers(groups * size, 40))
    if kind is CyclicRandomAllocation:
        population = draw(st.integers(1, 4)) * groups * size + draw(st.integers(0, size - 1))
    return kind(population=population, cohort_size=size, partitions=groups)


class TestEveryScheme:
    @settings(max_examples=200)
    @given(schemes(), st.integers(1, 14), st.integers(0, 5))
    def test_what_it_promises_holds_with_certainty(self, scheme, rounds, seed):
        """Round t draws from part t mod partitions (banded paper, Alg. 6)."""
        cohorts = drawn(controller_of(scheme, rounds, seed))
        kept = scheme.participation(rounds)
        for t, cohort in enumerate(cohorts):
            assert (cohort % scheme.partitions == t % scheme.partitions).all()
        for client in range(scheme.population):
            assert kept.allows([t for t, cohort in enumerate(cohorts) if client in cohort])

    @pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
    def test_goes_on_from_the_ledger(self, scheme):
        whole = [cohort.tolist() for cohort in drawn(controller_of(scheme))]
        first = controller_of(scheme)
        for t in range(17):
            first.cohort(t)
        again = fedmf.ParticipationLedger.from_csv(
            first.ledger.to_csv(), rounds=17, cohort_size=first.ledger.cohort_size
        )
        assert [cohort.tolist() for cohort in drawn(gone_on(controller_of(scheme), again))] == whole

    def test_those_drawn_who_did_not_come_rest_though_no_file_names_them(self):
        scheme = MinSepPoisson(population=300, cohort_size=50, min_sep=3)
        whole, first, again = (
            controller_of(scheme, 9, behavior=DeviceBehavior(dropout=0.5)) for _ in range(3)
        )
        cohorts = [whole.cohort(t).tolist() for t in range(9)]
        for t in range(4):
            first.cohort(t)
        text = first.ledger.to_csv()
        again.resume_from(fedmf.ParticipationLedger.from_csv(text, rounds=4, cohort_size=None))
        assert [again.cohort(t).tolist() for t in range(9)] == cohorts
        for t in range(9):
            assert again.ledger.selected(t).tolist() == whole.ledger.selected(t).tolist()

    @pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
    def test_a_ledger_of_other_parts(self, scheme):
        first = controller_of(scheme)
        cohort = first.cohort(0)
        ledger = fedmf.ParticipationLedger(
            cohort_size=scheme.cohort_size, cohorts=[np.zeros(0, np.int64), cohort]
        )
        with refusal("round 1 has client"):
            controller_of(scheme).resume_from(ledger)

    @pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
    def test_seeds_and_epochs_differ(self, scheme):
        one, other = (drawn(controller_of(scheme, seed=seed)) for seed in (0, 1))
        assert one[0].tolist() != other[0].tolist()
        assert one[0].tolist() != one[getattr(scheme, "epoch", 30)].tolist()


class TestPoisson:
    """Each client of the part independently (banded paper, Cor. F.1).

    So many rounds that cohort sizes tell a probability of 0.35 from one of 0.3; the other mistakes
    below are larger.
    """

    scheme = SCHEMES["poisson"]  # 20 clients a part, q = 0.3
    _likely = scipy.stats.binom.pmf(np.arange(2, 11), 20, [[0.3], [0.35]])
    rounds = 3 * draws_that_see(
        *np.column_stack([_likely, 1 - _likely.sum(axis=1)]), FALSE_POSITIVE_RATE / 4
    )

    def matrix(self, **more):
        """(rounds of part 0, clients of part 0), bool."""
        cohorts = drawn(controller_of(self.scheme, self.rounds, **more))
        came = np.zeros((self.rounds // 3, 20), bool)
        for i, cohort in enumerate(cohorts[::3]):
            came[i, cohort // 3] = True
        return came

    @staticmethod
    def p_values(came, q):
        """Of clients' frequencies, cohort sizes, and the dependence of clients and of rounds."""
        rounds, clients = came.shape
        variance = q * (1 - q)
        frequencies = ((came.sum(axis=0) - rounds * q) ** 2).sum() / (rounds * variance)
        expected = rounds * scipy.stats.binom.pmf(np.arange(clients + 1), clients, q)
        likely = expected > 5
        sizes = np.bincount(came.sum(axis=1), minlength=clients + 1)
        table = (
            np.append(sizes[likely], sizes[~likely].sum()),
            np.append(expected[likely], expected[~likely].sum()),
        )
        normal = (came - q) / np.sqrt(variance)
        pairs = (normal.T @ normal)[np.triu_indices(clients, 1)] / np.sqrt(rounds)
        next_round = (normal[:-1] * normal[1:]).sum() / np.sqrt((rounds - 1) * clients)
        return {
            "frequencies": scipy.stats.chi2.sf(frequencies, clients),
            "sizes": scipy.stats.chisquare(*table).pvalue,
            "pairs": scipy.stats.chi2.sf((pairs**2).sum(), len(pairs)),
            "rounds": 2 * scipy.stats.norm.sf(abs(next_round)),
        }

    def test_every_client_independently(self):
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
            "the round before again": ("again", "rounds"),
        }.values(),
    )
    def test_mistakes_are_caught(self, mistake, caught):
        rng = np.random.default_rng(8)
        u = rng.random((self.rounds // 3, 20))
        if mistake == "fixed":
            came = u.argsort(axis=1).argsort(axis=1) < 6
        elif mistake == "pairs":
            came = np.repeat(u[:, :10], 2, axis=1) < 0.3
        elif mistake == "again":
            came = np.repeat(u[::2], 2, axis=0)[: len(u)] < 0.3
        else:
            came = u < mistake
        assert self.p_values(came, 0.3)[caught] < FALSE_POSITIVE_RATE / 4

    def test_whoever_is_away_is_not_replaced(self):
        # With availability a each client comes with probability q a, still independently, which the
        # guarantee for q covers.
        came = self.matrix(
            availability=Independent(probability=0.6, seed=3),
            behavior=DeviceBehavior(dropout=0.25, seed=4),
        )
        assert min(self.p_values(came, 0.3 * 0.6 * 0.75).values()) > FALSE_POSITIVE_RATE / 4

    def test_the_draw_does_not_look_at_availability(self):
        everyone = controller_of(self.scheme)
        some = controller_of(
            self.scheme,
            availability=Independent(probability=0.5, seed=9),
            behavior=DeviceBehavior(dropout=0.1),
        )
        assert {len(cohort) < 6 for cohort in drawn(everyone)} == {True, False}
        assert everyone.ledger.observed().short_rounds == 0
        drawn(some)
        for t in range(40):
            assert some.ledger.selected(t).tolist() == everyone.ledger.cohort(t).tolist()
            assert set(some.ledger.cohort(t)) <= set(some.ledger.selected(t))
        assert some.ledger.observed().short_rounds > 30
        assert some.ledger.planned().observed().summary() == everyone.ledger.observed().summary()


class TestFixedSize:
    def test_uniform_subsets_of_the_part(self):
        """Banded paper, Alg. 2."""
        scheme = CyclicFixedSize(population=10, cohort_size=2, partitions=2)
        cohorts = drawn(
            controller_of(
                scheme,
                rounds=2
                * draws_that_see(*preferring_the_first(5, 1.5, 2), FALSE_POSITIVE_RATE / 2),
            )
        )
        for part in (0, 1):
            _, counts = np.unique(np.array(cohorts[part::2]), axis=0, return_counts=True)
            assert len(counts) == 10  # of 2 out of 5
            assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE / 2
