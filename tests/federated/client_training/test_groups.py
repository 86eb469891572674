"""A group's result is accepted only if it can be a clipped sum; the error names the worker."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.client_training.records import Records
from fedmf.server.messages import ClientParams, ClippedSum
from fedmf.training.examples import ClientData
from fedmf.training.execution import groups
from fedmf.training.execution.choice import build_execution
from fedmf.training.execution.groups import check_group_sums
from tests.federated.run_small import GROUPS_OF_TWO, config
from tests.federated.small_task import small_task
from tests.refusals import refusal

SPECS = [tf.TensorSpec([30, 7], tf.float32), tf.TensorSpec([7], tf.float32)]
RECORDS = Records(SPECS)
SHAPES = [tuple(spec.shape) for spec in SPECS]
CLIP_NORM = 0.7


def sum_of(updates):
    params = ClientParams(tf.constant(CLIP_NORM, tf.float64), tf.constant(100.0, tf.float64), ())
    total = RECORDS.zero()
    for update in updates:
        total = RECORDS.added(params, total, update)
    return ClippedSum(
        values=[leaf.numpy() for leaf in total.record],
        clients=int(total.clients),
        clipped=int(total.clipped),
        zeroed=int(total.zeroed),
        loss_sum=1.0,
        examples=9,
        group=1,
        worker="node-7",
    )


def check_second_group(second_sum):
    """Checks a result as that of the second of two groups, which has five clients."""
    first_sum = sum_of(updates(2))._replace(group=0)
    return list(
        check_group_sums([first_sum, second_sum], [2, 5], shapes=SHAPES, clip_norm=CLIP_NORM)
    )[1]


def updates(clients, scale=10.0):
    rng = np.random.default_rng(0)
    update = [rng.normal(size=spec.shape).astype(np.float32) for spec in SPECS]
    return [[np.float32(scale) * leaf for leaf in update]] * clients


@pytest.mark.parametrize("scale", [1e-3, 10.0, 1e30])
def test_a_sum_of_equal_updates_passes(scale):
    """The sum is as long as clipping allows, up to the margin (tests/server/test_clipping.py).

    At a scale of 1e30 the updates are zeroed.
    """
    group_sum = sum_of(updates(5, scale))
    checked_sum = check_second_group(group_sum)
    for values, expected in zip(checked_sum.values, group_sum.values, strict=True):
        np.testing.assert_array_equal(values, expected)
    assert checked_sum[1:7] == group_sum[1:7]


@functools.cache
def honest():
    return sum_of(updates(5))


def forged(**changes):
    return honest()._replace(**changes)


def record(change):
    first_values, second_values = honest().values
    return forged(values=[change(first_values), second_values])


@pytest.mark.parametrize(
    ("make_result", "fault"),
    [
        (lambda: forged(clients=np.int32(6)), "counts 6 clients"),
        (lambda: forged(clipped=np.int32(4), zeroed=np.int32(2)), "4 of them clipped and 2 zeroed"),
        (lambda: forged(zeroed=np.int32(-1)), "-1 zeroed"),
        (lambda: record(lambda leaf: leaf * np.nan), "norm is nan"),
        (lambda: record(lambda leaf: leaf * (1 + 1e-5)), "at most 3.5"),
        (lambda: record(lambda leaf: leaf.astype(np.float32)), r"float32 \(30, 7\)"),
        (lambda: record(lambda leaf: leaf[:-1]), r"float64 \(29, 7\)"),
        (lambda: forged(values=honest().values[:1]), "1 arrays and not 2"),
        (lambda: honest()._replace(group=0), "that of group 0"),
        (lambda: {"total": 3}, "<class 'dict'>"),
    ],
)
def test_results_that_cannot_be_clipped_sums_are_refused(make_result, fault):
    result = make_result()
    worker_clause = ", of worker 'node-7'," if isinstance(result, ClippedSum) else ""
    with refusal(f"group 1 of 2{worker_clause} .*: .*{fault}"):
        check_second_group(result)


@pytest.mark.parametrize(
    ("results", "fault"), [(1, "group 1 of 2 .* missing"), (3, "group 2 of 2, .* one result more")]
)
def test_missing_and_repeated_groups_are_refused(results, fault):
    sums = [sum_of(updates(2))._replace(group=n) for n in range(results)]
    with refusal(fault):
        list(check_group_sums(sums, [2, 2], shapes=SHAPES, clip_norm=CLIP_NORM))


@pytest.mark.usefixtures("clients_in_turn")
def test_a_round_rejects_a_sum_longer_than_its_clients_can_add(monkeypatch):
    """Results of workers and of this process are checked alike (test_cluster.py)."""
    for name, value in (GROUPS_OF_TWO | {"MAX_GROUPS": 2}).items():
        monkeypatch.setattr(groups, name, value)
    task = small_task()
    settings = config()
    execution = build_execution(task, settings.plan(), settings, 9)
    make = execution._client_work.sums

    def forged_sums(sent, client_groups):
        for group_sum in make(sent, client_groups):
            values = [1e6 * leaf for leaf in group_sum.values]
            yield group_sum._replace(values=values, worker="node-7")

    monkeypatch.setattr(execution._client_work, "sums", forged_sums)
    clients = [ClientData([task.examples_of(name)]) for name in task.client_ids[:4]]
    with refusal("group 0 of 2, of worker 'node-7', .* norm is"):
        execution.collect_release(execution.init(), clients)
