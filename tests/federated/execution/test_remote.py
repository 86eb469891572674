"""Training on TFF's remote workers: the same model, whoever is lost; one sentence where it cannot go on."""

import contextlib
import json
import signal
import socket
import subprocess
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedmf
from fedmf import federated
from fedmf.cli import main
from fedmf.federated.execution import remote_workers
from fedmf.federated.execution.remote_workers import WorkersLost
from tests.federated.run_small import config
from tests.federated.small_task import small_task
from tests.federated.tff_workers import COMMAND, LocalWorker, free_port, local_workers, start
from tests.federated.training.test_loop import weights_of

pytestmark = pytest.mark.tensorflow
SECONDS_STOPPED = 1.0


def train(folder, workers, settings=None, **arguments):
    arguments = {"noise_seed": 9, "progress": False} | arguments
    addresses = [worker.address for worker in workers] or None
    settings = settings or config("tff-remote" if workers else "tff")
    return federated.train(small_task(), settings, folder=folder, workers=addresses, **arguments)


def assert_same_bits(one, other):
    for name in ("metrics.jsonl", "participation.csv"):
        assert (one.path / name).read_bytes() == (other.path / name).read_bytes()
    for a, b in zip(weights_of(one), weights_of(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Two workers, one of them started by `fedmf worker`; nobody is lost."""
    with local_workers(by_command=(True, False)) as workers:
        yield train(tmp_path_factory.mktemp("remote") / "run", workers)


@contextlib.contextmanager
def killed_in_mid_round(worker: LocalWorker):
    """Stops the worker, so that its calls stay unanswered, and kills it once some are under way."""
    worker.signal(signal.SIGSTOP)
    timer = threading.Timer(SECONDS_STOPPED, worker.signal, [signal.SIGKILL])
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


def test_two_workers_train_the_model_of_the_local_process(undisturbed, tmp_path):
    local = train(tmp_path / "local", [])
    assert (undisturbed.path / "participation.csv").read_bytes() == (local.path / "participation.csv").read_bytes()
    start = [v.numpy() for v in small_task().build_model(3).trainable_variables]
    for remote, here, before in zip(weights_of(undisturbed), weights_of(local), start, strict=True):
        assert np.abs(here - before).max() > 0.05
        np.testing.assert_allclose(
            remote, here, atol=2e-6
        )  # float32, six rounds: the updates are added in another order
    for one, other in zip(undisturbed.metrics, local.metrics, strict=True):
        for name in ("examples", "clients", "zeroed", "noise_stddev"):
            assert one[name] == other[name]
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)


def test_a_round_goes_on_without_a_worker_killed_in_it(undisturbed, tmp_path, capfd):
    with local_workers() as workers, contextlib.ExitStack() as stack:

        def lose_one(t):
            if t == 2:
                stack.enter_context(killed_in_mid_round(workers[0]))

        run = train(tmp_path / "run", workers, on_round=lose_one)
        assert workers[0].process.poll() == -signal.SIGKILL
        assert workers[1].process.poll() is None, "remote workers are not ours to kill"
    assert_same_bits(run, undisturbed)
    assert f"worker {workers[0].address} is lost" in capfd.readouterr().err


@pytest.mark.slow
def test_without_workers_it_stops_with_one_sentence_and_resumes_to_the_same_run(undisturbed, tmp_path):
    settings = config("tff-remote", checkpoint_every=6)  # what is saved is saved because the workers were lost
    with local_workers() as workers, contextlib.ExitStack() as stack:

        def lose_all(t):
            if t == 2:
                for worker in workers:
                    stack.enter_context(killed_in_mid_round(worker))

        with pytest.raises(WorkersLost) as lost:
            train(tmp_path / "run", workers, settings, on_round=lose_all)
    sentence = str(lost.value)
    assert all(worker.address in sentence for worker in workers)
    assert "--resume" in sentence
    assert f"3 of 6 rounds are saved in {tmp_path / 'run'}" in sentence
    assert "\n" not in sentence
    with local_workers() as others:
        run = train(tmp_path / "run", others, settings, noise_seed=None, resume=True)
    assert_same_bits(run, undisturbed)


@pytest.mark.slow
def test_a_worker_that_is_started_again_is_used_again(undisturbed, tmp_path, capfd):
    with local_workers() as workers:

        def start_again(t):
            if t == 2:
                workers[0].kill()
                workers[0] = start(workers[0].port)
            if t == 3:
                workers[1].kill()

        run = train(tmp_path / "run", list(workers), on_round=start_again)
        assert workers[0].process.poll() is None
    assert_same_bits(run, undisturbed)
    said = capfd.readouterr().err
    assert f"worker {workers[0].address} is back" in said
    assert f"worker {workers[1].address} is lost" in said


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_workers_that_do_not_answer(tmp_path):
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    with local_workers() as workers:

        def stop_all(t):
            if t == 2:
                for worker in workers:
                    worker.signal(signal.SIGSTOP)
                main_thread = threading.main_thread().ident
                threading.Timer(SECONDS_STOPPED, signal.pthread_kill, [main_thread, signal.SIGINT]).start()

        try:
            with pytest.raises(federated.InterruptedRun, match="interrupted after 3 of 6 rounds"):
                train(tmp_path / "run", workers, on_round=stop_all)
        finally:
            signal.signal(signal.SIGINT, old)


def test_a_machine_that_falls_silent_is_lost(monkeypatch):
    monkeypatch.setattr(remote_workers, "_PING_SECONDS", 0.2)
    with (
        local_workers(by_command=(False,)) as [worker],
        remote_workers.connected("tff-remote", [worker.address], None) as workers,
    ):
        worker.signal(signal.SIGSTOP)
        # The kernel of this machine still takes connections for the stopped process; that of a lost machine does not.
        monkeypatch.setattr(remote_workers, "listens", lambda address, seconds: False)
        with pytest.raises(WorkersLost, match="its machine does not answer any more"):
            workers.run(tff.tensorflow.computation(lambda: 1))


def test_errors_of_the_computation_are_not_a_lost_worker():
    @tff.tensorflow.computation
    def wrong():
        with tf.control_dependencies([tf.debugging.Assert(False, ["the assertion of the test"])]):
            return tf.constant(1)

    right = tff.tensorflow.computation(lambda: 1)
    with (
        local_workers(by_command=(False,)) as [worker],
        remote_workers.connected("tff-remote", [worker.address], None) as workers,
    ):
        with pytest.raises(Exception, match="the assertion of the test"):
            workers.run(wrong)
        assert workers.run(right) == 1


def test_no_worker_at_the_address_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_workers, "CONNECT_SECONDS", 1.0)
    with socket.socket() as silent, local_workers(by_command=(False,)) as [worker]:
        silent.bind(("localhost", 0))
        silent.listen()  # takes connections and never answers
        nobody, mute = f"localhost:{free_port()}", f"localhost:{silent.getsockname()[1]}"
        with pytest.raises(WorkersLost) as lost:
            federated.train(
                small_task(),
                config("tff-remote"),
                folder=tmp_path / "run",
                noise_seed=9,
                workers=[worker.address, nobody, mute],
            )
    assert nobody in str(lost.value)
    assert mute in str(lost.value)
    assert worker.address not in str(lost.value)
    assert not (tmp_path / "run").exists()


def test_bad_arguments_of_worker_have_status_2(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["worker", "--port", "0"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_the_command_line_trains_on_workers_with_a_limit_on_threads(tmp_path):
    corpus = tmp_path / "corpus.sqlite"
    subprocess.run([*COMMAND, "data", "synth", "--clients", "40", "--out", str(corpus), "--quiet"], check=True)
    small = "--rounds 3 --cohort-size 3 --min-sep 3 --noise-multiplier 1 --family identity -o vocabulary-size=50 -o embedding-size=4"
    rest = "-o lstm-size=6 -o max-sentences=8 -o validation-sentences=20 -o test-sentences=20 --noise-seed 1 --threads 1 --json --quiet"
    with local_workers() as workers:
        options = ["--execution", "tff-remote", "--workers", ",".join(worker.address for worker in workers)]
        command = [*COMMAND, "train", "--data", str(corpus), "--out", str(tmp_path / "run"), *f"{small} {rest}".split()]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["folder"] == str(tmp_path / "run")
    assert len(fedmf.Run.load(tmp_path / "run").metrics) == 3


def test_a_port_in_use_is_one_sentence():
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [*COMMAND, "worker", "--port", port], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert f"port {port} is not free" in done.stderr
