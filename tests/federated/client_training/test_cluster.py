"""Training on a Ray cluster is bitwise identical, survives lost workers and leaks no secret.

Where a run cannot continue it fails with one sentence.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from fedmf import federated
from fedmf.server.source import noise_key
from fedmf.terminal import interrupts
from fedmf.training.execution import cluster, groups
from fedmf.training.learner import Machine
from tests.federated import small_runs
from tests.federated.run_small import GROUPS_OF_TWO, SEED, config
from tests.federated.small_runs import assert_same_run, small_task, start_of
from tests.refusals import refusal

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


@pytest.fixture(autouse=True)
def _groups_of_two(monkeypatch):
    """Divides a round into three groups, because the small model would have a single one."""
    for name, value in GROUPS_OF_TWO.items():
        monkeypatch.setattr(groups, name, value)


@pytest.fixture(scope="module")
def machines():
    """Starts a cluster of a head without workers and one other machine, and connects this
    process.
    """
    ray_cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    # The process connects before there is a machine that may be lost, since it would end with that
    # machine.
    cluster._connect(ray, ray_cluster.address, None)
    ray_cluster.add_node(num_cpus=1)
    ray_cluster.wait_for_nodes()
    yield ray_cluster
    ray.shutdown()
    ray_cluster.shutdown()


@pytest.fixture
def cluster_without_workers(machines):
    """Removes the only machine of the cluster; the last tests of this file use it."""
    for node in list(machines.worker_nodes):
        machines.remove_node(node, allow_graceful=False)
    while ray.cluster_resources().get("CPU"):  # The head needs some time to notice.
        time.sleep(0.1)
    return machines


def train(folder, settings=None, task=None, **options):
    options = {"noise_seed": SEED, "cluster": "auto"} | options
    return small_runs.train(folder, settings or config(cohort_size=6), task, **options)


def resume_locally(folder, settings=None):
    """Resumes a run in another process, without a cluster."""
    return train(folder, settings, noise_seed=None, resume=True, cluster=None)


@pytest.fixture(scope="module")
def local_run(tmp_path_factory):
    """Trains the run without a cluster, in the same groups."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in GROUPS_OF_TWO.items():
            patch.setattr(groups, name, value)
        return train(tmp_path_factory.mktemp("alone") / "run", cluster=None)


def assert_same_files(run, other_run):
    for name in ("metrics.jsonl", "participation.csv"):
        assert (run.path / name).read_bytes() == (other_run.path / name).read_bytes()


def busy_workers():
    """Returns the process ids of Ray's workers that execute a task of this run."""
    process_ids = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"fedmf_call" in path.read_bytes():
                process_ids.append(int(path.parent.name))
    return process_ids


def test_scales_and_a_clip_norm_that_adapts_travel_to_the_workers(machines, tmp_path):
    scaled = {"server_optimizer": "scaled-adam", "server_learning_rate": 0.1}
    settings = config(cohort_size=6, clip_quantile=0.5, clip_every=2, **scaled)
    runs = [
        train(tmp_path / str(cluster_address), settings, cluster=cluster_address)
        for cluster_address in ("auto", None)
    ]
    assert_same_run(*runs)
    assert len(set(runs[0].table()["clip_norm"])) == 3
    assert max(runs[0].table()["scale_drift"]) > 0


def test_a_round_has_three_groups():
    """With a single group, equal bits would not show the order in which groups are added."""
    task = small_task()
    size = groups.group_size(6, task.batch_size, sum(map(np.size, start_of(task))))
    assert [*groups.in_groups("abcdef", size)] == ["ab", "cd", "ef"]


def test_workers_that_die_at_work_change_no_bit(machines, local_run, tmp_path):
    killed = set()
    over = threading.Event()

    def kill():
        while not over.wait(0.02):
            new_workers = [pid for pid in busy_workers() if pid not in killed]
            if new_workers and len(killed) < 3:
                os.kill(new_workers[0], signal.SIGKILL)
                killed.add(new_workers[0])

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        run = train(tmp_path / "run")
    finally:
        over.set()
        thread.join()
    assert killed
    assert_same_run(run, local_run)


