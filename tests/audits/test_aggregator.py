"""Auditor of aggregators: honest ones pass, mistakes fail, and the power is as stated."""

import itertools
import math

import numpy as np
import pytest

import fedmf
from fedmf.audits import aggregator_dependence as dependence
from fedmf.audits import aggregator_noise
from fedmf.audits.aggregator import audit_aggregator
from fedmf.audits.aggregator_claim import MOVEMENT_TESTS, TEST_NAMES
from fedmf.audits.aggregator_estimates import BaselineEstimates
from tests.audits import aggregators
from tests.audits.aggregator_tables import HONEST, MISTAKES
from tests.audits.aggregators import MULTIPLIER, aggregator, claim
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE, missed_by_count, p_of_count
from tests.refusals import refusal


def sample_less_noise(monkeypatch):
    """Makes audits sample 40,000 entries of noise.

    The tails at 4 standard deviations need 300,000; the scale of the noise is then known to 0.35%.
    """
    monkeypatch.setattr(aggregator_noise, "DETECTED_CUT", 3.5)


def only_test(*names):
    """Returns the value of `leave_out` that runs these movement tests alone."""
    return ",".join(name for name in MOVEMENT_TESTS if name not in names)


@pytest.mark.parametrize("name", MISTAKES)
def test_audit_fails_each_known_mistake(name, monkeypatch):
    """Tests each mistake; the bound on the noise multiplier is wrong once in a million."""
    mistake = MISTAKES[name]
    if not mistake.needs_all_noise:
        sample_less_noise(monkeypatch)
    claim_values = {"confidence": 1 - 1e-6, "leave_out": only_test(mistake.test)} | mistake.changes
    result = audit_aggregator(mistake.make, claim(**claim_values))
    assert mistake.test in result.failed
    verdict = next(test.verdict for test in result.tests if test.name == mistake.test)
    assert "claimed" in verdict
    assert verdict.endswith(".")
    if mistake.multiplier is not None:
        assert mistake.multiplier <= result.noise_multiplier_most <= 1.25 * mistake.multiplier


# The least noise of a round, in parts of the claim: a bound below it would be wrong.
LEAST_NOISE = {"a fifth more noise": 1.2, "more noise in the first rounds": 1 + 2 / 12}


@pytest.mark.parametrize("name", HONEST)
def test_audit_passes_honest_aggregators(name):
    """Tests honest aggregators, which fail once in a million runs."""
    result = audit_aggregator(HONEST[name], claim(confidence=1 - 1e-6))
    assert result.failed == ()
    assert result.noise_multiplier_most >= LEAST_NOISE.get(name, 1.0) * MULTIPLIER
    assert {test.name for test in result.tests} == set(TEST_NAMES)


def test_epsilons_of_a_claim_are_those_of_the_accountant():
    epsilon_claim = claim(noise_multiplier=None, epsilon=10.0, rounds=1)
    epsilon_round, epsilon_run = epsilon_claim.epsilons(4.845e-5)
    assert epsilon_round == epsilon_run == pytest.approx(2.13e8, rel=1e-3)
    assert epsilon_claim.multiplier() == pytest.approx(0.541, rel=1e-3)
    assert claim(rounds=4).epsilons(1.0)[1] == pytest.approx(claim().epsilons(0.5)[0])
    assert claim().epsilons(0.0) == (math.inf, math.inf)


