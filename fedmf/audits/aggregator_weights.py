"""Scenarios for the audit of an aggregator, in which clients have different numbers of examples."""

import dataclasses
from collections.abc import Iterator

from fedmf.audits.aggregator_inputs import HUGE_NORM, INSIDE_NORM, Inputs, Scenario
from fedmf.audits.aggregator_runs import NUM_EXAMPLES


def example_weight_scenarios(inputs: Inputs) -> Iterator[Scenario]:
    """Yields scenarios in which clients have different numbers of examples.

    They are for functions that take these numbers.
    """
    other_update = inputs.update(INSIDE_NORM, inputs.odd_entries)
    fallback_mistake = (
        "A weight that follows the other clients' examples, or one above 1, does this."
    )
    baseline_scenario = Scenario(
        test="weights",
        description="clients with equally many examples",
        updates=inputs.from_one(inputs.zero_update, other_update),
        direction=inputs.odd_entries,
        allowed_movement=2,
        max_calls=200,
        mistake=fallback_mistake,
    )
    for num_examples in (0, 1, 10 * NUM_EXAMPLES, 1000 * NUM_EXAMPLES, 10**6):
        example_counts = [num_examples] + [NUM_EXAMPLES] * (inputs.num_clients - 1)
        client_weight = num_examples / sum(example_counts)
        weight_mistake = (
            "Weights by examples with noise for equal weights do this: a client of weight "
            f"{client_weight:.3g} moves a mean by {client_weight:.3g} clip norms."
        )
        yield dataclasses.replace(
            baseline_scenario,
            description=f"one client with {num_examples:,} examples, or {NUM_EXAMPLES}, beside "
            "others",
            baseline=baseline_scenario,
            examples=example_counts,
        )
        yield Scenario(
            test="weights",
            description=f"an update of one client with {num_examples:,} examples, among zeros",
            updates=inputs.from_one(
                inputs.update(HUGE_NORM, inputs.all_entries), inputs.zero_update
            ),
            direction=inputs.all_entries,
            examples=example_counts,
            max_calls=400,
            mistakes=inputs.clip_mistakes(HUGE_NORM)
            | {inputs.num_clients * client_weight: weight_mistake},
            mistake=fallback_mistake,
        )
    yield from _many_weight_scenarios(inputs, fallback_mistake)


def _many_weight_scenarios(inputs: Inputs, fallback_mistake: str) -> Iterator[Scenario]:
    """Yields scenarios in which half of the clients have another number of examples.

    A weight that is barely above 1 is detected if many clients have it.
    """
    num_senders = inputs.num_clients // 2
    for num_examples in (1, 10 * NUM_EXAMPLES, 10**6):
        yield Scenario(
            test="weights",
            description=f"updates of {num_senders} clients with "
            f"{num_examples:,} examples, zeros of "
            "others with 1",
            updates=inputs.from_several(
                num_senders, inputs.update(HUGE_NORM, inputs.all_entries), inputs.zero_update
            ),
            direction=inputs.all_entries,
            allowed_movement=num_senders,
            detectable_excess=0.1,
            examples=[num_examples] * num_senders + [1] * (inputs.num_clients - num_senders),
            max_calls=200,
            mistake=fallback_mistake,
        )
