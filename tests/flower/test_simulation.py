"""Twenty simulated nodes, killed in the middle and gone on with; then real processes of Flower."""

import itertools
import os
import pathlib
import socket
import sys

import numpy as np
import pytest

import fedmf
from tests.flower import app
from tests.flower.made_up import Grid, record
from tests.flower.processes import Programs

ROOT = pathlib.Path(__file__).parents[2]
BIN = pathlib.Path(sys.executable).parent


@pytest.fixture
def programs(tmp_path):
    environment = os.environ | {
        "FLWR_HOME": str(tmp_path / "flower"),
        "FEDMF_FOLDER": str(tmp_path / "server"),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_TMPDIR": str(tmp_path) if len(str(tmp_path)) < 40 else "/tmp",
        "NO_COLOR": "1",
    }
    started = Programs(tmp_path, environment)
    yield started
    started.end()


def check_run(folder, population):
    """The end of an uninterrupted run with the same noise, and the ledger's distances."""
    with fedmf.Server.open(folder) as server:
        cohorts = [server.ledger.cohort(t).tolist() for t in range(server.round)]
        assert server.audit().epsilon <= server.plan.epsilon * (1 + 1e-9)
    assert len(cohorts) == app.ROUNDS
    for client in range(population):
        came = [t for t, cohort in enumerate(cohorts) if client in cohort]
        assert all(later - t >= app.APART for t, later in itertools.pairwise(came))
    nodes = list(range(population))

    def behave(message):
        return [app.train(message, type("Context", (), {"node_config": config_of(message)}))]

    def config_of(message):
        return {"partition-id": message.metadata.dst_node_id}

    grid = Grid(nodes, dict.fromkeys(nodes, behave), partition_of=lambda node: node)
    whole = app.strategy_for(None, population).start(
        grid, record({"weights": np.zeros(app.SIZE, np.float32)})
    )
    assert grid.asked == [sorted(cohort) for cohort in cohorts]
    # Replies come in another order, and sums of float64 depend on that in their last bits.
    np.testing.assert_allclose(
        np.load(folder / "final.npy"), whole.arrays["weights"].numpy(), rtol=1e-5, atol=1e-6
    )


def test_a_simulation_that_is_killed_goes_on(tmp_path, programs):
    command = (sys.executable, "-m", "tests.flower.app", str(tmp_path / "server"))
    programs.start("first", *command)
    programs.wait_for("first", lambda log: "round 3 of 4 goes to" in log, 300)
    programs.kill("first")
    assert not (tmp_path / "server" / "final.npy").exists()
    programs.start("second", *command)
    programs.wait_for("second", lambda log: "statement: # Privacy statement" in log, 300)
    assert "goes on with round 3" in programs.log("second")
    assert "round 2 of 4 goes to" not in programs.log("second")
    check_run(tmp_path / "server", app.NODES)


PROJECT = """
[project]
name = "fedmf-test"
version = "1.0.0"
description = "a test"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedmf"
[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"
"""


def free_ports(number):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_real_processes_on_the_loopback_address(tmp_path, programs):
    nodes = 4
    link, *ports = free_ports(1 + nodes)
    programs.set(FEDMF_NODES=str(nodes))
    (tmp_path / "flower").mkdir()
    (tmp_path / "flower" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{link}"\n'
        "insecure = true\n"
    )
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "project" / "app.py").write_text((ROOT / "tests/flower/app.py").read_text())
    programs.start(
        "superlink",
        *(BIN / "flower-superlink", "--insecure", "--port", str(link)),
        "--disable-runtime-dependency-installation",
    )
    programs.wait_for("superlink", lambda log: answers(link), 120)
    for i, port in enumerate(ports):
        programs.start(
            f"supernode{i}",
            *(BIN / "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}"),
            *("--port", str(port), "--node-config", f"partition-id={i}"),
        )
    programs.start("run", BIN / "flwr", "run", "project", "here", "--stream")
    programs.wait_for("run", lambda log: "statement: # Privacy statement" in log, 300)
    check_run(tmp_path / "server", nodes)
