"""Odd arguments of the calls that need TensorFlow Federated (see tests/test_odd_arguments.py)."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from fedmf import federated
from fedmf.federated.tff import names, planned_process, tff
from tests.test_odd_arguments import PLAN, REAL, SEED, call, controller, stop

VALUE_TYPE = tff.TensorType(np.float32, [3])
SPECS = tf.TensorSpec([2])


def dataset(client):
    return tf.data.Dataset.from_tensors(np.float32(client))


def source():
    return federated.CohortDataSource(controller(), dataset)


def aggregator():
    return federated.dp_aggregator(PLAN, clients_per_round=2, noise_seed=1)


def planned_process_of(**arguments):
    with mock.patch.object(planned_process, "JournalFolder", stop):
        return federated.PlannedProcess(**arguments)


QUERY = federated.MatrixFactorizationQuery(PLAN, SPECS, noise_seed=1)
HANDED_IN = federated.MatrixFactorizationQuery(
    PLAN, SPECS, noise_seed=1, noise_strategy="precomputed"
)
STATE = HANDED_IN.initial_global_state()
CALLS = {
    "CohortDataSource": call(
        federated.CohortDataSource, controller=controller(), client_data=dataset
    ),
    "CohortDataSource.iterator.select": call(
        lambda k: source().iterator().select(k), {"k": "None"}, k=2
    ),
    "CohortDataSource.training_selection_fn": call(source().training_selection_fn, round_num=1),
    "HostNoise.for_state": call(federated.HostNoise.for_state, plan=PLAN, state=STATE),
    "HostNoise.hand_in": call(federated.HostNoise.for_state(PLAN, STATE).hand_in, state=STATE),
    "MatrixFactorizationQuery": call(
        federated.MatrixFactorizationQuery,
        {
            "record_specs": "3-D nans", "noise_seed": SEED, "zeroing_norm": f"None {REAL}",
            "noise_strategy": "None", "divisor": REAL, "count_metrics": "True",
        },
        plan=PLAN, record_specs=SPECS, noise_seed=1, zeroing_norm=None, noise_strategy=None,
        divisor=1.0, count_metrics=True,
    ),
    "MatrixFactorizationQuery.with_entry_rounding": call(
        QUERY.with_entry_rounding, {"entry_rounding": "0 0.5"}, entry_rounding=0.0
    ),
    "MatrixFactorizationQuery.with_scaling": call(
        QUERY.with_scaling, {"scaling": "None"}, scaling=federated.Scaling(rule="adam")
    ),
    "PlannedProcess": call(
        planned_process_of, {"folder": "text"}, process=aggregator().create(VALUE_TYPE),
        aggregator=aggregator(), controller=controller(), client_data=dataset, folder="folder",
    ),
    "ScheduledSGDM": call(
        federated.ScheduledSGDM, {"momentum": "0 0.5"}, learning_rates=[1.0], momentum=0.9
    ),
    "dp_aggregator": call(
        federated.dp_aggregator,
        {
            "clients_per_round": "10**20", "noise_seed": SEED, "zeroing_norm": f"None {REAL}",
            "noise_strategy": "None", "secure_sum": "True", "count_metrics": "True",
        },
        plan=PLAN, clients_per_round=2, noise_seed=1, zeroing_norm=100.0, noise_strategy=None,
        secure_sum=False, count_metrics=True,
    ),
    "dp_aggregator.create": call(aggregator().create, value_type=VALUE_TYPE),
    "dp_aggregator.with_scaling": call(
        aggregator().with_scaling, {"scaling": "None"}, scaling=None
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_are_refused_in_a_sentence_that_names_them(name):
    CALLS[name].run()
    assert CALLS[name].faults() == []


def test_check_process_refuses_other_objects():
    assert call(federated.check_process, process=None).faults() == []


def test_every_public_name_has_a_case():
    assert set(names.__all__) - set(CALLS) - {"check_process"} == set()


def test_rounds_beyond_the_plan_are_refused():
    with pytest.raises(ValueError, match="round_num=5 is beyond the last round"):
        source().training_selection_fn(5)
