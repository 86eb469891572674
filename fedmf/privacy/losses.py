"""Privacy losses of one client that can be sampled.

A client takes part in the pattern x with probability p(x). The pair P = sum_x p(x) N(C x, sigma^2
I) and Q = N(0, sigma^2 I) dominates the run where C >= 0 (Choquette-Choo et al. 2024,
arXiv:2410.06266, Lemma 3.2). L = log dP/dQ is the privacy loss.
"""

import abc
import hashlib

import numpy as np

# Exponents beyond this overflow, and bounds that need them are infinite.
MAX_EXPONENT = 600.0


class Losses(abc.ABC):
    """The privacy losses of one client's pattern of participation.

    Two are equal if they have the same digest.

    Attributes:
      digest: of everything that decides the distribution of the losses, hexadecimal.
      work: numbers that are drawn or computed for a sample of order 1.
    """

    digest: str
    work: float

    @abc.abstractmethod
    def sample(
        self, order: int, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Samples (log T, L), float64 (size,), with K = order patterns; for order 0 T = 1 and y ~
        Q.
        """

    @abc.abstractmethod
    def log_factor_bound(self, order: int) -> float:
        """Computes the log of an upper bound on T, whatever is drawn; infinite for a useless
        order.
        """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Losses) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def digest_of(kind: str, *values: np.ndarray | float) -> str:
    """Returns the SHA-256 of arrays and numbers, hexadecimal."""
    digest = hashlib.sha256(kind.encode())
    for value in values:
        array = np.ascontiguousarray(np.asarray(value, np.float64))
        digest.update(repr(array.shape).encode() + array.tobytes())
    return digest.hexdigest()
