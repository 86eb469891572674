"""TFF programs with a controller's cohorts: a resumed program has the same clients and model."""

import asyncio
import copy

import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf import federated
from fedmf.cohorts.availability import Independent
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.federated.tff import tff
from tests.federated.linear_regression import client_data, fed_avg
from tests.federated.plans import plan_of
from tests.mechanisms.registry import MECHANISMS
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("clients_in_turn")

ROUNDS = 6
POPULATION = 12
COHORT = 3


def source_of(seed=1, min_sep=3, population=POPULATION, **options):
    participation = fedmf.Participation(rounds=ROUNDS, schema="min_sep", min_sep=min_sep)
    controller = fedmf.ParticipationController(
        participation, population=population, cohort_size=COHORT, seed=seed, **options
    )
    return federated.CohortDataSource(controller, client_data)


def cohorts(source):
    return [
        source.controller.ledger.cohort(t).tolist() for t in range(len(source.controller.ledger))
    ]


def process_of_one_run():
    """Returns a new process for a run: a process that is initialised again has other noise."""
    plan = plan_of(MECHANISMS["banded"](ROUNDS))
    return fed_avg(federated.dp_aggregator(plan, clients_per_round=COHORT, noise_seed=1))


def weights_after(process, source, rounds, folder, discard=None):
    """Returns the final weights of `train_model`."""
    release_manager = tff.program.MemoryReleaseManager()
    program = tff.learning.programs.train_model(
        train_process=process,
        train_data_source=source,
        train_per_round_clients=COHORT,
        train_total_rounds=rounds,
        should_discard_round=discard,
        program_state_manager=tff.program.FileProgramStateManager(str(folder)),
        model_output_manager=release_manager,
        evaluation_manager=None,
        evaluation_periodicity=1,
    )
    context = tff.program.NativeFederatedContext(
        tff.backends.native.create_async_local_cpp_execution_context()
    )
    with tff.framework.get_context_stack().install(context):
        asyncio.new_event_loop().run_until_complete(
            program
        )  # asyncio.run removes the loop that TFF needs in other tests.
    state = release_manager.values()[f"training_checkpoint_round_{rounds}"]
    return process.get_model_weights(state).trainable


@pytest.mark.slow
def test_a_resumed_program_has_the_same_cohorts_and_weights(tmp_path):
    process = process_of_one_run()
    whole_source = source_of()
    expected_weights = weights_after(process, whole_source, ROUNDS, tmp_path / "whole")
    process = process_of_one_run()
    interrupted_source = source_of()
    outputs = []
    discard = lambda output: outputs.append(output) or len(outputs) == 2  # noqa: E731
    weights_after(process, interrupted_source, 3, tmp_path / "parts", discard=discard)
    assert len(outputs) == 4
    resumed_source = source_of()
    weights = weights_after(process, resumed_source, ROUNDS, tmp_path / "parts")
    assert cohorts(resumed_source) == cohorts(whole_source)
    assert cohorts(interrupted_source) == cohorts(whole_source)[:3]
    tf.nest.map_structure(np.testing.assert_array_equal, weights, expected_weights)


def restored_iterator(source, saved):
    """Returns the iterator of a source that was saved by another iterator."""
    return type(source.iterator()).from_bytes(saved.to_bytes())


def test_an_iterator_restores_the_ledger_also_of_clients_that_dropped_out():
    options = {"behavior": DeviceBehavior(dropout=0.4, seed=5)}
    whole_source = source_of(**options)
    interrupted_source = source_of(**options)
    resumed_source = source_of(**options)
    iterators = whole_source.iterator(), interrupted_source.iterator()
    for _ in range(4):
        for iterator in iterators:
            iterator.select(COHORT)
    copied_iterator = copy.deepcopy(iterators[0])  # This round is discarded.
    for iterator in (
        iterators[0],
        restored_iterator(resumed_source, iterators[1]),
        copied_iterator,
    ):
        iterator.select()
    assert cohorts(resumed_source) == cohorts(whole_source)
    assert {len(cohort) for cohort in cohorts(whole_source)} != {COHORT}
    whole_selected, resumed_selected = (
        [source.controller.ledger.selected(t).tolist() for t in range(5)]
        for source in (whole_source, resumed_source)
    )
    assert resumed_selected == whole_selected


def test_a_training_process_resumes_from_the_ledger():
    whole_source = source_of()
    resumed_source = source_of()

    def examples(source, round_num):
        return [list(data.as_numpy_iterator()) for data in source.training_selection_fn(round_num)]

    expected = [examples(whole_source, round_num) for round_num in (1, 2, 3, 4)]
    with refusal(r"round_num=4 .*the next is round_num=1 of .*controller\.resume_from\(ledger"):
        resumed_source.training_selection_fn(4)
    with refusal("round_num=0 must be at least 1: TFF's first round is 1"):
        resumed_source.training_selection_fn(0)
    rounds = resumed_source.controller.participation.rounds
    expected_error = f"round_num={rounds + 1} is beyond the last round of a plan of rounds={rounds}"
    with refusal(expected_error):
        resumed_source.training_selection_fn(rounds + 1)
    resumed_source.controller.resume_from(whole_source.controller.ledger.first(3))
    np.testing.assert_equal(examples(resumed_source, 4), expected[3])


def test_invalid_arguments_and_states_are_refused():
    source = source_of()
    other_source = source_of()
    with refusal(f"k=2 .*cohort_size={COHORT}"):
        source.iterator().select(2)
    iterator = source.iterator()
    other_source.controller.ledger.append(np.array([0, 1, 2]))  # The state comes from outside.
    for match in ("belongs to another run", "resume with a new controller"):
        iterator.select()
        with refusal(match):
            restored_iterator(other_source, iterator)
    for argument, changed_source in {
        "seed": source_of(seed=2),
        "population": source_of(population=13),
        "participation": source_of(min_sep=4),
        "behavior": source_of(behavior=DeviceBehavior(dropout=0.1)),
        "availability": source_of(availability=Independent(probability=0.9, seed=1)),
    }.items():
        # This also holds before the first round.
        for saved_iterator in (source.iterator(), iterator):
            with refusal(f"a controller of another {argument}"):
                restored_iterator(changed_source, saved_iterator)
        assert len(changed_source.controller.ledger) == 0
    with refusal("client_data gave 0 for client 0", TypeError):
        federated.CohortDataSource(source.controller, lambda index: index)
