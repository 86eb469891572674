"""Workloads, which are lower-triangular matrices A. Row t of A x is the quantity that round t
estimates, and the error of a mechanism is measured on it.

Training itself uses no workload.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import final

import numpy as np

from fedmf import checks
from fedmf.numpy_errors import with_numpy_defaults

NAMES = ("prefix_sum", "momentum_sgd", "identity")
# Default momentum of `momentum_sgd`.
MOMENTUM = 0.95

# Largest magnitude of an entry of the workload A. Larger entries could overflow, because the loss
# squares them and the steps of a fit square the loss.
_MAX_MAGNITUDE = 1e75


@final
class Workload:
    """A workload, which is a lower-triangular matrix A over the inputs x of the rounds. Row t of A
    x is the quantity that round t should estimate well.

    A determines which encoder is best (`fedmf.fit`) and how error is reported (`fedmf.loss`), but
    not privacy. Workloads of SGD have a banded inverse, which the constructors below store instead
    of A: a million rounds take a few megabytes, and fits and errors take time linear in the rounds.
    `first @ second` is the product of two workloads.

    Attributes:
      name: name in reports.
      matrix: A, float64 (rounds, rounds), lower-triangular with a non-zero diagonal; read-only. A
        structured workload forms it at the first access.
      inverse_diagonals: A^-1 by rows, float64 (rounds, p), [t, j] = A^-1[t, t - j], if A^-1 is
        known to have p bands; otherwise None.
      rounds: n.

    Raises:
      TypeError: name is not a str, or matrix is not an array of real numbers.
      ValueError: matrix is not square, not lower-triangular, not finite, singular, or has entries
        outside 1e-75 to 1e75.

    >>> Workload("differences", [[1.0, 0.0], [-1.0, 1.0]]).rounds
    2
    >>> (sgd([1.0, 2.0, 4.0]) @ momentum_buffer(3, 0.5)).matrix
    array([[1., 0., 0.],
           [2., 2., 0.],
           [3., 4., 4.]])
    """

    name: str
    rounds: int
    inverse_diagonals: np.ndarray | None
    __array_ufunc__ = None  # This setting makes numpy refuse `array @ workload`.

    def __init__(self, name: str, matrix: np.ndarray | Sequence[Sequence[float]]) -> None:
        checked_matrix = checks.lower_triangular("matrix", matrix)
        _check_scale("matrix", checked_matrix, np.diagonal(checked_matrix))
        self._set(name, len(checked_matrix), None)
        self.__dict__["matrix"] = checks.frozen_copy(checked_matrix)

    @classmethod
    def from_inverse(
        cls, name: str, inverse_diagonals: np.ndarray | Sequence[Sequence[float]]
    ) -> "Workload":
        """Returns the workload A whose banded inverse A^-1 is given by its rows.

        Args:
          name: name in reports.
          inverse_diagonals: the rows of A^-1, (rounds, p), as in the class.

        Returns:
          The workload, which forms its matrix at the first access.

        Raises:
          TypeError, ValueError: not (rounds, p) real, finite numbers with p <= rounds; a zero in
            the first column; or a non-zero outside the matrix, at t - j < 0.

        >>> Workload.from_inverse("prefix_sum", [[1.0, 0.0], [1.0, -1.0], [1.0, -1.0]]).matrix
        array([[1., 0., 0.],
               [1., 1., 0.],
               [1., 1., 1.]])
        """
        inverse_rows = checks.banded_rows("inverse_diagonals", inverse_diagonals)
        _check_scale("inverse_diagonals", inverse_rows, inverse_rows[:, 0])
        workload = cls.__new__(cls)
        workload._set(name, len(inverse_rows), checks.frozen_copy(inverse_rows))
        return workload

    def _set(self, name: str, rounds: int, inverse_diagonals: np.ndarray | None) -> None:
        if not isinstance(name, str):
            raise TypeError(
                f"name={name!r} is a {type(name).__name__}, not a str: name "
                "the workload for reports"
            )
        self.__dict__.update(name=name, rounds=rounds, inverse_diagonals=inverse_diagonals)

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(
            f"{name} of a workload cannot be changed: make another Workload"
        )

    def __repr__(self) -> str:
        return f"Workload(name={self.name!r}, rounds={self.rounds})"

    @functools.cached_property
    def matrix(self) -> np.ndarray:
        """The matrix A, read-only float64 (rounds, rounds). Reading it raises ValueError if it does
        not fit into memory.
        """
        assert self.inverse_diagonals is not None
        checks.fits_in_memory(f"the matrix of workload {self.name!r}", (self.rounds, self.rounds))
        return checks.frozen_copy(_solve_banded(self.inverse_diagonals))

    @property
    def coefficients(self) -> np.ndarray | None:
        """The first column of A, float64 (rounds,), if A is known to be Toeplitz, that is, to have
        the same coefficients in every round; otherwise None.

        >>> momentum_sgd(4, momentum=0.5).coefficients
        array([1.   , 1.5  , 1.75 , 1.875])
        """
        inverse_rows = self.inverse_diagonals
        if (
            inverse_rows is None
            or (
                inverse_rows != np.tril(np.broadcast_to(inverse_rows[-1], inverse_rows.shape))
            ).any()
        ):
            return None
        import scipy.signal

        return np.asarray(scipy.signal.lfilter([1.0], inverse_rows[-1], np.eye(1, self.rounds)[0]))

    def __matmul__(self, other: "Workload") -> "Workload":
        """Returns the workload with the matrix product A_self A_other, which applies `self` to the
        outputs of `other`.
        """
        if not isinstance(other, Workload):
            return NotImplemented
        if self.rounds != other.rounds:
            raise ValueError(
                f"the workloads have rounds={self.rounds} and rounds={other.rounds}: "
                "make both for the same"
            )
        name = f"{self.name} @ {other.name}"
        # The inverse of the product is (A_self A_other)^-1 = A_other^-1 A_self^-1.
        other_inverse = other.inverse_diagonals
        self_inverse = self.inverse_diagonals
        if other_inverse is None or self_inverse is None:
            return Workload(name, np.tril(self.matrix @ other.matrix))
        return Workload.from_inverse(name, checks.banded_product(other_inverse, self_inverse))


def identity(n: int) -> Workload:
    """Returns the identity workload A = I, in which each round estimates its own input, as in
    per-round statistics.

    Args:
      n: number of rounds, a positive int.

    Returns:
      The workload, stored as its inverse.

    Raises:
      TypeError, ValueError: n is not a positive int.

    >>> identity(2).matrix
    array([[1., 0.],
           [0., 1.]])
    """
    n = checks.rounds("n", n)
    return Workload.from_inverse("identity", np.ones((n, 1)))


def prefix_sum(n: int) -> Workload:
    """Returns the workload of prefix sums, A[t, j] = 1 for j <= t, which give the iterates of SGD
    at learning rate 1. They are those of Denisov et al. 2022, App. A, Eq. 10.

    Args:
      n: number of rounds, a positive int.

    Returns:
      The workload, stored as its inverse.

    Raises:
      TypeError, ValueError: n is not a positive int.

    >>> prefix_sum(3).matrix
    array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]])
    """
    n = checks.rounds("n", n)
    return Workload.from_inverse("prefix_sum", _two_bands(np.ones(n), -np.ones(n)))


@with_numpy_defaults
def sgd(learning_rates: Sequence[float] | np.ndarray) -> Workload:
    """Returns the workload of SGD's iterates under a learning-rate schedule. A[t, j] is
    learning_rates[j] for j <= t (Denisov et al. 2022, Prop. 4.2, M_eta).

    Args:
      learning_rates: (n,) positive.

    Returns:
      The workload, stored as its inverse.

    Raises:
      TypeError, ValueError: the rates are not (n,) real, finite, positive numbers.

    >>> sgd([1.0, 0.5]).matrix
    array([[1. , 0. ],
           [1. , 0.5]])
    """
    rates = checks.finite_array("learning_rates", learning_rates, ndim=1)
    if rates.min() <= 0.0:
        t = int(np.argmin(rates))
        raise ValueError(
            f"learning_rates[{t}]={rates[t]} is not positive: give every round a positive rate"
        )
    return Workload.from_inverse("sgd", _two_bands(1.0 / rates, -1.0 / rates))


def by_name(
    name: str,
    n: int,
    *,
    momentum: float = MOMENTUM,
    learning_rates: np.ndarray | None = None,
) -> Workload:
    """Returns the workload that has this name on the command line and in configs.

    Args:
      name: one of `NAMES`.
      n: number of rounds.
      momentum: momentum of momentum_sgd.
      learning_rates: learning rates of the server, float64 (n,); None for 1 in every round.

    Raises:
      ValueError: learning rates for the identity, which has none; or a momentum for a workload
        other than momentum_sgd.
    """
    if name == "momentum_sgd":
        return momentum_sgd(n, momentum, learning_rates)
    if momentum != MOMENTUM:
        raise ValueError(
            f"workload_momentum={momentum} belongs to workload=momentum_sgd, not to "
            f"workload={name}: leave it out"
        )
    if name == "prefix_sum":
        if learning_rates is None:
            return prefix_sum(n)
        return sgd(learning_rates)
    if learning_rates is not None:
        raise ValueError(
            "workload=identity has no learning rates: leave out `warmup`, `cooldown` "
            "and `learning_rate_schedule`, or choose another workload"
        )
    return identity(n)


@with_numpy_defaults
def momentum_buffer(n: int, momentum: float) -> Workload:
    """Returns the workload of the momentum buffers of heavy-ball SGD. A[t, j] is momentum^(t - j)
    for j <= t (Denisov et al. 2022, Prop. 4.2, M_beta).

    Args:
      n: number of rounds, a positive int.
      momentum: beta, in [0, 1).

    Returns:
      The workload, stored as its inverse.

    Raises:
      TypeError, ValueError: n is not a positive int, or momentum is outside [0, 1).

    >>> momentum_buffer(2, 0.5).matrix
    array([[1. , 0. ],
           [0.5, 1. ]])
    """
    n = checks.rounds("n", n)
    hint = "choose a number in [0, 1), 0 for plain SGD"
    momentum = checks.positive("momentum", momentum, hint, below=1, allow_zero=True)
    return Workload.from_inverse("momentum_buffer", _two_bands(np.ones(n), np.full(n, -momentum)))


@with_numpy_defaults
def momentum_sgd(
    n: int, momentum: float = 0.95, learning_rates: Sequence[float] | np.ndarray | None = None
) -> Workload:
    """Returns the workload of the iterates of heavy-ball momentum SGD under a learning-rate
    schedule. They are those of Denisov et al. 2022, Prop. 4.2, Eq. 9.

    A[t, j] = sum over i in j..t of learning_rates[i] * momentum ** (i - j), `sgd(learning_rates) @
    momentum_buffer(n, momentum)`.

    Args:
      n: number of rounds, a positive int.
      momentum: beta, in [0, 1). With 0 and no schedule this is `prefix_sum`.
      learning_rates: (n,) positive; None means 1 in every round.

    Returns:
      The workload, stored as its inverse.

    Raises:
      TypeError: an argument is of the wrong kind.
      ValueError: momentum is outside [0, 1); learning_rates is not of shape (n,), not finite or not
        positive.

    >>> momentum_sgd(3, momentum=0.5, learning_rates=[1.0, 2.0, 4.0]).matrix
    array([[1., 0., 0.],
           [2., 2., 0.],
           [3., 4., 4.]])
    """
    buffer_workload = momentum_buffer(n, momentum)
    n = buffer_workload.rounds
    if learning_rates is None:
        rate_array = np.ones(n)
    else:
        rate_array = checks.finite_array("learning_rates", learning_rates, ndim=1)
    if rate_array.shape != (n,):
        raise ValueError(
            f"learning_rates has shape {rate_array.shape}: pass one rate for each of the n={n} "
            "rounds"
        )
    inverse_rows = (sgd(rate_array) @ buffer_workload).inverse_diagonals
    assert inverse_rows is not None
    return Workload.from_inverse("momentum_sgd", inverse_rows)


def check_workload(workload: object) -> None:
    """Raises TypeError unless `workload` is a Workload."""
    if not isinstance(workload, Workload):
        raise TypeError(f"workload is of type {type(workload).__name__}: pass a fedmf.Workload")


def _check_scale(name: str, matrix: np.ndarray, diagonal: np.ndarray) -> None:
    """Raises ValueError unless the largest entry of the matrix and the smallest entry on its
    diagonal, both by magnitude, lie within 1e-75 to 1e75.
    """
    largest_entry = float(np.abs(matrix).max())
    smallest_diagonal = float(np.abs(diagonal).min())
    if not smallest_diagonal:
        smallest_row = int(np.argmin(np.abs(diagonal)))
        raise ValueError(
            f"{name} is singular: the weight of round {smallest_row}'s own input is 0, give it "
            "another one"
        )
    if largest_entry > _MAX_MAGNITUDE or smallest_diagonal < 1.0 / _MAX_MAGNITUDE:
        raise ValueError(
            f"{name} has entries from {smallest_diagonal:.3g} on its diagonal to "
            f"{largest_entry:.3g}: float64 holds the squares of those within "
            f"{1.0 / _MAX_MAGNITUDE:g} to {_MAX_MAGNITUDE:g} only, so give the workload, or the "
            "learning rates, another unit"
        )


def _two_bands(diagonal: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Returns the rows of a lower-triangular matrix with two bands. Row t has diagonal[t] on the
    diagonal and, for t > 0, left[t] to the left of it.
    """
    return np.tril(np.stack([diagonal, left], axis=1))[:, : len(diagonal)]


def _solve_banded(rows: np.ndarray) -> np.ndarray:
    """Returns the inverse of the banded lower-triangular matrix whose rows are given as (n, p)
    bands, in O(n^2 p) time.
    """
    n, p = rows.shape
    A = np.zeros((n, n))
    for t in range(n):
        A[t, t] = 1.0
        for j in range(1, min(p, t + 1)):
            if rows[t, j]:
                A[t, : t - j + 1] -= rows[t, j] * A[t - j, : t - j + 1]
        A[t, : t + 1] /= rows[t, 0]
    return A
