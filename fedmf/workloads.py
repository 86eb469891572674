"""Workloads: the lower-triangular query A on which error is measured. Training itself never uses one."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedmf import _checks


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
    """A linear query A over the rounds' inputs: row t of A x is what round t should estimate well.

    A decides which encoder is best (`fedmf.fit`) and how error is reported (`fedmf.loss`); privacy does not depend on
      it.

    Attributes:
      name: what reports call it.
      matrix: A, float64 (rounds, rounds), lower-triangular with a non-zero diagonal; kept as a read-only copy.

    Raises:
      TypeError: name is not a str, or matrix is not an array of real numbers.
      ValueError: matrix is not square, not lower-triangular, not finite, or singular.

    >>> Workload("differences", [[1.0, 0.0], [-1.0, 1.0]]).rounds
    2
    """

    name: str
    matrix: np.ndarray

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(
                f"name={self.name!r} is a {type(self.name).__name__}, not a str: name the workload for reports"
            )
        matrix = _checks.lower_triangular("matrix", self.matrix)
        zeros = np.flatnonzero(np.diagonal(matrix) == 0.0)
        if len(zeros):
            t = int(zeros[0])
            raise ValueError(
                f"matrix[{t}, {t}]=0.0 makes the workload singular: give every round a non-zero weight on its own input"
            )
        object.__setattr__(self, "matrix", _checks.frozen(matrix))

    @property
    def rounds(self) -> int:
        """The number of rounds n."""
        return int(self.matrix.shape[0])


def prefix_sum(n: int) -> Workload:
    """Prefix sums: A[t, j] = 1 for j <= t, SGD at learning rate 1 (Denisov et al. 2022, App. A, Eq. 10).

    Args:
      n: rounds, a positive int.

    >>> prefix_sum(3).matrix
    array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]])
    """
    n = _checks.integer("n", n, low=1, way_out="pass the number of rounds, a positive int")
    return Workload("prefix_sum", np.tri(n))


def momentum_sgd(
    n: int, momentum: float = 0.95, learning_rates: Sequence[float] | np.ndarray | None = None
) -> Workload:
    """The iterates of heavy-ball momentum SGD with a learning-rate schedule (Denisov et al. 2022, Prop. 4.2, Eq. 9).

    A[t, j] = sum over i in j..t of learning_rates[i] * momentum ** (i - j): the input of round j enters the momentum
    buffer with weight 1, decays by `momentum` each round, and every later round adds the buffer times its learning
    rate (their Algorithm 2).

    Args:
      n: rounds, a positive int.
      momentum: beta, in [0, 1). With 0 and no schedule this is `prefix_sum`.
      learning_rates: (n,) positive; None means 1 in every round.

    Raises:
      TypeError: an argument of the wrong kind.
      ValueError: momentum outside [0, 1); learning_rates not of shape (n,), not finite or not positive.

    >>> momentum_sgd(3, momentum=0.5, learning_rates=[1.0, 2.0, 4.0]).matrix
    array([[1., 0., 0.],
           [2., 2., 0.],
           [3., 4., 4.]])
    """
    n = _checks.integer("n", n, low=1, way_out="pass the number of rounds, a positive int")
    momentum = _checks.real("momentum", momentum, way_out="choose a number in [0, 1)")
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum={momentum} is outside [0, 1): choose 0 for plain SGD or a value such as 0.95")
    if learning_rates is None:
        rates = np.ones(n)
    else:
        rates = _checks.array("learning_rates", learning_rates, ndim=1)
        if rates.shape != (n,):
            raise ValueError(f"learning_rates has shape {rates.shape}: pass one rate for each of the n={n} rounds")
        if rates.min() <= 0.0:
            t = int(np.argmin(rates))
            raise ValueError(f"learning_rates[{t}]={rates[t]} is not positive: give every round a positive rate")
    # Row t adds learning_rates[t] * (momentum buffer of round t) to row t - 1; as a running sum this costs O(n^2),
    # not the O(n^3) of the product M_eta @ M_beta that defines it.
    lags = np.subtract.outer(np.arange(n), np.arange(n))
    buffers = np.where(lags >= 0, momentum ** np.maximum(lags, 0), 0.0)
    return Workload("momentum_sgd", np.cumsum(rates[:, None] * buffers, axis=0))
