"""The auditor of aggregators: honest ones pass, each known mistake fails the test that is there for
it, and what a test says it sees, it sees.
"""

import itertools
import math

import numpy as np
import pytest

import fedmf
from fedmf.audits import aggregator_dependence as dependence
from fedmf.audits import aggregator_noise
from fedmf.audits.aggregator import audit_aggregator
from fedmf.audits.aggregator_claim import MOVEMENT_TESTS, TEST_NAMES
from tests.audits import aggregators
from tests.audits.aggregator_tables import HONEST, MISTAKES
from tests.audits.aggregators import MULTIPLIER, aggregator, claim
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE, missed_by_count, p_of_count
from tests.refusals import refusal


def sample_less_noise(monkeypatch):
    """Makes audits sample 40,000 entries of noise, where the tails at 4 standard deviations need
    300,000: the scale of the noise is then known to 0.35%.
    """
    monkeypatch.setattr(aggregator_noise, "DETECTED_CUT", 3.5)


def alone(*names):
    """Returns `leave_out` for these tests of movement alone."""
    return ",".join(name for name in MOVEMENT_TESTS if name not in names)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_caught_and_named(name, monkeypatch):
    """The upper bound on the noise multiplier is wrong once in a million."""
    mistake = MISTAKES[name]
    if not mistake.needs_all_noise:
        sample_less_noise(monkeypatch)
    settings = {"confidence": 1 - 1e-6, "leave_out": alone(mistake.test)} | mistake.changes
    result = audit_aggregator(mistake.make, claim(**settings))
    assert mistake.test in result.failed
    verdict = next(test.verdict for test in result.tests if test.name == mistake.test)
    assert "claimed" in verdict
    assert verdict.endswith(".")
    if mistake.multiplier is not None:
        assert mistake.multiplier <= result.noise_multiplier_most <= 1.25 * mistake.multiplier


# Noise of a round, at least, in parts of the claim: a bound below it would be wrong.
LEAST_NOISE = {"a fifth more noise": 1.2, "more noise in the first rounds": 1 + 2 / 12}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_one_passes(name):
    """An honest one fails once in a million runs."""
    result = audit_aggregator(HONEST[name], claim(confidence=1 - 1e-6))
    assert result.failed == ()
    assert result.noise_multiplier_most >= LEAST_NOISE.get(name, 1.0) * MULTIPLIER
    assert {test.name for test in result.tests} == set(TEST_NAMES)


def test_an_epsilon_is_that_of_the_accountant():
    declared = claim(noise_multiplier=None, epsilon=10.0, rounds=1)
    epsilon_round, epsilon_run = declared.epsilons(4.845e-5)
    assert epsilon_round == epsilon_run == pytest.approx(2.13e8, rel=1e-3)
    assert declared.multiplier() == pytest.approx(0.541, rel=1e-3)
    assert claim(rounds=4).epsilons(1.0)[1] == pytest.approx(claim().epsilons(0.5)[0])
    assert claim().epsilons(0.0) == (math.inf, math.inf)


def test_a_test_sees_what_it_says():
    """A miss is one in a million."""
    honest = audit_aggregator(aggregator(), claim(leave_out=alone("norms", "one")))
    sees = {test.name: test.sees for test in honest.tests}

    def too_far(norm):
        return lambda update: [norm * array for array in aggregators.as_one(update)]

    for name in ("norms", "one"):
        settings = claim(leave_out=alone(name))
        assert name in audit_aggregator(aggregator(too_far(sees[name])), settings).failed
    settings = claim(leave_out=alone())
    quiet = audit_aggregator(aggregator(finish=aggregators.scaled(1 / sees["noise"])), settings)
    assert quiet.failed == ("noise",)


