"""Test of entries that are no numbers, and of entries whose squares overflow, of an aggregator."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from fedmf.audits.aggregator_inputs import INSIDE
from fedmf.audits.aggregator_movement import MovementTests, NotFinite
from fedmf.audits.aggregator_runs import WrongResult

# Arrays whose entries that are no numbers are tried at three places each; of more, in the middle.
_FEW_ARRAYS, _MOST_ARRAYS = 8, 64
# Arrays with such an entry beside a huge one.
_ARRAYS_BESIDE_HUGE = 4
# Inputs with entries that are no numbers; fewer are sent. After so many of them updates within the
# clip norm show whether the function remembers one.
_MOST_INPUTS, _INPUTS_TOGETHER = 200, 4


def send_non_numbers(tests: MovementTests) -> None:
    """Tests that NaN, infinities and squares that overflow do not pass, in any array."""
    measurements = tests.measurements
    inputs = tests.inputs
    inside = inputs.sent(INSIDE, inputs.flat)
    passed = []
    largest_chance = 1.0
    num_inputs = 0
    for words, update, place in _non_numbers(tests, inside):
        num_inputs += 1
        p_value = 1.0
        try:
            row = measurements.release(inputs.first(update, inside, place)())
            p_value = _unlike_others(tests, row)
        except WrongResult:
            raise
        except NotFinite:
            p_value = 0.0
        except Exception:  # a refusal is as good as a zero
            measurements.runs.start()
            continue
        largest_chance = min(largest_chance, p_value)
        if p_value * _MOST_INPUTS < tests.outcomes.threshold:
            passed.append(words)
            measurements.runs.start()
            continue
        if num_inputs % _INPUTS_TOGETHER:
            continue
        try:
            measurements.release(inputs.everyone(inside)())
        except NotFinite:
            passed.append(f"{words} and others in rounds before")
            largest_chance = 0.0
            measurements.runs.start()
        except WrongResult:
            raise
        except Exception:
            measurements.runs.start()
    tests.broken |= largest_chance == 0
    seen = "nothing of them came out"
    if passed:
        seen = f"they passed into the release ({'; '.join(passed[:3])})"
    tests.outcomes.add(
        "not-finite",
        min(1.0, num_inputs * largest_chance),
        f"{num_inputs} updates with NaN, infinities, or entries whose squares overflow: {seen}; "
        "claimed is a clip.",
        mistake="clip_norm / norm is no clip for them: such a release tells for certain that this "
        "client is there. Count an update whose norm is not finite as zero.",
    )


def _non_numbers(tests: MovementTests, inside: np.ndarray) -> Iterator[tuple[str, np.ndarray, int]]:
    """Yields words, an update with an entry that is no number, and its client."""
    inputs = tests.inputs
    sizes = np.array(tests.claim.sizes)
    shares: tuple[float, ...]
    values: tuple[float, ...]
    if inputs.num_arrays <= _FEW_ARRAYS:
        arrays = np.arange(inputs.num_arrays)
        shares = (0.0, 0.5, 1.0)
        values = (math.nan, math.inf, -math.inf, 1e30)
    else:
        most = min(inputs.num_arrays, _MOST_ARRAYS)
        arrays = np.unique(np.linspace(0, inputs.num_arrays - 1, most).astype(int))
        shares = (0.5,)
        values = (math.nan, math.inf)
    for array in arrays:
        places = {int(inputs.starts[array] + share * (sizes[array] - 1)) for share in shares}
        for place, value in itertools.product(sorted(places), values):
            update = inside.copy()
            update[place] = value
            yield f"{value:g} in array {array + 1}", update, 0
    yield from _beside_huge(tests, inside, arrays)
    for value in (math.nan, math.inf, 1e25):
        yield f"{value:g} in all entries", np.full_like(inside, value), 0
        yield f"{value:g} in all entries", np.full_like(inside, value), inputs.clients - 1
    both = inside.copy()
    both[0] = math.inf
    both[-1] = -math.inf
    yield "both infinities", both, 0
    for value in (math.nan, math.inf, 1e200):
        double = inside.astype(np.float64)
        double[-1] = value
        yield f"{value:g} of float64", double, 0
    # Squares that vanish: the norm is 0, and the update is not.
    yield "1e-30 in all entries", np.full_like(inside, 1e-30), 0
    yield "1e-200 of float64 in all entries", np.full(len(inside), 1e-200), 0


def _beside_huge(
    tests: MovementTests, inside: np.ndarray, arrays: np.ndarray
) -> Iterator[tuple[str, np.ndarray, int]]:
    """Yields updates with an entry that is no number and a huge one, in one array or in two.

    A norm that such an entry makes no number, and an entry that is then replaced by a number, let
    the huge entry pass.
    """
    inputs = tests.inputs
    sizes = np.array(tests.claim.sizes)
    huge_entry = np.float32(1e6 * tests.claim.clip_norm)
    most = min(_ARRAYS_BESIDE_HUGE, len(arrays))
    few = np.unique(arrays[np.linspace(0, len(arrays) - 1, most).astype(int)])
    for array, value in itertools.product(few, (math.nan, math.inf, -math.inf)):
        first = int(inputs.starts[array])
        last = first + int(sizes[array]) - 1
        places = {last, (last + 1) % inputs.num_entries} - {first}
        for place, huge in itertools.product(sorted(places), (huge_entry, 1e38)):
            update = inside.copy()
            update[first] = value
            update[place] = huge
            yield f"{value:g} in array {array + 1} beside an entry of {huge:.3g}", update, 0


def _unlike_others(tests: MovementTests, row: np.ndarray) -> float:
    """Returns an upper bound on the chance of the release's largest entry beside the others'."""
    from scipy import stats

    measurements = tests.measurements
    noise = measurements.noise
    white = row / noise.entry_std
    if noise.block > 1:
        white /= math.sqrt(float(np.diagonal(noise.covariance).max()))
        if measurements.runs.round > noise.block:
            return 1.0
    starts = tests.inputs.starts
    signs = tests.inputs.signs
    sizes = np.array(tests.claim.sizes)
    # The clients' common movement is that of the mean, or all of an array of one entry.
    means = np.add.reduceat(white * signs, starts) / sizes * (sizes > 1)
    white = np.abs(white - signs * means[tests.inputs.array_of])
    white -= measurements.allowed(tests.claim.clients) * (sizes == 1)[tests.inputs.array_of]
    # One client may move an entry by so many standard deviations.
    excess = float(white.max()) * (1 - 1e-3) - 2 * measurements.allowed(1)
    return min(1.0, 2 * len(white) * float(stats.norm.sf(excess)))
