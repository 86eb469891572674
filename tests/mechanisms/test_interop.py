"""Factorizations written by other programs: read in every format, or refused with the cause."""

import contextlib

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import fedmf
from fedmf.mechanisms import DenseMechanism, ExplicitMechanism, TreeMechanism, load_factorization
from fedmf.mechanisms.interop import parse_tensor, tensor_message
from fedmf.workloads import prefix_sum
from tests.mechanisms.schemas import single
from tests.refusals import refusal

SINGLE = single(4)
C = np.array(
    [[1.0, 0.0, 0.0, 0.0], [0.5, 1.0, 0.0, 0.0], [0.375, 0.5, 1.0, 0.0], [0.3125, 0.375, 0.5, 1.0]]
)
B = np.tri(4) @ np.linalg.inv(C)


def serialized(array, dtype=2):
    """Returns a serialized TensorProto. Those that TensorFlow writes are read in
    tests/federated/client_training/test_foreign_tensors.py.
    """
    shape = {"dim": [{"size": size} for size in array.shape]}
    content = array.astype({1: "<f4", 2: "<f8"}[dtype]).tobytes()
    return tensor_message()(dtype=dtype, shape=shape, content=content).SerializeToString()


def write_folder(path, encoder, decoder):
    """Writes the two files of the papers' public code, and returns their folder."""
    path.mkdir()
    (path / "h_matrix_tensor_pb").write_bytes(serialized(encoder))
    (path / "w_matrix_tensor_pb").write_bytes(serialized(decoder))
    return path


@pytest.fixture(params=["npz", "npz of W and H", "npy", "folder", "proto", "proto of floats"])
def matrix_path(request, tmp_path):
    path = tmp_path / "matrices"
    if request.param.startswith("npz"):
        names = ("H", "W") if "W" in request.param else ("encoder", "decoder")
        np.savez(path.with_suffix(".npz"), **dict(zip(names, (C, B), strict=True)))
        return path.with_suffix(".npz")
    if request.param == "npy":
        np.save(path, C)
        return path.with_suffix(".npy")
    if request.param == "folder":
        return write_folder(path, C, B)
    # C has few binary digits, so that floats hold it exactly.
    dtype = 1 if "floats" in request.param else 2
    path.write_bytes(serialized(C, dtype=dtype))
    return path


def test_every_file_format_gives_the_mechanism(matrix_path):
    mechanism = load_factorization(matrix_path)
    assert isinstance(mechanism, DenseMechanism)
    assert np.array_equal(mechanism.encoder(), C)
    assert mechanism.certificate_reason == "loaded from given matrices"


def test_the_scale_of_the_file_is_not_trusted(tmp_path):
    # (B / 10, 10 C) multiplies back to A; an encoder trusted to have sensitivity 1 would get
    # a tenth of the noise.
    honest_mechanism = load_factorization(
        write_folder(tmp_path / "honest", C, B), workload=prefix_sum(4)
    )
    scaled_mechanism = load_factorization(
        write_folder(tmp_path / "scaled", 10.0 * C, B / 10.0), workload=prefix_sum(4)
    )
    ratio = (
        fedmf.sensitivity(scaled_mechanism, SINGLE).value
        / fedmf.sensitivity(honest_mechanism, SINGLE).value
    )
    assert_allclose(ratio, 10.0)
    assert_allclose(scaled_mechanism.noising(), honest_mechanism.noising() / 10.0)


def test_a_banded_encoder_becomes_a_banded_mechanism(tmp_path):
    banded_encoder = np.eye(4) + 0.5 * np.eye(4, k=-1)
    np.save(tmp_path / "c.npy", banded_encoder)
    mechanism = load_factorization(tmp_path / "c.npy")
    assert (mechanism.family, mechanism.bands) == ("banded", 2)


@pytest.mark.parametrize("decoder", ["online", "full"])
def test_a_tree_of_other_shape_keeps_its_decoder(tmp_path, decoder):
    tree = TreeMechanism(rounds=4, decoder=decoder)
    B_tree = np.tri(4) @ tree.noising()
    mechanism = load_factorization(
        write_folder(tmp_path / "tree", tree.encoder(), B_tree), workload=prefix_sum(4)
    )
    assert isinstance(mechanism, ExplicitMechanism)
    assert_allclose(mechanism.noising(), tree.noising(), atol=1e-12)


