"""Private metrics, which are the number of clients of each round and their mean loss and accuracy,
released with noise for a share of the privacy budget.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedmf import checks, fields
from fedmf.privacy.gaussian import check_noise_multiplier


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateMetrics:
    """Settings for the release of each round's number of clients, mean loss and mean accuracy.

    A client adds the vector (1, a, l) / sqrt(3), whose norm is at most 1, to a second sum. Here a
    and l are its accuracy and its loss, clipped to [0, 1] and [0, largest_loss] and then scaled to
    [-1, 1].

    Attributes:
      share: the share of rho that is spent on the metrics, in (0, 1). In a plan with noise
        multiplier z, the updates have z_x = z / sqrt(1 - share) and the metrics z_m = z
        / sqrt(share).
      largest_loss: cap of a client's loss, which must be fixed before the run.

    Raises:
      TypeError: an attribute is no number.
      ValueError: share is not in (0, 1), or largest_loss is not in (0, 1e9).

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
        largest_loss = checks.positive("largest_loss", self.largest_loss, hint, below=1e9)
        fields.set_fields(self, {"share": share, "largest_loss": largest_loss})

    def other_noise_multiplier(self, noise_multiplier: float) -> float:
        """Returns the noise multiplier of everything that a run releases except the metrics, in a
        plan with the given noise multiplier.

        The contributions of one client to all sums, each divided by the noise multiplier of its
        sum, are one vector of norm at most 1 / z. Its squared norm is (1 - share) / z^2 for the
        other sums and share / z^2 for the metrics. So all releases together are the Gaussian
        mechanism with noise multiplier z.
        """
        return check_noise_multiplier(noise_multiplier) / math.sqrt(1 - self.share)

    def noise_multiplier(self, noise_multiplier: float) -> float:
        """Returns the noise multiplier of the sum of metrics, in a plan with the given noise
        multiplier.
        """
        return check_noise_multiplier(noise_multiplier) / math.sqrt(self.share)


def mean_over(released: Sequence[Mapping[str, Any]], name: str, *, largest_loss: float) -> float:
    """Computes the mean of "accuracy" or "loss" over the clients of several rounds from the rounds'
    noisy releases.

    It is NaN if the number of clients is below 1. Correlated noise cancels in a mean over rounds.

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
