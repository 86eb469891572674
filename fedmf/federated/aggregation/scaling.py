"""Scale then privatise: updates are clipped in a space that is scaled by what was released of each
coordinate before.

In round t each entry of an update is multiplied by its entry of s_t, the update is clipped to the
clip norm, the sum gets its row of N Z, and the server divides by s_t (Ganesh, McMahan and Thakurta
2025, arXiv 2507.01129, Alg. 8). s_t is a function of rounds before t as they were released. So
round t of what is privatised is an adaptively chosen vector of norm at most clip_norm, which
Denisov et al. 2022, Theorem 2.1, allows, and all that follows is post-processing. docs/adaptive.md
has the proof.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from fedmf import checks, fields

RULES = ("adam", "adagrad")
# float32 holds the ratio of two numbers between the first and the second, and the squares below the
# second.
_LEAST_EPSILON, _LARGEST_ROOT = 1e-12, 1e12


class ScalingState(NamedTuple):
    """State of the scales between rounds; a function of what was released.

    Attributes:
      moment: list of float32 tensors in the record's shapes, the second moment v.
      scales: the same, s of the coming round.
      drifts: float32 (2,), rho of the last round and of the coming one.
    """

    moment: Any
    scales: Any
    drifts: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling(fields.Checked):
    """How s_t follows from past releases: s_t = (rms(v) + epsilon) / (sqrt(v) + epsilon), entry by
    entry.

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
    >>> state = scaling.after(
    ...     scaling.initial_state([tf.TensorSpec([2])]), [tf.constant([7.0, 1.0])], 0
    ... )
    >>> # (sqrt(25) + 1) / (7 + 1) and (sqrt(25) + 1) / (1 + 1)
    >>> state.scales[0].numpy(), state.drifts.numpy().round(3)
    (array([0.75, 3.  ], dtype=float32), array([0.   , 1.099], dtype=float32))
    """

    rule: str = fields.checked(functools.partial(checks.one_of, choices=RULES))
    epsilon: float = fields.real(1e-3, "")
    decay: float = fields.real(0.999, "", zero=True, below=1)
    every: int = fields.whole(1, "")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _LEAST_EPSILON <= self.epsilon <= _LARGEST_ROOT:
            raise ValueError(
                f"epsilon={self.epsilon} must be between {_LEAST_EPSILON} and {_LARGEST_ROOT:g}: "
                "use a number such as 1e-3 that is small beside the entries of a mean update"
            )

    def initial_state(self, specs: Sequence[Any]) -> ScalingState:
        """State before round 0: all scales are 1."""
        zeros, ones = (
            [make(spec.shape, tf.float32) for spec in specs] for make in (tf.zeros, tf.ones)
        )
        return ScalingState(zeros, ones, tf.zeros([2]))

    def after(self, state: ScalingState, mean: Sequence[Any], t: Any) -> ScalingState:
        """State after round t, in which `mean` was released: noisy, and in the units of updates.

        Args:
          state: before.
          mean: list of float32 tensors.
          t: the round.
        """
        moment = [self._moved(v, _square(g)) for v, g in zip(state.moment, mean, strict=True)]
        scales = tf.cond(
            tf.equal((t + 1) % self.every, 0),
            lambda: self._scales(moment),
            lambda: list(state.scales),
        )
        moved = [
            _largest(tf.abs(tf.math.log(s / old)))
            for s, old in zip(scales, state.scales, strict=True)
        ]
        return ScalingState(moment, scales, tf.stack([state.drifts[1], tf.reduce_max(moved)]))

    def _moved(self, v: Any, square: Any) -> Any:
        if self.rule == "adagrad":
            return tf.minimum(v + square, _LARGEST_ROOT**2)
        # Rounding must not lead below 0, of which there is no root.
        return tf.maximum(v + (1 - self.decay) * (square - v), 0.0)

    def _scales(self, moment: Sequence[Any]) -> list[Any]:
        total = tf.add_n([tf.reduce_sum(tf.cast(v, tf.float64)) for v in moment])
        entries = sum(v.shape.num_elements() for v in moment)
        rms = tf.cast(tf.sqrt(total / entries), tf.float32)
        return [(rms + self.epsilon) / (tf.sqrt(v) + self.epsilon) for v in moment]


def _square(values: Any) -> Any:
    return tf.square(tf.clip_by_value(values, -_LARGEST_ROOT, _LARGEST_ROOT))


def _largest(values: Any) -> Any:
    return tf.reduce_max(tf.concat([[0.0], tf.reshape(values, [-1])], axis=0))


def scaled(leaves: Sequence[Any], scales: Sequence[Any]) -> list[Any]:
    """The leaves times their scales; as they are where there are none."""
    if not scales:
        return list(leaves)
    return [leaf * tf.cast(scale, leaf.dtype) for leaf, scale in zip(leaves, scales, strict=True)]


def unscaled(leaves: Sequence[Any], scales: Sequence[Any]) -> list[Any]:
    """The inverse of `scaled`, to rounding."""
    if not scales:
        return list(leaves)
    return [leaf / tf.cast(scale, leaf.dtype) for leaf, scale in zip(leaves, scales, strict=True)]
