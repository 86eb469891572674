"""--threads: what is limited, that nothing stays behind, and that it changes no result."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf.federated.execution.threads import limited_threads

pytestmark = pytest.mark.tensorflow
ROOT = pathlib.Path(__file__).parents[3]


def test_a_limit_after_tensorflow_has_started_is_refused():
    tf.constant(1) + 1  # starts it
    before = dict(os.environ)
    other = tf.config.threading.get_intra_op_parallelism_threads() + 1
    with (
        pytest.raises(ValueError, match=f"threads={other}: TensorFlow has already started"),
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


def run_side_by_side(folder, runs):
    """A process for each (execution, threads); what they print."""
    processes = []
    try:
        for execution, threads in runs:
            command = [
                sys.executable,
                "-m",
                "tests.federated.run_threads",
                str(folder / f"{execution}-{threads}"),
            ]
            processes.append(
                subprocess.Popen(
                    [*command, execution, str(threads)],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        found = []
        for process in processes:
            out, err = process.communicate(timeout=400)
            assert process.returncode == 0, err
            found.append(
                json.loads(next(line for line in out.splitlines() if line.startswith("{")))
            )
        return found
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.slow
def test_clients_of_the_fast_path_give_the_same_bits_with_any_number_of_threads(tmp_path):
    """With noise of six rounds; numpy's longer products round otherwise on other numbers
    of threads (docs/cluster.md).
    """
    runs = [("fast", 1), ("fast", 3)]
    for (_, threads), found in zip(runs, run_side_by_side(tmp_path, runs), strict=True):
        assert found["tensorflow"] == [threads, threads]
        assert found["environment"] == [str(threads)] * 2
        assert found["environment afterwards"] == [None, None]
    one, other = (
        fedmf.Run.load(tmp_path / f"{execution}-{threads}") for execution, threads in runs
    )
    assert (one.path / "metrics.jsonl").read_bytes() == (other.path / "metrics.jsonl").read_bytes()
    with np.load(one.path / "model.npz") as a, np.load(other.path / "model.npz") as b:
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.slow
def test_the_worker_of_the_tff_path_is_limited_too(tmp_path):
    runs = [("tff", 1), ("tff", 3)]
    for (_, threads), found in zip(runs, run_side_by_side(tmp_path, runs), strict=True):
        assert f"--max_concurrent_computation_calls={threads}" in found["worker command"]
        limits = {f"TF_NUM_INTRAOP_THREADS={threads}", f"TF_NUM_INTEROP_THREADS={threads}"}
        assert limits <= set(found["worker environment"])
    with (
        np.load(tmp_path / "tff-1" / "model.npz") as a,
        np.load(tmp_path / "tff-3" / "model.npz") as b,
    ):
        for name in a.files:
            np.testing.assert_allclose(a[name], b[name], atol=1e-5)  # float32, six rounds
