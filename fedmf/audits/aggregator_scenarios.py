"""Scenarios of the movement tests, which state the updates that each test sends.

The scenarios are the rows of a table. Rows with the same `test` form one test. To detect a new kind
of mistake, add a row that exposes it.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np

from fedmf.audits.aggregator_inputs import HUGE_NORM, INSIDE_NORM, Direction, Inputs, Scenario
from fedmf.audits.aggregator_weights import example_weight_scenarios

# Norm of an update that is slightly above the clip norm, in units of the clip norm. It reveals an
# aggregation function that clips only updates of 1.05 clip norms or more.
_BARELY_ABOVE = 1.045
# Norms of the test updates, in units of the clip norm. They reveal a function that leaves updates
# unclipped whose norm is in some interval [x, sqrt(10) x].
_NORMS = (
    1.1,
    1.2,
    1.4,
    2.0,
    2.8,
    4.0,
    6.0,
    10.0,
    20.0,
    40.0,
    100.0,
    300.0,
    1e3,
    3e3,
    3e4,
    1e5,
)
_LARGEST_NORM = 1e6
# Largest number of arrays of an update that are tested one by one.
_MAX_SINGLE_ARRAYS = 16
# At most this many clients send distinct updates in one round.
_MAX_DISTINCT_CLIENTS = 64
# If an update has at most this many arrays, all subsets of them are tested.
_MAX_ARRAYS_FOR_SUBSETS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pattern:
    """Direction of an update that all clients send, with its description.

    Attributes:
      description: the vector in words.
      vector: (entries,), of any norm.
      is_single_array: whether one array alone is not zero.
    """

    description: str
    vector: np.ndarray
    is_single_array: bool = False


def scenarios(inputs: Inputs) -> Iterator[Scenario]:
    """Yields the scenarios of all movement tests; scenarios with few calls come first."""
    yield from _type_scenarios(inputs)
    yield from _pattern_scenarios(inputs)
    yield from _single_client_scenarios(inputs)
    yield from _client_order_scenarios(inputs)
    yield from example_weight_scenarios(inputs)
    yield from _norm_scenarios(inputs)
    yield from _half_precision_scenarios(inputs)


def _norm_scenarios(inputs: Inputs) -> Iterator[Scenario]:
    """Yields scenarios in which all clients send an update of norm below or above the clip norm."""
    small_excess = (1 - INSIDE_NORM) + 0.05
    excess_by_norm = {
        0.5: 0.3,
        INSIDE_NORM: small_excess,
        HUGE_NORM: small_excess,
        _BARELY_ABOVE: (_BARELY_ABOVE - 1) * 0.95,
    }
    excess_by_norm |= {norm: min(0.5, 0.9 * (norm - 1)) for norm in _NORMS}
    excess_by_norm[_LARGEST_NORM] = 0.5
    for norm, excess in excess_by_norm.items():
        mistake_by_movement = {}
        if norm > 1:
            mistake_by_movement = inputs.clip_mistakes(norm)
        yield Scenario(
            test="norms",
            description=f"{inputs.num_clients} equal updates, each of {norm:.4g} clip norms",
            updates=inputs.from_all(inputs.update(norm, inputs.all_entries)),
            direction=inputs.all_entries,
            allowed_movement=inputs.num_clients,
            detectable_excess=excess,
            by_period=norm == HUGE_NORM,
            mistakes=mistake_by_movement,
            mistake="A clip at a larger norm does this, one that begins above the clip norm, "
            "an update that counts again in later rounds, or less noise than claimed.",
        )

    yield Scenario(
        test="norms",
        description=f"{inputs.num_clients} equal updates of {HUGE_NORM:g} clip norms, after "
        "zeros a round before",
        updates=inputs.from_all(inputs.update(HUGE_NORM, inputs.all_entries)),
        direction=inputs.all_entries,
        allowed_movement=inputs.num_clients,
        earlier_updates=inputs.from_all(inputs.zero_update),
        num_earlier_rounds=1,
        mistakes=inputs.clip_mistakes(HUGE_NORM),
        mistake="A clip by the norms of the round before does this.",
    )


def _pattern_scenarios(inputs: Inputs) -> Iterator[Scenario]:
    """Yields scenarios with large updates in some arrays or entries only, or of one sign."""
    for pattern in _patterns(inputs):
        direction = inputs.direction(pattern.vector)
        for norm in (1.5, HUGE_NORM):
            detectable_excess = 0.25
            max_calls = 60
            # If the aggregation function multiplies one array of the update by a factor near 1,
            # only a test of this array alone detects the mistake.
            if norm == HUGE_NORM and pattern.is_single_array:
                detectable_excess = (1 - INSIDE_NORM) + 0.05
                max_calls = 500
            yield Scenario(
                test="patterns",
                description=f"{inputs.num_clients} equal updates of {norm:.4g} clip norms, "
                f"{pattern.description}",
                updates=inputs.from_all(inputs.update(norm, direction)),
                direction=direction,
                allowed_movement=inputs.num_clients,
                detectable_excess=detectable_excess,
                max_calls=max_calls,
                mistakes=inputs.clip_mistakes(norm),
            )


def _patterns(inputs: Inputs) -> Iterator[_Pattern]:
    """Yields directions of updates for `_pattern_scenarios`."""
    array_sizes = np.bincount(inputs.array_of)
    equal_norm_vector = inputs.signs / np.sqrt(array_sizes[inputs.array_of])
    yield _Pattern(description="with the same norm in each array", vector=equal_norm_vector)
    yield _Pattern(description="of positive entries", vector=np.abs(inputs.signs))
    yield _Pattern(description="of negative entries", vector=-np.abs(inputs.signs))
    if inputs.num_arrays > 1:
        num_single_arrays = min(inputs.num_arrays, _MAX_SINGLE_ARRAYS)
        for array in np.unique(
            np.linspace(0, inputs.num_arrays - 1, num_single_arrays).astype(int)
        ):
            is_in_array = inputs.array_of == array
            yield _Pattern(
                description=f"whose array {array + 1} alone is not zero",
                vector=inputs.signs * is_in_array,
                is_single_array=True,
            )
            yield _Pattern(
                description=f"whose array {array + 1} is zero", vector=inputs.signs * ~is_in_array
            )
    if inputs.num_arrays <= _MAX_ARRAYS_FOR_SUBSETS:
        for subset_size in range(2, inputs.num_arrays - 1):
            for subset in itertools.combinations(range(inputs.num_arrays), subset_size):
                array_numbers = " and ".join(str(array + 1) for array in subset)
                yield _Pattern(
                    description=f"whose arrays {array_numbers} alone are not zero",
                    vector=inputs.signs * np.isin(inputs.array_of, subset),
                )
    for entry in np.unique([0, inputs.num_entries // 2, inputs.num_entries - 1]):
        yield _Pattern(
            description=f"whose entry {entry + 1} alone is not zero",
            vector=inputs.signs * (np.arange(inputs.num_entries) == entry),
        )


def _type_scenarios(inputs: Inputs) -> Iterator[Scenario]:
    """Yields scenarios with updates above the clip norm in other dtypes than float32."""
    for type_name, update in _typed_updates(inputs):
        norm_in_clips = float(np.linalg.norm(update.astype(np.float64))) / inputs.claim.clip_norm
        if norm_in_clips < 1.4 or not math.isfinite(norm_in_clips):
            continue
        direction = inputs.direction(np.sign(update.astype(np.float64)))
        yield Scenario(
            test="types",
            description=f"{inputs.num_clients} updates {type_name}, "
            f"each of {norm_in_clips:.3g} clip norms",
            updates=inputs.from_all(update),
            direction=direction,
            allowed_movement=inputs.num_clients,
            max_calls=20,
            mistakes=inputs.clip_mistakes(norm_in_clips),
            mistake="A square or a sum in the array's own type, which overflows, or a type "
            "that is not clipped, does this: compute the norm in float64.",
        )


def _typed_updates(inputs: Inputs) -> Iterator[tuple[str, np.ndarray]]:
    """Yields updates in other dtypes than float32, with the dtype as a text.

    Squares of the integers, or sums of the squares, wrap around to 0.
    """
    for norm in (1.5, HUGE_NORM):
        yield "of float64", inputs.update(norm, inputs.all_entries, np.float64)
        yield "of long double", inputs.update(norm, inputs.all_entries, np.longdouble)
    yield "of bool", np.ones(inputs.num_entries, bool)
    entry_above_clip = 2 * inputs.claim.clip_norm / math.sqrt(inputs.num_entries)
    for entry in (entry_above_clip, 1.0, 300.0, 6e4):
        if 6e-8 < entry <= 6.5e4:
            yield "of float16", (entry * inputs.signs).astype(np.float16)
    for bits in (8, 16, 32, 64):
        # The square of `square_root` is the smallest square that overflows the unsigned integer
        # type of this many bits.
        square_root = 2.0 ** (bits // 2)
        largest_entry = 2.0 ** (bits - 1) - 1
        tested_entries = {
            square_root,
            square_root / 2,
            min(1.4 * square_root, largest_entry),
            3 * square_root / 4,
            largest_entry / 2,
            1.0,
        }
        for entry in sorted(tested_entries):
            int_entry = math.floor(entry)
            signed_update = (int_entry * inputs.signs.astype(np.int64)).astype(f"int{bits}")
            yield f"of int{bits}", signed_update
            if bits < 64:
                yield f"of uint{bits}", np.full(inputs.num_entries, int_entry, f"uint{bits}")
        yield f"of int{bits}", np.full(inputs.num_entries, -(2 ** (bits - 1)), f"int{bits}")


def _single_client_scenarios(inputs: Inputs) -> Iterator[Scenario]:
    """Yields scenarios in which one client sends a large update."""
    huge_update = inputs.update(HUGE_NORM, inputs.all_entries)
    mistake_by_movement = inputs.clip_mistakes(HUGE_NORM)
    mistake_by_movement[float(inputs.num_clients)] = (
        "Clipping the mean, and not each update before it, does this."
    )
    for client_index in (0, inputs.num_clients - 1):
        yield Scenario(
            test="one",
            description=f"one update of {HUGE_NORM:g} clip norms, of client "
            f"{client_index + 1}, among zeros",
            updates=inputs.from_one(huge_update, inputs.zero_update, client_index),
            direction=inputs.all_entries,
            mistakes=mistake_by_movement,
            max_calls=400,
        )
    other_update = inputs.update(INSIDE_NORM, inputs.odd_entries)
    baseline_scenario = Scenario(
        test="one",
        description="updates inside the clip norm",
        updates=inputs.from_one(inputs.zero_update, other_update),
        direction=inputs.odd_entries,
        detectable_excess=1.0,
        max_calls=200,
    )
    for norm in (INSIDE_NORM, HUGE_NORM):
        yield dataclasses.replace(
            baseline_scenario,
            description=f"one update of {norm:g} clip norms, or none, beside others",
            updates=inputs.from_one(inputs.update(norm, inputs.even_entries), other_update),
            baseline=baseline_scenario,
            mistake="A clip or a weight that follows the other clients' updates does this.",
        )
    other_update = inputs.update(INSIDE_NORM, inputs.all_entries)
    yield dataclasses.replace(
        baseline_scenario,
        description=f"one update of {HUGE_NORM:g} clip norms, or none, against those of others",
        updates=inputs.from_one(inputs.update(-HUGE_NORM, inputs.all_entries), other_update),
        direction=inputs.all_entries,
        baseline=dataclasses.replace(
            baseline_scenario,
            updates=inputs.from_one(inputs.zero_update, other_update),
            direction=inputs.all_entries,
        ),
        mistake="A clip of sums of several clients' updates does this: clip each before.",
    )


def _client_order_scenarios(inputs: Inputs) -> Iterator[Scenario]:
    """Yields scenarios in which up to 64 clients send updates with disjoint entries."""
    max_senders = min(inputs.num_clients, _MAX_DISTINCT_CLIENTS, inputs.num_entries)
    sender_indices = np.unique(np.linspace(0, inputs.num_clients - 1, max_senders).astype(int))
    sender_of_entry = np.arange(inputs.num_entries) % len(sender_indices)
    signed_vector = inputs.signs / np.sqrt(np.bincount(sender_of_entry))[sender_of_entry]
    for norm in (3.0, HUGE_NORM):

        def updates(norm: float = norm) -> list[np.ndarray]:
            """Builds an update for each client, where different senders have different nonzero
            entries.
            """
            client_updates = [inputs.zero_update] * inputs.num_clients
            for sender_number, client_index in enumerate(sender_indices):
                unit_vector = np.where(sender_of_entry == sender_number, signed_vector, 0)
                sender_update = (norm * inputs.claim.clip_norm * unit_vector).astype(np.float32)
                client_updates[client_index] = sender_update
            return client_updates

        yield Scenario(
            test="order",
            description=f"{len(sender_indices)} updates of {norm:g} clip norms, each along "
            "entries of its own",
            updates=updates,
            direction=Direction(vector=signed_vector, owner=sender_of_entry),
            detectable_excess=0.9,
            max_calls=400,
            mistakes=inputs.clip_mistakes(norm) | {2.0: "A client that counts twice does this."},
            mistake="A client that is treated in another way for its place, or for its "
            "entries, does this.",
        )


def _half_precision_scenarios(inputs: Inputs) -> Iterator[Scenario]:
    """Yields a scenario with an update whose sum in half precision is rounded up the most."""
    nonzero_counts = np.unique(np.linspace(0.5, 1.0, 64) * inputs.num_entries).astype(int)
    exact_entries = INSIDE_NORM * inputs.claim.clip_norm / np.sqrt(np.maximum(nonzero_counts, 1))
    with np.errstate(over="ignore"):
        half_entries = exact_entries.astype(np.float16)
        half_sums = np.zeros_like(half_entries)
        for _ in range(inputs.num_clients):
            half_sums += half_entries
    relative_sums = np.nan_to_num(half_sums / (inputs.num_clients * exact_entries), posinf=0.0)
    largest_relative_sum = float(relative_sums.max())
    num_nonzero = int(nonzero_counts[relative_sums.argmax()])
    direction = inputs.direction(inputs.signs * (np.arange(inputs.num_entries) < num_nonzero))
    yield Scenario(
        test="sums",
        description=f"{inputs.num_clients} equal updates whose sum in half precision is "
        f"{largest_relative_sum:.4g} "
        "times too large",
        updates=inputs.from_all(inputs.update(INSIDE_NORM, direction)),
        direction=direction,
        allowed_movement=inputs.num_clients,
        detectable_excess=max(0.03, 0.9 * (INSIDE_NORM * largest_relative_sum - 1)),
        max_calls=300,
        mistake="A sum in half precision does this: sum in float32 or float64.",
    )