def test_deviations_of_the_stated_size_are_detected():
    """Tests the stated power, with one miss in a million."""
    honest_audit = audit_aggregator(aggregator(), claim(leave_out=only_test("norms", "one")))
    seen_factors = {test.name: test.sees for test in honest_audit.tests}

    def too_far(norm):
        return lambda update: [norm * array for array in aggregators.as_one(update)]

    for name in ("norms", "one"):
        declared_claim = claim(leave_out=only_test(name))
        assert (
            name in audit_aggregator(aggregator(too_far(seen_factors[name])), declared_claim).failed
        )
    declared_claim = claim(leave_out=only_test())
    quiet_audit = audit_aggregator(
        aggregator(finish=aggregators.scaled(1 / seen_factors["noise"])), declared_claim
    )
    assert quiet_audit.failed == ("noise",)


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
def test_p_values_of_dependence_are_valid(statistic):
    """Counts p-values below 0.1 of 200 honest samples; a tenth is expected.

    Two fifths, as of p-values that are a quarter of the right ones, would be detected.
    """
    assert missed_by_count(200, 0.1, 0.4) <= 2 * MISS_RATE
    rng = np.random.default_rng(1)
    num_below = 0
    for _ in range(200):
        findings = statistic(list(rng.normal(size=(2, 3, 400))))
        num_below += len(findings) * min(finding.p_value for finding in findings) < 0.1
    assert num_below <= 20 or p_of_count(num_below, 200, 0.1) > FALSE_POSITIVE_RATE


def test_each_baseline_is_measured_once_also_after_others_are_freed():
    """Tests many short-lived scenarios, whose ids the interpreter uses again."""
    baselines = BaselineEstimates()
    measured = []
    for number in range(100):
        scenario = [number]
        for _ in range(2):
            estimate = baselines.get(scenario, lambda values: measured.append(values) or values[0])
            assert estimate == number
    assert len(measured) == 100


SERVED_CLIENTS = 4
# A plan with less than four fifths of this noise is refused.
SERVED_MULTIPLIER = 0.2


def served_claim(**changes):
    """Returns the claim of a `Server`."""
    values = {"rounds": 8, "clip_norm": 0.5, "shapes": "40x30,30,1", "clients": SERVED_CLIENTS}
    return claim(**(values | {"noise_multiplier": SERVED_MULTIPLIER} | changes))


def planned_server(family, min_sep, multiplier):
    """Returns a maker of a `Server` for each run; every round has clients of its own."""
    plan_config = fedmf.PlanConfig(
        rounds=8, min_sep=min_sep, family=family, noise_multiplier=multiplier, clip_norm=0.5
    )
    plan = plan_config.plan()
    shapes = served_claim().arrays

    def make():
        server = fedmf.Server(
            plan, shapes=shapes, clients_per_round=SERVED_CLIENTS, noise_seed="os"
        )
        client_ids = itertools.count()

        def aggregate(updates):
            for update in updates:
                server.add(update, client=next(client_ids))
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
def test_audit_passes_a_server(family, min_sep, noise, tests, monkeypatch):
    if tests != MOVEMENT_TESTS:
        sample_less_noise(monkeypatch)
    claim_values = {"noise": noise, "leave_out": only_test(*tests) or None}
    claim_values["min_sep"] = min_sep if noise == "correlated" else None
    result = audit_aggregator(
        planned_server(family, min_sep, SERVED_MULTIPLIER), served_claim(**claim_values)
    )
    assert result.failed == ()
    assert result.noise_multiplier_most >= SERVED_MULTIPLIER
    # With less noise than claimed, correlated noise fails as well.
    sample_less_noise(monkeypatch)
    quiet_server = planned_server(family, min_sep, 0.8 * SERVED_MULTIPLIER)
    claim_values["leave_out"] = only_test()
    assert audit_aggregator(quiet_server, served_claim(**claim_values)).failed == ("noise",)


def test_a_test_may_be_left_out():
    mistake = MISTAKES["a NaN that passes"]
    result = audit_aggregator(mistake.make, claim(leave_out=mistake.test))
    assert result.passed
    assert next(test for test in result.tests if test.name == mistake.test).passed is None


def test_nan_on_updates_of_zeros_fails():
    def divides(update):
        with np.errstate(all="ignore"):
            return [array / aggregators.norm_of(update) for array in update]

    failed_audit = audit_aggregator(aggregator(divides), claim(leave_out=only_test()))
    assert failed_audit.failed == ("zeros",)
    assert failed_audit.values()["epsilon_run"] is None

    def raises(update):
        return [array * min(1, 1 / aggregators.norm_of(update)) for array in update]

    assert "zeros" in audit_aggregator(aggregator(raises), claim(leave_out=only_test())).failed


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
def test_claim_refuses_bad_arguments(change, named):
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
def test_audit_refuses_results_that_are_no_aggregate(function, named):
    with refusal(named):
        audit_aggregator(lambda: function, claim())


