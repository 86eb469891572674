"""Test of whether an aggregator zeroes updates with NaN, infinities or huge entries."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np

from fedmf.audits.aggregator_estimates import NotFiniteReleaseError
from fedmf.audits.aggregator_inputs import INSIDE_NORM
from fedmf.audits.aggregator_movement_tests import MovementTests
from fedmf.audits.aggregator_runs import WrongResult

# If an update has at most this many arrays, three entries of each array are replaced one after the
# other by a value that is not finite.
_MAX_ARRAYS_WITH_THREE_ENTRIES = 8
# If an update has more arrays, only the middle entry of each array is replaced, in at most this
# many arrays.
_MAX_ARRAYS_WITH_ONE_ENTRY = 64
# For at most this many arrays, the test sends an update that has NaN or infinity beside a huge
# entry.
_MAX_ARRAYS_BESIDE_HUGE = 4
# The error rate of the test is divided by this upper bound on the number of its inputs.
_MAX_INPUTS = 200
# After each group of this many updates with NaN or infinity, updates within the clip norm are sent.
# They show whether the function remembers the bad updates.
_INPUTS_BETWEEN_CHECKS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class _NotFiniteInput:
    """Test update that is not finite, or whose computed norm overflows or underflows.

    Attributes:
      description: the update in words.
      update: (entries,), of any floating-point dtype.
      client_index: the client that sends it.
    """

    description: str
    update: np.ndarray
    client_index: int = 0


def check_not_finite(tests: MovementTests) -> None:
    """Tests that NaN, infinities and entries whose squares overflow are zeroed or refused."""
    measurements = tests.measurements
    test_inputs = tests.inputs
    inside_update = test_inputs.update(INSIDE_NORM, test_inputs.all_entries)
    released_inputs = []
    smallest_p_value = 1.0
    num_inputs = 0
    for bad_input in _bad_inputs(tests, inside_update):
        num_inputs += 1
        make_updates = test_inputs.from_one(bad_input.update, inside_update, bad_input.client_index)
        p_value = 1.0
        try:
            scaled_release = measurements.release(make_updates())
            p_value = _outlier_p_value(tests, scaled_release)
        except WrongResult:
            raise
        except NotFiniteReleaseError:
            p_value = 0.0
        except Exception:
            # An aggregation function that refuses an update with NaN or infinity protects clients
            # as well as one that zeroes it.
            measurements.runs.start()
            continue
        smallest_p_value = min(smallest_p_value, p_value)
        if p_value * _MAX_INPUTS < tests.outcomes.threshold:
            released_inputs.append(bad_input.description)
            measurements.runs.start()
            continue
        if num_inputs % _INPUTS_BETWEEN_CHECKS == 0 and _is_remembered(tests, inside_update):
            released_inputs.append(f"{bad_input.description} and others in rounds before")
            smallest_p_value = 0.0
    tests.has_nonfinite_release |= smallest_p_value == 0
    result_in_words = "nothing of them came out"
    if released_inputs:
        result_in_words = f"they passed into the release ({'; '.join(released_inputs[:3])})"
    tests.outcomes.add(
        "not-finite",
        min(1.0, num_inputs * smallest_p_value),
        f"{num_inputs} updates with NaN, infinities, or entries whose squares overflow: "
        f"{result_in_words}; claimed is a clip.",
        mistake="clip_norm / norm is no clip for them: such a release tells for certain that this "
        "client is there. Count an update whose norm is not finite as zero.",
    )


def _is_remembered(tests: MovementTests, inside_update: np.ndarray) -> bool:
    """Returns whether updates with NaN or infinity make a later release of finite updates not
    finite.
    """
    aggregator_runs = tests.measurements.runs
    try:
        tests.measurements.release(tests.inputs.from_all(inside_update)())
    except NotFiniteReleaseError:
        aggregator_runs.start()
        return True
    except WrongResult:
        raise
    except Exception:
        # An aggregation function that refuses all later finite updates releases nothing about the
        # earlier updates that were not finite.
        aggregator_runs.start()
    return False


def _bad_inputs(tests: MovementTests, inside_update: np.ndarray) -> Iterator[_NotFiniteInput]:
    """Yields all updates of the test, which are not finite or have entries whose squares overflow
    or underflow.
    """
    test_inputs = tests.inputs
    array_sizes = np.array(tests.claim.sizes)
    relative_positions: tuple[float, ...]
    bad_values: tuple[float, ...]
    if test_inputs.num_arrays <= _MAX_ARRAYS_WITH_THREE_ENTRIES:
        array_numbers = np.arange(test_inputs.num_arrays)
        relative_positions = (0.0, 0.5, 1.0)
        bad_values = (math.nan, math.inf, -math.inf, 1e30)
    else:
        num_tested = min(test_inputs.num_arrays, _MAX_ARRAYS_WITH_ONE_ENTRY)
        array_numbers = np.unique(
            np.linspace(0, test_inputs.num_arrays - 1, num_tested).astype(int)
        )
        relative_positions = (0.5,)
        bad_values = (math.nan, math.inf)
    for array in array_numbers:
        entry_offsets = [position * (array_sizes[array] - 1) for position in relative_positions]
        tested_entries = {int(test_inputs.starts[array] + offset) for offset in entry_offsets}
        for entry, value in itertools.product(sorted(tested_entries), bad_values):
            bad_update = inside_update.copy()
            bad_update[entry] = value
            yield _NotFiniteInput(description=f"{value:g} in array {array + 1}", update=bad_update)
    yield from _bad_inputs_beside_huge(tests, inside_update, array_numbers)
    for value in (math.nan, math.inf, 1e25):
        for client_index in (0, test_inputs.num_clients - 1):
            yield _NotFiniteInput(
                description=f"{value:g} in all entries",
                update=np.full_like(inside_update, value),
                client_index=client_index,
            )
    bad_update = inside_update.copy()
    bad_update[0] = math.inf
    bad_update[-1] = -math.inf
    yield _NotFiniteInput(description="both infinities", update=bad_update)
    for value in (math.nan, math.inf, 1e200):
        double_update = inside_update.astype(np.float64)
        double_update[-1] = value
        yield _NotFiniteInput(description=f"{value:g} of float64", update=double_update)
    # The squares of these small entries underflow, so that the computed norm of the update is 0.
    yield _NotFiniteInput(
        description="1e-30 in all entries", update=np.full_like(inside_update, 1e-30)
    )
    yield _NotFiniteInput(
        description="1e-200 of float64 in all entries",
        update=np.full(len(inside_update), 1e-200),
    )


def _bad_inputs_beside_huge(
    tests: MovementTests, inside_update: np.ndarray, arrays: np.ndarray
) -> Iterator[_NotFiniteInput]:
    """Yields updates that have an entry that is not finite beside a huge entry.

    Both are in the same array, or in two arrays.

    The first entry makes the norm NaN, so that a clip factor has no effect. If the function then
    replaces the first entry by a number, the huge entry stays.
    """
    test_inputs = tests.inputs
    array_sizes = np.array(tests.claim.sizes)
    huge_entry = np.float32(1e6 * tests.claim.clip_norm)
    num_tested = min(_MAX_ARRAYS_BESIDE_HUGE, len(arrays))
    tested_arrays = np.unique(arrays[np.linspace(0, len(arrays) - 1, num_tested).astype(int)])
    for array, value in itertools.product(tested_arrays, (math.nan, math.inf, -math.inf)):
        first_entry = int(test_inputs.starts[array])
        last_entry = first_entry + int(array_sizes[array]) - 1
        huge_entries = {last_entry, (last_entry + 1) % test_inputs.num_entries} - {first_entry}
        for entry, huge_value in itertools.product(sorted(huge_entries), (huge_entry, 1e38)):
            bad_update = inside_update.copy()
            bad_update[first_entry] = value
            bad_update[entry] = huge_value
            yield _NotFiniteInput(
                description=f"{value:g} in array {array + 1} beside an entry of {huge_value:.3g}",
                update=bad_update,
            )


def _outlier_p_value(tests: MovementTests, row: np.ndarray) -> float:
    """Returns an upper bound on the p-value of a release's largest entry.

    The movement by all clients is estimated for each array by the mean of its entries.
    """
    from scipy import stats

    measurements = tests.measurements
    noise_model = measurements.noise_model
    white_row = row / noise_model.entry_std
    if noise_model.block > 1:
        white_row /= math.sqrt(float(np.diagonal(noise_model.covariance).max()))
        if measurements.runs.round > noise_model.block:
            return 1.0
    array_of = tests.inputs.array_of
    entry_signs = tests.inputs.signs
    array_sizes = np.array(tests.claim.sizes)
    # In an array of a single entry, the effect of updates on the entry is unknown. So the largest
    # effect that the claim allows is subtracted.
    array_sums = np.add.reduceat(white_row * entry_signs, tests.inputs.starts)
    array_means = array_sums / array_sizes * (array_sizes > 1)
    absolute_deviations = np.abs(white_row - entry_signs * array_means[array_of])
    absolute_deviations -= (
        measurements.allowed_deviation(tests.claim.clients) * (array_sizes == 1)[array_of]
    )
    # The claim allows the update of one client to move an entry by twice the sensitivity, from one
    # extreme to the other.
    largest_excess = float(absolute_deviations.max()) * (
        1 - 1e-3
    ) - 2 * measurements.allowed_deviation(1)
    return min(1.0, 2 * len(white_row) * float(stats.norm.sf(largest_excess)))
