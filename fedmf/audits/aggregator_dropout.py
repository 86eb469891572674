"""Test of whether an aggregator's guarantee holds in rounds in which clients are missing."""

import functools
import math
from collections.abc import Iterator

import numpy as np

from fedmf.audits.aggregator_estimates import Estimate, Movement, NotFiniteReleaseError
from fedmf.audits.aggregator_inputs import INSIDE_NORM, Inputs, Scenario
from fedmf.audits.aggregator_movement_tests import MovementTests
from fedmf.audits.aggregator_runs import WrongResult

# The test of dropouts makes at most this many comparisons. Its error rate is divided by their
# number.
_NUM_COMPARISONS = 5


def check_dropout(tests: MovementTests) -> None:
    """Tests that clients do not move a release farther when some other clients are missing."""
    chance, noise_in_words = _noise_without_clients(tests)
    if chance < tests.outcomes.threshold:
        tests.outcomes.add(
            "dropout",
            chance,
            f"No client: {noise_in_words}; claimed is noise.",
            mistake="A release without noise tells that nobody came: add the noise of a full "
            "round, or release nothing where one client is missing.",
        )
        return
    measured_movements = []
    error_names = []
    for scenario in _dropout_scenarios(tests.inputs):
        try:
            movement_estimate = tests.measurements.measure(scenario, with_residual=True)
        except WrongResult:
            raise
        except NotFiniteReleaseError:
            if len(scenario.updates()) < tests.inputs.num_clients:
                raise
            # The release is not finite because a client sent NaN. The test `not-finite` reports
            # this mistake, so the dropout test does not.
            tests.measurements.runs.start()
            continue
        except Exception as error:
            error_names.append(type(error).__name__)
            tests.measurements.runs.start()
            continue
        measured_movements.append(_dropout_movement(tests, scenario, movement_estimate))
    tests.add_outcome("dropout", measured_movements, error_names)


def _dropout_scenarios(inputs: Inputs) -> Iterator[Scenario]:
    """Yields scenarios in which clients are missing, or send NaN."""
    num_clients = inputs.num_clients
    inside_update = inputs.update(INSIDE_NORM, inputs.all_entries)
    for num_present in sorted({1, num_clients // 2, num_clients - 1}):
        yield _dropout_scenario(
            inputs,
            f"{num_present} of {num_clients} clients",
            num_present,
            [inside_update] * num_present,
        )
    nan_update = np.full_like(inside_update, math.nan)
    yield _dropout_scenario(
        inputs,
        f"one client, and updates of NaN of {num_clients - 1} others",
        1,
        [inside_update] + [nan_update] * (num_clients - 1),
    )


def _dropout_scenario(
    inputs: Inputs, description: str, num_present: int, updates: list[np.ndarray]
) -> Scenario:
    """Returns a scenario in which only `num_present` clients send a valid update."""
    mean_factor = inputs.num_clients / num_present
    return Scenario(
        test="dropout",
        description=description,
        updates=functools.partial(list, updates),
        direction=inputs.all_entries,
        allowed_movement=num_present,
        detectable_excess=min(0.5, 0.9 * (mean_factor - 1)),
        max_calls=400,
        mistakes={
            mean_factor: "A mean that divides by those who came, with noise for all, does this: "
            "divide by a fixed number."
        },
        mistake="Noise that becomes less where clients are missing does this.",
    )


def _dropout_movement(tests: MovementTests, scenario: Scenario, estimate: Estimate) -> Movement:
    """Compares the movement of a release with the claim, relative to the noise in rounds with
    missing clients.
    """
    noise_std = max(math.sqrt(estimate.residual_squares / estimate.residual_degrees), 1e-9)
    if not tests.measurements.noise_model.exists:
        noise_std = 1.0
    noise_error = math.sqrt(1 / (2 * estimate.residual_degrees))
    return tests.measurements.compare_with_claim(
        scenario,
        abs(float(estimate.movement[0])) / noise_std,
        estimate.std,
        math.hypot(float(estimate.relative_error[0]), noise_error),
        _NUM_COMPARISONS,
    )


def _noise_without_clients(tests: MovementTests) -> tuple[float, str]:
    """Tests whether a round without any client has as much noise as other rounds.

    It returns a p-value and a text on the noise. The p-value is 1 if the function refuses such a
    round.
    """
    from scipy import stats

    measurements = tests.measurements
    base_degrees = int(measurements.noise_model.array_samples.sum())
    scenario = Scenario(
        test="dropout",
        description="",
        updates=list,
        direction=tests.inputs.all_entries,
        max_calls=1,
    )
    try:
        noise_estimate = measurements.measure(scenario, with_residual=True)
    except Exception:
        # The function has refused a round without clients, or released values that are not finite.
        # In both cases the size of the noise stays unknown.
        measurements.runs.start()
        return 1.0, ""
    if not measurements.noise_model.exists:
        return 1.0, ""
    variance_ratio = noise_estimate.residual_squares / noise_estimate.residual_degrees
    lower_tail = float(stats.f.cdf(variance_ratio, noise_estimate.residual_degrees, base_degrees))
    noise_in_words = (
        f"the noise is {math.sqrt(variance_ratio):.4g} times as large as with updates of zeros"
    )
    return lower_tail * _NUM_COMPARISONS, noise_in_words
