"""Adaptive clipping, where the clip norm follows a quantile of the norms of clients' updates, for a
share of the privacy budget.

In round t client i sends its update u_i, clipped to the norm zeta_t, and one bit b_i: whether the
norm of the update was at most zeta_t (Andrew, Thakkar, McMahan and Ramaswamy 2021, arXiv
1905.03871). Two sums are released, with independent noise of the same encoder and the same
participation:

    sum of u_i / zeta_t      each of norm at most 1       noise multiplier z_x
    sum of b_i - 1/2         each -1/2 or 1/2             noise multiplier z_b, of a sum of clients

A client that is zeroed out contributes 0 to both. Its contributions divided by their noise, (u_i /
zeta_t) / z_x and (b_i - 1/2) / z_b, are one vector of squared norm at most 1 / z_x^2 + 1 / (2
z_b)^2. If that is 1 / z^2, the two releases together are one mechanism with noise multiplier z: all
sensitivities, sampling schemes and audits hold for it unchanged. zeta_t depends on past releases
alone, which Denisov et al. 2022, Theorem 2.1, allows; the server multiplies by it again.
docs/adaptive.md has the proof.
"""

import dataclasses
import math

from fedmf import checks, fields
from fedmf.privacy.gaussian import check_noise_multiplier

# Largest factor by which the clip norm may change over a whole run. The factor is limited so that
# float32 can hold the noise and the sums, which are proportional to the clip norm.
MOST_CHANGE = 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantileClipping:
    """Settings of adaptive clipping by the geometric quantile update. After every `every` rounds
    the clip norm zeta becomes zeta exp(-learning_rate (b - quantile)).

    Here b is the released share of clients whose update has a norm of at most zeta, averaged over
    these rounds and clipped to [0, 1].

    The noise N Z cancels across rounds only while zeta is constant, which is why it changes rarely.
    A mean over rounds has little noise: it is a difference of two running sums, which the encoder
    estimates well.

    Attributes:
      quantile: the share of clients whose update should have a norm of at most zeta, in (0, 1).
      share: the share of rho that is spent on the bits, in (0, 1). In a plan with noise multiplier
        z, the updates have z_x = z / sqrt(1 - share) and the bits z_b = z / (2 sqrt(share)).
      every: rounds between changes of zeta.
      learning_rate: step size; zeta changes by a factor of at most exp(learning_rate) at once.

    Raises:
      TypeError: an attribute is no number.
      ValueError: quantile or share is not in (0, 1), every is not positive, or learning_rate is not
        positive.

    >>> clipping = QuantileClipping(share=0.04)
    >>> round(clipping.update_noise_multiplier(2.0), 4), clipping.bit_noise_multiplier(2.0)
    (2.0412, 5.0)
    """

    quantile: float = 0.5
    share: float = 0.04
    every: int = 10
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        hint = "use a number between 0 and 1, such as 0.5 for the median"
        checks.positive("quantile", self.quantile, hint, below=1)
        hint = "use a small share of the privacy budget, such as 0.04"
        checks.positive("share", self.share, hint, below=1)
        hint = "use some rounds, such as 10"
        every = checks.integer("every", self.every, low=1, high=checks.MAX_ROUNDS, hint=hint)
        fields.set_fields(self, {"every": every})
        checks.positive("learning_rate", self.learning_rate, "use a number such as 1")

    @classmethod
    def with_bit_noise(
        cls,
        bit_noise: float,
        *,
        noise_multiplier: float,
        quantile: float = 0.5,
        every: int = 10,
        learning_rate: float = 1.0,
    ) -> "QuantileClipping":
        """Returns the settings with which the sum of bits has the noise multiplier `bit_noise`, in
        a plan with noise multiplier `noise_multiplier`.

        Andrew et al. use a twentieth of the number of clients of a round.

        Raises:
          ValueError: the bits alone would spend the whole privacy budget.

        >>> clipping = QuantileClipping.with_bit_noise(5.0, noise_multiplier=1.19352)
        >>> round(clipping.update_noise_multiplier(1.19352), 5)
        1.20211
        """
        hint = "use a number such as a twentieth of the clients of a round"
        bit_noise = checks.positive("bit_noise", bit_noise, hint)
        noise_multiplier = check_noise_multiplier(noise_multiplier)
        if noise_multiplier == 0:
            raise ValueError(
                "noise_multiplier=0 adds no noise, of which the bits could have a share: leave "
                "`quantile_clipping` out, or add noise"
            )
        if 2 * bit_noise <= noise_multiplier:
            raise ValueError(
                f"bit_noise={bit_noise} is at most half of noise_multiplier={noise_multiplier}, "
                "which leaves no privacy budget for the updates: use a larger one"
            )
        share = (noise_multiplier / (2 * bit_noise)) ** 2
        return cls(quantile=quantile, share=share, every=every, learning_rate=learning_rate)

    def update_noise_multiplier(self, noise_multiplier: float) -> float:
        """Returns the noise multiplier of the sum of updates, in a plan with the given noise
        multiplier.
        """
        return check_noise_multiplier(noise_multiplier) / math.sqrt(1 - self.share)

    def bit_noise_multiplier(self, noise_multiplier: float) -> float:
        """Returns the noise multiplier of the sum of clipping bits, in a plan with the given noise
        multiplier.
        """
        return check_noise_multiplier(noise_multiplier) / (2 * math.sqrt(self.share))
