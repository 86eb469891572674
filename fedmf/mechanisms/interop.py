"""Reading of matrix factorizations that other programs wrote, and mechanisms that are given by
their encoder and noise matrix.
"""

import dataclasses
import functools
import math
import os
import pathlib
import reprlib
from typing import Any, ClassVar, final

import numpy as np
import scipy.linalg

from fedmf import checks, fields
from fedmf.files import checked_path
from fedmf.mechanisms.banded.fit import BandedMechanism, diagonals_of
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.dense.fit import DenseMechanism
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.storage import READ_ERRORS
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.workloads import Workload

# Names that the encoder C and the decoder B may have in .npz archives of other programs. The
# papers' public code writes W for B and H for C.
_ENCODER_NAMES = ("encoder", "C", "c", "H", "h", "h_matrix")
_DECODER_NAMES = ("decoder", "B", "b", "W", "w", "w_matrix")
# The papers' public code writes a folder of two files, each of which is one serialized TensorProto
# of doubles.
_ENCODER_FILE = "h_matrix_tensor_pb"
_DECODER_FILE = "w_matrix_tensor_pb"
# Entries below this fraction of the largest one count as rounding errors of the program that wrote
# the file.
_ROUNDING = 1e-8
# The supported number types, by their numbers in TensorFlow's types.proto.
_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("<f8")}
# The definitions that are needed from TensorFlow's files tensor.proto and tensor_shape.proto.
_TENSOR_PROTO = """
name: "tensor.proto" package: "fedmf" syntax: "proto3"
message_type { name: "Dim" field { name: "size" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 } }
message_type { name: "Shape"
  field { name: "dim" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".fedmf.Dim" } }
message_type { name: "Tensor"
  field { name: "dtype" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
  field { name: "shape" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE
    type_name: ".fedmf.Shape" }
  field { name: "content" number: 4 label: LABEL_OPTIONAL type: TYPE_BYTES } }
"""


@with_numpy_defaults
def load_factorization(
    path: str | os.PathLike[str], *, workload: Workload | None = None
) -> Mechanism:
    """Reads an encoder C, and optionally a decoder B, from files that another program wrote, and
    returns the mechanism that they define.

    B C must be lower-triangular, invertible and equal to the workload if one is given. The scale of
    C is not trusted: `fedmf.sensitivity` computes from C itself. Without B, N is the pseudo-inverse
    of C; with B it is A^-1 B.

    Args:
      path: an .npz archive with C under encoder, C, H or h_matrix, and B (optional) under decoder,
        B, W or w_matrix; or an .npy file that holds C alone; or a folder with h_matrix_tensor_pb
        and w_matrix_tensor_pb, as the papers' public code writes them; or one file that is a
        serialized TensorProto and holds C alone.
      workload: A, checked against B C to 6 digits; needs B.

    Returns:
      A banded or dense mechanism if C is square and N its inverse, otherwise an
      `ExplicitMechanism`.

    Raises:
      TypeError: path is not a path, or workload not a Workload.
      FileNotFoundError: there is no such file or folder.
      ValueError: the files are damaged or of another format, or the matrices fail a check.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".npy") as file:
    ...     np.save(file, [[1.0, 0.0], [0.5, 1.0]])
    ...     file.flush()
    ...     load_factorization(file.name).family
    'dense'
    """
    path_hint = "name an .npz or .npy file, or a folder of tensors"
    source_path = checked_path("path", path, hint=path_hint)
    if workload is not None and not isinstance(workload, Workload):
        raise TypeError(f"workload={reprlib.repr(workload)} must be a fedmf.Workload, or None")
    if not source_path.exists():
        raise FileNotFoundError(f"path={str(source_path)!r} is not there: {path_hint}")
    try:
        C, B = _read_matrices(source_path)
        return _build_mechanism(C, B, workload)
    except checks.TooLargeForMemory as error:
        raise checks.TooLargeForMemory(
            f"path={str(source_path)!r} cannot be used: {error}"
        ) from error
    except (*READ_ERRORS, np.linalg.LinAlgError) as error:
        raise ValueError(
            f"path={str(source_path)!r} does not hold a factorization that can be used: {error}"
        ) from error


