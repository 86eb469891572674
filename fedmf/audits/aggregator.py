"""Audit of any aggregator of client updates, as a black box, against a claimed noise multiplier.

The noise is sampled by calls with updates of zeros. Then the audit measures movements: how far the
updates of clients move a release, along a direction in which the noise is known. A test fails if
its result contradicts the claim; a deviation that costs only utility is reported as a remark.
P-values are exact or upper bounds, to first order in 1 / entries where a scale of the noise is
estimated.
"""

from fedmf.audits import aggregator_noise_tests as noise_tests
from fedmf.audits import aggregator_special
from fedmf.audits.aggregator_claim import (
    MOVEMENT_TESTS,
    NOISE_TESTS,
    TEST_NAMES,
    AggregatorAudit,
    AggregatorClaim,
    Outcomes,
)
from fedmf.audits.aggregator_dependence import check_dependence
from fedmf.audits.aggregator_estimates import NotFiniteReleaseError
from fedmf.audits.aggregator_inputs import INSIDE_NORM, Inputs
from fedmf.audits.aggregator_movement import Measurements
from fedmf.audits.aggregator_movement_tests import MovementTests
from fedmf.audits.aggregator_noise import (
    NoiseSample,
    fit_noise,
    participations_seen,
    rounds_seen,
    sample_noise,
)
from fedmf.audits.aggregator_runs import AggregatorRuns, Maker, WrongResult
from fedmf.numpy_errors import with_numpy_defaults

__all__ = ["AggregatorClaim", "Maker", "audit_aggregator"]

# Reported in place of an infinite bound on the noise multiplier, since JSON has no infinity. The
# bound is infinite if no update changes a release.
_MAX_NOISE_MULTIPLIER = 1e12
# If all tests pass, the reported bound on the noise multiplier is at least this fraction of the
# claimed noise multiplier.
_MIN_FRACTION_IF_PASSED = 0.9


@with_numpy_defaults
def audit_aggregator(make: Maker, claim: AggregatorClaim) -> AggregatorAudit:
    """Tests whether an aggregation function clips client updates and adds noise as claimed.

    It also bounds the noise multiplier of the function from above.

    Args:
      make: returns the function in its initial state; called at the start of each run.
      claim: the claimed noise multiplier, and settings of the tests.

    Returns:
      The outcome of each test, and the bound with the epsilon that it implies.

    Raises:
      ValueError: the function fails on updates within the clip norm, or does not return an
        aggregate of them.

    Example:
      >>> import numpy as np
      >>> def aggregate(updates, rng=np.random.default_rng()):
      ...     total = [np.zeros(array.shape) for array in updates[0]]
      ...     for update in updates:
      ...         norm = np.sqrt(sum((array.astype(float) ** 2).sum() for array in update))
      ...         factor = min(1, 1 / max(norm, 1e-12)) if np.isfinite(norm) else 0
      ...         for array, part in zip(total, update):
      ...             array += np.nan_to_num(part, posinf=0, neginf=0) * factor
      ...     return [(array + rng.normal(size=array.shape)) / 10 for array in total]
      >>> claim = AggregatorClaim(clients=10, noise_multiplier=1.0, shapes="30x20,20")
      >>> audit_aggregator(lambda: aggregate, claim).passed
      True
    """
    test_outcomes = Outcomes(claim)
    aggregator_runs = AggregatorRuns(make, claim, rounds_seen(claim))
    noise_sample = sample_noise(aggregator_runs, claim)
    noise_tests.check_zeros(noise_sample, claim, test_outcomes)
    noise_tests.check_rounds(claim, test_outcomes)
    multiplier_bound = 0.0
    if noise_sample.is_finite:
        multiplier_bound = _bound_noise_multiplier(
            aggregator_runs, noise_sample, claim, test_outcomes
        )
    if all(outcome.passed is not False for outcome in test_outcomes.by_name.values()):
        # If no test fails, nothing contradicts the claimed noise multiplier. So the reported bound
        # is not far below it.
        multiplier_bound = max(multiplier_bound, _MIN_FRACTION_IF_PASSED * claim.multiplier())
    for test_name in NOISE_TESTS + MOVEMENT_TESTS:
        if test_name not in test_outcomes.by_name:
            test_outcomes.skip(test_name, "Not made: a release was not a number.")
    epsilon_round, epsilon_run = claim.epsilons(multiplier_bound)
    return AggregatorAudit(
        tests=tuple(test_outcomes.by_name[name] for name in TEST_NAMES),
        noise_multiplier=claim.multiplier(),
        noise_multiplier_most=multiplier_bound,
        epsilon_round=epsilon_round,
        epsilon_run=epsilon_run,
        rounds_seen=rounds_seen(claim),
        participations_seen=participations_seen(claim),
        calls=aggregator_runs.calls,
        confidence=claim.confidence,
        false_positive_rate=claim.false_positive_rate,
    )


def _bound_noise_multiplier(
    runs: AggregatorRuns, sample: NoiseSample, claim: AggregatorClaim, outcomes: Outcomes
) -> float:
    """Runs all tests that need releases without NaN or infinity, and returns an upper bound on the
    noise multiplier.
    """
    noise_model = fit_noise(sample, claim)
    noise_tests.check_tails(sample, noise_model, outcomes)
    check_dependence(sample, noise_model, claim, outcomes)
    test_inputs = Inputs(claim, sample.update)
    movement_tests = MovementTests(
        Measurements(runs, test_inputs, noise_model, outcomes), test_inputs
    )
    _check_function_works(movement_tests)
    aggregator_special.find_smaller_arrays(movement_tests)
    movement_tests.run(aggregator_special.TESTS)
    noise_tests.check_size(sample, noise_model, claim, outcomes, movement_tests.smaller_arrays)
    if movement_tests.has_nonfinite_release:
        return 0.0
    noise_ratio = noise_tests.smallest_noise_ratio(sample, noise_model, claim, outcomes)
    noise_ratio *= noise_model.movement_std / noise_model.required_std
    return min(
        claim.multiplier() / movement_tests.max_movement * noise_ratio, _MAX_NOISE_MULTIPLIER
    )


def _check_function_works(tests: MovementTests) -> None:
    """Raises a ValueError if the aggregation function fails on updates within the clip norm."""
    test_inputs = tests.inputs
    update = test_inputs.update(INSIDE_NORM, test_inputs.all_entries)
    advice = "updates within the clip norm: make it work on them first"
    try:
        tests.measurements.release([update] * test_inputs.num_clients)
    except NotFiniteReleaseError as error:
        raise ValueError(f"the function gave NaN or an infinity for {advice}") from error
    except WrongResult:
        raise
    except Exception as error:
        raise ValueError(
            f"the function raised {type(error).__name__} ({error}) on {advice}"
        ) from error
