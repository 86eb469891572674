"""Noise strategies: their choice, refusals, and the memory that they take."""

import collections

import numpy as np
import pytest

from fedmf.mechanisms import DenseMechanism, IdentityMechanism, TreeMechanism
from fedmf.noise.graph_strategies import (
    MAX_STATE_BYTES,
    choose_graph_strategy,
    graph_strategy,
)
from fedmf.noise.host_strategies import choose_host_strategy, host_strategies
from fedmf.noise.storage import default_disk, default_memory
from tests.privacy import plans
from tests.refusals import refusal

LARGE = 4_050_748
MEMORY = 1_500_000_000


@pytest.fixture(autouse=True)
def set_free_disk(monkeypatch):
    """Sets the free space on the disk, by default 150 GB."""
    usage = collections.namedtuple("usage", "total used free")

    def set_free(gigabytes):
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage(0, 0, int(gigabytes * 1e9)))

    set_free(150)
    return set_free


def banded(rounds, bands):
    return plans.banded(rounds, 1.0, *[0.1] * (bands - 1)).stream()


def dense(rounds):
    matrix = np.tril(np.random.default_rng(1).uniform(0, 1, (rounds, rounds))) + 3 * np.eye(rounds)
    return DenseMechanism(matrix=matrix, certificate_reason="made for a test").stream()


@pytest.mark.parametrize(
    ("stream", "name", "uses_disk", "max_cost"),
    [
        (lambda: IdentityMechanism(rounds=2052).stream(), "recurrent", False, 2),
        (lambda: banded(2052, 342), "recurrent", True, 12),
        (lambda: dense(1600), "regenerated", True, 10),
        (lambda: TreeMechanism(rounds=400, decoder="full").stream(), "recurrent", False, 3),
        (lambda: banded(100_000, 32), "recurrent", False, 5),
    ],
)
def test_the_best_strategy_of_large_models(stream, name, uses_disk, max_cost):
    best_strategy = host_strategies(stream(), LARGE, memory_bytes=MEMORY)[0]
    assert (best_strategy.name, best_strategy.disk > 0) == (name, uses_disk)
    assert best_strategy.cost <= max_cost
    assert best_strategy.memory <= MEMORY


def test_noise_of_small_models_is_not_compressed():
    stream = TreeMechanism(rounds=400, decoder="online").stream().causal().as_contraction()
    assert host_strategies(stream, 1000)[0].name == "regenerated"
    assert choose_host_strategy(stream, 1000, name="recurrent").width <= 9


def test_the_strategy_depends_on_memory_and_disk(set_free_disk):
    wide = banded(2052, 342)
    assert choose_host_strategy(wide, LARGE, memory_bytes=20 * 10**9).disk == 0
    with_map = choose_host_strategy(wide, LARGE, memory_bytes=MEMORY)
    assert (with_map.name, with_map.disk) == ("recurrent", 4 * LARGE * with_map.rows)
    assert 341 <= with_map.rows < 1.1 * 341
    set_free_disk(5)
    regenerated = choose_host_strategy(wide, LARGE, memory_bytes=MEMORY)
    assert (regenerated.name, regenerated.disk) == ("regenerated", 0)
    with refusal(
        "noise_strategy='recurrent' cannot make this noise with memory_bytes=1500000000: rec"
    ):
        choose_host_strategy(wide, LARGE, memory_bytes=MEMORY, name="recurrent")
    with refusal(r"regenerated: needs 120 MB.*allow more memory"):
        choose_host_strategy(dense(40), LARGE, memory_bytes=1000)


def test_default_memory_is_a_quarter_and_default_disk_two_thirds(
    set_free_disk, tmp_path, monkeypatch
):
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.get)
    monkeypatch.setattr("pathlib.Path.exists", lambda path: True)
    for limit, expected in (
        ("max", 1_024_000),
        ("400000", 100_000),
        ("9223372036854771712", 1_024_000),
    ):
        monkeypatch.setattr("pathlib.Path.read_text", lambda path, limit=limit: limit + "\n")
        assert default_memory() == expected
    set_free_disk(3)
    assert default_disk(tmp_path / "not" / "there") == 2 * 10**9


@pytest.mark.parametrize("change", [{"size": -1}, {"memory_bytes": 0}])
def test_refusals_name_the_argument(change):
    [(name, value)] = change.items()
    with refusal(f"{name}={value}"):
        choose_host_strategy(**{"stream": dense(5), "size": 3} | change)
    with refusal("noise_strategy='fast'"):
        choose_host_strategy(dense(5), 3, name="fast")


@pytest.mark.parametrize(
    ("stream", "size", "possible"),
    [
        (lambda: banded(2052, 342), LARGE, False),
        (lambda: banded(2052, 342), 90_000, True),
        pytest.param(lambda: dense(1600), 1000, False, marks=pytest.mark.slow),
        (lambda: TreeMechanism(rounds=400, decoder="full").stream(), LARGE, True),
        (lambda: IdentityMechanism(rounds=3).stream(), 0, True),
    ],
)
def test_graphs_are_recurrent_if_the_state_fits_and_precomputed_by_name_only(
    stream, size, possible
):
    stream = stream()
    assert graph_strategy(stream, size).possible == possible
    assert choose_graph_strategy(stream, size, "precomputed").width == 1
    with refusal("noise_strategy='carry'"):
        choose_graph_strategy(stream, size, "carry")
    if possible:
        assert choose_graph_strategy(stream, size).memory <= MAX_STATE_BYTES
    else:
        with refusal("in the graph: .*use noise_strategy='precomputed' with federated.HostNoise"):
            choose_graph_strategy(stream, size)


def test_noise_that_float32_cannot_represent_is_refused():
    """Tests an N with entries up to 2^35."""
    stream = plans.banded(36, 1.0, 2.0).stream()
    with refusal("too ill-conditioned for float32"):
        choose_graph_strategy(stream, 37)
    for name in (None, "recurrent", "regenerated"):
        with refusal("too ill-conditioned for float32"):
            choose_host_strategy(stream, 37, name=name)
