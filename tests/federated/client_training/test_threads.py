"""--threads limits the threads of a run, restores all settings, and changes no result."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import tensorflow as tf
import threadpoolctl

import fedmf
from fedmf.federated.client_training.threads import limited_threads
from fedmf.training.client_data import client_data
from tests.federated.small_runs import assert_same_run, config
from tests.federated.small_task import small_task
from tests.refusals import refusal

ROOT = pathlib.Path(__file__).parents[3]


def test_a_limit_after_tensorflow_has_started_is_refused():
    tf.constant(1) + 1  # starts it
    environment = dict(os.environ)
    other_threads = tf.config.threading.get_intra_op_parallelism_threads() + 1
    with (
        refusal(f"threads={other_threads}: TensorFlow has already started"),
        limited_threads(other_threads),
    ):
        pass
    assert dict(os.environ) == environment


def test_linear_algebra_and_the_environment_are_restored(monkeypatch):
    for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        # TensorFlow has started in this process.
        monkeypatch.setattr(tf.config.threading, name, lambda threads: None)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "7")

    def pools():
        return [
            pool["num_threads"]
            for pool in threadpoolctl.threadpool_info()
            if pool["user_api"] == "blas"
        ]

    pools_before = pools()
    environment = dict(os.environ)
    with limited_threads(1):
        assert pools()
        assert set(pools()) == {1}
        assert os.environ["TF_NUM_INTRAOP_THREADS"] == os.environ["TF_NUM_INTEROP_THREADS"] == "1"
    assert pools() == pools_before
    assert dict(os.environ) == environment


@pytest.mark.slow
def test_a_run_has_the_same_bits_with_any_number_of_threads(tmp_path):
    """The runs have noise and two rounds (docs/cluster.md); TFF's worker is limited too."""
    runs = []
    for threads, executions in ((1, ["fast"]), (3, ["fast", "tff"])):
        folder = tmp_path / str(threads)
        command = [sys.executable, "-m", "tests.federated.run_threads", folder, str(threads)]
        command += executions
        finished_process = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=400
        )
        assert finished_process.returncode == 0, finished_process.stderr
        reports = json.loads(finished_process.stdout.splitlines()[-1])
        for report in reports.values():
            assert report["tensorflow"] == [1, threads]
        runs.append(fedmf.Run.load(folder / "fast"))
    assert_same_run(*runs)
    assert "--max_concurrent_computation_calls=3" in reports["tff"]["worker command"]
    limits = {"TF_NUM_INTRAOP_THREADS=3", "TF_NUM_INTEROP_THREADS=3"}
    assert limits <= set(reports["tff"]["worker environment"])


@pytest.mark.slow
def test_threads_trace_their_models_one_at_a_time(sums_of):
    """Each thread traces its model once: TensorFlow warns of many traces."""
    under_way = []
    at_once = []

    @tf.autograph.experimental.do_not_convert
    def loss(labels, outputs, weights):
        under_way.append(labels)
        at_once.append(len(under_way))
        time.sleep(0.2)  # Another thread may begin.
        under_way.pop()
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        return tf.reduce_mean(losses)

    task = small_task(loss=loss)
    cohort = [client_data(task, config(), 0, client) for client in range(12)]
    cohort_sum = sums_of(task, config(), 0, 3)(cohort)
    assert cohort_sum.loss_sum > 0
    assert 1 <= len(at_once) <= 3
    assert set(at_once) == {1}
