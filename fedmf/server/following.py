"""States that follow from past releases, which are those of the adaptive clip norm and of the
scales of updates. `fedmf.server.aggregation` computes them.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

from fedmf import checks, fields

RULES = ("adam", "adagrad")
# Bounds on the constant `epsilon` of adaptive optimizers, and on the square root of a second
# moment. float32 can hold the ratio of any two numbers between the bounds, and the square of the
# larger bound.
_LEAST_EPSILON = 1e-12
LARGEST_ROOT = 1e12


class ClipState(NamedTuple):
    """The state of the adaptive clip norm zeta between rounds, of arrays or tensors.

    Attributes:
      norm: float64 (), zeta of the coming round.
      last: float64 (), zeta of the last round.
      bits: float32 (), the last round's noisy sum of bits.
      within: float32 (), the noisy fractions of clients within zeta, summed over the rounds since
        zeta last changed.
    """

    norm: Any
    last: Any
    bits: Any
    within: Any


class ScalingState(NamedTuple):
    """The state of the update scales between rounds, of arrays or tensors.

    Attributes:
      moment: float32 (d,), the second moment v; on tensors a list of them in the record's shapes.
      scales: the same, s of the coming round.
      drifts: float32 (2,), rho of the last round and of the coming one.
    """

    moment: Any
    scales: Any
    drifts: Any


def check_scaling(scaling: Any) -> None:
    """Raises TypeError unless `scaling` is a `Scaling` or None."""
    if scaling is not None:
        fields.instance(Scaling)("scaling", scaling)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling(fields.Checked):
    """Factors for the entries of updates that adapt to past releases. They are s_t = (rms(v) +
    epsilon) / (sqrt(v) + epsilon), where v is the second moment of the released means.

    In round t an update is multiplied by s_t and then clipped to the clip norm, noise vector t is
    added to the sum, and the server divides by s_t (Ganesh, McMahan and Thakurta 2025, arXiv
    2507.01129, Alg. 8). s_t is a function of the releases before round t. So a client's
    contribution to round t is an adaptively chosen vector of norm at most clip_norm, which Denisov
    et al. 2022, Theorem 2.1, allows, and the division is post-processing. docs/adaptive.md has the
    proof.

    v is the second moment of an adaptive optimizer. With g the released mean and v = 0 before round
    0,

        adam      v <- decay v + (1 - decay) g^2
        adagrad   v <- v + g^2

    The paper's scale is 1 / (sqrt(v) + epsilon). This one is a multiple of it, by the same factor
    in all coordinates, so that s_0 = 1 and clip_norm keeps its units: an update whose squares are
    about v keeps about its norm. 0 < s_t < infinity always.

    Correlated noise cancels between rounds only while s_t does not change. rho_t = max abs(log(s_t
    / s_(t-1))) measures the change; a `decay` near 1 and a larger `every` keep it small.

    Attributes:
      rule: "adam" or "adagrad".
      epsilon: at least 1e-12; the larger, the closer all scales are to 1.
      decay: beta_2 of adam, in [0, 1).
      every: rounds between changes of s_t; v moves in every round.

    Raises:
      TypeError: an attribute has another type.
      ValueError: rule is unknown, epsilon is too small or too large, decay is not in [0, 1), or
        every is not positive.

    >>> Scaling(rule="adagrad", epsilon=1.0).every
    1
    """

    rule: str = fields.validated(functools.partial(checks.one_of, choices=RULES))
    epsilon: float = fields.positive_float(1e-3, "")
    decay: float = fields.positive_float(0.999, "", allow_zero=True, below=1)
    every: int = fields.whole_number(1, "")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _LEAST_EPSILON <= self.epsilon <= LARGEST_ROOT:
            raise ValueError(
                f"epsilon={self.epsilon} must be between {_LEAST_EPSILON} and {LARGEST_ROOT:g}: "
                "use a number such as 1e-3 that is small beside the entries of a mean update"
            )
