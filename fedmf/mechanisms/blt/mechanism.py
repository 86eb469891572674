"""Buffered linear Toeplitz encoders: noise correlated over all rounds from a handful
of running sums.
"""

import dataclasses
from typing import ClassVar, final

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.toeplitz.mechanism import lower_toeplitz
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream

# Scales whose magnitudes sum to more cancel, and float32 keeps less than four digits of the noise.
MAX_SUM_OF_SCALES = 1e3


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BLTMechanism(Mechanism):
    """A Toeplitz C whose generating function is rational, so that d buffers make the noise (BLT
    slides; Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024; McMahan, Xu and Zhang 2024).

        c(x) = product over i of (1 - inverse_decays[i] x) / (1 - decays[i] x)

        C:  c_0 = 1,  c_t =   sum over i of scales[i] decays[i]^(t - 1)
        N:  n_0 = 1,  n_t = - sum over i of inverse_scales[i] inverse_decays[i]^(t - 1)

    The inverse 1 / c(x) swaps zeros and poles, so N is made of as many buffers as C: a round of
    noise costs d model sizes, in time and in memory.

    Fits make zeros and poles that alternate: 1 > decays[0] > inverse_decays[0] > decays[1] > ...
    All scales then are positive (partial fractions: each is a product of ratios of positive
    differences). Where they sum to at most 1, c is decreasing, the case in which the sensitivity is
    known exactly: see `fedmf.sensitivity`, which bounds all others.

    Attributes:
      rounds: n, a positive int.
      decays: float64 (d,), different, in [-1, 1].
      inverse_decays: float64 (d,), different, in [-1, 1].

    Raises:
      TypeError, ValueError: an argument is of another kind or shape, not finite, or breaks what is
        said above.

    >>> mechanism = BLTMechanism(rounds=3, decays=[0.8], inverse_decays=[0.3])
    >>> mechanism.scales, mechanism.toeplitz_coefficients()
    (array([0.5]), array([1. , 0.5, 0.4]))
    """

    family: ClassVar[str] = "blt"
    rounds: int = fields.checked(checks.rounds)
    decays: np.ndarray = fields.array(1)
    inverse_decays: np.ndarray = fields.array(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decays.shape != self.inverse_decays.shape:
            raise ValueError(
                f"decays has length {len(self.decays)} and inverse_decays "
                f"{len(self.inverse_decays)}: pass one of each a buffer"
            )
        for name in ("decays", "inverse_decays"):
            values = getattr(self, name)
            if np.abs(values).max() > 1.0 or len(np.unique(values)) < len(values):
                raise ValueError(
                    f"{name}={values} must be different numbers from -1 to 1: larger ones grow "
                    "without end, and equal ones are no partial fractions"
                )
        with np.errstate(all="ignore"):  # a quotient of neighbours of 0 may overflow
            largest = float(np.max([np.abs(self.scales).sum(), np.abs(self.inverse_scales).sum()]))
        if not largest <= MAX_SUM_OF_SCALES:  # also where it is no number
            raise ValueError(
                f"decays={self.decays} and inverse_decays={self.inverse_decays} give scales that "
                f"sum to {largest:.3g} and cancel, which float32 does not hold: pass values that "
                "are further apart, or that alternate"
            )

    @property
    def buffers(self) -> int:
        """d, the number of running sums that a round of noise takes."""
        return len(self.decays)

    @property
    def scales(self) -> np.ndarray:
        """What C makes of each buffer, float64 (d,)."""
        return residues(self.decays, self.inverse_decays)

    @property
    def inverse_scales(self) -> np.ndarray:
        """What N takes off for each buffer, float64 (d,)."""
        return -residues(self.inverse_decays, self.decays)

    def encoder(self) -> np.ndarray:
        """C, float64 (rounds, rounds), lower-triangular."""
        return lower_toeplitz(self.toeplitz_coefficients(), self.rounds)

    def noising(self) -> np.ndarray:
        """N = C^-1, float64 (rounds, rounds), lower-triangular."""
        return lower_toeplitz(self.noising_coefficients(), self.rounds)

    def stream(self) -> NoiseStream:
        """x_t = z_t - sum of inverse_scales * S(t), where S(t) = inverse_decays * S(t
        - 1) + z_{t-1}.
        """
        n, d = self.rounds, self.buffers
        read = np.tile(-self.inverse_scales, (n, 1))
        buffers = Buffers(
            window=np.ones((n, 1)), read=read, write=np.ones((n, d)), decay=self.inverse_decays
        )
        return NoiseStream(rounds=n, sources=n, buffers=buffers)

    def toeplitz_coefficients(self) -> np.ndarray:
        """c, float64 (rounds,)."""
        return exponentials(1.0, self.scales, self.decays, self.rounds)

    def noising_coefficients(self) -> np.ndarray:
        """The first column of N, float64 (rounds,)."""
        return exponentials(1.0, -self.inverse_scales, self.inverse_decays, self.rounds)


def residues(poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """The r_i with product of (1 - zeros x) / (1 - poles x) = 1 + x sum of r_i / (1 -
    poles[i] x), (d,).

    r_i = (poles[i] - zeros[i]) * product over j != i of (poles[i] - zeros[j]) / (poles[i] -
    poles[j]): products of differences only, so that no digits are lost however close the poles are.

    >>> residues(np.array([0.8]), np.array([0.3]))
    array([0.5])
    """
    to_zeros = poles[:, None] - zeros
    to_poles = poles[:, None] - poles
    np.fill_diagonal(to_poles, 1.0)
    return np.asarray((to_zeros / to_poles).prod(axis=1))


def exponentials(first: float, scales: np.ndarray, decays: np.ndarray, n: int) -> np.ndarray:
    """The sequence `first`, sum(scales), sum(scales * decays), sum(scales * decays^2),
    ..., float64 (n,).
    """
    sequence = np.zeros(n)
    lags = np.arange(n - 1)
    for scale, decay in zip(scales, decays, strict=True):
        sequence[1:] += scale * decay**lags
    sequence[0] = first
    return sequence
