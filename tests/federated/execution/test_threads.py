"""--threads: what is limited, that nothing stays behind, and that it changes no result."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf.federated.execution.client_data import client_epochs
from fedmf.federated.execution.threads import limited_threads
from tests.federated.small_runs import assert_close, assert_same_run, config
from tests.federated.small_task import small_task
from tests.refusals import refusal

ROOT = pathlib.Path(__file__).parents[3]


def test_a_limit_after_tensorflow_has_started_is_refused():
    tf.constant(1) + 1  # starts it
    before = dict(os.environ)
    other = tf.config.threading.get_intra_op_parallelism_threads() + 1
    with (
        refusal(f"threads={other}: TensorFlow has already started"),
        limited_threads(other),
    ):
        pass
    assert dict(os.environ) == before


def test_linear_algebra_and_the_environment_come_back(monkeypatch):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        # TensorFlow has started in this process
        monkeypatch.setattr(tf.config.threading, name, lambda threads: None)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "7")

    def pools():
        return [
            pool["num_threads"]
            for pool in threadpoolctl.threadpool_info()
            if pool["user_api"] == "blas"
        ]

    before, environment = pools(), dict(os.environ)
    with limited_threads(1):
        assert pools()
        assert set(pools()) == {1}
        assert os.environ["TF_NUM_INTRAOP_THREADS"] == os.environ["TF_NUM_INTEROP_THREADS"] == "1"
    assert pools() == before
    assert dict(os.environ) == environment


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function of an execution: what processes with one and three threads print, and the runs
    that they leave.
    """
    printed = {}
    for threads in (1, 3):
        folder = tmp_path_factory.mktemp("threads")
        command = [sys.executable, "-m", "tests.federated.run_threads", folder, str(threads)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        printed[threads] = folder, json.loads(done.stdout.splitlines()[-1])
    return lambda execution: (
        (threads, found[execution], fedmf.Run.load(folder / execution))
        for threads, (folder, found) in printed.items()
    )


@pytest.mark.slow
def test_clients_of_the_fast_path_give_the_same_bits_with_any_number_of_threads(trained):
    """With noise of six rounds; numpy's longer products round otherwise on other numbers
    of threads (docs/cluster.md).
    """
    runs = []
    for threads, found, run in trained("fast"):
        assert found["tensorflow"] == [1, threads]
        assert found["environment"] == [str(threads)] * 2
        assert found["environment afterwards"] == [None, None]
        runs.append(run)
    assert_same_run(*runs)


@pytest.mark.slow
def test_the_worker_of_the_tff_path_is_limited_too(trained):
    weights = []
    for threads, found, run in trained("tff"):
        assert f"--max_concurrent_computation_calls={threads}" in found["worker command"]
        limits = {f"TF_NUM_INTRAOP_THREADS={threads}", f"TF_NUM_INTEROP_THREADS={threads}"}
        assert limits <= set(found["worker environment"])
        weights.append(run.weights)
    assert_close(*weights, rtol=1e-7, atol=1e-5)  # float32, six rounds


def test_clients_in_any_number_of_threads_have_the_same_sum(sums_of):
    """To the bit."""
    settings = config(client_epochs=2, clip_norm=0.05)
    task = small_task()
    cohort = [client_epochs(task, settings, 0, client) for client in range(7)]
    cohort[2] = []  # not finite
    parts = [sums_of(task, settings, 0, threads)(cohort) for threads in (1, 3)]
    for part in parts:
        assert [int(n) for n in part.total[1:]] == [7, 5, 1]
        assert part.loss == parts[0].loss > 0
        for mine, first in zip(part.total.record, parts[0].total.record, strict=True):
            np.testing.assert_array_equal(mine, first)
            assert np.any(mine)


def test_models_of_threads_are_traced_one_after_the_other(sums_of):
    """Each once: TensorFlow warns of many traces in calls."""
    under_way, at_once = [], []

    @tf.autograph.experimental.do_not_convert
    def loss(labels, outputs, weights):
        under_way.append(labels)
        at_once.append(len(under_way))
        time.sleep(0.2)  # for another thread to begin
        under_way.pop()
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        return tf.reduce_mean(each)

    task = dataclasses.replace(small_task(), loss=loss)
    cohort = [client_epochs(task, config(), 0, client) for client in range(12)]
    part = sums_of(task, config(), 0, 3)(cohort)
    assert part.loss > 0
    assert 1 <= len(at_once) <= 3
    assert set(at_once) == {1}
