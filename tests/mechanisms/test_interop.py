"""Matrices written by other programs."""

import contextlib

import numpy as np
import pytest

from fedmf.mechanisms import DenseMechanism, ExplicitMechanism, IdentityMechanism, TreeMechanism, load_factorization
from fedmf.mechanisms.interop import parse_tensor
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.schema import Participation
from fedmf.workloads import momentum_sgd, prefix_sum

SINGLE = Participation(rounds=4, schema="single")
C = np.array([[1.0, 0.0, 0.0, 0.0], [0.5, 1.0, 0.0, 0.0], [0.375, 0.5, 1.0, 0.0], [0.3125, 0.375, 0.5, 1.0]])
B = np.tri(4) @ np.linalg.inv(C)


def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def serialized(array, dtype=2):
    """A TensorProto by hand: dtype (field 1), shape (2: dimensions, 2: size, 1), content (4)."""
    sizes = [b"\x08" + varint(size) for size in array.shape]
    shape = b"".join(b"\x12" + varint(len(size)) + size for size in sizes)
    content = array.astype({1: "<f4", 2: "<f8"}[dtype]).tobytes()
    return b"\x08" + varint(dtype) + b"\x12" + varint(len(shape)) + shape + b"\x22" + varint(len(content)) + content


def folder(path, encoder, decoder):
    path.mkdir()
    (path / "h_matrix_tensor_pb").write_bytes(serialized(encoder))
    (path / "w_matrix_tensor_pb").write_bytes(serialized(decoder))
    return path


@pytest.fixture(params=["npz", "npz of W and H", "npy", "folder", "proto"])
def files(request, tmp_path):
    path = tmp_path / "matrices"
    if request.param == "npz":
        np.savez(path.with_suffix(".npz"), encoder=C, decoder=B)
        return path.with_suffix(".npz")
    if request.param == "npz of W and H":
        np.savez(path.with_suffix(".npz"), H=C, W=B)
        return path.with_suffix(".npz")
    if request.param == "npy":
        np.save(path, C)
        return path.with_suffix(".npy")
    if request.param == "folder":
        return folder(path, C, B)
    path.write_bytes(serialized(C))
    return path


def test_every_kind_of_file_gives_the_mechanism(files):
    mechanism = load_factorization(files)
    assert isinstance(mechanism, DenseMechanism)
    assert np.array_equal(mechanism.encoder(), C)
    assert "not optimised" in mechanism.certificate_reason or "given" in mechanism.certificate_reason


def test_single_precision_is_read(tmp_path):
    (tmp_path / "c").write_bytes(serialized(C, dtype=1))
    np.testing.assert_allclose(load_factorization(tmp_path / "c").encoder(), C, rtol=1e-6)


def test_the_scale_of_the_file_is_not_believed(tmp_path):
    # FACTS: (B / 10, 10 C) multiplies back to A; an encoder trusted to have sensitivity 1 would get a tenth of the noise.
    honest = load_factorization(folder(tmp_path / "honest", C, B), workload=prefix_sum(4))
    scaled = load_factorization(folder(tmp_path / "scaled", 10.0 * C, B / 10.0), workload=prefix_sum(4))
    ratio = sensitivity(scaled, SINGLE).value / sensitivity(honest, SINGLE).value
    np.testing.assert_allclose(ratio, 10.0)
    np.testing.assert_allclose(scaled.noising(), honest.noising() / 10.0)


def test_bands_are_found(tmp_path):
    banded = np.eye(4) + 0.5 * np.eye(4, k=-1)
    np.save(tmp_path / "c.npy", banded)
    mechanism = load_factorization(tmp_path / "c.npy")
    assert (mechanism.family, mechanism.bands) == ("banded", 2)


@pytest.mark.parametrize("decoder", ["online", "full"])
def test_a_tree_of_other_shape_keeps_its_decoder(tmp_path, decoder):
    tree = TreeMechanism(rounds=4, decoder=decoder)
    B_tree = np.tri(4) @ tree.noising()
    mechanism = load_factorization(folder(tmp_path / "tree", tree.encoder(), B_tree), workload=prefix_sum(4))
    assert isinstance(mechanism, ExplicitMechanism)
    np.testing.assert_allclose(mechanism.noising(), tree.noising(), atol=1e-12)


def test_a_square_encoder_is_made_triangular_and_stays_the_same_mechanism(tmp_path):
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    mechanism = load_factorization(folder(tmp_path / "q", Q @ C, B @ Q.T), workload=prefix_sum(4))
    assert isinstance(mechanism, DenseMechanism)
    np.testing.assert_allclose(mechanism.encoder(), C, atol=1e-12)


