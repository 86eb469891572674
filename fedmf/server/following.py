"""What follows past releases, from round to round: the clip norm that follows a quantile, and the
scales of an adaptive optimizer.

A state is a function of what was released. `fedmf.federated.tff` has both on tensors.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from fedmf import checks, fields
from fedmf.privacy.quantile_clipping import MOST_CHANGE, QuantileClipping

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


def initial_clip(clip_norm: float) -> ClipState:
    """State before round 0."""
    norm, zero = np.array(clip_norm), np.array(0, np.float32)
    return ClipState(norm, norm, zero, zero)


def clip_after(
    clipping: QuantileClipping, first: float, state: ClipState, bits: float, clients: int, t: int
) -> ClipState:
    """State after round t.

    Args:
      clipping: of the plan.
      first: the clip norm of round 0, which no later one is a million times as large
        or as small as.
      state: before.
      bits: the released sum of b_i - 1/2.
      clients: the fixed number of a round.
      t: the round.

    >>> clipping = QuantileClipping(quantile=0.5, every=1, learning_rate=1.0)
    >>> float(clip_after(clipping, 1.0, initial_clip(1.0), 2.0, 10, 0).norm.round(4))
    0.8187
    """
    bits32 = np.float32(bits)
    within = state.within + bits32 / np.float32(clients) + np.float32(0.5)
    if (t + 1) % clipping.every:
        return ClipState(state.norm, state.norm, np.array(bits32), np.array(within))
    mean = float(np.clip(within / np.float32(clipping.every), 0, 1))
    with np.errstate(over="ignore"):  # of a learning rate of hundreds; the limit holds it
        step = np.exp(-clipping.learning_rate * (mean - clipping.quantile))
    norm = np.clip(state.norm * step, first / MOST_CHANGE, first * MOST_CHANGE)
    return ClipState(np.array(norm), state.norm, np.array(bits32), np.array(0, np.float32))


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

    >>> scaling = Scaling(rule="adagrad", epsilon=1.0)
    >>> state = scaling.after(scaling.initial(2), np.array([7.0, 1.0], np.float32), 0)
    >>> # (sqrt(25) + 1) / (7 + 1) and (sqrt(25) + 1) / (1 + 1)
    >>> state.scales, state.drifts.round(3)
    (array([0.75, 3.  ], dtype=float32), array([0.   , 1.099], dtype=float32))
    """

    rule: str = fields.checked(functools.partial(checks.one_of, choices=RULES))
    epsilon: float = fields.real(1e-3, "")
    decay: float = fields.real(0.999, "", zero=True, below=1)
    every: int = fields.whole(1, "")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _LEAST_EPSILON <= self.epsilon <= LARGEST_ROOT:
            raise ValueError(
                f"epsilon={self.epsilon} must be between {_LEAST_EPSILON} and {LARGEST_ROOT:g}: "
                "use a number such as 1e-3 that is small beside the entries of a mean update"
            )

    def initial(self, size: int) -> ScalingState:
        """State before round 0 of a model of `size` parameters: all scales are 1."""
        hint = "it is the number of model parameters"
        size = checks.integer("size", size, low=0, high=checks.MAX_SIZE, hint=hint)
        zeros, ones = np.zeros(size, np.float32), np.ones(size, np.float32)
        return ScalingState(zeros, ones, np.zeros(2, np.float32))

    def after(self, state: ScalingState, mean: np.ndarray, t: int) -> ScalingState:
        """State after round t, in which `mean` was released: noisy, and in the units of updates.

        Args:
          state: before.
          mean: float32 (d,).
          t: the round.
        """
        v = state.moment
        square = np.square(np.clip(mean, -LARGEST_ROOT, LARGEST_ROOT))
        if self.rule == "adagrad":
            moment = np.minimum(v + square, np.float32(LARGEST_ROOT**2))
        else:
            # Rounding must not lead below 0, of which there is no root.
            moment = np.maximum(v + np.float32(1 - self.decay) * (square - v), np.float32(0))
        scales = state.scales
        if (t + 1) % self.every == 0:
            rms, epsilon = np.float32(math.sqrt(moment.mean(dtype=np.float64))), self.epsilon
            scales = (rms + np.float32(epsilon)) / (np.sqrt(moment) + np.float32(epsilon))
        moved = np.abs(np.log(scales / state.scales)).max(initial=0)
        return ScalingState(moment, scales, np.array([state.drifts[1], moved], np.float32))