def test_a_machine_leaves_and_another_joins(machines, local_run, tmp_path):
    nodes = [machines.add_node(num_cpus=1)]
    machines.wait_for_nodes()

    def change(t):
        if t == 1:
            machines.remove_node(nodes.pop(), allow_graceful=False)
        if t == 3:
            nodes.append(machines.add_node(num_cpus=1))

    assert_same_run(train(tmp_path / "run", on_round=change), local_run)
    machines.remove_node(nodes.pop(), allow_graceful=False)


def test_ctrl_c_ends_a_round_under_way(machines, local_run, tmp_path):
    old_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    pressed = []

    def press(t):
        if t == 2:

            def send():
                while not busy_workers():
                    time.sleep(0.01)
                pressed.append(time.monotonic())
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

            threading.Thread(target=send).start()

    try:
        with pytest.raises(federated.InterruptedRun, match=r"interrupted after \d of 6 rounds"):
            train(tmp_path / "run", on_round=press)
        assert time.monotonic() - pressed[0] < 5
    finally:
        signal.signal(signal.SIGINT, old_handler)
    assert_same_run(resume_locally(tmp_path / "run"), local_run)


def test_nothing_secret_is_serialised(machines, tmp_path, monkeypatch):
    key = noise_key(SEED)
    sent_bytes = []
    secrets = [
        key.tobytes(),
        *(pickle.dumps(int(word), 5)[-9:-1] for word in key),
        pickle.dumps(SEED, 5)[-10:-1],
    ]
    secrets += [str(SEED).encode(), hex(SEED)[2:].encode()]
    context = type(ray._private.worker.global_worker.get_serialization_context())
    serialize = context.serialize

    def record(self, value):
        sent_bytes.append(ray.cloudpickle.dumps(value))
        return serialize(self, value)

    monkeypatch.setattr(context, "serialize", record)
    train(tmp_path / "run")
    assert len(sent_bytes) > 6
    assert not [secret for secret in secrets for blob in sent_bytes if secret in blob]
    for leak in ({"seed": SEED}, {"key": key}):  # This is the negative control.
        assert any(secret in ray.cloudpickle.dumps(leak) for secret in secrets)


@pytest.mark.parametrize("seed", ["--noise-seed 71", "--noise-seed=71", "noise_seed=71"])
def test_a_noise_seed_on_the_command_line_is_refused(seed, tmp_path, monkeypatch):
    """Ray sends the driver's command line to the cluster."""
    monkeypatch.setattr(sys, "orig_argv", ["fedmf", "train", *seed.split()])
    with refusal("the command line holds the noise seed"):
        train(tmp_path / "run", cluster="local")
    assert not (tmp_path / "run").exists()


def test_other_versions_are_refused_by_name(machines, tmp_path, monkeypatch):
    expected = cluster.required_versions() | {"fedmf": "9.9", "tensorflow": "1.0"}
    monkeypatch.setattr(cluster, "required_versions", lambda frameworks: expected)
    with pytest.raises(RuntimeError, match=r"worker .* has fedmf .* and not 9\.9, tensorflow"):
        train(tmp_path / "run")


def test_a_call_that_is_over_is_not_cancelled(machines, monkeypatch):
    """Ray aborted the process in one of thirty cancellations while a result was read."""
    connection = cluster.Cluster(ray, "auto")
    cancelled = []
    cancel = ray.cancel
    monkeypatch.setattr(
        ray, "cancel", lambda call, force: cancelled.append(call) or cancel(call, force=force)
    )
    started_calls = []

    def begin(*arguments):
        function_name = "math:sqrt" if not started_calls else "time:sleep"
        started_calls.append(connection.function(function_name)(*arguments))
        return started_calls[-1]

    with pytest.raises(ValueError, match="math domain error"):
        [*connection.in_order(begin, [(-1.0,), (1.0,)])]
    assert started_calls[0] not in cancelled


