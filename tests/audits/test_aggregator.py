"""The referee of aggregators: honest ones pass, each known mistake fails the play that is there for
it, and what a play says it sees, it sees.
"""

import itertools
import math

import numpy as np
import pytest

import fedmf
from fedmf.audits.aggregator import audit_aggregator
from fedmf.audits.aggregator_claim import PLAYS
from tests.audits import aggregators
from tests.audits.aggregators import CLIENTS, MISTAKES, MULTIPLIER, aggregator, claim
from tests.power import FALSE_POSITIVE_RATE, p_of_count
from tests.refusals import refusal


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_caught_and_named(name):
    make, play, changes = MISTAKES[name]
    result = audit_aggregator(make, claim(**changes))
    assert play in result.failed
    verdict = next(p.verdict for p in result.plays if p.name == play)
    assert "claimed is" in verdict
    assert verdict.endswith(".")


@pytest.mark.parametrize(
    ("name", "true"),
    [
        ("each array clipped by itself", MULTIPLIER / 2),
        ("a mean's noise on the sum", MULTIPLIER / CLIENTS),
        ("clipping after the mean", MULTIPLIER / CLIENTS),
        ("weights by examples", MULTIPLIER / (CLIENTS * 10 / (CLIENTS + 9))),
        ("noise twice", MULTIPLIER * 2**0.5),
        ("hardly any noise as epsilon 10", 4.845e-5),
        ("the divisor follows those who came", MULTIPLIER / 2),
        ("less noise beside data", 0.9 * MULTIPLIER),
    ],
)
def test_what_is_allowed_at_most_is_just_above_the_truth(name, true):
    """At a confidence with which it is wrong once in a million."""
    make, _, changes = MISTAKES[name]
    most = audit_aggregator(make, claim(confidence=1 - 1e-6, **changes)).noise_multiplier_most
    assert true <= most <= 1.25 * true


def test_an_epsilon_is_that_of_the_accountant():
    declared = claim(noise_multiplier=None, epsilon=10.0, rounds=1)
    one, run = declared.epsilons(4.845e-5)
    assert one == run == pytest.approx(2.13e8, rel=1e-3)
    assert declared.multiplier() == pytest.approx(0.541, rel=1e-3)
    assert claim(rounds=4).epsilons(1.0)[1] == pytest.approx(claim().epsilons(0.5)[0])
    assert claim().epsilons(0.0) == (math.inf, math.inf)


@pytest.fixture(scope="module")
def honest():
    """Many audits: a mean, with a clip at another norm than the others' 1."""
    settings = claim(shapes="20x10,90,1", rounds=6)
    return [audit_aggregator(aggregator(), settings) for _ in range(40)]


@pytest.mark.slow
def test_honest_ones_pass(honest):
    assert [result.failed for result in honest if not result.passed] == []
    assert {play.name for result in honest for play in result.plays if play.passed} == set(PLAYS)
    right = sum(result.noise_multiplier_most >= MULTIPLIER for result in honest)
    assert p_of_count(right, len(honest), 0.99) > FALSE_POSITIVE_RATE or right == len(honest)


def test_p_values_are_no_smaller_than_they_should_be(honest):
    """Of each play at most a tenth below 0.1, but for what is one in a million."""
    for i, name in enumerate(PLAYS):
        below = sum(result.plays[i].p_value < 0.1 for result in honest)
        if below > len(honest) / 10:
            assert p_of_count(below, len(honest), 0.1) > FALSE_POSITIVE_RATE / len(PLAYS), name


def test_a_play_sees_what_it_says(honest):
    """A miss is one in a million."""
    sees = {play.name: play.sees for play in honest[0].plays}
    settings = claim(shapes="20x10,90,1", rounds=6)

    def too_far(norm):
        return lambda update: [norm * array for array in aggregators.as_one(update)]

    wide = [audit_aggregator(aggregator(too_far(sees[name])), settings) for name in ("huge", "one")]
    assert "huge" in wide[0].failed
    assert "one" in wide[1].failed
    for factor in (sees["noise"], 1 / sees["noise"]):
        loud = audit_aggregator(aggregator(finish=aggregators.scaled(factor)), settings)
        assert "noise" in loud.failed


def served(plan, shapes="40x30,30,1"):
    """A `Server` for each run; every round has clients of its own."""
    settings = claim(shapes=shapes)

    def make():
        server = fedmf.Server(
            plan,
            shapes=settings.arrays,
            clients_per_round=CLIENTS,
            noise_seed="os",
            zeroing_norm=None,
        )
        clients = itertools.count()

        def aggregate(updates):
            for update in updates:
                server.add(update, client=next(clients))
            return server.release()

        return aggregate

    return make


def planned(family, min_sep, multiplier):
    config = fedmf.PlanConfig(
        rounds=8, min_sep=min_sep, family=family, noise_multiplier=multiplier, clip_norm=0.5
    )
    return served(config.plan())


@pytest.mark.parametrize(
    ("family", "min_sep", "noise"),
    [
        ("identity", 8, "independent"),
        pytest.param("banded", 4, "correlated", marks=pytest.mark.slow),
        pytest.param("tree", 2, "correlated", marks=pytest.mark.slow),
    ],
)
def test_a_server_passes(family, min_sep, noise):
    settings = claim(
        rounds=8, clip_norm=0.5, shapes="40x30,30,1", noise=noise,
        min_sep=min_sep if noise == "correlated" else None,
    )  # fmt: skip
    result = audit_aggregator(planned(family, min_sep, MULTIPLIER), settings)
    assert result.failed == ()
    assert result.noise_multiplier_most >= MULTIPLIER
    # With less noise than is said the correlated kind fails as well.
    assert "noise" in audit_aggregator(planned(family, min_sep, 0.8 * MULTIPLIER), settings).failed


def test_correlated_noise_has_to_be_said():
    settings = claim(rounds=8, clip_norm=0.5, shapes="40x30,30,1")
    assert "dependence" in audit_aggregator(planned("banded", 4, MULTIPLIER), settings).failed


def test_a_play_may_be_left_out():
    make, play, _ = MISTAKES["a NaN that passes"]
    result = audit_aggregator(make, claim(leave_out=play))
    assert result.passed
    assert next(p for p in result.plays if p.name == play).passed is None


def test_updates_of_zeros_that_become_nan():
    def divides(update):
        with np.errstate(all="ignore"):
            return [array / aggregators.norm_of(update) for array in update]

    result = audit_aggregator(aggregator(divides), claim())
    assert result.failed == ("zeros",)
    assert result.values()["epsilon_run"] is None

    def raises(update):
        return [array * min(1, 1 / aggregators.norm_of(update)) for array in update]

    assert "zeros" in audit_aggregator(aggregator(raises), claim()).failed


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"epsilon": 8.0}, "noise_multiplier=0.4"),
        ({"shapes": "3,b"}, "shapes='3,b'"),
        ({"shapes": "5x5"}, "25 entries"),
        ({"leave_out": "noise"}, "leave_out='noise'"),
        ({"min_sep": 3}, "min_sep=3"),
        ({"clients": 1}, "clients=1"),
    ],
)
def test_refusals_name_the_argument(change, named):
    with refusal(named):
        claim(**change)


def test_a_result_of_other_shapes_is_refused():
    with refusal("arrays of shapes"):
        audit_aggregator(lambda: lambda updates: updates[0][:1], claim())
