"""Renyi accounting of samples of fixed size, against Theorem 27 in high precision and against
dp_accounting where that is right.
"""

import dataclasses
import itertools
import math

import mpmath
import pytest

import fedmf
from fedmf.mechanisms import IdentityMechanism
from fedmf.privacy import fixed_size
from fedmf.privacy.fixed_size import fixed_size_epsilon
from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.privacy.plan import rdp_epsilon, unamplified_epsilon
from tests.refusals import refusal

SCHEME = fedmf.CyclicFixedSize(population=1000, cohort_size=10)


def theorem_27(s, q, order, terms=None):
    """Computes log A from its definition by alternating sums, with at most so many `terms`."""
    num_terms = min(order, terms or order)
    with mpmath.workdps(60 + int(num_terms * (1.5 + max(0, -math.log10(s))))):
        square = mpmath.mpf(s) ** 2
        q = mpmath.mpf(q)
        power = [mpmath.exp(i * (i - 1) * square / 2) for i in range(num_terms + 2)]
        even_moments = {
            n: mpmath.fsum((-1) ** i * mpmath.binomial(n, i) * power[i] for i in range(n + 1))
            for n in range(2, num_terms + 2, 2)
        }
        total = mpmath.mpf(1)
        for j in range(2, num_terms + 1):
            moment = mpmath.sqrt(even_moments[j // 2 * 2] * even_moments[(j + 1) // 2 * 2])
            total += mpmath.binomial(order, j) * q**j * min(4 * moment, 2 * power[j])
        return float(mpmath.log(total))


@pytest.mark.parametrize(
    ("s", "q", "order", "terms"),
    [
        (2.0, 0.001, 8, None),
        (0.8, 0.1, 8, None),
        (0.3, 0.5, 20, None),
        (0.3, 0.01, 64, None),
        (0.05, 0.1, 70, None),
        (1e-3, 0.01, 100, None),
        # With alpha q s of 3 or less, the terms beyond 80 are negligible.
        (1e-3, 0.01, 200_000, 80),
        (1e-5, 1e-3, 10**8, 80),
    ],
)
def test_orders_are_those_of_the_theorem_from_above(s, q, order, terms):
    expected = theorem_27(s, q, order, terms)
    assert expected * (1 - 1e-12) <= fixed_size._log_sum(s, q, order) <= 1.005 * expected


def test_epsilon_falls_with_the_noise_to_zero():
    noises = [2.0**i for i in range(-2, 40)]
    epsilons = [fixed_size_epsilon(z, 1e-6, probability=0.01, compositions=100) for z in noises]
    positive = [epsilon for epsilon in epsilons if epsilon]
    assert all(
        next_epsilon < previous_epsilon
        for previous_epsilon, next_epsilon in itertools.pairwise(positive)
    )
    assert epsilons[: len(positive)] == positive  # All later ones are 0.
    # Twice the noise about halves a small epsilon, until it is near delta.
    assert positive[-1] < 1e-5
    for previous_epsilon, next_epsilon in itertools.pairwise(epsilons):
        if 1e-4 < previous_epsilon < 0.1:
            assert 0.4 < next_epsilon / previous_epsilon < 0.55


@pytest.mark.parametrize(("target", "delta"), [(1e-2, 1e-6), (1e-4, 1e-12)])
def test_small_targets_are_met_with_little_excess_noise(target, delta):
    mechanism = IdentityMechanism(rounds=100)
    plan = fedmf.calibrate(mechanism, None, epsilon=target, delta=delta, sampling=SCHEME)
    assert plan.epsilon <= target
    less_noisy = dataclasses.replace(plan, noise_multiplier=0.999 * plan.noise_multiplier)
    assert less_noisy.epsilon > target
    assert unamplified_epsilon(plan) > 5 * target
    assert rdp_epsilon(plan) == plan.epsilon


def test_epsilon_is_right_at_the_ends_of_its_range():
    samples = {"probability": 0.01, "compositions": 100}
    assert fixed_size_epsilon(0.0, 1e-6, **samples) == math.inf
    assert fixed_size_epsilon(1e-200, 1e-6, **samples) == math.inf
    assert fixed_size_epsilon(1e200, 1e-15, **samples) == 0
    epsilon_of_all_clients = fixed_size_epsilon(3.0, 1e-6, probability=1.0, compositions=4)
    assert epsilon_of_all_clients == gaussian_epsilon(1.5, 1e-6)
    with refusal("probability=0 must be in"):
        fixed_size_epsilon(3.0, 1e-6, probability=0, compositions=4)
