"""The function fit: defaults, and the order of families by loss."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedmf.mechanisms.base import certify
from fedmf.mechanisms.fit import fit
from fedmf.workloads import prefix_sum
from tests.mechanisms.schemas import fitted, separated, single


def test_default_bands_are_min_sep():
    banded_options = {"family": "banded"}
    assert fit(prefix_sum(8), separated(8, 4), **banded_options).bands == 4
    assert fit(prefix_sum(8), single(8), **banded_options).bands == 8
    assert fit(prefix_sum(8), single(8), **banded_options, bands=np.int64(2)).bands == 2


def test_more_bands_lower_the_loss_and_all_bands_reach_the_dense_optimum():
    n = 32
    losses = [
        fitted(single(n), "banded", bands=bands, tolerance=1e-8).certificate.loss
        for bands in (1, 2, 8, n)
    ]
    assert losses == sorted(losses, reverse=True)
    assert_allclose(losses[0], n * (n + 1) / 2)  # One band is the identity.
    dense_mechanism = fitted(single(n), "dense", tolerance=1e-10)
    assert_allclose(losses[-1], dense_mechanism.certificate.loss, rtol=1e-7)


def test_a_bound_above_the_loss_is_no_certificate():
    assert certify(1.0, 1.0 + 1e-10, 1, 0.0).gap == 0.0  # Within rounding.
    with pytest.raises(ArithmeticError, match="exceeds the loss"):
        certify(1.0, 1.0 + 1e-8, 1, 0.0)
