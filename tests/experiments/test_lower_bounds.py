"""The lower bound by the trace norm: its closed form, and errors above it."""

import numpy as np
from numpy.testing import assert_allclose

import fedmf
from fedmf.experiments.papers import multi_epoch
from fedmf.experiments.papers.lower_bounds import trace_norm_bound

ROUNDS = np.array([1, 8, 37, 128])


def test_the_closed_form_is_the_trace_norm():
    norms = [np.linalg.norm(np.tri(n), "nuc") / n for n in ROUNDS]
    assert_allclose(trace_norm_bound(ROUNDS), np.square(norms), rtol=1e-12)


def test_no_optimum_is_below_the_bound_and_it_is_sharper_than_the_older_one():
    bounds = trace_norm_bound(ROUNDS)
    assert (bounds >= multi_epoch.lower_bound(ROUNDS)).all()
    for n, bound in zip(ROUNDS[1:], bounds[1:], strict=True):
        single = fedmf.Participation(rounds=int(n), schema="single")
        optimum = fedmf.fit(fedmf.prefix_sum(int(n)), single, family="dense", tolerance=1e-4)
        certified = optimum.certificate.lower_bound / n
        # Uniform dual variables cost less than a tenth of the error.
        assert bound <= certified < 1.1 * bound


def test_the_constant_is_that_of_the_paper():
    """Abstract of arXiv:2509.14334: log(n) / pi + 0.701."""
    constant = np.sqrt(trace_norm_bound(np.array([100_000]))) - np.log(100_000) / np.pi
    assert 0.701 <= constant < 0.7025
