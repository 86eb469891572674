"""Balls in bins and b-min-sep sampling: their losses, the bounds on them, and their epsilon.

Oracles: log-likelihood ratios and deltas that were computed without any library, by enumeration and
by quadrature.
"""

import itertools
import json
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmf
from fedmf.mechanisms import DenseMechanism, IdentityMechanism
from fedmf.privacy import loss_samples, monte_carlo
from fedmf.privacy.amplification import sampled_gaussian_epsilon
from fedmf.privacy.curves import epsilons_of_curve, simulated_curve
from fedmf.privacy.gaussian import exact_gaussian_epsilon, gaussian_delta, gaussian_epsilon
from fedmf.privacy.loss_samples import (
    PROOF,
    SEARCH,
    AddSample,
    RemoveSample,
    add_sample,
    remove_sample,
)
from fedmf.privacy.plan import unamplified_epsilon
from fedmf.privacy.random_allocation import random_allocation_epsilon
from fedmf.privacy.sampling.bin_losses import BinLosses
from fedmf.privacy.sampling.min_sep_losses import MinSepLosses
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE, missed_by_chi_square
from tests.privacy.plans import banded, ledger_of, plan

# Standard errors from which a mean differs from its expectation at the false-positive rate.
FAR = scipy.stats.norm.isf(FALSE_POSITIVE_RATE / 2)
FOUR = tuple(np.array([1, 0.5, 0.25, 0.125]) / np.linalg.norm([1, 0.5, 0.25, 0.125]))


def bins(entries, rounds, b, sigma=1.0):
    """Returns the losses of balls in bins."""
    mechanism = banded(rounds, *entries)
    return fedmf.BallsInBins(population=max(b, 100), bins=b).losses(mechanism, sigma)


def min_sep(entries, rounds, b, p, *, sigma=1.0):
    """Returns the losses of b-min-sep sampling."""
    padded = np.array(
        [[e if t + j < rounds else 0.0 for j, e in enumerate(entries)] for t in range(rounds)]
    )
    return MinSepLosses(padded / sigma, b, p)


def loss_of(losses, entries, rounds, y):
    """Returns L at one output y, sigma = 1."""
    C = banded(rounds, *entries).encoder()
    if isinstance(losses, MinSepLosses):
        return float(losses.loss((C.T @ np.array(y))[:, None])[0])
    sums = np.stack([C[:, j :: losses.bins].sum(axis=1) for j in range(losses.bins)])
    return float(losses.loss((sums @ np.array(y))[None])[0])


@pytest.mark.parametrize("sigma", [0.0255, 0.03, 0.5])
def test_no_pair_of_a_simulated_curve_is_below_delta(sigma):
    """With 0.0255, most losses exceed 700, to which samples clip them. Fails wrongly with the
    probability of the curve.
    """
    curve = simulated_curve(bins((1,), 1, 1, sigma=sigma), tuple(epsilons_of_curve(sigma)))
    assert len(curve) > 50
    assert all(delta >= gaussian_delta(sigma, epsilon) * (1 - 1e-9) for epsilon, delta in curve)