def test_a_square_encoder_is_made_triangular_and_stays_the_same_mechanism(tmp_path):
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    mechanism = load_factorization(
        write_folder(tmp_path / "q", Q @ C, B @ Q.T), workload=prefix_sum(4)
    )
    assert isinstance(mechanism, DenseMechanism)
    assert_allclose(mechanism.encoder(), C, atol=1e-12)


A = prefix_sum(4)
REFUSED = [
    ({"encoder": C[:3]}, None, "fewer rows than rounds"),
    ({"encoder": np.where(C == 0.5, np.nan, C)}, None, "not finite"),
    ({"encoder": np.ones((4, 4))}, None, "singular"),
    ({"encoder": C[None]}, None, "2-D"),
    ({"encoder": np.array([["a"]])}, None, "not real numbers"),
    ({"encoder": C}, A, "no decoder to check"),
    ({"encoder": C, "decoder": B[:3]}, A, r"decoder has shape .* of \(4, 4\)"),
    ({"encoder": C, "decoder": np.where(np.eye(4) > 0, np.inf, B)}, A, "not finite"),
    ({"encoder": C, "decoder": B + 1e-4 * np.eye(4, k=2)}, A, "not lower-triangular"),
    (
        {"encoder": C, "decoder": B @ np.diag([1.0, 1.0, 1.0, 1.001])},
        A,
        "differs from workload 'prefix_sum'",
    ),
    ({"encoder": C, "decoder": B}, prefix_sum(5), "has rounds=5"),
    (
        {"encoder": C, "decoder": np.diag([1.0, 1.0, 0.0, 1.0]) @ B},
        None,
        "product of decoder and encoder is singular",
    ),
    ({"matrix": C}, None, "store C under one of encoder"),
    ({"encoder": C, "C": C}, None, "keep one of them"),
]


@pytest.mark.parametrize(
    ("arrays", "workload", "words"), REFUSED, ids=[words for _, _, words in REFUSED]
)
def test_invalid_factorizations_are_refused_with_the_cause(tmp_path, arrays, workload, words):
    path = tmp_path / "m.npz"
    np.savez(path, **arrays)
    with refusal(f"does not hold a factorization that can be used.*{words}") as caught_error:
        load_factorization(path, workload=workload)
    assert str(path) in str(caught_error.value)
    assert "\n" not in str(caught_error.value)


def test_missing_files_are_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not there"):
        load_factorization(tmp_path / "none")
    with refusal("has no h_matrix_tensor_pb"):
        load_factorization(tmp_path)


def test_damaged_tensors_are_refused(tmp_path):
    whole_file = serialized(C)
    assert_array_equal(parse_tensor(whole_file), C)
    for length in range(len(whole_file)):
        with refusal("tensor"):
            parse_tensor(whole_file[:length])
    for position in range(len(whole_file)):
        damaged_file = bytearray(whole_file)
        damaged_file[position] ^= 0x41
        # No other exception may be raised; a flipped bit in a number goes unnoticed here.
        with contextlib.suppress(ValueError):
            parse_tensor(bytes(damaged_file))


def test_small_entries_that_change_the_noise_are_not_rounded_off(tmp_path):
    path = tmp_path / "m.npy"
    # 5e-10 is small relative to 1 only.
    encoder = np.array([[1e-9, 5e-10, 0.0], [0.0, 1e-9, 0.0], [0.0, 0.0, 1.0]])
    np.save(path, encoder)
    mechanism = load_factorization(path)
    noise = np.linalg.inv(encoder)
    assert_allclose(mechanism.noising() @ mechanism.noising().T, noise @ noise.T, rtol=1e-9)


def test_columns_of_any_scale_make_a_mechanism():
    columns = 10.0 ** np.array([9.0, 0.0, -9.0, 3.0])
    ExplicitMechanism(
        encoder_matrix=C * columns, noising_matrix=np.linalg.inv(C) / columns[:, None]
    )
    with refusal("differs from the identity"):
        ExplicitMechanism(
            encoder_matrix=C * columns, noising_matrix=1.001 * np.linalg.inv(C) / columns[:, None]
        )