@pytest.mark.parametrize(
    "statistic",
    [
        lambda runs: list(dependence._lags(runs)),
        lambda runs: [dependence._equal_entries(runs)],
        lambda runs: [dependence._equal_entries([rows.round(2) for rows in runs])],
        lambda runs: list(dependence._repeated_rounds(runs)),
        lambda runs: [dependence._predictable_round(runs)],
        lambda runs: [dependence._reflections(runs)],
        lambda runs: [dependence._repeated_starts(runs)],
    ],
)
def test_p_values_of_dependence_are_no_smaller_than_they_should_be(statistic):
    """Of 200 honest samples a tenth have a p-value below 0.1; two fifths, as where p-values are a
    quarter of what they should be, would be seen.
    """
    assert missed_by_count(200, 0.1, 0.4) <= 2 * MISS_RATE
    rng = np.random.default_rng(1)
    below = 0
    for _ in range(200):
        findings = statistic(list(rng.normal(size=(2, 3, 400))))
        below += len(findings) * min(finding.p_value for finding in findings) < 0.1
    assert below <= 20 or p_of_count(below, 200, 0.1) > FALSE_POSITIVE_RATE


SERVED_CLIENTS = 4


def served_claim(**changes):
    return claim(rounds=8, clip_norm=0.5, shapes="40x30,30,1", clients=SERVED_CLIENTS, **changes)


def planned(family, min_sep, multiplier):
    """Makes a `Server` for each run; every round has clients of its own."""
    config = fedmf.PlanConfig(
        rounds=8, min_sep=min_sep, family=family, noise_multiplier=multiplier, clip_norm=0.5
    )
    plan, shapes = config.plan(), served_claim().arrays

    def make():
        server = fedmf.Server(
            plan, shapes=shapes, clients_per_round=SERVED_CLIENTS, noise_seed="os"
        )
        clients = itertools.count()

        def aggregate(updates):
            for update in updates:
                server.add(update, client=next(clients))
            return server.release()

        return aggregate

    return make


@pytest.mark.parametrize(
    ("family", "min_sep", "noise", "tests"),
    [
        ("identity", 8, "independent", MOVEMENT_TESTS),
        pytest.param("banded", 4, "correlated", MOVEMENT_TESTS, marks=pytest.mark.slow),
        pytest.param("blt", 4, "correlated", ("norms",), marks=pytest.mark.slow),
        pytest.param("dense", 4, "correlated", ("norms",), marks=pytest.mark.slow),
        pytest.param("tree", 2, "correlated", ("norms",), marks=pytest.mark.slow),
    ],
)
def test_a_server_passes(family, min_sep, noise, tests, monkeypatch):
    if tests != MOVEMENT_TESTS:
        sample_less_noise(monkeypatch)
    settings = {"noise": noise, "leave_out": alone(*tests) or None}
    settings["min_sep"] = min_sep if noise == "correlated" else None
    result = audit_aggregator(planned(family, min_sep, MULTIPLIER), served_claim(**settings))
    assert result.failed == ()
    assert result.noise_multiplier_most >= MULTIPLIER
    # With less noise than is said the correlated kind fails as well.
    sample_less_noise(monkeypatch)
    quiet = planned(family, min_sep, 0.8 * MULTIPLIER)
    settings["leave_out"] = alone()
    assert audit_aggregator(quiet, served_claim(**settings)).failed == ("noise",)


def test_a_test_may_be_left_out():
    mistake = MISTAKES["a NaN that passes"]
    result = audit_aggregator(mistake.make, claim(leave_out=mistake.test))
    assert result.passed
    assert next(test for test in result.tests if test.name == mistake.test).passed is None


def test_updates_of_zeros_that_become_nan():
    def divides(update):
        with np.errstate(all="ignore"):
            return [array / aggregators.norm_of(update) for array in update]

    result = audit_aggregator(aggregator(divides), claim(leave_out=alone()))
    assert result.failed == ("zeros",)
    assert result.values()["epsilon_run"] is None

    def raises(update):
        return [array * min(1, 1 / aggregators.norm_of(update)) for array in update]

    assert "zeros" in audit_aggregator(aggregator(raises), claim(leave_out=alone())).failed


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"epsilon": 8.0}, "noise_multiplier=0.1"),
        ({"shapes": "3,b"}, "shapes='3,b'"),
        ({"shapes": "5x5"}, "25 entries"),
        ({"leave_out": "start"}, "leave_out='start'"),
        ({"min_sep": 3}, "min_sep=3"),
        ({"clients": 1}, "clients=1"),
    ],
)
def test_refusals_name_the_argument(change, named):
    with refusal(named):
        claim(**change)


