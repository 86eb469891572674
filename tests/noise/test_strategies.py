"""The cost model: what it chooses, what it refuses, and that its memory is what the arrays take."""

import numpy as np
import pytest

from fedmf import Participation, fit, prefix_sum
from fedmf.mechanisms import BandedMechanism, DenseMechanism, IdentityMechanism, TreeMechanism
from fedmf.noise.strategies import choose_host_strategy, explain, graph_strategies, host_strategies, short_of_disk

LARGE = 4_050_748


def banded(rounds, bands):
    diagonals = np.full((rounds, bands), 0.1)
    diagonals[:, 0] = 1.0
    diagonals[np.arange(rounds)[:, None] < np.arange(bands)] = 0.0
    return BandedMechanism(diagonals=diagonals, certificate_reason="made for a test").stream()


def dense(rounds):
    matrix = np.tril(np.random.default_rng(1).uniform(0, 1, (rounds, rounds))) + 3 * np.eye(rounds)
    return DenseMechanism(matrix=matrix, certificate_reason="made for a test").stream()


@pytest.mark.parametrize(
    ("stream", "expected", "most"),
    [
        (lambda: IdentityMechanism(rounds=2052).stream(), "recurrent", 2),
        (lambda: banded(2052, 8), "recurrent", 2.5),
        (lambda: banded(2052, 32), "recurrent", 5),
        (lambda: banded(2052, 342), "spilled", 10),
        (lambda: dense(400), "regenerated", 10),
        (lambda: dense(1600), "spilled", 10),
        (lambda: TreeMechanism(rounds=400, decoder="full").stream(), "recurrent", 3),
        (lambda: banded(100_000, 32), "recurrent", 5),
    ],
)
def test_large_models(stream, expected, most):
    best = host_strategies(stream(), LARGE)[0]
    assert best.name == expected
    assert best.cost <= most
    assert best.memory <= 1_500_000_000


def test_small_models_are_not_compressed_for_nothing():
    stream = TreeMechanism(rounds=400).stream()
    assert host_strategies(stream, 1000)[0].name == "regenerated"
    assert choose_host_strategy(stream, 1000, name="recurrent").width <= 9


def test_memory_decides():
    stream = banded(2052, 32)
    assert choose_host_strategy(stream, LARGE).name == "recurrent"
    tight = host_strategies(stream, LARGE, 500_000_000)
    assert tight[0].name == "spilled"
    with pytest.raises(
        ValueError, match="noise_strategy='recurrent' cannot make this noise with memory_bytes=500000000"
    ):
        choose_host_strategy(stream, LARGE, 500_000_000, name="recurrent")
    assert all(found.memory <= 500_000_000 for found in tight if found.possible)
    more = choose_host_strategy(dense(400), LARGE, 6_000_000_000)
    assert more.cost < choose_host_strategy(dense(400), LARGE).cost


def test_disk_decides():
    row = 4 * LARGE
    part, whole = (
        choose_host_strategy(dense(400), LARGE, name="spilled", disk_bytes=disk) for disk in (300 * row, None)
    )
    assert (part.length, whole.length) == (256, 400)
    assert whole.cost < part.cost
    assert (part.disk, whole.disk) == (256 * row, 400 * row)
    assert whole.memory <= 1_500_000_000
    assert whole.reason == "the whole run at once, into a private file"
    wide = banded(2052, 342)
    assert choose_host_strategy(wide, LARGE, name="spilled").disk == (171 + 341) * row
    assert choose_host_strategy(wide, LARGE, name="spilled", disk_bytes=400 * row).length == 400 - 341
    with pytest.raises(ValueError, match="spilled: needs a file of 5541 MB"):
        choose_host_strategy(wide, LARGE, name="spilled", disk_bytes=341 * row)
    with pytest.raises(ValueError, match="spilled: needs a file of 16 MB"):
        choose_host_strategy(dense(5), LARGE, name="spilled", disk_bytes=1000)


def test_too_little_disk_is_told_with_what_more_would_save():
    wide, row = banded(2052, 342), 4 * LARGE
    chosen = choose_host_strategy(wide, LARGE, disk_bytes=341 * row)
    assert chosen.name == "regenerated"
    told = short_of_disk(chosen, wide, LARGE)
    assert told.startswith(f"{chosen.seconds(LARGE):.2g} s a round, every {chosen.length} rounds all earlier draws")
    assert f"with a file of 8.3 GB it would be {choose_host_strategy(wide, LARGE).seconds(LARGE):.2g} s" in told
    assert short_of_disk(choose_host_strategy(wide, LARGE), wide, LARGE) == ""
    narrow = banded(2052, 8)
    assert short_of_disk(choose_host_strategy(narrow, LARGE, disk_bytes=1), narrow, LARGE) == ""


def test_nothing_possible_says_why():
    with pytest.raises(ValueError, match=r"regenerated: needs 60 MB.*allow more memory"):
        choose_host_strategy(dense(40), LARGE, 1000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": -1}, "size=-1"),
        ({"size": 2.5}, "size=2.5"),
        ({"memory_bytes": 0}, "memory_bytes=0"),
        ({"disk_bytes": 0}, "disk_bytes=0"),
        ({"name": "fast"}, "noise_strategy='fast'"),
        ({"name": "spilled", "stream": IdentityMechanism(rounds=5).stream()}, "there is no history to keep"),
    ],
)
def test_refusals_name_the_argument(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        choose_host_strategy(**{"stream": dense(5), "size": 3} | arguments)


def test_the_explanation_names_all_and_begins_with_the_choice():
    participation = Participation(rounds=512, schema="single")
    mechanism = fit(prefix_sum(512), participation, family="banded", bands=4, tolerance=1e-2)
    lines = explain(host_strategies(mechanism.stream(), LARGE)).splitlines()
    assert [line.split()[0] for line in lines] == ["strategy", "recurrent", "regenerated", "spilled"]
    assert "not possible: there is no history" in explain(host_strategies(IdentityMechanism(rounds=5).stream(), 10))


@pytest.mark.parametrize(
    ("stream", "size", "expected"),
    [
        (lambda: banded(2052, 8), LARGE, "recurrent"),
        (lambda: banded(2052, 342), LARGE, "regenerated"),
        (lambda: dense(200), LARGE, "regenerated"),
        (lambda: TreeMechanism(rounds=400, decoder="full").stream(), LARGE, "recurrent"),
        (lambda: banded(100, 32), 100, "recurrent"),
        (lambda: IdentityMechanism(rounds=3).stream(), 0, "recurrent"),
    ],
)
def test_graphs_carry_what_fits_and_are_never_handed_rows_unasked(stream, size, expected):
    ways = graph_strategies(stream(), size)
    assert ways[0].name == expected
    assert ways[0].memory <= 128 * 2**20
    assert {way.name for way in ways} == {"recurrent", "regenerated", "precomputed"}
    assert [way.name for way in graph_strategies(stream(), size, "precomputed")] == ["precomputed"]
