"""Synthetic partitions, compared with the definitions in the literature."""

import collections
import functools
import hashlib
import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import image

from fedmf import partition
from tests.power import (
    FALSE_POSITIVE_RATE,
    MISS_RATE,
    draws_that_detect,
    missed_by_variance,
    preference_probabilities,
)
from tests.refusals import assert_refused, named

LABELS = np.arange(30) % 3


def passes_chi_square(counts, claimed):
    """Returns whether counts pass Pearson's test of these probabilities."""
    expected = np.sum(counts) * np.asarray(claimed)
    return scipy.stats.chisquare(counts, expected).pvalue > FALSE_POSITIVE_RATE


def label_counts(labels, ids):
    """Returns the number of examples of each label, by client."""
    counts = collections.defaultdict(collections.Counter)
    for label, client in zip(np.asarray(labels).tolist(), ids.tolist(), strict=True):
        counts[client][label] += 1
    return counts


every_label = st.lists(st.integers(-3, 3), min_size=1, max_size=60)
every_alpha = st.sampled_from([5e-324, 1e-300, 1e-3, 0.3, 1.0, 1e3, 1e300]) | st.floats(1e-9, 1e9)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), labels=every_label, alpha=every_alpha, seed=st.integers(0, 2**70))
def test_each_example_has_one_client_and_each_client_an_example(data, labels, alpha, seed):
    clients = data.draw(st.integers(1, len(labels)))
    per_client = data.draw(st.integers(1, len(labels) // clients))
    ids_by_kind = {
        "dirichlet": partition.dirichlet(labels, clients, alpha, seed),
        "shards": partition.shards(labels, clients, per_client, seed),
        "quantity": partition.quantity_skew(len(labels), clients, alpha, seed),
    }
    for name, ids in ids_by_kind.items():
        assert ids.dtype == np.int64
        assert ids.shape == (len(labels),)
        sizes = np.bincount(ids, minlength=clients)
        assert len(sizes) == clients
        assert sizes.min() >= 1
        assert name == "quantity" or sizes.max() - sizes.min() <= per_client ** (name == "shards")


def test_partitions_are_bitwise_identical_on_every_machine():
    """Compares with digests that were computed with numpy 1.25 and 2.4."""
    digests = {
        name: hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()[:16]
        for name, ids in {
            "dirichlet": partition.dirichlet(np.arange(6000) % 10, 60, 0.3, 5),
            "shards": partition.shards(np.arange(6000) % 10, 60, 2, 5),
            "quantity": partition.quantity_skew(6000, 60, 1.0, 5),
        }.items()
    }
    assert digests == {
        "dirichlet": "54336f5c7213bf9b",
        "shards": "fd3d74a78b82a818",
        "quantity": "e1c4c12a702ae191",
    }


def dirichlet_law(concentrations, draws):
    """Returns the probability of each tuple of label counts in draws by q ~ Dir(concentrations).

    It is a ratio of Dirichlet integrals times the number of orders.
    """
    total = sum(concentrations)
    law = {}
    for counts in itertools.product(range(draws + 1), repeat=len(concentrations)):
        if sum(counts) == draws:
            log = math.lgamma(draws + 1) + math.lgamma(total) - math.lgamma(total + draws)
            for count, concentration in zip(counts, concentrations, strict=True):
                log += (
                    math.lgamma(count + concentration)
                    - math.lgamma(concentration)
                    - math.lgamma(count + 1)
                )
            law[counts] = math.exp(log)
    assert sum(law.values()) == pytest.approx(1)
    return law


@pytest.mark.parametrize("alpha", [pytest.param(0.3, marks=pytest.mark.slow), 2.0])
def test_the_first_clients_have_the_distribution_of_hsu_et_al(alpha):
    """Tests two clients of three examples, which cannot exhaust the six of the rarest label.

    The test rejects once in a million. It draws often enough to miss each departure once in a
    million: an alpha that is wrong by a factor of 3, a uniform prior, and concentrations of alpha
    for each label.
    """
    prior = np.array([0.2, 0.3, 0.5])
    labels = np.repeat(np.arange(3), (30 * prior).astype(int))
    law = dirichlet_law(alpha * prior, 3)
    claimed_probabilities = np.array(list(law.values()))
    departures = [3 * alpha * prior, alpha / 3 * prior, np.full(3, alpha / 3), np.full(3, alpha)]
    departed_probabilities = [
        np.array(list(dirichlet_law(departure, 3).values())) for departure in departures
    ]
    draws = max(
        draws_that_detect(claimed_probabilities, departure) for departure in departed_probabilities
    )

    def counted(alpha):
        outcome_counts = collections.Counter()
        for seed in range(-(-draws // 2)):
            counts = label_counts(labels, partition.dirichlet(labels, 10, alpha, seed))
            outcome_counts.update(
                tuple(counts[client][label] for label in range(3)) for client in (0, 1)
            )
        return [outcome_counts[counts] for counts in law]

    assert passes_chi_square(counted(alpha), claimed_probabilities)
    assert not passes_chi_square(counted(3 * alpha), claimed_probabilities)


@pytest.mark.parametrize(
    "assign",
    [
        lambda seed: partition.dirichlet(["a"] * 6, 3, 1.0, seed),
        lambda seed: partition.quantity_skew(6, 3, 0.0, seed),
        # With one example per label, the shards of a client are a sample of the labels.
        lambda seed: partition.shards(range(6), 3, 2, seed),
    ],
    ids=["dirichlet", "quantity", "shards of labels"],
)
def test_the_examples_of_a_client_are_a_uniform_sample(assign):
    """Rejects once in a million, and as rarely misses an example of three times the probability."""
    uniform, weighted = preference_probabilities(6, 3.0, size=2)
    draws = draws_that_detect(uniform, weighted)
    sets = list(itertools.combinations(range(6), 2))
    outcome_counts = collections.Counter(
        tuple(np.flatnonzero(assign(seed) == 0).tolist()) for seed in range(draws)
    )
    assert passes_chi_square([outcome_counts[example_set] for example_set in sets], uniform)
    rng = np.random.default_rng(0)
    assert not passes_chi_square(rng.multinomial(draws, weighted), uniform)


def test_clients_have_the_shards_of_mcmahan_et_al():
    """Tests two of 200 shards of 300 sorted examples for each of 100 clients."""
    labels = np.random.default_rng(0).permutation(np.arange(60_000) % 10)
    counts = label_counts(labels, partition.shards(labels, 100, 2, 1))
    assert {sum(count.values()) for count in counts.values()} == {600}
    assert max(len(count) for count in counts.values()) == 2


def test_log_sizes_have_the_standard_deviation_sigma():
    """Tests the variance of normals by chi-square, which rejects once in a million.

    A variance 1.5 times as large is missed as rarely. Rounding is below a hundredth of the smallest
    size.
    """
    clients = 2000
    sigma = 0.5
    assert missed_by_variance(clients - 1, 1.5) <= MISS_RATE

    def fits(drawn):
        sizes = np.bincount(partition.quantity_skew(1_000_000, clients, drawn, 3)) - 1
        assert sizes.min() > 50
        statistic = np.log(sizes).var() * clients / sigma**2
        return (
            scipy.stats.chi2.ppf(FALSE_POSITIVE_RATE / 2, clients - 1)
            < statistic
            < scipy.stats.chi2.isf(FALSE_POSITIVE_RATE / 2, clients - 1)
        )

    assert fits(sigma)
    assert not fits(sigma * 1.5**0.5)


def test_assign_clients_parses_the_text_of_a_partition():
    ids = partition.quantity_skew(30, 5, 1.0, 7)
    np.testing.assert_array_equal(partition.assign_clients("quantity:1", LABELS, 5, 7), ids)


dirichlet = functools.partial(partition.dirichlet, labels=LABELS, clients=3, alpha=1.0, seed=0)
shards = functools.partial(partition.shards, labels=LABELS, clients=3, per_client=2, seed=0)
quantity = functools.partial(partition.quantity_skew, examples=30, clients=3, sigma=1.0, seed=0)
assign_text = functools.partial(partition.assign_clients, labels=LABELS, clients=3, seed=0)


@pytest.mark.parametrize(
    "refused",
    [
        *named(ValueError, dirichlet, clients=[0, 31], alpha=[0], seed=[-1]),
        *named(ValueError, shards, per_client=[0]),
        *named(ValueError, quantity, examples=[0], clients=[31], sigma=[-1]),
        *named(ValueError, assign_text, partition=["dirichlet", "shards:2.5", "iid:1", "shards:0"]),
        *named(TypeError, assign_text, partition=[None]),
        (lambda: shards(per_client=11), ValueError, "clients=3 times per_client=11"),
        (lambda: dirichlet(labels=[]), ValueError, r"labels has the shape \(0,\)"),
        (lambda: dirichlet(labels=[1.0, math.nan]), ValueError, r"labels\[1\]=nan is missing"),
        (lambda: dirichlet(labels=["a", math.nan]), ValueError, r"labels\[1\]=nan is missing"),
        (lambda: dirichlet(labels=np.array(["NaT"], "M8")), ValueError, r"labels\[0\]=.*missing"),
        (lambda: dirichlet(labels=np.ma.array([1], mask=[1])), ValueError, r"labels\[0\]="),
        (lambda: dirichlet(labels=["a", 1, 2]), TypeError, "labels mixes kinds"),
        (lambda: dirichlet(labels=range(10_001)), ValueError, "labels has 10001 different values"),
        (lambda: partition.picture(LABELS, LABELS, "x.pdf"), ValueError, "path='x.pdf'"),
        (
            lambda: partition.picture(LABELS, [1], "x.png"),
            ValueError,
            "client_ids has 1 entries",
        ),
    ],
)
def test_wrong_arguments_are_refused(refused):
    assert_refused(*refused)


def test_bars_are_as_long_as_the_label_counts(tmp_path):
    """Tests a client with three examples of one label and one of another."""
    path = partition.picture(["cat", "cat", "dog", "cat"], [7] * 4, tmp_path / "who.png")
    pixels = np.round(255 * image.imread(path)[..., :3]).astype(int)
    first_bar, second_bar = (
        (pixels == color).all(axis=2) for color in ([31, 119, 180], [255, 127, 14])
    )
    row = first_bar.sum(axis=1).argmax()
    assert first_bar[row].sum() / second_bar[row].sum() == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize("clients", [100, 101])
def test_a_plot_of_many_clients_is_no_taller_than_one_of_100(tmp_path, clients):
    y = np.arange(10_000) % 3
    ids = partition.dirichlet(y, clients, 0.3, 0)
    height, width, _ = image.imread(partition.picture(y, ids, tmp_path / "who.png")).shape
    assert (height > width) == (clients == 100)


def test_labels_with_dollar_signs_are_not_parsed_as_formulas(tmp_path):
    path = partition.picture(["$x$", "$\\frac", "_a"], ["$$", "b\nc", "d" * 99], tmp_path / "a.png")
    assert path.read_bytes()[:4] == b"\x89PNG"