@pytest.mark.parametrize(
    ("encoder", "decoder", "words"),
    [
        (C[:3], None, ["fewer rows than rounds"]),
        (np.where(C == 0.5, np.nan, C), None, ["not finite"]),
        (np.zeros((4, 4)), None, ["singular"]),
        (np.ones((4, 4)), None, ["singular"]),
        (C[None], None, ["2-D"]),
        (C, B[:3], ["decoder", "(4, 4)"]),
        (C, np.where(np.eye(4) > 0, np.inf, B), ["not finite"]),
        (C, B.T, ["not lower-triangular"]),
        (C, 0.0 * B, ["differs from workload"]),
        (C, B @ np.diag([1.0, 1.0, 1.0, 1.001]), ["differs from workload 'prefix_sum'"]),
        (np.array([["a"]]), None, ["not real numbers"]),
        (C, B + 1e-4 * np.eye(4, k=2), ["not lower-triangular"]),
    ],
)
def test_what_is_no_factorization_is_refused(tmp_path, encoder, decoder, words):
    path = tmp_path / "m.npz"
    arrays = {"encoder": encoder} | ({} if decoder is None else {"decoder": decoder})
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="does not hold a factorization that can be used") as caught:
        load_factorization(path, workload=None if decoder is None else prefix_sum(4))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_workload_must_fit(tmp_path):
    path = tmp_path / "m.npz"
    np.savez(path, encoder=C, decoder=B)
    with pytest.raises(ValueError, match="differs from workload 'momentum_sgd'"):
        load_factorization(path, workload=momentum_sgd(4))
    with pytest.raises(ValueError, match="has rounds=5"):
        load_factorization(path, workload=prefix_sum(5))
    np.savez(path, encoder=C)
    with pytest.raises(ValueError, match="no decoder to check"):
        load_factorization(path, workload=prefix_sum(4))


def test_archives_of_something_else(tmp_path):
    path = tmp_path / "m.npz"
    IdentityMechanism(rounds=3).save(path)
    with pytest.raises(ValueError, match="store C under one of encoder"):
        load_factorization(path)
    np.savez(path, encoder=C, C=C)
    with pytest.raises(ValueError, match="keep one of them"):
        load_factorization(path)
    with pytest.raises(FileNotFoundError, match="is not there"):
        load_factorization(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no h_matrix_tensor_pb"):
        load_factorization(tmp_path / "empty")


def test_damaged_tensors_are_refused(tmp_path):
    whole = serialized(C)
    np.testing.assert_array_equal(parse_tensor(whole), C)
    for length in range(len(whole)):
        with pytest.raises(ValueError, match="tensor"):
            parse_tensor(whole[:length])
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        with contextlib.suppress(ValueError):  # and of no other kind; a flipped bit in a number cannot be noticed here
            parse_tensor(bytes(damaged))


def test_unfit_matrices_do_not_make_a_mechanism():
    with pytest.raises(ValueError, match="do not fit"):
        ExplicitMechanism(encoder_matrix=np.eye(2), noising_matrix=np.eye(3))
    with pytest.raises(ValueError, match="differs from the identity by"):
        ExplicitMechanism(encoder_matrix=np.eye(2), noising_matrix=2.0 * np.eye(2))


def test_without_a_workload_the_product_must_still_be_invertible(tmp_path):
    np.savez(tmp_path / "m.npz", encoder=C, decoder=np.diag([1.0, 1.0, 0.0, 1.0]) @ B)
    with pytest.raises(ValueError, match="product of decoder and encoder is singular"):
        load_factorization(tmp_path / "m.npz")


def test_small_entries_are_no_rounding_where_they_decide_the_noise(tmp_path):
    path = tmp_path / "m.npy"
    encoder = np.array([[1e-9, 5e-10, 0.0], [0.0, 1e-9, 0.0], [0.0, 0.0, 1.0]])  # 5e-10 is small beside 1 only
    np.save(path, encoder)
    mechanism = load_factorization(path)
    noise = np.linalg.inv(encoder)
    np.testing.assert_allclose(mechanism.noising() @ mechanism.noising().T, noise @ noise.T, rtol=1e-9)


def test_columns_of_any_scale_make_a_mechanism():
    columns = 10.0 ** np.array([9.0, 0.0, -9.0, 3.0])
    ExplicitMechanism(encoder_matrix=C * columns, noising_matrix=np.linalg.inv(C) / columns[:, None])
    with pytest.raises(ValueError, match="differs from the identity"):
        ExplicitMechanism(encoder_matrix=C * columns, noising_matrix=1.001 * np.linalg.inv(C) / columns[:, None])