def test_workers_read_the_data_themselves(machines, local_run, tmp_path, monkeypatch):
    read_clients = []
    task = small_task()
    reading_task = dataclasses.replace(
        task, client_examples=lambda name: read_clients.append(name) or task.client_examples(name)
    )
    assert_same_run(
        train(
            tmp_path / "run", task=reading_task, worker_task=small_task, on_start=read_clients.clear
        ),
        local_run,
    )
    assert not read_clients
    other_data_task = functools.partial(dataclasses.replace, task, data_version="another")
    with refusal("has other data than the run"):
        train(tmp_path / "other", worker_task=other_data_task)


def test_a_group_larger_than_memory_is_refused(machines, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster.Cluster, "least_memory", lambda self: ("10.0.0.9", 1000.0))
    with refusal(r"machine 10\.0\.0\.9 has 1e-06 for each processor"):
        train(tmp_path / "run")


def test_a_task_that_cannot_be_sent_is_refused(machines, tmp_path):
    lock = threading.Lock()
    task = dataclasses.replace(
        small_task(), build_model=lambda seed: lock and small_task().build_model(seed)
    )
    with refusal("task 'small' cannot be sent to workers", TypeError):
        train(tmp_path / "run", task=task)


def test_a_killed_driver_leaves_no_process_and_its_run_resumes(local_run, tmp_path):
    command = [sys.executable, "-m", "tests.federated.run_small", tmp_path / "run", "cluster", "3"]
    finished_process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished_process.returncode == -signal.SIGKILL, finished_process.stderr
    pids = finished_process.stdout.split("workers ")[1].split()
    assert len(pids) >= 3
    deadline = time.monotonic() + 30
    programs = [pathlib.Path(f"/proc/{pid}/exe") for pid in pids]
    while any(program.exists() for program in programs) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(program.exists() for program in programs)
    assert_same_run(resume_locally(tmp_path / "run"), local_run)


def test_setups_hold_no_examples():
    secret = np.full(1000, 0x5EC12E75EC12E7, np.int64)  # in the closures of the task's functions

    def examples(name):
        return np.resize(secret, (3, 5)).astype(np.int32), np.zeros((3, 5), np.int32)

    task = small_task(client_examples=examples, evaluation_examples=examples)
    assert secret[:2].tobytes() in ray.cloudpickle.dumps(task)  # This is the negative control.
    settings = task.client_settings(config())
    sent_bytes = ray.cloudpickle.dumps((task.learner.on_workers(), settings))
    assert secret[:2].tobytes() not in sent_bytes
    learner, settings = pickle.loads(sent_bytes)
    assert settings.spec == task.spec
    assert learner.client_work(settings, Machine(threads=1)) is not None


def test_connecting_to_ray_keeps_the_interrupt_handler(machines):
    with interrupts.handled(signal.SIGTERM):
        handler = signal.getsignal(signal.SIGTERM)
        with cluster.connected("auto", None):
            assert signal.getsignal(signal.SIGTERM) is handler


def test_without_workers_it_waits_stops_and_resumes_elsewhere(
    machines, local_run, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(cluster, "WAIT_SECONDS", 3.0)
    # The rounds were saved although the workers were lost.
    settings = config(cohort_size=6)

    def leave(t):
        if t == 2:
            for node in list(machines.worker_nodes):
                machines.remove_node(node, allow_graceful=False)

    with pytest.raises(federated.WorkersLost, match="3 of 6 rounds are saved"):
        train(tmp_path / "run", settings, on_round=leave)
    assert "waiting 3 s for one" in capfd.readouterr().err
    assert_same_run(resume_locally(tmp_path / "run", settings), local_run)


def test_a_cluster_without_processors_is_refused(cluster_without_workers, tmp_path):
    with pytest.raises(federated.WorkersLost, match="has no processors"):
        train(tmp_path / "run")
    assert not any((tmp_path / "run").iterdir())


def test_files_of_ray_are_readable_by_their_owner_alone(monkeypatch):
    masks = []

    def init(**options):
        masks.append(os.umask(0o077))  # The folder already has this mode.
        raise ConnectionError("enough")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    old_umask = os.umask(0o022)
    try:
        with pytest.raises(federated.WorkersLost), cluster.connected("local", 1):
            pass
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(old_umask)
    assert masks == [0o077]
