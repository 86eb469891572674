"""The page "fedmf in Flower" runs as printed: simulated, killed and resumed, and with real
processes of Flower on the loopback address. Its table is the example's.
"""

import itertools
import os
import pathlib
import re
import signal
import socket
import sys
import tempfile

import numpy as np
import pytest

import fedmf
from tests.flower import pages
from tests.flower.made_up import Grid
from tests.flower.processes import Programs
from tests.server.test_crashes import in_a_child

ROOT = pathlib.Path(__file__).parents[2]
BIN = pathlib.Path(sys.executable).parent
# Seconds that a busy machine has for a round, and for the start of Ray.
SECONDS = 400


@pytest.fixture
def running_programs(tmp_path):
    # Ray connects to the cluster that its folder names: other tests may start one at this time.
    # The folder's name is short, since Ray puts sockets in it.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as ray:
        environment = os.environ | {
            "FLWR_HOME": str(tmp_path / "flower"),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "RAY_TMPDIR": ray,
        }
        started_programs = Programs(tmp_path, environment)
        yield started_programs
        started_programs.end()


def on_made_up_grid(text, nodes, dies_in=None):
    """Runs the app on a synthetic grid, which it returns; the process is killed when that round
    begins.
    """
    app = pages.module(text)

    def behave(message):
        if len(grid.asked) == dies_in:
            os.kill(os.getpid(), signal.SIGKILL)
        config = {"partition-id": message.metadata.dst_node_id}
        return [app["train"](message, type("Context", (), {"node_config": config}))]

    grid = Grid(range(nodes), dict.fromkeys(range(nodes), behave), partition_of=lambda node: node)
    app["main"](grid, None)
    return grid


def check_run(folder, text, nodes, monkeypatch, *, rounds, apart):
    """Checks each client's separation, and that the last release is that of an uninterrupted run on
    a synthetic grid: the same noise, the same models, the same momentum.
    """
    with fedmf.Server.open(folder) as server:
        cohorts = [server.ledger.cohort(t).tolist() for t in range(server.round)]
        [last_array] = server.last_release
        assert server.audit().epsilon <= server.plan.epsilon * (1 + 1e-9)
    assert len(cohorts) == rounds
    for client in range(nodes):
        client_rounds = [t for t, cohort in enumerate(cohorts) if client in cohort]
        assert all(next_round - t >= apart for t, next_round in itertools.pairwise(client_rounds))
    whole_folder = folder.parent / "whole"
    whole_folder.mkdir()
    monkeypatch.chdir(whole_folder)
    grid = on_made_up_grid(text, nodes)
    assert grid.asked == [sorted(cohort) for cohort in cohorts]
    path = pathlib.Path(re.search(r'folder="(.*)"', text)[1])
    assert path.resolve() != folder.resolve()
    with fedmf.Server.open(path) as server:
        # Replies come in any order, of which the last bits of a sum depend.
        np.testing.assert_allclose(last_array, server.last_release[0], rtol=1e-5, atol=1e-6)


def test_simulation_resumes_a_killed_run(tmp_path, running_programs, monkeypatch):
    text = pages.app()
    (tmp_path / "app.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert in_a_child(lambda pipe: on_made_up_grid(text, 20, dies_in=4)) is None
    running_programs.start("app", sys.executable, "app.py")
    running_programs.wait_for("app", lambda log: "# Privacy statement" in log, SECONDS)
    assert "resumes with round 4" in running_programs.log("app")
    assert "round 3 of 8 goes to" not in running_programs.log("app")
    check_run(tmp_path / "server", text, 20, monkeypatch, rounds=8, apart=4)


def free_ports(number):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [port_socket.getsockname()[1] for port_socket in sockets]
    for port_socket in sockets:
        port_socket.close()
    return ports


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_page_runs_in_real_processes_on_loopback(tmp_path, running_programs, monkeypatch):
    # The numbers are small, because Flower starts a process for every message to a client.
    nodes = 2
    sizes = {"rounds": 2, "min_sep": 2, "clients_per_round": 1, "population": 2}
    text = pages.app(folder=f'"{tmp_path}/server"', **sizes).replace(
        "prefix_sum(8)", "prefix_sum(2)"
    )
    project, config = pages.snippets("toml")
    link, *ports = free_ports(1 + nodes)
    for name, content in {
        "flower/config.toml": config.replace("8000", str(link)),
        "project/pyproject.toml": project,
        "project/app.py": text,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    commands = pages.snippets("sh")[0].replace("\\\n", " ").replace("8000", str(link))
    superlink, supernode, run = (line.split() for line in commands.splitlines())
    running_programs.start("superlink", *superlink)
    running_programs.wait_for("superlink", lambda log: answers(link), SECONDS)
    for i, port in enumerate(ports):
        replacements = {"9100": str(port), "partition-id=0": f"partition-id={i}"}
        running_programs.start(
            f"supernode{i}", *(replacements.get(word, word) for word in supernode)
        )
    running_programs.start(
        "run", *(word.replace(".", "project") if word == "." else word for word in run)
    )
    running_programs.wait_for("run", lambda log: "# Privacy statement" in log, SECONDS)
    (tmp_path / "server").rename(tmp_path / "done")
    check_run(tmp_path / "done", text, nodes, monkeypatch, rounds=2, apart=2)


def test_page_has_no_other_snippets():
    assert [len(pages.snippets(language)) for language in ("python", "toml", "sh")] == [4, 2, 1]
    assert len(re.findall("^```", pages.PAGE, re.M)) == 2 * 7
