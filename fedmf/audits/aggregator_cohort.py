"""Test of whether a client's clip norm or weight depends on the updates of other clients."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from fedmf.audits.aggregator_estimates import (
    BaselineEstimates,
    Estimate,
    Movement,
    NotFiniteReleaseError,
)
from fedmf.audits.aggregator_inputs import HUGE_NORM, INSIDE_NORM, Scenario
from fedmf.audits.aggregator_movement_tests import MovementTests
from fedmf.audits.aggregator_runs import WrongResult

# The test for a clip norm that adapts slowly over rounds uses at most this many rounds of a run.
_MAX_SLOW_ROUNDS = 24
# The test of a slowly adapting clip norm detects movements that exceed the claim by this relative
# amount. It calls the function at most _MAX_SLOW_CALLS times.
_SLOW_EXCESS = 0.4
_MAX_SLOW_CALLS = 240


def check_cohort(tests: MovementTests) -> None:
    """Tests that no client's update affects how other clients are clipped or weighted, in the same
    round or later.

    The number of clients with large updates is varied. If two rounds differ in this number, their
    releases may differ by the difference of the numbers. They may differ by twice as much if the
    updates of the other clients are not zero, or if the large updates were sent a round earlier.
    """
    test_inputs = tests.inputs
    sender_counts = _sender_counts(test_inputs.num_clients)
    inside_update = test_inputs.update(INSIDE_NORM, test_inputs.all_entries)
    base_scenario = Scenario(
        test="cohort",
        description="updates inside the clip norm, of {} clients, others zero",
        updates=test_inputs.from_all(inside_update),
        direction=test_inputs.all_entries,
        detectable_excess=1.0,
        max_calls=100,
        mistake="A clip norm or a weight that follows the other clients' updates, of this round "
        "or of earlier ones, does this: fix it before, or account for it.",
    )
    scenario_rows = [
        dataclasses.replace(
            base_scenario,
            updates=test_inputs.from_several(num_senders, inside_update, test_inputs.zero_update),
        )
        for num_senders in sender_counts
    ]
    movements = list(_movements_between_counts(tests, sender_counts, scenario_rows, 1))
    base_scenario = dataclasses.replace(
        base_scenario, detectable_excess=max(1.0, test_inputs.num_clients / 4), max_calls=60
    )
    for scenario_rows in _scenarios_of_double_movement(tests, base_scenario, sender_counts):
        movements += _movements_between_counts(tests, sender_counts, scenario_rows, 2)
    movements += _slow_movements(tests, base_scenario)
    corrected_movements = [
        dataclasses.replace(movement, p_value=movement.p_value * len(movements))
        for movement in movements
    ]
    tests.add_outcome("cohort", corrected_movements, [])


def _scenarios_of_double_movement(
    tests: MovementTests, base_scenario: Scenario, sender_counts: Sequence[int]
) -> Iterator[list[Scenario]]:
    """Yields lists of scenarios that reveal clip norms or weights which depend on the cohort.
    Between two scenarios of a list, a sender may move a release by twice the sensitivity.

    A list has one scenario for each number of senders.
    """
    test_inputs = tests.inputs
    inside_update = test_inputs.update(INSIDE_NORM, test_inputs.all_entries)
    small_update = test_inputs.update(0.05, test_inputs.all_entries)
    huge_update = test_inputs.update(HUGE_NORM, test_inputs.all_entries)
    yield [
        dataclasses.replace(
            base_scenario,
            description="updates inside the clip norm, of {} clients, others small",
            updates=test_inputs.from_several(num_senders, inside_update, small_update),
        )
        for num_senders in sender_counts
    ]
    if tests.measurements.runs.length == 1:
        return
    for description, earlier_update in (
        ("updates inside the clip norm of {} clients, a round before", inside_update),
        ("huge updates of {} clients, a round before", huge_update),
    ):
        yield [
            dataclasses.replace(
                base_scenario,
                description=description,
                earlier_updates=test_inputs.from_several(
                    num_senders, earlier_update, test_inputs.zero_update
                ),
                num_earlier_rounds=1,
            )
            for num_senders in sender_counts
        ]


def _slow_movements(tests: MovementTests, base_scenario: Scenario) -> Iterator[Movement]:
    """Yields movements of a release that reveal clip norms which adapt slowly. Each movement is the
    difference between runs in which a quarter of the clients send updates in all rounds, and runs
    in which they send zeros.

    In the first three quarters of a run some of the other clients take part as well; in the last
    quarter all do. A clip norm that has slowly adapted to the participants then affects everyone.
    """
    test_inputs = tests.inputs
    num_clients = test_inputs.num_clients
    inside_update = test_inputs.update(INSIDE_NORM, test_inputs.all_entries)
    num_rounds = min(tests.measurements.runs.length, _MAX_SLOW_ROUNDS)
    num_measured = max(1, num_rounds // 4)
    if num_rounds <= num_measured:
        return
    baseline_estimates = BaselineEstimates()
    sender_counts = {0, num_clients // 4, num_clients // 2, 3 * num_clients // 4, num_clients}
    for num_without, num_with in itertools.pairwise(sorted(sender_counts)):
        quarter_size = num_with - num_without
        baseline_updates = [inside_update] * num_without + [test_inputs.zero_update] * quarter_size
        baseline_updates += [inside_update] * (num_clients - num_with)
        scenario = dataclasses.replace(
            base_scenario,
            description=f"updates inside the clip norm of {quarter_size} clients, or none, in all "
            f"rounds of a run, beside those of {num_without} clients and, in its last rounds, of "
            "all",
            updates=test_inputs.from_all(inside_update),
            earlier_updates=test_inputs.from_several(
                num_with, inside_update, test_inputs.zero_update
            ),
            num_earlier_rounds=num_rounds - num_measured,
            num_measured_rounds=num_measured,
            allowed_movement=quarter_size,
            detectable_excess=_SLOW_EXCESS,
            max_calls=_MAX_SLOW_CALLS,
        )
        baseline_scenario = dataclasses.replace(
            scenario,
            updates=functools.partial(list, baseline_updates),
            earlier_updates=test_inputs.from_several(
                num_without, inside_update, test_inputs.zero_update
            ),
        )
        try:
            yield from tests.measurements.movements(
                dataclasses.replace(scenario, baseline=baseline_scenario), 1, baseline_estimates
            )
        except (WrongResult, NotFiniteReleaseError):
            raise
        # An aggregation function that refuses unclipped updates protects clients as well as one
        # that clips them.
        except Exception:
            tests.measurements.runs.start()


def _sender_counts(num_clients: int) -> list[int]:
    """Returns the numbers of senders of large updates that are tested, in increasing order.

    They are at most a quarter of all clients apart.
    """
    half_cohort = num_clients // 2
    sender_counts = {0, 1, 2, 3, num_clients // 4, half_cohort - 1, half_cohort, half_cohort + 1}
    sender_counts |= {3 * num_clients // 4, num_clients - 2, num_clients - 1, num_clients}
    return sorted(count for count in sender_counts if 0 <= count <= num_clients)


def _movements_between_counts(
    tests: MovementTests,
    sender_counts: Sequence[int],
    rows: Sequence[Scenario],
    movement_per_client: int,
) -> Iterator[Movement]:
    """Yields the difference between the releases for any two numbers of clients that send updates.

    Args:
      tests: the movement tests.
      sender_counts: numbers of clients who send large updates.
      rows: one scenario for each.
      movement_per_client: movement that the claim allows for each client more.
    """
    measurements = tests.measurements
    estimates: list[tuple[int, Scenario, Estimate]] = []
    for num_senders, row in zip(sender_counts, rows, strict=True):
        try:
            estimates.append((num_senders, row, measurements.measure(row)))
        except (WrongResult, NotFiniteReleaseError):
            raise
        # An aggregation function that refuses unclipped updates protects clients as well as one
        # that clips them.
        except Exception:
            measurements.runs.start()
    for low, high in itertools.combinations(estimates, 2):
        low_count, row, low_estimate = low
        high_count, _, high_estimate = high
        scenario = dataclasses.replace(
            row,
            description=row.description.format(f"from {low_count} to {high_count}"),
            allowed_movement=movement_per_client * (high_count - low_count),
        )
        yield measurements.compare_with_claim(
            scenario,
            abs(float(high_estimate.movement[0] - low_estimate.movement[0])),
            math.hypot(low_estimate.std, high_estimate.std),
            float(low_estimate.relative_error[0]),
            1,
        )