class TestLosses:
    @pytest.mark.parametrize(
        ("losses", "entries", "y", "expected"),
        [
            (bins((1,), 4, 2), (1,), (1, 0, 1, 0), 0.4337808304830272),
            (bins((1, 0.5), 4, 2), (1, 0.5), (1, 0.5, 1, 0.5), 0.9052974004451105),
            (bins((1, 1, 0.5, 0.5), 4, 2), (1, 1, 0.5, 0.5), (1, 1, 1, 1), 1.5799760835798948),
            (min_sep((1, 0.5), 3, 2, 0.5), (1, 0.5), (1, 1, 1), 0.8329398380809252),
        ],
    )
    def test_losses_are_the_log_likelihood_ratios(self, losses, entries, y, expected):
        assert loss_of(losses, entries, len(y), y) == pytest.approx(expected, abs=1e-12)

    def test_losses_without_separation_are_those_of_poisson_sampling(self):
        y = np.random.default_rng(0).standard_normal(7)
        p = 0.2
        expected = np.log(1 - p + p * np.exp(2 * y - 2)).sum()
        assert loss_of(min_sep((2,), 7, 1, p), (2,), 7, y) == pytest.approx(expected, abs=1e-12)

    @settings(max_examples=20)
    @given(st.data())
    def test_factors_stay_below_their_bound_and_undo_the_tilt(self, data):
        b = data.draw(st.integers(1, 4))
        entries = tuple(data.draw(st.lists(st.floats(0.1, 1), min_size=1, max_size=b)))
        rounds = data.draw(st.integers(len(entries), 12))
        order = data.draw(st.integers(1, 5))
        # With so much noise the tilt is at most 1.5 standard deviations of any pattern, which so
        # many samples cover.
        sigma = order * math.sqrt(rounds) * sum(entries) / 1.5
        if data.draw(st.booleans()):
            losses = bins(entries, rounds, b, sigma)
        else:
            losses = min_sep(entries, rounds, b, data.draw(st.floats(0.02, 1)), sigma=sigma)
        log_factor, loss = losses.sample(order, 2**16, np.random.default_rng(0))
        assert log_factor.max() <= losses.log_factor_bound(order) + 1e-9
        # T exp(-K L) times the density is that of Q; so is its product with a bounded function of
        # L, here one of high losses.
        weighted = np.exp(log_factor - order * loss) / (1 + np.exp(-loss))
        _, loss_under_q = losses.sample(0, 2**16, np.random.default_rng(1))
        expected = 1 / (1 + np.exp(-loss_under_q))
        error = math.hypot(weighted.std(), expected.std()) / 256
        assert abs(weighted.mean() - expected.mean()) <= FAR * error + 1e-12


# Losses, and deltas of (remove, add) by epsilon, by quadrature in two dimensions.
EXACT = {
    "bins": (lambda: bins((1, 0.5), 2, 2), {0.5: (0.20789, 0.20593), 1.0: (0.10188, 0.09857)}),
    "bins of the identity": (
        lambda: bins((1,), 2, 2),
        {0.5: (0.14918, 0.14269), 1.0: (0.05921, 0.05020)},
    ),
    "min-sep": (
        lambda: min_sep((1, 0.5), 2, 2, 0.5),
        {0.5: (0.10961, 0.05298), 1.0: (0.04228, 5.3e-5)},
    ),
}
# By a simulation of 2e5 samples, to 1%.
SIMULATED = {
    "bins 2": (lambda: bins(FOUR, 100, 10, 2.0), {1.0: (0.1209, 0.1006)}),
    "min-sep 0.8": (
        lambda: min_sep(FOUR, 64, 4, 1 / 17, sigma=0.8),
        {1.0: (0.1202, 0.0604), 2.0: (0.0293, 0.0)},
    ),
}


@pytest.mark.parametrize(
    "case", [*EXACT, *(pytest.param(name, marks=pytest.mark.slow) for name in SIMULATED)]
)
def test_deltas_are_those_of_the_oracles(case):
    """At FALSE_POSITIVE_RATE for each figure, of the simulation and of the oracle's own error."""
    make_losses, deltas = EXACT.get(case) or SIMULATED[case]
    oracle_error = 0 if case in EXACT else 0.005
    losses = make_losses()
    added_sample = add_sample(losses, 2**17, SEARCH)
    for order in (1, 2, 3):
        removed = remove_sample(losses, order, 2**16, SEARCH)
        for epsilon, (remove, add) in deltas.items():
            mean, mean_square = removed.moments(epsilon)
            error = math.hypot(math.sqrt(mean_square / removed.size), oracle_error * remove)
            assert abs(mean - remove) <= FAR * error + 5e-6
            if add:
                error = math.hypot(math.sqrt(add / len(added_sample.loss)), oracle_error * add)
                assert abs(added_sample.estimate(epsilon, (0.0, -1.0)) - add) <= FAR * error


