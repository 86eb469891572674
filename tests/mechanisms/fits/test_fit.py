import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.mechanisms import DenseMechanism, IdentityMechanism, TreeMechanism
from fedmf.mechanisms.certificate import certify
from fedmf.mechanisms.error import loss
from fedmf.mechanisms.fit import fit
from fedmf.workloads import Workload, prefix_sum
from tests.mechanisms.schemas import separated, single
from tests.paper_figures import DENISOV_TABLE_2


def random_workload(n, seed):
    matrix = np.tril(np.random.default_rng(seed).uniform(-1.0, 1.0, (n, n)))
    np.fill_diagonal(matrix, 1.0)
    return Workload("random", matrix)


def random_banded_unit_encoder(n, bands, rng):
    C = np.triu(np.tril(rng.uniform(-1.0, 1.0, (n, n))), 1 - bands)
    np.fill_diagonal(C, rng.uniform(0.5, 2.0, n))
    return C / np.linalg.norm(C, axis=0)


def test_families():
    participation = separated(8, 4)
    assert type(fit(prefix_sum(8), participation, family="identity")) is IdentityMechanism
    tree = fit(prefix_sum(8), participation, family="tree", decoder="full", restarts=1)
    assert (type(tree), tree.decoder) == (TreeMechanism, "full")
    assert type(fit(prefix_sum(8), single(8), family="dense")) is DenseMechanism
    assert fit(prefix_sum(8), participation, family="banded").bands == 4
    assert fit(prefix_sum(8), single(8), family="banded").bands == 8
    assert fit(prefix_sum(8), participation, family="banded", bands=np.int64(2)).bands == 2


@pytest.mark.parametrize("n", [256, 512])
def test_denisov_table_2_optimum(n):
    mechanism = fit(prefix_sum(n), single(n), family="dense", tolerance=1e-5)
    found = np.sqrt(loss(mechanism, prefix_sum(n), single(n)))
    assert abs(found - DENISOV_TABLE_2[n][1]) <= 0.05
    assert mechanism.certificate.gap <= 1e-5
    if n == 512:  # FACTS.md: 61.985 is within 1e-6 of the dual bound
        assert abs(found - 61.985) < 1e-3


def test_more_bands_help_and_all_bands_are_the_dense_optimum():
    n = 32
    losses = [
        fit(prefix_sum(n), single(n), family="banded", bands=bands, tolerance=1e-8).certificate.loss
        for bands in (1, 2, 8, n)
    ]
    assert losses == sorted(losses, reverse=True)
    np.testing.assert_allclose(losses[0], n * (n + 1) / 2)  # one band is the identity
    dense = fit(prefix_sum(n), single(n), family="dense", tolerance=1e-10)
    np.testing.assert_allclose(losses[-1], dense.certificate.loss, rtol=1e-7)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 9), data=st.data())
@settings(deadline=None, max_examples=60)
def test_no_feasible_encoder_beats_the_lower_bound(seed, n, data):
    bands = data.draw(st.integers(1, n))
    workload, rng = random_workload(n, seed), np.random.default_rng(seed)
    banded = fit(workload, single(n), family="banded", bands=bands, tolerance=1e-6).certificate
    dense = fit(workload, single(n), family="dense", tolerance=1e-4).certificate
    assert banded.lower_bound <= banded.loss
    assert dense.lower_bound <= dense.loss
    # Banded encoders are feasible for the dense problem
    assert dense.lower_bound <= banded.loss * (1.0 + 1e-12)
    for _ in range(5):
        C = random_banded_unit_encoder(n, bands, rng)
        value = np.sum((workload.matrix @ np.linalg.inv(C)) ** 2)
        assert value >= banded.lower_bound * (1.0 - 1e-12)
        assert value >= dense.lower_bound * (1.0 - 1e-12)


def test_a_bound_above_the_loss_is_no_certificate():
    assert certify(1.0, 1.0 + 1e-10, 1, 0.0).gap == 0.0  # rounding
    with pytest.raises(ArithmeticError, match="exceeds the loss"):
        certify(1.0, 1.0 + 1e-8, 1, 0.0)
