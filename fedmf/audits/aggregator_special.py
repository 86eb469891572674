"""Tests of an aggregator that need their own procedures, beyond measuring a table of scenarios."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from fedmf.audits.aggregator_cohort import check_cohort
from fedmf.audits.aggregator_dropout import check_dropout
from fedmf.audits.aggregator_estimates import BaselineEstimates, Estimate, NotFiniteReleaseError
from fedmf.audits.aggregator_inputs import HUGE_NORM, INSIDE_NORM, Inputs, Scenario
from fedmf.audits.aggregator_movement_tests import MovementTests, SpecialTest
from fedmf.audits.aggregator_not_finite import check_not_finite
from fedmf.audits.aggregator_runs import WrongResult

# The size of a release tells a sum of updates from a mean. This is the relative error that is
# allowed in its measurement.
_RELEASE_ERROR = 0.05
# Smallest number of noise entries in which the noise for large updates is compared with the noise
# for updates of zeros.
_NUM_NOISE_ENTRIES = 30_000


def check_releases(tests: MovementTests) -> None:
    """Tests that the aggregation function releases what the claim says, a mean or a sum."""
    test_inputs = tests.inputs
    measurements = tests.measurements
    claim = tests.claim
    swapped_aggregate = "sum"
    swapped_ratio = float(claim.clients)
    if claim.releases == "sum":
        swapped_aggregate = "mean"
        swapped_ratio = 1 / claim.clients
    noise_model = measurements.noise_model
    noise_ratio = noise_model.overall_std / noise_model.required_std
    relative_sizes = []
    is_swapped = abs(noise_ratio / swapped_ratio - 1) < 0.1
    for norm in (0.5, INSIDE_NORM):
        scenario = Scenario(
            test="releases",
            description=f"{claim.clients} equal updates of {norm:g} clip norms",
            updates=test_inputs.from_all(test_inputs.update(norm, test_inputs.all_entries)),
            direction=test_inputs.all_entries,
            allowed_movement=claim.clients,
            max_calls=60,
        )
        movement_estimate = measurements.measure(scenario)
        claimed_movement = claim.clients * norm * float(movement_estimate.gains[0])
        relative_size = float(movement_estimate.movement[0]) / claimed_movement
        relative_sizes.append(relative_size)
        relative_error = (
            _RELEASE_ERROR + 4 * movement_estimate.std / claimed_movement / swapped_ratio
        )
        is_swapped = (
            is_swapped
            and relative_error < 1
            and abs(relative_size / swapped_ratio - 1) < relative_error
        )
    utility_remark = ""
    if not is_swapped and max(relative_sizes) < 0.9:
        utility_remark = (
            f"Remark: updates count {max(relative_sizes):.3g} times, which costs utility."
        )
    tests.outcomes.add(
        "releases",
        float(not is_swapped),
        f"{claim.clients} equal updates inside the clip norm move the release "
        f"{relative_sizes[0]:.4g} and {relative_sizes[1]:.4g} times as far as the {claim.releases} "
        "that is claimed.",
        mistake=f"The release is a {swapped_aggregate}, with the noise of one: claim "
        f"`releases`={swapped_aggregate!r}.",
        remark=utility_remark,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _NoiseComparison:
    """Comparison of the noise for large updates with the noise for updates of zeros.

    Attributes:
      p_value: under the claim that both have the same scale.
      description: the updates in words.
      std_ratio: ratio of the standard deviations.
      degrees: degrees of freedom of the scenario's noise.
    """

    p_value: float
    description: str
    std_ratio: float
    degrees: int


def check_noise_with_data(tests: MovementTests) -> None:
    """Tests that the scale of the noise does not depend on the updates.

    Variances are compared by F-tests, which assume that the entries of the noise are independent.
    """
    from scipy import stats

    measurements = tests.measurements
    if not measurements.noise_model.exists:
        tests.outcomes.skip("noise-with-data", "Not made: there is no noise.")
        return
    base_degrees = int(measurements.noise_model.array_samples.sum())
    noise_scenarios = _noise_scenarios(tests.inputs)
    comparisons: list[_NoiseComparison] = []
    for scenario in noise_scenarios:
        try:
            noise_estimate = measurements.measure(scenario, with_residual=True)
        except (WrongResult, NotFiniteReleaseError):
            raise
        # An aggregation function that refuses large updates protects clients as well as one that
        # clips them.
        except Exception:
            measurements.runs.start()
            continue
        comparisons += _compare_noise(scenario, noise_estimate, base_degrees, len(noise_scenarios))
    if not comparisons:
        tests.outcomes.add("noise-with-data", 1.0, "The function refused all updates.")
        return
    worst_comparison = min(comparisons, key=dataclasses.astuple)
    max_degrees = max(comparison.degrees for comparison in comparisons)
    relative_error = math.sqrt(1 / (2 * max_degrees) + 1 / (2 * base_degrees))
    if worst_comparison.std_ratio < 1 and worst_comparison.p_value < tests.outcomes.threshold:
        # The ratio of the estimated variances has an F distribution around the true ratio. A
        # quantile of it gives an upper bound on the true ratio.
        false_positive_rate = tests.outcomes.error / len(noise_scenarios) / 2
        low_quantile = float(
            stats.f.ppf(false_positive_rate, worst_comparison.degrees, base_degrees)
        )
        ratio_bound = worst_comparison.std_ratio / math.sqrt(low_quantile)
        tests.max_movement = max(tests.max_movement, 1 / max(ratio_bound, 1e-9))
    tests.outcomes.add(
        "noise-with-data",
        worst_comparison.p_value,
        f"{worst_comparison.description}, beside updates of zeros: the noise is "
        f"{worst_comparison.std_ratio:.4g} times as large; claimed is the same.",
        mistake="Noise whose scale follows the updates does this: it must not know them.",
        sees=1 + tests.outcomes.reach(2 * len(noise_scenarios)) * relative_error,
    )


def _noise_scenarios(inputs: Inputs) -> list[Scenario]:
    """Returns scenarios with large updates, whose noise is compared with that for zeros."""
    inside_update = inputs.update(INSIDE_NORM, inputs.all_entries)
    huge_update = inputs.update(HUGE_NORM, inputs.all_entries)
    updates_by_description = {
        f"{inputs.num_clients} equal updates inside the clip norm": inputs.from_all(inside_update),
        f"one update of {HUGE_NORM:g} clip norms among zeros": inputs.from_one(
            huge_update, inputs.zero_update
        ),
    }
    return [
        Scenario(
            test="noise-with-data",
            description=description,
            updates=updates,
            direction=inputs.all_entries,
            detectable_excess=0.1,
            max_calls=max(16, math.ceil(_NUM_NOISE_ENTRIES / inputs.num_entries)),
        )
        for description, updates in updates_by_description.items()
    ]


def _compare_noise(
    scenario: Scenario, estimate: Estimate, base_degrees: int, num_scenarios: int
) -> Iterator[_NoiseComparison]:
    """Yields F-tests of the noise orthogonal to a scenario's updates, and along them."""
    from scipy import stats

    variance_ratio = estimate.residual_squares / estimate.residual_degrees
    lower_tail = stats.f.cdf(variance_ratio, estimate.residual_degrees, base_degrees)
    upper_tail = stats.f.sf(variance_ratio, estimate.residual_degrees, base_degrees)
    yield _NoiseComparison(
        p_value=4 * num_scenarios * float(min(lower_tail, upper_tail)),
        description=scenario.description,
        std_ratio=math.sqrt(variance_ratio),
        degrees=estimate.residual_degrees,
    )
    if estimate.along_degrees:
        # Only noise that is too small counts as a mistake here. Noise along the movement may look
        # larger because the movement differs between rounds.
        variance_ratio = estimate.along_squares / estimate.along_degrees
        lower_tail = stats.f.cdf(variance_ratio, estimate.along_degrees, base_degrees)
        yield _NoiseComparison(
            p_value=2 * num_scenarios * float(lower_tail),
            description=f"{scenario.description}, along them",
            std_ratio=math.sqrt(variance_ratio),
            degrees=estimate.along_degrees,
        )


