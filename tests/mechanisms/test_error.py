"""Errors: every algorithm gives the value of the definition, or refuses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import fedmf
from fedmf import checks
from fedmf.mechanisms import BandedMechanism, ToeplitzMechanism
from fedmf.mechanisms.banded.recursion import (
    NoiseRecursion,
    columns_of_rows,
    is_precise,
)
from fedmf.mechanisms.error import loss, max_error, per_round_error, rmse
from fedmf.workloads import Workload, momentum_sgd, prefix_sum, sgd
from tests.mechanisms.registry import every_mechanism
from tests.mechanisms.schemas import separated, single
from tests.refusals import refusal


def banded_rows(n, bands, seed):
    """Returns random rows of a banded C."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-0.5, 0.5, (n, bands))
    rows[:, 0] = rng.uniform(0.8, 1.5, n)
    return np.where(np.arange(n)[:, None] >= np.arange(bands), rows, 0.0)


WORKLOADS = [
    prefix_sum(23),
    momentum_sgd(23, 0.9, np.linspace(0.1, 1.0, 23)),
    sgd(np.linspace(0.1, 1.0, 23)) @ prefix_sum(23),
    Workload("weights", np.tri(23) * np.linspace(1.0, 2.0, 23)),
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
@every_mechanism
def test_every_algorithm_gives_the_error_of_the_definition(build, workload):
    mechanism = build(23)
    AN = workload.matrix @ mechanism.noising()
    sensitivity = fedmf.sensitivity(mechanism, single(23)).value
    expected = sensitivity * np.linalg.norm(AN, axis=1)
    assert_allclose(per_round_error(mechanism, workload, single(23)), expected, rtol=1e-9)
    assert_allclose(max_error(mechanism, workload, single(23)), expected.max(), rtol=1e-9)
    assert_allclose(loss(mechanism, workload, single(23)), np.sum(expected**2), rtol=1e-9)
    assert_allclose(rmse(mechanism, workload, single(23)), np.sqrt(np.mean(expected**2)), rtol=1e-9)


def restarts(n, floor, period=16):
    """Returns rates of cosine restarts, at which they rise from `floor` to 1 in one round."""
    return (
        floor + (1.0 - floor) * (1.0 + np.cos(np.pi * (np.arange(n) % period) / (period - 1))) / 2.0
    )


def slopes(n, floor):
    """Returns rates that fall to `floor` and rise again, by the same ratio in every round."""
    return floor ** (1.0 - np.abs(1.0 - 2.0 * np.arange(n) / (n - 1)))


def exact_rows(workload, recurrence):
    """Returns the norm of each row of A C^-1 by substitutions in extended precision."""
    X = np.eye(workload.rounds, dtype=np.longdouble)
    for rows in (recurrence, workload.inverse_diagonals):
        for t in range(len(rows)):
            for j in range(1, min(rows.shape[1], t + 1)):
                X[t] -= rows[t, j] * X[t - j]
            X[t] /= rows[t, 0]
    return np.sqrt(np.square(X).sum(axis=1)).astype(np.float64)


ILL_CONDITIONED = {
    "restarts": sgd(restarts(96, 1e-3)),
    "deep restarts": sgd(restarts(96, 1e-6)),
    "deep restarts with momentum": momentum_sgd(96, 0.95, restarts(96, 1e-6)),
    "slopes with momentum": momentum_sgd(96, 0.999, slopes(96, 1e-6)),
    "sums of sums of sums": prefix_sum(96) @ prefix_sum(96) @ prefix_sum(96) @ prefix_sum(96),
    "one slow round": sgd(np.where(np.arange(96) == 47, 1e-9, 1.0)),
}


@pytest.mark.parametrize("workload", ILL_CONDITIONED.values(), ids=ILL_CONDITIONED)
@pytest.mark.parametrize("bands", [2, 16])
def test_errors_are_precise_where_the_recursion_loses_digits(workload, bands):
    rows = banded_rows(96, bands, 0)
    mechanism = BandedMechanism(diagonals=rows)
    expected = exact_rows(workload, rows) * fedmf.sensitivity(mechanism, single(96)).value
    assert_allclose(per_round_error(mechanism, workload, single(96)), expected, rtol=3e-6)


@pytest.mark.parametrize("bands", [2, 16])
def test_the_recursion_alone_loses_digits(bands):
    """Checks that the comparison with solves is needed: without it some of these workloads have
    wrong errors.
    """
    rows = banded_rows(96, bands, 0)
    precise_by_name = {}
    for name, workload in ILL_CONDITIONED.items():
        with np.errstate(all="ignore"):
            product = checks.banded_product(rows, workload.inverse_diagonals)
            squares = NoiseRecursion(columns_of_rows(product)).squared_errors()
        precise_by_name[name] = is_precise(squares, rows, workload.inverse_diagonals)
        worst_error = np.abs(squares / exact_rows(workload, rows) ** 2 - 1.0).max()
        assert worst_error < 3e-6 if precise_by_name[name] else worst_error > 1e-6
    assert precise_by_name["restarts"]
    assert not precise_by_name["deep restarts"]
    assert not precise_by_name["deep restarts with momentum"]


def test_noise_that_explodes_is_refused():
    mechanism = ToeplitzMechanism(rounds=800, coefficients=[1.0, 3.0])  # Entries of N reach 3^799.
    with refusal("grows beyond what float64 holds"):
        loss(mechanism, prefix_sum(800), single(800))


def test_errors_of_many_rounds_need_no_dense_matrix():
    n = 100_000
    rows = np.where(np.arange(n)[:, None] >= np.arange(3), [1.0, 0.5, 0.375], 0.0)
    rows[:, 0] += np.linspace(0.0, 1.0, n)  # C is not Toeplitz.
    mechanism = BandedMechanism(diagonals=rows)
    short_mechanism = BandedMechanism(diagonals=rows[:200])
    with refusal("dense"):
        mechanism.encoder()
    # The first rounds are those of a shorter run.
    errors, expected = (
        per_round_error(tested_mechanism, prefix_sum(tested_mechanism.rounds), participation)
        / fedmf.sensitivity(tested_mechanism, participation).value
        for tested_mechanism, participation in (
            (mechanism, separated(n, 400)),
            (short_mechanism, single(200)),
        )
    )
    assert np.isfinite(errors).all()
    assert_allclose(errors[:200], expected, rtol=1e-9)