class TestBounds:
    """In 200 repeated runs a bound that fails with probability 0.05 is below the truth at most
    `limit` times, at FALSE_POSITIVE_RATE.
    """

    runs = 200
    failure = 0.05
    limit = scipy.stats.binom.isf(FALSE_POSITIVE_RATE, 200, 0.05)

    def removed(self, order):
        losses = bins((1,), 2, 2)
        for seed in range(self.runs):
            log_factor, loss = losses.sample(order, 1000, np.random.default_rng(seed))
            yield RemoveSample(
                order=order,
                log_factor_bound=losses.log_factor_bound(order),
                size=1000,
                log_factor=log_factor,
                loss=loss,
            )

    @pytest.mark.parametrize("order", [1, 3])
    def test_bounds_of_removal_cover_the_truth(self, order):
        bounds = [sample.bound(1.0, self.failure) for sample in self.removed(order)]
        assert sum(bound < 0.05921 for bound in bounds) <= self.limit
        # Negative control: without a margin the estimates are below about half of the time.
        assert sum(sample.moments(1.0)[0] < 0.05921 for sample in self.removed(order)) > self.limit

    def test_bounds_of_one_direction_do_not_hold_for_the_other(self):
        """Negative control: a bound for adding a client is below half of the delta of removing it,
        .04228.
        """
        added_sample = add_sample(EXACT["min-sep"][0](), 2**16, SEARCH)
        assert added_sample.bound(1.0, (0.0, -1.0), self.failure) < 0.04228 / 2

    @pytest.mark.parametrize("epsilon", [2.0, 4.0])
    def test_bounds_of_addition_cover_the_truth_beyond_all_samples(self, epsilon):
        """With one Gaussian, for which the line is exact, delta is 5e-3 and 1e-5."""
        losses = BinLosses(np.ones((1, 1)))
        truth = gaussian_delta(1.0, epsilon)
        samples = [
            AddSample(loss=np.sort(losses.sample(0, 2000, np.random.default_rng(s))[1]))
            for s in range(self.runs)
        ]
        points = (-0.5, -1.5)
        bounds = [sample.line_bound(epsilon, points, self.failure, 2000) for sample in samples]
        assert sum(bound < truth for bound in bounds) <= self.limit
        estimates = [sample.line_bound(epsilon, points, 1.0, 2000) for sample in samples]
        assert sum(estimate < truth for estimate in estimates) > self.limit

    def test_the_bound_on_the_weights_is_their_maximum(self):
        e = 0.7
        L = np.linspace(0.7, 20, 100_000)
        for K in (1, 2, 7):
            weights = np.exp(-(K - 1) * L) * -np.expm1(e - L)
            assert math.log(weights.max()) == pytest.approx(
                loss_samples.log_weight_bound(K, 0.0, e), abs=1e-6
            )

    def test_bounds_hold_against_an_enumeration_of_all_patterns(self, quick):
        """The most powerful test at the proven epsilon has no delta above the target, in either
        direction, and one above half of it.
        """
        rng = np.random.default_rng(5)
        rounds = 7
        sigma = 0.8
        target = 0.01
        scheme = fedmf.MinSepPoisson(population=60, cohort_size=10, min_sep=3)
        mechanism = banded(rounds, 1, 0.5, 0.3)
        p = scheme.probability
        epsilon = scheme.epsilon(mechanism, sigma, target)

        def probability_of(pattern, wait):
            """Returns the probability of a start with `wait` ineligible rounds and a pattern."""
            probability = (p if wait else 1) / (1 + 2 * p)
            for takes_part in pattern:
                if wait:
                    probability *= 1 - takes_part
                else:
                    probability *= p if takes_part else 1 - p
                wait = 2 if takes_part else max(wait - 1, 0)
            return probability

        patterns = list(itertools.product((0, 1), repeat=rounds))
        probabilities = [sum(probability_of(x, wait) for wait in range(3)) for x in patterns]
        assert sum(probabilities) == pytest.approx(1)
        means = np.array(patterns) @ mechanism.encoder().T / sigma
        absent = rng.standard_normal((50_000, rounds))
        present = absent + means[rng.choice(len(means), 50_000, p=probabilities)]
        deltas = []
        for y, sign in ((present, 1), (absent, -1)):
            L = np.log(np.exp(y @ means.T - (means**2).sum(axis=1) / 2) @ probabilities)
            deltas.append(np.maximum(0, -np.expm1(epsilon - sign * L)).mean())
        assert target / 2 < max(deltas) <= target + FAR * math.sqrt(target / 50_000)


