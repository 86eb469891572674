"""States that follow past releases: of the clip norm that follows a quantile, and of the scales of
an adaptive optimizer. `fedmf.server.aggregation` has the rules.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

from fedmf import checks, fields

RULES = ("adam", "adagrad")
# float32 holds the ratio of two numbers between the first and the second, and the squares below the
# second.
_LEAST_EPSILON, LARGEST_ROOT = 1e-12, 1e12


class ClipState(NamedTuple):
    """State of the clip norm between rounds, arrays or tensors.

    Attributes:
      norm: float64 (), zeta of the coming round.
      last: float64 (), zeta of the last round.
      bits: float32 (), what was released of the last round's sum of bits.
      within: float32 (), the sum since the last change of zeta of the released parts of clients
        within it.
    """

    norm: Any
    last: Any
    bits: Any
    within: Any


class ScalingState(NamedTuple):
    """State of the scales between rounds, arrays or tensors.

    Attributes:
      moment: float32 (d,), the second moment v; on tensors a list of them in the record's shapes.
      scales: the same, s of the coming round.
      drifts: float32 (2,), rho of the last round and of the coming one.
    """

    moment: Any
    scales: Any
    drifts: Any


def check_scaling(scaling: Any) -> None:
    """Refuses what is neither a `Scaling` nor None: TypeError."""
    if scaling is not None:
        fields.instance(Scaling)("scaling", scaling)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling(fields.Checked):
    """How s_t follows from past releases: s_t = (rms(v) + epsilon) / (sqrt(v) + epsilon), entry by
    entry.

    In round t each entry of an update is multiplied by its entry of s_t, the update is clipped to
    the clip norm, the sum gets its row of N Z, and the server divides by s_t (Ganesh, McMahan and
    Thakurta 2025, arXiv 2507.01129, Alg. 8). s_t is a function of rounds before t as they were
    released. So round t of what is privatised is an adaptively chosen vector of norm at most
    clip_norm, which Denisov et al. 2022, Theorem 2.1, allows, and all that follows is
    post-processing. docs/adaptive.md has the proof.

    v is the second moment of an adaptive optimizer: with g the mean that was released,

        adam      v <- decay v + (1 - decay) g^2
        adagrad   v <- v + g^2

    from v = 0.

    The paper's scale is 1 / (sqrt(v) + epsilon). Ours is that times one number for all coordinates.
    It makes s_0 = 1 and keeps the units of clip_norm: updates whose entries are as large as v says
    keep about their norm. 0 < s_t < infinity always.

    N Z cancels from round to round only as far as s_t stays. rho_t = max abs(log(s_t / s_(t-1)))
    says how far it does not; a slow `decay` and a larger `every` keep it small.

    Attributes:
      rule: "adam" or "adagrad".
      epsilon: at least 1e-12; the larger, the closer all scales are to 1.
      decay: beta_2 of adam, in [0, 1).
      every: rounds between changes of s_t; v moves in every round.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

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
