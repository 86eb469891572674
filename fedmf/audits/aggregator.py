"""Auditor of aggregators of any origin: tests of a function of updates, as a black box.

Noise is sampled on updates of zeros. Then a movement is a projection of releases onto the
direction that was sent, whose noise is known. What contradicts the claim fails; what costs only
utility is a remark. P-values are exact or upper bounds, to first order in 1 / entries where a scale
of the noise is estimated.
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
from fedmf.audits.aggregator_inputs import INSIDE, Inputs
from fedmf.audits.aggregator_movement import Measurements, MovementTests, NotFinite
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

# A bound beyond this one says that nothing that clients send moves the releases.
_MOST_MULTIPLIER = 1e12
# An audit that passes bounds the noise multiplier by this share of the claim or more.
_LEAST_PASSED = 0.9


@with_numpy_defaults
def audit_aggregator(make: Maker, claim: AggregatorClaim) -> AggregatorAudit:
    """Tests a function of updates against a claim, and bounds its noise multiplier from above.

    Args:
      make: called for each run; returns the function, in the state of a start of the program.
      claim: what the function is held against.

    Raises:
      ValueError: the function does not work on updates within the clip norm, or gives no aggregate.

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
    outcomes = Outcomes(claim)
    runs = AggregatorRuns(make, claim, rounds_seen(claim))
    sample = sample_noise(runs, claim)
    noise_tests.judge_zeros(sample, claim, outcomes)
    noise_tests.judge_rounds(claim, outcomes)
    multiplier = 0.0
    if sample.finite:
        multiplier = _tested(runs, sample, claim, outcomes)
    if all(outcome.passed is not False for outcome in outcomes.by_name.values()):
        # A bound far below the claim needs evidence that fails a test.
        multiplier = max(multiplier, _LEAST_PASSED * claim.multiplier())
    for name in NOISE_TESTS + MOVEMENT_TESTS:
        if name not in outcomes.by_name:
            outcomes.skip(name, "Not made: a release was not a number.")
    epsilon_round, epsilon_run = claim.epsilons(multiplier)
    return AggregatorAudit(
        tests=tuple(outcomes.by_name[name] for name in TEST_NAMES),
        noise_multiplier=claim.multiplier(),
        noise_multiplier_most=multiplier,
        epsilon_round=epsilon_round,
        epsilon_run=epsilon_run,
        rounds_seen=rounds_seen(claim),
        participations_seen=participations_seen(claim),
        calls=runs.calls,
        confidence=claim.confidence,
        false_positive_rate=claim.false_positive_rate,
    )


def _tested(
    runs: AggregatorRuns, sample: NoiseSample, claim: AggregatorClaim, outcomes: Outcomes
) -> float:
    """Makes all tests on finite noise, and returns the upper bound on the noise multiplier."""
    noise = fit_noise(sample, claim)
    noise_tests.judge_tails(sample, noise, outcomes)
    noise_tests.judge_dependence(sample, noise, claim, outcomes)
    inputs = Inputs(claim, sample.sent)
    tests = MovementTests(Measurements(runs, inputs, noise, outcomes), inputs)
    _check_inside(tests)
    aggregator_special.find_smaller_arrays(tests)
    tests.make(aggregator_special.TESTS)
    noise_tests.judge_size(sample, noise, claim, outcomes, tests.smaller_arrays)
    if tests.broken:
        return 0.0
    share = noise_tests.smallest_share(sample, noise, claim, outcomes)
    share *= noise.movement_std / noise.required_std
    return min(claim.multiplier() / tests.most_moved * share, _MOST_MULTIPLIER)


def _check_inside(tests: MovementTests) -> None:
    """Raises a ValueError if the function does not work on updates within the clip norm."""
    inputs = tests.inputs
    update = inputs.sent(INSIDE, inputs.flat)
    advice = "updates within the clip norm: make it work on them first"
    try:
        tests.measurements.release([update] * inputs.clients)
    except NotFinite as error:
        raise ValueError(f"the function gave what is no number for {advice}") from error
    except WrongResult:
        raise
    except Exception as error:
        raise ValueError(
            f"the function raised {type(error).__name__} ({error}) on {advice}"
        ) from error