class TestEpsilon:
    def test_epsilon_of_one_bin_is_that_of_the_gaussian(self, quick):
        scheme = fedmf.BallsInBins(population=9, bins=1)
        assert scheme.epsilon(IdentityMechanism(rounds=4), 2.0, 1e-6) == gaussian_epsilon(1.0, 1e-6)

    @pytest.mark.parametrize(
        ("entries", "rounds", "b", "norm"),
        [
            ((1.0,), 9, 3, math.sqrt(3)),
            ((1.0,), 7, 3, None),
            ((1.0,), 3, 4, None),
            ((0.6, 0.8), 4, 2, None),
        ],
        ids=["one norm", "norms that differ", "an empty bin", "bins that meet"],
    )
    def test_epsilon_of_orthogonal_bins_of_one_norm_is_that_of_random_allocation(
        self, quick, entries, rounds, b, norm
    ):
        """With the identity it is one of three releases at noise / sqrt(3). Other cases are
        simulated.
        """
        scheme = fedmf.BallsInBins(population=90, bins=b)
        mechanism = banded(rounds, *entries)
        epsilon = scheme.epsilon(mechanism, 2.0, 1e-5)
        if norm:
            assert epsilon == random_allocation_epsilon(2.0 / norm, 1e-5, positions=b)
        assert ("Monte-Carlo" in scheme.evidence(mechanism, 2.0, 1e-5)) == (norm is None)
        accountant = scheme.description(mechanism, 2.0).accountant
        assert ("random allocation" in accountant) == (norm is not None)

    def test_epsilon_of_bins_of_very_different_size_holds(self, quick):
        """A root of the Gram matrix that was exact beside its largest entry alone had a tenth of
        the first variance.
        """
        C = np.array([[2.0, 0, 0], [0.5, 3e8, 0], [0.5, 6e8, 2.0]])
        delta = 0.45
        scheme = fedmf.BallsInBins(population=300, bins=3)
        epsilon = scheme.epsilon(DenseMechanism(matrix=C), 1.0, delta)
        rng = np.random.default_rng(3)
        size = 100_000
        y = rng.standard_normal((size, 3)) + C.T[rng.integers(3, size=size)]
        losses = np.logaddexp.reduce(y @ C - (C**2).sum(axis=0) / 2, axis=1) - math.log(3)
        W = np.maximum(0, -np.expm1(epsilon - losses))
        assert delta - 0.05 < W.mean() <= delta + FAR * W.std() / math.sqrt(size)

    @pytest.mark.parametrize(("rounds", "population", "sigma"), [(12, 100, 1.0), (400, 160, 0.8)])
    def test_epsilon_without_separation_is_that_of_poisson_sampling(
        self, quick, rounds, population, sigma
    ):
        """In the second case a client that takes part in all rounds has epsilon 371, beyond the end
        of the search.
        """
        scheme = fedmf.MinSepPoisson(population=population, cohort_size=10, min_sep=1)
        epsilon = scheme.epsilon(IdentityMechanism(rounds=rounds), sigma, 1e-5)
        poisson_epsilon = sampled_gaussian_epsilon(
            sigma, 1e-5, probability=10 / population, compositions=rounds
        )
        assert poisson_epsilon <= epsilon <= 1.06 * poisson_epsilon

    @pytest.mark.filterwarnings("error::RuntimeWarning")
    @pytest.mark.parametrize(
        ("sigma", "rounds"), [(0.03, 4), (0.2, 1300)], ids=["overflow", "underflow"]
    )
    def test_epsilon_of_too_little_noise_to_simulate_is_the_gaussian(self, quick, sigma, rounds):
        """The exponential of 1/sigma^2 = 1111 overflows, and the ratio of a client that is sampled
        with probability 1/2 and never was, 2^-1300, is 0.
        """
        scheme = fedmf.MinSepPoisson(population=20, cohort_size=10, min_sep=1)
        mechanism = IdentityMechanism(rounds=rounds)
        unamplified = sigma / math.sqrt(rounds)
        epsilon = scheme.epsilon(mechanism, sigma, 1e-5)
        assert epsilon == gaussian_epsilon(unamplified, 1e-5)
        expected_epsilon = scheme.expected_epsilon(mechanism, sigma, 1e-5)
        assert expected_epsilon == exact_gaussian_epsilon(unamplified, 1e-5)

    def test_epsilon_is_the_same_on_any_number_of_threads(self, quick, monkeypatch):
        scheme = fedmf.BallsInBins(population=90, bins=9)
        mechanism = banded(40, 1, 0.5)
        epsilons = []
        for threads in (1, 3):
            monkeypatch.setattr(loss_samples.os, "cpu_count", lambda: threads)  # noqa: B023
            monte_carlo.simulated_epsilon.cache_clear()
            monte_carlo._search.cache_clear()
            epsilons.append(scheme.epsilon(mechanism, 1.0, 1e-5))
        assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-12)

    @pytest.mark.parametrize(
        "scheme",
        [
            fedmf.BallsInBins(population=90, bins=9),
            fedmf.MinSepPoisson(population=600, cohort_size=30, min_sep=2),
        ],
        ids=["bins", "min-sep"],
    )
    def test_epsilon_of_much_noise_is_0_without_a_sample(self, quick, monkeypatch, scheme):
        monkeypatch.setattr(monte_carlo, "remove_sample", None)
        arguments = (banded(24, 0.8, 0.6), 1e9, 1e-6)
        assert scheme.epsilon(*arguments) == scheme.expected_epsilon(*arguments) == 0
        assert "No simulation was needed" in scheme.evidence(*arguments)

    def test_epsilon_is_cached_on_disk_and_a_damaged_file_is_computed_anew(
        self, quick, monkeypatch, tmp_path
    ):
        monkeypatch.setenv("FEDMF_CACHE", str(tmp_path))

        def epsilon(sigma):
            monte_carlo.simulated_epsilon.cache_clear()
            scheme = fedmf.BallsInBins(population=90, bins=9)
            return scheme.epsilon(banded(18, 1, 0.5), sigma, 1e-4)

        smaller_epsilon = epsilon(2.0)
        (other_text,) = (path.read_text() for path in tmp_path.iterdir())
        first_epsilon = epsilon(1.0)
        assert first_epsilon > smaller_epsilon
        (path,) = (path for path in tmp_path.iterdir() if path.read_text() != other_text)
        intact_text = path.read_text()
        with monkeypatch.context() as patch:
            patch.setattr(monte_carlo, "remove_sample", None)
            assert epsilon(1.0) == first_epsilon
        for damaged_text in (
            intact_text.replace('"epsilon": ', '"epsilon": -'),
            json.dumps(json.loads(intact_text) | {"epsilon": 0.1}),
            intact_text.replace('"digest"', '"other"'),
            "[]",
            other_text,  # The result of another plan.
        ):
            path.write_text(damaged_text)
            assert epsilon(1.0) == first_epsilon
            assert path.read_text() == intact_text

    def test_search_and_proof_are_independent(self):
        losses = bins((1,), 2, 2)
        samples = [
            remove_sample(losses, 2, 2**13, purpose).loss[:50] for purpose in (SEARCH, PROOF)
        ]
        assert not np.isin(*samples).any()

    @pytest.mark.slow
    def test_a_calibration_meets_and_states_its_epsilon(self, quick):
        mechanism = banded(24, 0.8, 0.6)
        scheme = fedmf.MinSepPoisson(population=600, cohort_size=30)
        plan = fedmf.calibrate(mechanism, None, epsilon=2.0, delta=1e-4, sampling=scheme)
        assert 1.9 < plan.epsilon <= 2.0 < unamplified_epsilon(plan)
        assert plan.sampling.min_sep == 2
        text = " ".join(fedmf.statement(plan).split())
        for words in (
            "It is a Monte-Carlo bound from",
            "the point estimate is",
            "wrong with probability at most 1e-10",
        ):
            assert words in text
        assert "how many are in any round" in text
        assert plan.group_epsilon(2) == gaussian_epsilon(plan.noise_multiplier / 2, 1e-4)


