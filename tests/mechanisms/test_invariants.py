"""Invariants of every mechanism: each test runs over the whole registry."""

import copy
import pathlib
import pickle

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from numpy.testing import assert_allclose

import fedmf
from fedmf.mechanisms import NoiseStream, load_mechanism
from fedmf.noise.stream import banded_matrix
from tests.mechanisms.registry import every_mechanism
from tests.mechanisms.schemas import epochs, every_round, separated, single
from tests.oracles import attained_sensitivity, sensitivity_of_nonnegative, simulated_loss_score
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE

SIZES = pytest.mark.parametrize("rounds", [1, 2, 7, 12, 70])


def noising_of_stream(stream: NoiseStream) -> np.ndarray:
    """Returns the noising matrix of a stream, from the basis vectors as draws."""
    return np.stack(list(stream.rows(np.eye(stream.sources).__getitem__)))


@SIZES
@every_mechanism
def test_noising_is_a_left_inverse_of_the_encoder(build, rounds):
    mechanism = build(rounds)
    encoder = mechanism.encoder()
    noising = mechanism.noising()
    assert encoder.dtype == noising.dtype == np.float64
    assert encoder.shape == noising.shape[::-1]
    assert_allclose(noising @ encoder, np.eye(rounds), atol=1e-9)


@SIZES
@every_mechanism
def test_bands_are_the_diagonals_of_the_encoder(build, rounds):
    mechanism = build(rounds)
    assert mechanism.rounds == rounds
    assert 1 <= mechanism.bands <= rounds
    encoder = mechanism.encoder()
    if encoder.shape[0] == rounds:
        assert not np.triu(encoder, 1).any()
        assert not np.tril(encoder, -mechanism.bands).any()


@SIZES
@every_mechanism
def test_structured_forms_are_those_of_the_matrices(build, rounds):
    # Sensitivities and errors of long runs are computed from these and not from the matrices.
    mechanism = build(rounds)
    C = mechanism.encoder()
    rows = mechanism.banded_rows()
    coefficients = mechanism.toeplitz_coefficients()
    gram = mechanism.toeplitz_gram()
    if gram is not None:
        assert_allclose(C.T @ C, scipy.linalg.toeplitz(gram), atol=1e-12)
    if rows is not None:
        assert rows.shape == (rounds, mechanism.bands)
        assert_allclose(C, banded_matrix(rows), atol=1e-13)
    for matrix, column in (
        (C, coefficients),
        (mechanism.noising(), mechanism.noising_coefficients()),
    ):
        if column is not None:
            column = np.concatenate([column, np.zeros(rounds - len(column))])
            assert_allclose(matrix, np.tril(scipy.linalg.toeplitz(column)), atol=1e-12)


@SIZES
@every_mechanism
def test_stream_with_basis_vectors_writes_out_the_noising_matrix(build, rounds):
    """Compares with the noising matrix; for bands this is Alg. 9 of the banded paper."""
    mechanism = build(rounds)
    stream = mechanism.stream()
    assert (stream.rounds, stream.sources) == mechanism.noising().shape
    assert_allclose(noising_of_stream(stream), mechanism.noising(), atol=1e-9)
    contraction = stream.as_contraction()
    assert contraction.contraction is not None
    assert_allclose(noising_of_stream(contraction), noising_of_stream(stream), atol=1e-9)


@every_mechanism
def test_a_mechanism_file_is_read_as_it_was_saved(build, tmp_path):
    mechanism = build(7)
    path = tmp_path / "mechanism"  # Without a suffix: save writes exactly this name.
    mechanism.save(path)
    loaded_mechanism = load_mechanism(path)
    assert type(loaded_mechanism) is type(mechanism)
    assert np.array_equal(loaded_mechanism.encoder(), mechanism.encoder())
    assert np.array_equal(loaded_mechanism.noising(), mechanism.noising())
    assert loaded_mechanism.certificate == mechanism.certificate
    assert loaded_mechanism.certificate_reason == mechanism.certificate_reason
    assert [entry.name for entry in pathlib.Path(tmp_path).iterdir()] == ["mechanism"]