async def later(updates):
    return updates[0]


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda updates: updates[0][:1], "gave arrays of shapes"),
        (lambda updates: None, "gave None"),
        (later, "gave a coroutine"),
        (lambda updates: dict(enumerate(updates[0])), "gave a dict"),
        (lambda updates: 3.0, "gave a float"),
        (lambda updates: [array + 1j for array in updates[0]], "dtype complex"),
    ],
)
def test_what_is_no_aggregate_is_refused(function, named):
    with refusal(named):
        audit_aggregator(lambda: function, claim())


def test_a_function_that_works_on_zeros_alone_is_refused():
    def aggregate(updates):
        if any(array.any() for update in updates for array in update):
            raise OverflowError("no")
        return [array + rng.normal(size=array.shape) for array in updates[0]]

    rng = np.random.default_rng()
    with refusal("OverflowError"):
        audit_aggregator(lambda: aggregate, claim(leave_out=alone()))


ROUNDS, MIN_SEP, FEW_CLIENTS = 32, 4, 2


def banded_noise(participations, rows):
    """Returns what makes an aggregator of banded noise, scaled for so many participations of a
    client; the rows of noise come again after so many.
    """
    column = np.array([1.0, 0.5, 0.375, 0.3125])
    C = sum(c * np.eye(ROUNDS, k=-i) for i, c in enumerate(column / np.linalg.norm(column)))
    N = np.linalg.inv(C)

    def make():
        rng = np.random.default_rng()
        sources, calls = [], itertools.count()

        def aggregate(updates):
            t = next(calls)
            arrays = aggregators.total(list(map(aggregators.as_one, updates)), None)
            if t < rows:
                sources.append(rng.normal(size=sum(array.size for array in arrays)))
            row = N[t % rows, : len(sources)] @ np.array(sources)
            scale = MULTIPLIER * participations**0.5
            sizes = np.cumsum([array.size for array in arrays])[:-1]
            noise = [
                scale * part.reshape(array.shape)
                for part, array in zip(np.split(row, sizes), arrays, strict=True)
            ]
            return aggregators.divided(aggregators.plus(arrays, noise), FEW_CLIENTS)

        return aggregate

    return make


def test_correlated_noise_is_held_against_all_participations(monkeypatch):
    """Noise for one participation passes where a client takes part once, and no more often."""
    sample_less_noise(monkeypatch)
    settings = {"noise": "correlated", "rounds": ROUNDS, "shapes": "1000"}
    settings |= {"clients": FEW_CLIENTS, "leave_out": alone()}
    several = claim(**settings, min_sep=MIN_SEP)
    result = audit_aggregator(banded_noise(ROUNDS // MIN_SEP, ROUNDS), several)
    assert result.failed == ()
    assert (result.rounds_seen, result.participations_seen) == (ROUNDS, ROUNDS // MIN_SEP)
    once = banded_noise(1, ROUNDS)
    assert audit_aggregator(once, claim(**settings)).failed == ()
    assert audit_aggregator(once, several).failed == ("noise",)
    again = audit_aggregator(banded_noise(ROUNDS // MIN_SEP, 8), several)
    assert "noise" in again.failed
    assert again.noise_multiplier_most < 1e-3


def test_correlated_noise_of_more_rounds_than_were_run_fails(monkeypatch):
    monkeypatch.setattr(aggregator_noise, "_MAX_SAMPLED_ROUNDS", 16)
    settings = claim(
        noise="correlated",
        rounds=ROUNDS,
        min_sep=MIN_SEP,
        shapes="1000",
        clients=FEW_CLIENTS,
        leave_out=alone(),
    )
    result = audit_aggregator(banded_noise(8, ROUNDS), settings)
    assert result.failed == ("rounds",)
    assert "16 rounds" in next(test.verdict for test in result.tests if test.name == "rounds")