def controller_of(scheme, rounds, population):
    """Returns a controller that samples by the scheme."""
    return fedmf.ParticipationController(
        scheme.participation(rounds),
        population=population,
        cohort_size=scheme.cohort_size,
        seed=3,
        sampling=scheme,
    )


def identity_plan(scheme, rounds):
    """Returns a plan of the identity with much noise."""
    changes = {"noise_multiplier": 50.0, "clip_norm": 1.0, "delta": 1e-2}
    return plan(None, IdentityMechanism(rounds=rounds), sampling=scheme, **changes)


def contradictions(cohorts, plan):
    """Returns the contradictions of these cohorts, after which nobody takes part."""
    empty_cohorts = [[]] * (plan.mechanism.rounds - len(cohorts))
    audit = fedmf.audit_ledger(ledger_of([*cohorts, *empty_cohorts], None), plan)
    assert (audit.amplified_epsilon is None) == bool(audit.contradictions)
    return audit.contradictions


class TestDraws:
    """The distribution of a client's pattern over three rounds (b = 2), at FALSE_POSITIVE_RATE.

    Errors of 0.02 in two probabilities would be detected.
    """

    clients = 200_000

    def test_patterns_of_min_sep_poisson_have_the_stated_distribution(self):
        scheme = fedmf.MinSepPoisson(
            population=self.clients, cohort_size=round(self.clients / 3), min_sep=2
        )
        assert scheme.probability == pytest.approx(1 / 2, abs=1e-4)
        self.check(scheme, {"101": 1 / 6, "100": 1 / 6, "010": 1 / 3, "001": 1 / 6, "000": 1 / 6})

    def test_patterns_of_balls_in_bins_have_the_stated_distribution(self):
        self.check(fedmf.BallsInBins(population=self.clients, bins=2), {"101": 1 / 2, "010": 1 / 2})

    def check(self, scheme, probability_by_pattern):
        controller = controller_of(scheme, 3, self.clients)
        takes_part = np.zeros((3, self.clients), int)
        for t in range(3):
            takes_part[t, controller.cohort(t)] = 1
        # A resumed run samples the same clients.
        resumed = controller_of(scheme, 3, self.clients)
        resumed.resume_from(controller.ledger.first(2))
        assert (resumed.cohort(2) == controller.cohort(2)).all()
        names, counts = np.unique(
            ["".join(map(str, x)) for x in takes_part.T.tolist()], return_counts=True
        )
        assert set(names) == set(probability_by_pattern)
        expected = np.array([probability_by_pattern[name] for name in names]) * self.clients
        assert scipy.stats.chisquare(counts, expected).pvalue > FALSE_POSITIVE_RATE
        # The least departure of two probabilities with errors of 0.02.
        departure = self.clients * 2 * 0.02**2
        assert missed_by_chi_square(departure, len(probability_by_pattern) - 1) <= MISS_RATE

    @pytest.mark.parametrize(
        "scheme",
        [
            fedmf.BallsInBins(population=400, bins=8),
            fedmf.MinSepPoisson(population=400, cohort_size=50, min_sep=4),
        ],
        ids=["bins", "min-sep"],
    )
    def test_sampled_cohorts_contradict_nothing_and_other_cohorts_do(self, scheme):
        controller = controller_of(scheme, 16, 400)
        plan = identity_plan(scheme, 16)
        for t in range(16):
            controller.cohort(t)
        assert controller.audit(plan).contradictions == ()
        assert "a round has 150 clients" in contradictions([np.arange(150)], plan)[0]
        consecutive_rounds = [np.array([1])] * 2
        assert contradictions(consecutive_rounds, plan) != ()

    def test_clients_that_never_miss_a_round_contradict_the_sampling(self):
        """An audit of the largest cohort alone accepted both ledgers as amplified."""
        scheme = fedmf.MinSepPoisson(population=10_000, cohort_size=100, min_sep=4)
        plan = identity_plan(scheme, 64)
        frequent_clients = [np.arange(size) for size in [50, 0, 0, 0] * 16]
        large_cohorts = [np.arange(140) + 1000 * (t % 4) for t in range(64)]
        assert "took part 16 times" in "; ".join(contradictions(frequent_clients, plan))
        assert "there are 8960 participations" in "; ".join(contradictions(large_cohorts, plan))

    def test_a_simulation_without_a_bound_states_the_unamplified_epsilon(self, quick):
        scheme = fedmf.MinSepPoisson(population=4, cohort_size=4, min_sep=1)
        unbounded_plan = plan(
            None, IdentityMechanism(rounds=4), sampling=scheme, noise_multiplier=1.0
        )
        text = " ".join(fedmf.statement(unbounded_plan).split())
        assert unbounded_plan.epsilon == unamplified_epsilon(unbounded_plan)
        assert "without amplification is what is stated" in text
        assert "the point estimate is" not in text
