"""EMNIST and CIFAR-10 with synthetic clients: their examples, the words of runs and statements, and
the options of the command line.
"""

import collections
import json

import numpy as np
import pytest

import fedmf
from fedmf import partition
from fedmf.tasks import cifar10, emnist
from fedmf.tasks.cifar10 import Cifar10Options
from fedmf.tasks.emnist import EmnistOptions
from tests.cli.program import fedmf as program
from tests.cli.program import printed_by, refused
from tests.refusals import refusal

TENSORFLOW = pytest.mark.tensorflow
MADE = {"emnist": (emnist.emnist, EmnistOptions), "cifar10": (cifar10.cifar10, Cifar10Options)}
POOLS = {"emnist": "images of 12 writers", "cifar10": "135 training images"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Writes a synthetic substitute of the data of each task."""
    folder = tmp_path_factory.mktemp("substitutes")
    return {
        "emnist": emnist.write_synthetic(
            folder / "e.sqlite", clients=12, examples_per_client=40, progress=False
        ),
        "cifar10": cifar10.write_synthetic(
            folder / "c.tar.gz", examples=150, test_examples=20, progress=False
        ),
    }


@pytest.fixture
def make_task(files):
    """Returns a function that makes a task by its name."""

    def make(name, **options):
        function, kind = MADE[name]
        return function(kind(data=str(files[name]), model="small", **options))

    return make


def all_examples(task):
    """Returns all training examples, in the order of the clients."""
    client_examples = [task.examples_of(client) for client in task.client_ids]
    return tuple(np.concatenate(arrays) for arrays in zip(*client_examples, strict=True))


@TENSORFLOW
@pytest.mark.parametrize("name", MADE)
def test_every_example_has_a_client(make_task, name):
    natural = make_task(name)
    task = make_task(name, partition="dirichlet:0.3", clients=10)
    x, y = all_examples(natural)
    ids = task.client_ids
    assert ids == tuple("0123456789")
    owners = partition.dirichlet(y, 10, 0.3, 0)
    for number, client in enumerate(ids):
        mine = task.examples_of(client)
        np.testing.assert_array_equal(mine[0], x[owners == number])
        np.testing.assert_array_equal(mine[1], y[owners == number])
    assert "synthetic substitute" in natural.synthetic_clients
    assert POOLS[name] in task.synthetic_clients
    article = "the " if name == "emnist" else ""
    expected_text = f"10 synthetic clients by dirichlet:0.3 (seed 0) of {article}"
    assert expected_text in task.description
    for split in ("validation", "test"):
        np.testing.assert_array_equal(task.split(split)[1], natural.split(split)[1])


@TENSORFLOW
def test_another_partition_has_another_data_version(make_task):
    same = {"partition": "dirichlet:0.3", "clients": 10}
    changes = [
        {},
        {"partition": "dirichlet:3"},
        {"clients": 9},
        {"partition_seed": 1},
        {"max_clients": 11},
    ]
    versions = [make_task("emnist", **same | change).data_version for change in changes]
    assert make_task("emnist", **same).data_version == versions[0]
    assert len({make_task("emnist").data_version, *versions}) == 6


@TENSORFLOW
def test_partitioned_clients_respect_limits_and_batch_sizes(make_task):
    task = make_task("emnist", partition="quantity:1", clients=3, max_examples=5)
    assert {len(task.examples_of(client)[1]) for client in task.client_ids} == {5}
    limited_task = make_task(
        "cifar10", partition="shards:2", clients=10, max_clients=30, batch_size=8
    )
    assert (limited_task.batch_size, len(all_examples(limited_task)[1])) == (8, 30)
    assert make_task("cifar10").batch_size == 1
    with refusal("clients=500 must be in 1..135"):
        make_task("cifar10", partition="dirichlet:1", clients=500)


RUN = (
    "--family identity --rounds 2 --cohort-size 4 --min-sep 1 --noise-multiplier 1 --noise-seed 1 "
    "--evaluate-every 2 --server-learning-rate 0.01 --quiet -o model=small"
)


@TENSORFLOW
@pytest.mark.slow
def test_a_run_states_its_synthetic_clients_and_refuses_a_resume_with_others(files, tmp_path):
    line = f"train --task emnist --data {files['emnist']} --out {tmp_path}/run"
    program(f"{line} {RUN} --partition dirichlet:0.3 -o clients=10")
    run = fedmf.Run.load(tmp_path / "run")
    options = run.config.task_options
    assert (options["partition"], options["clients"]) == ("dirichlet:0.3", 10)
    assert run.plan["task"]["clients"] == 10
    resume = f"train --resume --quiet --out {tmp_path}/run"
    for other_options in ("--partition shards:2", "-o clients=11", "--partition-seed 1"):
        refused(f"{resume} {other_options}", "cannot resume", "with another config", "task_option.")
    for statement in ("statement.md", "final_statement.md"):
        text = " ".join((tmp_path / "run" / statement).read_text().split())
        assert "10 synthetic clients by dirichlet:0.3 (seed 0) of" in text
        assert "No guarantee for a person follows" in text
        assert "user-level" not in text
    values = json.loads((tmp_path / "run" / "final_statement.json").read_text())
    assert values["synthetic_clients"] == run.plan["task"]["synthetic_clients"]


@TENSORFLOW
def test_data_picture_draws_the_clients_of_a_partition(files, tmp_path):
    line = f"data picture --task emnist --data {files['emnist']} --quiet --out {tmp_path}/who.png"
    assert printed_by(f"{line} --partition shards:2 --clients 30")["clients"] == 30
    assert (tmp_path / "who.png").read_bytes()[:4] == b"\x89PNG"


def test_a_sweep_varies_the_partition(tmp_path):
    runs = printed_by(
        f"sweep --task cifar10 --clients 5 --vary partition=dirichlet:0.3,shards:2 --dry-run "
        f"--out {tmp_path}/sweep --rounds 2 --cohort-size 2 --min-sep 1 --epsilon 8 --noise-seed 1"
    )
    assert collections.Counter(runs.values()) == {"not begun": 2}
    assert all("partition" in name for name in runs)
