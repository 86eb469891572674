"""Adaptive clipping: the streams of updates and of bits are together one mechanism of the planned
noise.
"""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest

import fedmf
from fedmf import QuantileClipping
from fedmf.privacy.plan import bit_stddev, dp_event, noise_size, unamplified_epsilon, unit_noise
from tests.mechanisms.registry import MECHANISMS
from tests.mechanisms.schemas import separated
from tests.privacy.plans import ledger_of, plan
from tests.refusals import assert_refused, named

ROUNDS = 6
TWICE = separated(ROUNDS, 3)


def plan_of(clipping, mechanism="banded", participation=TWICE, **changes):
    """Returns a plan with adaptive clipping, or without for None."""
    return plan(participation, MECHANISMS[mechanism](ROUNDS), quantile_clipping=clipping, **changes)


@pytest.mark.parametrize(
    ("z", "bit_noise", "expected"),
    [
        (1.19352, 5.0, 1.20211),  # Andrew et al. 2021, Theorem 1: (z^-2 - (2 sigma_b)^-2)^(-1/2)
        (2.23048, 5.0, 2.28812),
        (1.5, 1.5 / 2 * math.sqrt(2), 1.5 * math.sqrt(2)),
    ],
)
def test_the_noise_multipliers_follow_the_formula_of_the_paper(z, bit_noise, expected):
    clipping = QuantileClipping.with_bit_noise(bit_noise, noise_multiplier=z)
    assert clipping.update_noise_multiplier(z) == pytest.approx(expected, abs=6e-6)
    assert clipping.bit_noise_multiplier(z) == pytest.approx(bit_noise)
    assert clipping.update_noise_multiplier(z) ** -2 + (2 * bit_noise) ** -2 == pytest.approx(z**-2)


def largest_change(plan, bit):
    """Computes by brute force the norm of C times the contributions of one client to both streams,
    each divided by the standard deviation of its Z.
    """
    C = plan.mechanism.encoder()
    largest_norm = 0.0
    update_noise = plan.stddev / plan.clip_norm
    bit_noise = bit_stddev(plan)
    for pattern in plan.participation.patterns():
        for signs in itertools.product((1.0, -1.0), repeat=len(pattern)):
            # The updates point along one direction or its opposite, and so do the bits.
            streams = np.zeros((ROUNDS, 2))
            streams[list(pattern), 0] = np.array(signs) / update_noise
            streams[list(pattern), 1] = np.array(signs) * bit / bit_noise
            largest_norm = max(largest_norm, float(np.linalg.norm(C @ streams)))
    return largest_norm


@pytest.mark.parametrize("mechanism", ["identity", "banded", "tree full"])
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_one_client_changes_both_streams_by_as_much_as_planned(mechanism, share):
    plan = plan_of(QuantileClipping(share=share), mechanism)
    assert plan.sensitivity.exact
    assert largest_change(plan, 0.5) == pytest.approx(1 / plan.noise_multiplier, rel=1e-9)


def test_a_bit_that_is_not_centred_costs_more_than_planned():
    """Negative control: 0 or 1 in place of -1/2 or 1/2."""
    plan = plan_of(QuantileClipping(share=0.3))
    assert largest_change(plan, 1.0) > 1.3 / plan.noise_multiplier


def test_the_guarantee_is_that_of_a_constant_clip_norm():
    clipping = QuantileClipping(share=0.04)
    constant = plan_of(None)
    adaptive_plan = plan_of(clipping)
    assert (adaptive_plan.epsilon, adaptive_plan.rho) == (constant.epsilon, constant.rho)
    assert dp_event(adaptive_plan) == dp_event(constant)
    assert adaptive_plan.stddev == pytest.approx(constant.stddev / math.sqrt(0.96))
    assert bit_stddev(adaptive_plan) == pytest.approx(2.5 * constant.stddev / constant.clip_norm)
    assert (bit_stddev(constant), noise_size(constant, 7), noise_size(adaptive_plan, 7)) == (
        0.0,
        7,
        8,
    )
    simulating_plan = adaptive_plan.simulating(simulated=10, claimed=100)
    assert bit_stddev(simulating_plan) == pytest.approx(bit_stddev(adaptive_plan) / 10)


def test_sampling_amplifies_both_streams_as_it_does_one():
    """Theorem 4 of the banded paper is about vectors of bounded norm, and both streams are one."""
    scheme = fedmf.CyclicPoisson(population=1200, cohort_size=10)
    constant_plan, adaptive_plan = (
        plan_of(clipping, participation=None, sampling=scheme)
        for clipping in (None, QuantileClipping(share=0.3))
    )
    assert adaptive_plan.epsilon == constant_plan.epsilon < unamplified_epsilon(constant_plan)
    update_noise = adaptive_plan.stddev / adaptive_plan.clip_norm
    inverse_square = update_noise**-2 + (2 * bit_stddev(adaptive_plan)) ** -2
    assert inverse_square == pytest.approx(unit_noise(constant_plan) ** -2)


def test_both_streams_are_stated():
    plan = plan_of(QuantileClipping(quantile=0.3, share=0.09, every=4))
    text = " ".join(fedmf.statement(plan).split())
    for words in (
        "follows the 0.3 quantile",
        "every 4 rounds at most",
        "with noise multiplier 2.09656; and that of one bit a client",
        "minus 1/2, each then -1/2 or 1/2, with noise multiplier 3.33333",
        "one vector of norm at most 1 / 2,",
        "left out of the sum of the bits that say which updates were clipped",
    ):
        assert words in text
    assert "quantile" not in fedmf.statement(plan_of(None))
    noiseless_text = fedmf.statement(dataclasses.replace(plan, noise_multiplier=0.0))
    assert "**No privacy.**" in noiseless_text
    assert "norm at most 1 / 0" not in " ".join(noiseless_text.split())


def test_the_achieved_guarantee_counts_both_streams():
    plan = plan_of(QuantileClipping())
    ledger = ledger_of([[t] for t in range(ROUNDS)])
    audit = fedmf.audit_ledger(ledger, plan)
    assert audit.epsilon == pytest.approx(fedmf.audit_ledger(ledger, plan_of(None)).epsilon)
    assert audit.epsilon < plan.epsilon


def with_bit_noise(bit_noise):
    return QuantileClipping.with_bit_noise(bit_noise, noise_multiplier=2.0)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        *named(
            ValueError,
            QuantileClipping,
            quantile=[1.0],
            share=[0.0, 1.0],
            every=[0],
            learning_rate=[0.0],
        ),
        *named(ValueError, with_bit_noise, bit_noise=[1.0]),
        *named(ValueError, functools.partial(fedmf.TrainConfig, epsilon=8.0), clip_share=[0.1]),
    ],
)
def test_bad_arguments_are_refused(call, kind, words):
    assert_refused(call, kind, words)