@every_mechanism
def test_every_mechanism_has_a_certificate_or_a_reason_for_none(build):
    mechanism = build(12)
    if mechanism.certificate is None:
        assert mechanism.certificate_reason
        return
    assert mechanism.certificate_reason == ""
    certificate = mechanism.certificate
    assert 0.0 < certificate.lower_bound <= certificate.loss
    assert certificate.gap == (certificate.loss - certificate.lower_bound) / certificate.lower_bound
    workload = fedmf.prefix_sum(12) if mechanism.family == "banded" else fedmf.momentum_sgd(12)
    assert_allclose(fedmf.loss(mechanism, workload, single(12)), certificate.loss, rtol=1e-10)
    assert_allclose(np.linalg.norm(mechanism.encoder(), axis=0), 1.0, rtol=1e-12)


@every_mechanism
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_arrays_of_a_mechanism_cannot_be_changed(build, duplicate):
    """Checks that all arrays are read-only, since sensitivities are cached."""
    mechanism = duplicate(build(5))
    original_encoder = mechanism.encoder()
    mechanism.encoder()[:] = 7.0
    mechanism.noising()[:] = 7.0
    for array in (mechanism.stream().recurrence, mechanism.stream().contraction):
        assert array is None or not array.flags.writeable
    for array in mechanism.state().values():
        if array.ndim == 2:
            assert not array.flags.writeable
    for mechanism_or_part in (mechanism, getattr(mechanism, "part", mechanism)):
        for value in vars(mechanism_or_part).values():
            assert not isinstance(value, np.ndarray) or not value.flags.writeable
    assert np.array_equal(mechanism.encoder(), original_encoder)


PARTICIPATIONS = [
    single(9),
    every_round(9),
    epochs(9, 3),
    epochs(9, 2, 3),
    separated(9, 4),
    separated(9, 3),
    separated(9, 2, 2),
    separated(9, 1, 4),
]


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=str)
@every_mechanism
def test_sensitivity_is_never_below_what_contributions_attain(build, participation):
    C = build(9).encoder()
    claimed_sensitivity = fedmf.sensitivity(build(9), participation)
    attained_value = attained_sensitivity(C, participation, np.random.default_rng(0))
    assert claimed_sensitivity.value >= attained_value * (1.0 - 1e-9)
    if claimed_sensitivity.exact:
        assert_allclose(claimed_sensitivity.value, attained_value, rtol=1e-6)
    if (C.T @ C).min() >= 0.0:
        expected = sensitivity_of_nonnegative(C, participation)
        assert claimed_sensitivity.value >= expected * (1.0 - 1e-12)
        if claimed_sensitivity.exact:
            assert_allclose(claimed_sensitivity.value, expected, rtol=1e-12)


@every_mechanism
def test_loss_is_that_of_simulated_noise(build):
    # The mean of so many squared norms is normal to good accuracy. Its standard error is at most
    # sqrt(2 / samples) of the loss, since tr(M^2) <= tr(M)^2, so that noise of 2/3 or 3/2 of the
    # scale is detected.
    num_samples = 4000
    score_limit = scipy.stats.norm.isf(FALSE_POSITIVE_RATE / 2)
    for scale in (2 / 3, 3 / 2):
        shift = abs(scale**2 - 1) / np.sqrt(2 / num_samples)
        assert scipy.stats.norm.sf((shift - score_limit) / scale**2) <= MISS_RATE
    mechanism = build(12)
    workload = fedmf.momentum_sgd(12, momentum=0.5)
    participation = separated(12, 4)
    squared_sensitivity = fedmf.sensitivity(mechanism, participation).value ** 2
    claimed_loss = fedmf.loss(mechanism, workload, participation)
    rng = np.random.default_rng(20)
    assert (
        abs(
            simulated_loss_score(
                mechanism, workload, squared_sensitivity, claimed_loss, rng, num_samples
            )
        )
        < score_limit
    )
    for scale in (2 / 3, 3 / 2):
        assert (
            abs(
                simulated_loss_score(
                    mechanism, workload, squared_sensitivity, claimed_loss, rng, num_samples, scale
                )
            )
            > score_limit
        )
