"""Sweeps on a Ray cluster: results equal those of processes, and runs of a lost machine resume."""

import concurrent.futures
import time

import pytest
import ray
from ray.cluster_utils import Cluster

import fedmf
from fedmf.sweeps import job
from fedmf.sweeps import run as sweep
from fedmf.sweeps.grid import sweep_configs
from fedmf.sweeps.run import SweepOptions
from tests.cli.program import printed_by
from tests.federated.client_training.test_cluster import assert_same_files
from tests.refusals import refusal
from tests.sweeps.programs import Here

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.cluster]
FIXED = {
    "task": "regression", "task_option.clients": 60, "cohort_size": 4, "min_sep": 5,
    "evaluate_every": 10, "epsilon": 4.0, "family": "banded", "warmup": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def machines():
    ray_cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    ray.init(address=ray_cluster.address, log_to_driver=False, logging_level="ERROR")
    yield ray_cluster
    ray.shutdown()
    ray_cluster.shutdown()


def num_rounds(out, name):
    metrics_path = sweep.run_folder(out, name) / "metrics.jsonl"
    return metrics_path.read_bytes().count(b"\n") if metrics_path.exists() else 0


def test_the_runs_of_a_lost_machine_resume_elsewhere(machines, tmp_path, monkeypatch):
    configs = sweep_configs(FIXED | {"rounds": 200}, {"seed": [0, 1]})
    node = machines.add_node(num_cpus=1)  # One run starts here, while the other waits.
    machines.wait_for_nodes()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        training = pool.submit(
            sweep.train_all,
            tmp_path / "on",
            configs,
            SweepOptions(noise_seed=5, jobs=2, cluster="auto"),
        )
        num_done = 0
        while num_done < 12 and not training.done():
            time.sleep(0.02)
            num_done = max(num_rounds(tmp_path / "on", name) for name in configs)
        machines.remove_node(node, allow_graceful=False)
        machines.add_node(num_cpus=2)
        assert training.result() == {}
    assert 12 <= num_done < 200, "the first run was over before its machine was lost"
    monkeypatch.setattr(job, "Job", Here)
    assert sweep.train_all(tmp_path / "here", configs, SweepOptions(noise_seed=5)) == {}
    for name in configs:
        assert_same_files(
            *(
                fedmf.Run.load(sweep.run_folder(tmp_path / folder_name, name))
                for folder_name in ("on", "here")
            )
        )


@pytest.fixture
def two_processors(machines):
    """Adds a machine with two processors, unless the first test left one."""
    if not machines.worker_nodes:
        machines.add_node(num_cpus=2)
        machines.wait_for_nodes()


@pytest.mark.usefixtures("two_processors")
def test_more_processors_than_a_machine_has_are_refused(tmp_path):
    configs = sweep_configs(FIXED | {"rounds": 10}, {"seed": [0]})
    with refusal("cpus_per_job=3: the largest machine of cluster auto has 2 processors"):
        sweep.train_all(
            tmp_path, configs, SweepOptions(noise_seed="os", cluster="auto", cpus_per_job=3)
        )


@pytest.mark.usefixtures("two_processors")
def test_halving_on_a_cluster_stops_a_diverging_run(tmp_path):
    out_path = tmp_path / "sweep"
    options = " ".join(
        f"--{name.replace('_', '-')} {value}"
        for name, value in FIXED.items()
        if name not in ("task_option.clients", "epsilon")
    )
    rates = (
        "--vary server-learning-rate=0.2,1000000 --rounds 20 --epsilon 40 --noise-seed os --halving"
    )
    command_options = f"--out {out_path} -o clients=60 --cluster auto --jobs 2 --quiet"
    answer = printed_by(f"sweep {command_options} {options} {rates}")
    rounds_by_run = {
        path.name: num_rounds(out_path, path.name) for path in (out_path / "runs").iterdir()
    }
    assert rounds_by_run == {"server_learning_rate=0.2": 20, "server_learning_rate=1000000": 10}
    assert "The 2 private runs together" in answer["together"]
    assert "Halving went by validations, which the guarantee does not cover" in answer["together"]
    # Validations decided on its end: its guarantee is that of all rounds.
    stopped_audit = fedmf.audit_run(out_path / "runs" / "server_learning_rate=1000000")
    assert stopped_audit.epsilon == stopped_audit.planned.epsilon
    assert "the run was stopped before them because of its results" in stopped_audit.unrecorded