def _read_matrices(source: pathlib.Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Reads the encoder C, and the decoder B or None, from a folder or file in one of the supported
    formats.
    """
    if source.is_dir():
        for file_name in (_ENCODER_FILE, _DECODER_FILE):
            if not (source / file_name).is_file():
                raise ValueError(f"the folder has no {file_name}, write both matrices into it")
        C = parse_tensor((source / _ENCODER_FILE).read_bytes())
        B = parse_tensor((source / _DECODER_FILE).read_bytes())
        return C, B
    with source.open("rb") as file:
        file_prefix = file.read(6)
    if not file_prefix.startswith((b"PK", b"\x93NUMPY")):
        return parse_tensor(source.read_bytes()), None
    array_or_archive = np.load(source, allow_pickle=False)
    if isinstance(array_or_archive, np.ndarray):
        return array_or_archive, None
    with array_or_archive as archive:
        encoder = _archived_matrix(archive, _ENCODER_NAMES)
        decoder = _archived_matrix(archive, _DECODER_NAMES)
        if encoder is None:
            raise ValueError(
                f"the archive holds {', '.join(archive.files)}: store C under one of "
                f"{', '.join(_ENCODER_NAMES)}"
            )
        return encoder, decoder


def _archived_matrix(archive: np.lib.npyio.NpzFile, names: tuple[str, ...]) -> np.ndarray | None:
    """Returns the matrix that the archive holds under one of `names`, or None if it holds none of
    them.
    """
    present_names = [name for name in names if name in archive.files]
    if len(present_names) > 1:
        raise ValueError(f"the archive holds {' and '.join(present_names)}: keep one of them")
    if not present_names:
        return None
    return np.asarray(archive[present_names[0]])


def _build_mechanism(C: np.ndarray, B: np.ndarray | None, workload: Workload | None) -> Mechanism:
    """Checks the encoder C, the decoder B and the workload against each other, and builds the
    mechanism.
    """
    C = checks.finite_array("encoder", C, ndim=2)
    m, n = C.shape
    if m < n:
        raise ValueError(
            f"encoder has shape {C.shape}: fewer rows than rounds cannot be "
            "decoded, is it transposed?"
        )
    if workload is not None and workload.rounds != n:
        raise ValueError(
            f"encoder has {n} columns but workload {workload.name!r} has rounds={workload.rounds}"
        )
    N = _pseudo_inverse(C, workload) if B is None else _noising(C, B, workload)
    if m == n:
        square_mechanism = _square_mechanism(C, N)
        if square_mechanism is not None:
            return square_mechanism
    return ExplicitMechanism(encoder_matrix=C, noising_matrix=N)


def _pseudo_inverse(C: np.ndarray, workload: Workload | None) -> np.ndarray:
    """Returns the noise matrix N = pinv(C) of an encoder without decoder. Raises ValueError if C is
    singular, or if a workload was passed.
    """
    if workload is not None:
        raise ValueError("there is no decoder to check against workload: leave workload out")
    singular_values = scipy.linalg.svdvals(C)
    if singular_values[-1] <= 1e-12 * singular_values[0]:
        raise ValueError(
            f"encoder is singular (its singular values reach from {singular_values[0]:.2g} "
            f"to {singular_values[-1]:.2g})"
        )
    if C.shape[0] == C.shape[1]:
        return np.linalg.inv(C)
    return np.linalg.pinv(C)


def _noising(C: np.ndarray, B: np.ndarray, workload: Workload | None) -> np.ndarray:
    """Returns the noise matrix N = A^-1 B for the workload A = B C. Raises ValueError if A is not a
    valid workload, or differs from `workload`.
    """
    m, n = C.shape
    B = checks.finite_array("decoder", B, ndim=2)
    if B.shape != (n, m):
        raise ValueError(
            f"decoder has shape {B.shape}: an encoder of shape {C.shape} needs one of ({n}, {m})"
        )
    A = np.tril(B @ C)
    if np.abs(B @ C - A).max() > _ROUNDING * np.abs(A).max():
        raise ValueError(
            "the product of decoder and encoder is not lower-triangular: "
            "rounds would need later ones"
        )
    if workload is not None:
        tolerance = 1e-6 * np.abs(workload.matrix).max()
        if not np.allclose(A, workload.matrix, rtol=1e-6, atol=tolerance):
            max_difference = float(np.abs(A - workload.matrix).max())
            raise ValueError(
                f"decoder @ encoder differs from workload {workload.name!r} by {max_difference:.2g}"
            )
    if (np.diagonal(A) == 0.0).any():
        raise ValueError("the product of decoder and encoder is singular")
    return scipy.linalg.solve_triangular(A, B, lower=True)


def _square_mechanism(C: np.ndarray, N: np.ndarray) -> Mechanism | None:
    """Returns an equivalent mechanism with a lower-triangular C of positive diagonal and N = C^-1,
    or None if there is no such mechanism.

    C and Q C for an orthogonal Q have the same gram matrix, hence the same sensitivity, and N and N
    Q^T give noise of the same distribution (Denisov et al. 2022, Thm. 2.1 and after): a square C
    can be made triangular.
    """
    n = C.shape[0]
    if np.abs(np.triu(C, 1)).max(initial=0.0) <= _ROUNDING * np.abs(C).max():
        L = np.tril(C)
    else:
        # The QR factorization of C with its rows and columns reversed gives C = Q L, where Q is
        # orthogonal and L lower-triangular.
        L = scipy.linalg.qr(C[::-1, ::-1])[1][::-1, ::-1]
    L = L * np.sign(np.diagonal(L))[:, None]
    if (np.diagonal(L) <= 0.0).any():
        return None
    # Entries below _ROUNDING may be set to 0 only if L still leads to the same noise as N, that is,
    # if N N^T = (C^T C)^-1.
    L_inverse = scipy.linalg.solve_triangular(L, np.eye(n), lower=True)
    noise_covariance = N @ N.T
    tolerance = 1e-6 * np.abs(noise_covariance).max()
    if not np.allclose(noise_covariance, L_inverse @ L_inverse.T, rtol=1e-6, atol=tolerance):
        return None
    bands = int(np.max(np.subtract(*np.nonzero(L)))) + 1
    certificate_reason = "loaded from given matrices"
    if bands < n:
        return BandedMechanism(
            diagonals=diagonals_of(L, bands), certificate_reason=certificate_reason
        )
    return DenseMechanism(matrix=L, certificate_reason=certificate_reason)


def parse_tensor(serialized: bytes) -> np.ndarray:
    """Returns the array of a serialized TensorProto of floats or doubles in float64. The format is
    that of tf.io.serialize_tensor.

    Raises:
      ValueError: the bytes are no such message, are cut off, or hold another kind of tensor.

    >>> parse_tensor(
    ...     b"\\x08\\x02\\x12\\x04\\x12\\x02\\x08\\x01\\x22\\x08" + np.float64(0.5).tobytes()
    ... )
    array([0.5])
    """
    from google.protobuf import message

    try:
        tensor = tensor_message().FromString(serialized)
    except message.DecodeError as error:
        raise ValueError(f"no serialized tensor: {error}") from None
    if tensor.dtype not in _DTYPES:
        raise ValueError(
            f"a tensor of data type {tensor.dtype}; only float (1) and double (2) are read"
        )
    dtype = _DTYPES[tensor.dtype]
    tensor_shape = [dim.size for dim in tensor.shape.dim]
    if len(tensor.content) != dtype.itemsize * math.prod(tensor_shape):
        raise ValueError(
            f"a tensor of shape {tensor_shape} whose numbers are missing, cut off or not in "
            "tensor_content"
        )
    return np.frombuffer(tensor.content, dtype).astype(np.float64).reshape(tensor_shape)


@functools.cache
def tensor_message() -> Any:
    """Returns a class that parses the data type, shape and content of TensorFlow's TensorProto. It
    needs protobuf only, not TensorFlow.
    """
    # Protocol buffers are imported here, since only few users need them and `fedmf --help` must not
    # wait for them.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    # TensorFlow registers messages in the default pool, so these messages get a separate pool.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_TENSOR_PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fedmf.Tensor"))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ExplicitMechanism(Mechanism):
    """A mechanism that is given by two explicit matrices, an encoder C (m, n) with m >= n, and any
    noise matrix N (n, m) with N C = I.

    Attributes:
      encoder_matrix: C, float64 (m, rounds). Stored as a read-only copy.
      noising_matrix: N, float64 (rounds, m). Stored as a read-only copy.

    Raises:
      TypeError, ValueError: an argument is of the wrong kind or shape, not finite, or N C is not I
        to 6 digits, in sums of errors over columns.

    >>> ExplicitMechanism(encoder_matrix=[[1.0], [1.0]], noising_matrix=[[0.5, 0.5]]).rounds
    1
    """

    family: ClassVar[str] = "matrices"
    encoder_matrix: np.ndarray = fields.array(2)
    noising_matrix: np.ndarray = fields.array(2)

    def __post_init__(self) -> None:
        super().__post_init__()
        C = self.encoder_matrix
        N = self.noising_matrix
        if C.shape != N.shape[::-1] or C.shape[0] < C.shape[1]:
            raise ValueError(
                f"encoder_matrix of shape {C.shape} and noising_matrix of shape {N.shape} do not "
                "fit: pass (m, rounds) and (rounds, m) with m at least rounds"
            )
        # Let E = N C - I. The noise has the privacy of the encoder C (I + E)^-1, so C E must be
        # small (see `check_left_inverse`). Each column of C E is bounded by a sum, because many
        # small entries may add up in a file that was made to mislead.
        column_scales = np.abs(C).max(axis=0)
        with np.errstate(all="ignore"):
            scaled_errors = (
                np.abs(N @ C - np.eye(C.shape[1])) * column_scales[:, None] / column_scales
            )
            largest_column_sum = float(scaled_errors.sum(axis=0).max())
        if not largest_column_sum <= 1e-6:
            raise ValueError(
                f"noising_matrix @ encoder_matrix differs from the identity by "
                f"{largest_column_sum:.2g}: pass a left inverse, such as the pseudo-inverse of "
                "the encoder"
            )

    @property
    def rounds(self) -> int:
        """The number of rounds n."""
        return int(self.encoder_matrix.shape[1])

    def encoder(self) -> np.ndarray:
        """Returns the encoder C, float64 (m, rounds)."""
        return self.encoder_matrix.copy()

    def noising(self) -> np.ndarray:
        """Returns the noise matrix N, float64 (rounds, m)."""
        return self.noising_matrix.copy()


register(Family(mechanism=ExplicitMechanism, label="Explicit matrices"))