def find_smaller_arrays(tests: MovementTests) -> None:
    """Finds arrays with less noise than claimed that a client also moves less than claimed."""
    from scipy import stats

    noise_model = tests.measurements.noise_model
    test_inputs = tests.inputs
    variance_ratios = (noise_model.array_std / noise_model.required_std) ** 2
    lower_tails = stats.chi2.cdf(
        noise_model.array_samples * variance_ratios, noise_model.array_samples
    )
    for array in np.flatnonzero(lower_tails < tests.outcomes.threshold):
        noise_ratio = float(noise_model.array_std[array] / noise_model.required_std)
        movement_scale = float(noise_model.array_std[array] / noise_model.movement_std)
        direction = test_inputs.direction(test_inputs.signs * (test_inputs.array_of == array))
        is_smaller = True
        for norm in (INSIDE_NORM, HUGE_NORM):
            scenario = Scenario(
                test="noise",
                description=f"{test_inputs.num_clients} equal updates of {norm:g} clip norms, in "
                f"array {array + 1}",
                updates=test_inputs.from_all(test_inputs.update(norm, direction)),
                direction=direction,
                allowed_movement=test_inputs.num_clients,
                detectable_excess=max(0.02, (1 - noise_ratio) / 2),
                max_calls=1000,
            )
            [movement] = tests.measurements.movements(
                scenario, 2 * test_inputs.num_arrays, BaselineEstimates()
            )
            # This factor converts a movement to units of the largest effect that the claim allows
            # on the array, whatever the array's noise.
            relative_size = movement.size * movement_scale
            relative_std = movement.std_at_claim * movement_scale
            # If an array's noise is smaller by some factor, the largest allowed effect of clients'
            # updates on the array is smaller by the same factor.
            relative_excess = relative_size / noise_ratio - 1
            is_contradicted = (
                relative_excess > tests.outcomes.deviations(2) * relative_std / noise_ratio
            )
            may_be_as_claimed = relative_size + tests.outcomes.reach(2) * relative_std >= 1
            is_smaller = is_smaller and not is_contradicted and not may_be_as_claimed
        if is_smaller:
            tests.smaller_arrays.append(int(array))


TESTS: dict[str, SpecialTest] = {
    "dropout": check_dropout,
    "releases": check_releases,
    "noise-with-data": check_noise_with_data,
    "cohort": check_cohort,
    "not-finite": check_not_finite,
}