def test_audit_refuses_a_function_that_works_on_zeros_alone():
    def aggregate(updates):
        if any(array.any() for update in updates for array in update):
            raise OverflowError("no")
        return [array + rng.normal(size=array.shape) for array in updates[0]]

    rng = np.random.default_rng()
    with refusal("OverflowError"):
        audit_aggregator(lambda: aggregate, claim(leave_out=only_test()))


ROUNDS = 32
MIN_SEP = 4
FEW_CLIENTS = 2


def banded_noise(participations, rows):
    """Returns a maker of aggregators with banded noise.

    Args:
      participations: of one client, for which the noise is scaled.
      rows: number of rounds after which the noise repeats.
    """
    first_column = np.array([1.0, 0.5, 0.375, 0.3125])
    C = sum(
        coefficient * np.eye(ROUNDS, k=-lag)
        for lag, coefficient in enumerate(first_column / np.linalg.norm(first_column))
    )
    N = np.linalg.inv(C)

    def make():
        rng = np.random.default_rng()
        sources = []
        call_counter = itertools.count()

        def aggregate(updates):
            t = next(call_counter)
            arrays = aggregators.total(list(map(aggregators.as_one, updates)), None)
            if t < rows:
                sources.append(rng.normal(size=sum(array.size for array in arrays)))
            noise_row = N[t % rows, : len(sources)] @ np.array(sources)
            noise_scale = MULTIPLIER * participations**0.5
            array_ends = np.cumsum([array.size for array in arrays])[:-1]
            noise_arrays = [
                noise_scale * array_noise.reshape(array.shape)
                for array_noise, array in zip(np.split(noise_row, array_ends), arrays, strict=True)
            ]
            return aggregators.divided(aggregators.plus(arrays, noise_arrays), FEW_CLIENTS)

        return aggregate

    return make


def test_correlated_noise_is_compared_with_all_participations(monkeypatch):
    """Tests that noise for one participation passes for one participation, and not for more."""
    sample_less_noise(monkeypatch)
    claim_values = {"noise": "correlated", "rounds": ROUNDS, "shapes": "1000"}
    claim_values |= {"clients": FEW_CLIENTS, "leave_out": only_test()}
    repeated_claim = claim(**claim_values, min_sep=MIN_SEP)
    result = audit_aggregator(banded_noise(ROUNDS // MIN_SEP, ROUNDS), repeated_claim)
    assert result.failed == ()
    assert (result.rounds_seen, result.participations_seen) == (ROUNDS, ROUNDS // MIN_SEP)
    single_noise = banded_noise(1, ROUNDS)
    assert audit_aggregator(single_noise, claim(**claim_values)).failed == ()
    assert audit_aggregator(single_noise, repeated_claim).failed == ("noise",)
    repeating_audit = audit_aggregator(banded_noise(ROUNDS // MIN_SEP, 8), repeated_claim)
    assert "noise" in repeating_audit.failed
    assert repeating_audit.noise_multiplier_most < 1e-3


def test_correlated_noise_of_more_rounds_than_were_sampled_fails(monkeypatch):
    monkeypatch.setattr(aggregator_noise, "_MAX_SAMPLED_ROUNDS", 16)
    correlated_claim = claim(
        noise="correlated",
        rounds=ROUNDS,
        min_sep=MIN_SEP,
        shapes="1000",
        clients=FEW_CLIENTS,
        leave_out=only_test(),
    )
    result = audit_aggregator(banded_noise(8, ROUNDS), correlated_claim)
    assert result.failed == ("rounds",)
    assert "16 rounds" in next(test.verdict for test in result.tests if test.name == "rounds")
