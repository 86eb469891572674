"""Mechanisms with a buffered linear Toeplitz (BLT) encoder, whose correlated noise a few running
sums compute.
"""

import dataclasses
from typing import ClassVar, final

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.toeplitz.mechanism import lower_toeplitz
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream

# Largest sum of the magnitudes of the scales. With a larger sum the terms cancel so much that
# float32 keeps fewer than four digits of the noise.
MAX_SUM_OF_SCALES = 1e3


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BLTMechanism(Mechanism):
    """A mechanism with a Toeplitz encoder C whose generating function is rational, so that d
    buffers compute its noise (BLT slides; Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024;
    McMahan, Xu and Zhang 2024).

        c(x) = product over i of (1 - inverse_decays[i] x) / (1 - decays[i] x)

        C:  c_0 = 1,  c_t =   sum over i of scales[i] decays[i]^(t - 1)
        N:  n_0 = 1,  n_t = - sum over i of inverse_scales[i] inverse_decays[i]^(t - 1)

    The inverse 1 / c(x) swaps zeros and poles, so that N has as many buffers as C: a noise vector
    costs d model sizes, in time and in memory.

    Fits alternate zeros and poles: 1 > decays[0] > inverse_decays[0] > decays[1] > ... All scales
    are then positive (partial fractions: each is a product of ratios of positive differences).
    Where they sum to at most 1, c is decreasing and the sensitivity is known exactly; otherwise
    `fedmf.sensitivity` bounds it.

    Attributes:
      rounds: n, a positive int.
      decays: poles of c(1 / x), float64 (d,), distinct, in [-1, 1].
      inverse_decays: zeros of c(1 / x), float64 (d,), distinct, in [-1, 1].

    Raises:
      TypeError, ValueError: an argument is of the wrong kind or shape, not finite, or against the
        conditions above.

    >>> mechanism = BLTMechanism(rounds=3, decays=[0.8], inverse_decays=[0.3])
    >>> mechanism.scales, mechanism.toeplitz_coefficients()
    (array([0.5]), array([1. , 0.5, 0.4]))
    """

    family: ClassVar[str] = "blt"
    rounds: int = fields.validated(checks.rounds)
    decays: np.ndarray = fields.array(1)
    inverse_decays: np.ndarray = fields.array(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decays.shape != self.inverse_decays.shape:
            raise ValueError(
                f"decays has length {len(self.decays)} and inverse_decays "
                f"{len(self.inverse_decays)}: pass one of each for every buffer"
            )
        for field_name in ("decays", "inverse_decays"):
            field_values = getattr(self, field_name)
            if np.abs(field_values).max() > 1.0 or len(np.unique(field_values)) < len(field_values):
                raise ValueError(
                    f"{field_name}={field_values} must be distinct numbers from -1 to 1: larger "
                    "ones grow without bound, and equal ones have no partial fractions"
                )
        with np.errstate(all="ignore"):  # A quotient of values close to 0 may overflow.
            scale_sums = [np.abs(self.scales).sum(), np.abs(self.inverse_scales).sum()]
            largest_sum = float(np.max(scale_sums))
        # The comparison is written so that a NaN is refused as well.
        if not largest_sum <= MAX_SUM_OF_SCALES:
            raise ValueError(
                f"decays={self.decays} and inverse_decays={self.inverse_decays} give scales that "
                f"sum to {largest_sum:.3g} and cancel, which float32 does not hold: pass values "
                "that are further apart, or that alternate"
            )

    @property
    def buffers(self) -> int:
        """The number d of buffers, the running sums from which a noise vector is computed."""
        return len(self.decays)

    @property
    def scales(self) -> np.ndarray:
        """The weights of the buffers in the encoder C, float64 (d,)."""
        return residues(self.decays, self.inverse_decays)

    @property
    def inverse_scales(self) -> np.ndarray:
        """The weights of the buffers in the noise matrix N, which subtracts them; float64 (d,)."""
        return -residues(self.inverse_decays, self.decays)

    def encoder(self) -> np.ndarray:
        """Returns the encoder C, a lower-triangular float64 array of shape (rounds, rounds)."""
        return lower_toeplitz(self.toeplitz_coefficients(), self.rounds)

    def noising(self) -> np.ndarray:
        """Returns the noise matrix N = C^-1, a lower-triangular float64 array of shape (rounds,
        rounds).
        """
        return lower_toeplitz(self.noising_coefficients(), self.rounds)

    def stream(self) -> NoiseStream:
        """Returns the recipe of the noise vectors, x_t = z_t - sum of inverse_scales * S(t), where
        z_t is the draw of round t and the buffers are S(t) = inverse_decays * S(t - 1) + z_{t-1}.
        """
        n = self.rounds
        d = self.buffers
        buffers = Buffers(
            window=np.ones((n, 1)),
            read=np.tile(-self.inverse_scales, (n, 1)),
            write=np.ones((n, d)),
            decay=self.inverse_decays,
        )
        return NoiseStream(rounds=n, sources=n, buffers=buffers)

    def toeplitz_coefficients(self) -> np.ndarray:
        """Returns the first column c of the encoder C, float64 (rounds,)."""
        return exponentials(self.scales, self.decays, self.rounds)

    def noising_coefficients(self) -> np.ndarray:
        """Returns the first column of the noise matrix N, float64 (rounds,)."""
        return exponentials(-self.inverse_scales, self.inverse_decays, self.rounds)


def residues(poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Returns the residues r_i, float64 (d,), for which the product of (1 - zeros x) / (1 - poles
    x) equals 1 + x times the sum of r_i / (1 - poles[i] x).

    r_i = (poles[i] - zeros[i]) * product over j != i of (poles[i] - zeros[j]) / (poles[i] -
    poles[j]): products of differences only, which lose no digits however close the poles are.

    >>> residues(np.array([0.8]), np.array([0.3]))
    array([0.5])
    """
    to_zeros = poles[:, None] - zeros
    to_poles = poles[:, None] - poles
    np.fill_diagonal(to_poles, 1.0)
    return (to_zeros / to_poles).prod(axis=1)


def exponentials(scales: np.ndarray, decays: np.ndarray, n: int) -> np.ndarray:
    """Returns the first n terms of the sequence whose term 0 is 1 and whose term t > 0 is
    sum(scales * decays^(t - 1)).
    """
    sequence = np.eye(1, n)[0]
    lags = np.arange(n - 1)
    with np.errstate(under="ignore"):  # A power that underflows is 0, which is accurate enough.
        for scale, decay in zip(scales, decays, strict=True):
            sequence[1:] += scale * decay**lags
    return sequence
