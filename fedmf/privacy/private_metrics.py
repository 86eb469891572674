"""Private metrics: metrics of the rounds that are released with noise, for a share of the privacy
budget.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedmf import checks, fields
from fedmf.privacy.gaussian import check_noise_multiplier


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateMetrics:
    """The release of the number of clients of each round, and of their mean loss and accuracy.

    A client adds (1, a, l) / sqrt(3) to a second sum, where a and l are its accuracy and its loss,
    clipped to [0, 1] and [0, largest_loss] and centred to [-1, 1]: a vector of norm at most 1.

    Attributes:
      share: of rho that is spent on the metrics, in (0, 1): z_x = z / sqrt(1 - share) and z_m = z
        / sqrt(share).
      largest_loss: fixed before the run; a larger loss of a client counts as this.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    >>> metrics, z = PrivateMetrics(share=0.02), 1.19352
    >>> round(metrics.other_noise_multiplier(z), 5), round(metrics.noise_multiplier(z), 3)
    (1.20564, 8.439)
    """

    share: float
    largest_loss: float = 10.0

    def __post_init__(self) -> None:
        hint = "use a small share of the privacy budget, such as 0.02"
        share = checks.positive("share", self.share, hint, below=1)
        hint = "use a number such as 10"
        loss = checks.positive("largest_loss", self.largest_loss, hint, below=1e9)
        fields.set_fields(self, {"share": share, "largest_loss": loss})

    def other_noise_multiplier(self, noise_multiplier: float) -> float:
        """Returns z_x of the other streams, in a plan with noise multiplier z.

        Divided by the noise multipliers of their streams, the contributions of one client to all
        streams are one vector of norm at most 1 / z: its square is (1 - share) / z^2 of the other
        streams, and share / z^2 of the metrics. So all streams together are the Gaussian mechanism
        with noise multiplier z.
        """
        return check_noise_multiplier(noise_multiplier) / math.sqrt(1 - self.share)

    def noise_multiplier(self, noise_multiplier: float) -> float:
        """Returns z_m of the sum of metrics, in a plan with noise multiplier z."""
        return check_noise_multiplier(noise_multiplier) / math.sqrt(self.share)


def mean_over(released: Sequence[Mapping[str, Any]], name: str, *, largest_loss: float) -> float:
    """Computes the mean of "accuracy" or "loss" over the clients of some rounds from their
    releases; NaN if these contain no client. Correlated noise cancels in it.

    >>> rounds = [{"clients": 1.0, "loss": 2.0}, {"clients": 3.0, "loss": 4.0}]
    >>> round(mean_over(rounds, "loss", largest_loss=10.0), 6)
    3.5
    """
    half_range = largest_loss / 2 if name == "loss" else 0.5
    num_clients = sum(row["clients"] for row in released)
    if num_clients < 1:
        return math.nan
    centred_sum: float = sum(row["clients"] * (row[name] / half_range - 1) for row in released)
    return half_range * (1 + centred_sum / num_clients)
