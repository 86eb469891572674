"""TFF programs with our cohorts: stopped and started again they train the same model on
the same clients.
"""

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

ROUNDS, POPULATION, COHORT = 6, 12, 3


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
    """A process of its own for each run: initialised again, it has other noise."""
    plan = plan_of(MECHANISMS["banded"](ROUNDS))
    return fed_avg(federated.dp_aggregator(plan, clients_per_round=COHORT, noise_seed=1))


def weights_after(process, source, rounds, folder, discard=None):
    """The weights that `train_model` ends with."""
    released = tff.program.MemoryReleaseManager()
    program = tff.learning.programs.train_model(
        train_process=process,
        train_data_source=source,
        train_per_round_clients=COHORT,
        train_total_rounds=rounds,
        should_discard_round=discard,
        program_state_manager=tff.program.FileProgramStateManager(str(folder)),
        model_output_manager=released,
        evaluation_manager=None,
        evaluation_periodicity=1,
    )
    context = tff.program.NativeFederatedContext(
        tff.backends.native.create_async_local_cpp_execution_context()
    )
    with tff.framework.get_context_stack().install(context):
        asyncio.new_event_loop().run_until_complete(
            program
        )  # asyncio.run takes away the loop that TFF asks for in other tests
    state = released.values()[f"training_checkpoint_round_{rounds}"]
    return process.get_model_weights(state).trainable


@pytest.mark.slow
def test_a_resumed_program_has_the_same_cohorts_and_weights(tmp_path):
    process, whole = process_of_one_run(), source_of()
    expected = weights_after(process, whole, ROUNDS, tmp_path / "whole")
    process, first, seen = process_of_one_run(), source_of(), []
    discard = lambda output: seen.append(output) or len(seen) == 2  # noqa: E731
    weights_after(process, first, 3, tmp_path / "parts", discard=discard)
    assert len(seen) == 4
    later = source_of()
    found = weights_after(process, later, ROUNDS, tmp_path / "parts")
    assert cohorts(later) == cohorts(whole)
    assert cohorts(first) == cohorts(whole)[:3]
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def restored(source, saved):
    """An iterator of a source, where another one was saved."""
    return type(source.iterator()).from_bytes(saved.to_bytes())


def test_an_iterator_restores_the_ledger_also_of_clients_that_dropped_out():
    away = {"behavior": DeviceBehavior(dropout=0.4, seed=5)}
    whole, first, later = source_of(**away), source_of(**away), source_of(**away)
    passes = whole.iterator(), first.iterator()
    for _ in range(4):
        for one in passes:
            one.select(COHORT)
    again = copy.deepcopy(passes[0])  # of a round that is discarded
    for one in (passes[0], restored(later, passes[1]), again):
        one.select()
    assert cohorts(later) == cohorts(whole)
    assert {len(cohort) for cohort in cohorts(whole)} != {COHORT}
    selected, found = (
        [source.controller.ledger.selected(t).tolist() for t in range(5)]
        for source in (whole, later)
    )
    assert found == selected


def test_a_training_process_resumes_from_the_ledger():
    whole, later = source_of(), source_of()

    def examples(source, number):
        return [list(data.as_numpy_iterator()) for data in source.training_selection_fn(number)]

    expected = [examples(whole, number) for number in (1, 2, 3, 4)]
    with refusal(r"round_num=4 .*the next is round_num=1 of .*controller\.resume_from\(ledger"):
        later.training_selection_fn(4)
    with refusal("round_num=0 must be at least 1: TFF's first round is 1"):
        later.training_selection_fn(0)
    rounds = later.controller.participation.rounds
    beyond = f"round_num={rounds + 1} is beyond the last round of a plan of rounds={rounds}"
    with refusal(beyond):
        later.training_selection_fn(rounds + 1)
    later.controller.resume_from(whole.controller.ledger.first(3))
    np.testing.assert_equal(examples(later, 4), expected[3])


def test_invalid_arguments_and_states_are_refused():
    source, other = source_of(), source_of()
    with refusal(f"k=2 .*cohort_size={COHORT}"):
        source.iterator().select(2)
    one = source.iterator()
    other.controller.ledger.append(np.array([0, 1, 2]))  # from outside
    for words in ("belongs to another run", "resume with a new controller"):
        one.select()
        with refusal(words):
            restored(other, one)
    for changed, later in {
        "seed": source_of(seed=2),
        "population": source_of(population=13),
        "participation": source_of(min_sep=4),
        "behavior": source_of(behavior=DeviceBehavior(dropout=0.1)),
        "availability": source_of(availability=Independent(probability=0.9, seed=1)),
    }.items():
        for saved in (source.iterator(), one):  # before the first round, too
            with refusal(f"a controller of another {changed}"):
                restored(later, saved)
        assert len(later.controller.ledger) == 0
    with refusal("client_data gave 0 for client 0", TypeError):
        federated.CohortDataSource(source.controller, lambda index: index)
