"""The interface of privacy losses that can be sampled, for sampling schemes whose epsilon is
simulated.

A client takes part in a random set of rounds, its pattern x, a vector of zeros and ones that has
the probability p(x). With the client, the noisy output y has the distribution P = sum_x p(x) N(C x,
sigma^2 I), and without it Q = N(0, sigma^2 I). If the encoder C has no negative entry, no pair of
neighbouring data sets is easier to distinguish than P and Q (Choquette-Choo et al. 2024,
arXiv:2410.06266, Lemma 3.2). L = log dP/dQ is the privacy loss.
"""

import abc
import hashlib

import numpy as np

# Larger exponents may overflow in float64. A bound that would need one is set to infinity.
MAX_EXPONENT = 600.0


class Losses(abc.ABC):
    """The distribution of one client's privacy loss under a sampling scheme and a mechanism.

    Two objects are equal if they have the same digest.

    Attributes:
      digest: hexadecimal digest of everything that determines the distribution of the losses.
      work: how many numbers are drawn or computed for one sample of order 1.
    """

    digest: str
    work: float

    @abc.abstractmethod
    def sample(
        self, order: int, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws samples of the pair (log T, L), where T is the weight of `order` patterns of
        participation that are drawn together, and L the privacy loss (see
        `fedmf.privacy.loss_samples`).

        For order 0 the output is drawn from Q, without the client, and T is 1.

        Returns:
          Two float64 arrays of shape (size,).
        """

    @abc.abstractmethod
    def log_factor_bound(self, order: int) -> float:
        """Computes the log of an upper bound on the weight T of any `order` patterns. It is
        infinite for orders whose bound is useless.
        """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Losses) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def digest_of(kind: str, *values: np.ndarray | float) -> str:
    """Returns the hexadecimal SHA-256 digest of the name `kind` with arrays and numbers."""
    digest = hashlib.sha256(kind.encode())
    for value in values:
        float64_array = np.ascontiguousarray(np.asarray(value, np.float64))
        digest.update(repr(float64_array.shape).encode() + float64_array.tobytes())
    return digest.hexdigest()
