"""From a round's sum of clipped updates to its release: the arithmetic of a plan, as pure
functions. `Server` keeps who took part, and what was released.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmf import checks, fields
from fedmf.privacy.plan import Plan
from fedmf.privacy.quantile_clipping import MOST_CHANGE
from fedmf.server.aggregation import (
    clip_after,
    initial_clip,
    initial_scaling,
    noise_stddev,
    noisy_mean,
    released_bits,
    scaling_after,
)
from fedmf.server.clipping import UpdateSum
from fedmf.server.following import ClipState, Scaling, ScalingState
from fedmf.server.messages import ClientParams
from fedmf.server.state import check_plan

# Clients may take numbers below 2^-126 for 0, so that they cannot measure updates of such norms.
_LEAST_CLIP_NORM = 1e-20
_BLOCK = 16_384


def check_zeroing_norm(zeroing_norm: Any) -> float:
    """The norm as a positive float; infinity for None, no limit."""
    hint = (
        "use a positive number such as 100, or None for no limit (a limit that adapts to the "
        "updates would let one client's update "
        "change another's, which the guarantee does not cover)"
    )
    return math.inf if zeroing_norm is None else checks.positive("zeroing_norm", zeroing_norm, hint)


def check_clip_norm(plan: Plan) -> None:
    """Refuses a clip norm near the end of float32's range."""
    adapts = plan.quantile_clipping is not None
    least = _LEAST_CLIP_NORM * MOST_CHANGE if adapts else _LEAST_CLIP_NORM
    if plan.clip_norm < least:
        raise ValueError(
            f"plan.clip_norm={plan.clip_norm:g} is below {least:g}, near the end of float32's "
            "range: rescale the updates, and `clip_norm` with them"
        )


def check_clients_per_round(plan: Plan, clients_per_round: Any) -> int:
    """It as an int; raises unless it is positive, and the simulated cohort of the plan, if that has
    one.
    """
    hint = "use the number of clients a round, which the sum is divided by however many come"
    clients = checks.integer("clients_per_round", clients_per_round, low=1, hint=hint)
    check_simulated(plan, "clients_per_round", clients)
    return clients


def check_simulated(plan: Plan, name: str, clients: float) -> None:
    """Refuses another divisor than the simulated cohort of the plan, if it has one."""
    cohorts = plan.simulation
    if cohorts is not None and clients != cohorts.simulated:
        shown = clients if clients % 1 else int(clients)
        raise ValueError(
            f"{name}={shown} but the plan simulates {cohorts.simulated} clients a round for "
            f"{cohorts.claimed}: use {cohorts.simulated}, or a plan that does not simulate"
        )


class MeansState(NamedTuple):
    """State between rounds, public: functions of what was released.

    Attributes:
      next_round: int64 ().
      clip: with quantile_clipping, else ().
      scaling: with a `Scaling`, else ().
      metrics: with private metrics their newest release, else ().
    """

    next_round: np.ndarray
    clip: ClipState | tuple[()]
    scaling: ScalingState | tuple[()]
    metrics: np.ndarray | tuple[()] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NoisyMeans:
    """(sum + row t of N Z) / clients_per_round in round t (Denisov et al. 2022, Alg. 1 and Thm.
    4.1; banded paper, Alg. 1), and what follows from it.

    Attributes:
      plan: the only source of the noise's scale.
      size: parameters of the model, d.
      clients_per_round: the fixed divisor.
      zeroing_norm: positive; infinity for none.
      scaling: of updates before they are clipped, or None.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.
    """

    plan: Plan
    size: int
    clients_per_round: int
    zeroing_norm: float = math.inf
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        check_plan(self.plan)
        check_clip_norm(self.plan)
        size = checks.integer("size", self.size, low=1, hint="it is the number of model parameters")
        clients = check_clients_per_round(self.plan, self.clients_per_round)
        fields.set_fields(self, {"size": size, "clients_per_round": clients})

    def initial(self) -> MeansState:
        """State before round 0."""
        clip = () if self.plan.quantile_clipping is None else initial_clip(self.plan.clip_norm)
        if self.scaling is None:
            return MeansState(np.array(0), clip, ())
        return MeansState(np.array(0), clip, _of_one_array(initial_scaling([self.size])))

    def empty_sum(self, clients: int = 0) -> UpdateSum:
        """The sum of no updates, for so many of a round if they are more than clients_per_round."""
        return UpdateSum(self.size, max(clients, self.clients_per_round))

    def client_params(self, state: MeansState) -> ClientParams:
        """What the updates of the coming round are clipped with."""
        clip_norm = float(state.clip.norm) if state.clip else self.plan.clip_norm
        scales = state.scaling.scales if state.scaling else np.zeros(0, np.float32)
        return ClientParams(clip_norm, self.zeroing_norm, scales)

    def release(
        self, state: MeansState, total: UpdateSum, noise: np.ndarray
    ) -> tuple[np.ndarray, MeansState]:
        """The release of the coming round, float32 (d,), and the state after it.

        The sum is noised in float64 and rounded once: the noise has no digits below float32's,
        those of the sum below them go here.

        Args:
          state: before.
          total: of the round's updates, each clipped with `client_params(state)`.
          noise: the vector of the round, from `HostNoise` of the plan; the release takes its
            memory.
        """
        t, clip = int(state.next_round), state.clip
        stddev = noise_stddev(self.plan, clip)
        if clip:
            assert self.plan.quantile_clipping is not None
            bits = released_bits(self.plan, total.clients, total.clipped, noise[-1])
            clip = clip_after(
                self.plan.quantile_clipping,
                self.plan.clip_norm,
                clip,
                bits,
                self.clients_per_round,
                t,
            )
            noise = noise[:-1]
        # The mean takes the place of its noise, block by block in the cache.
        mean = noise
        for start in range(0, self.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            noise[block] *= stddev
            mean[block] = noisy_mean(total.total[block], noise[block], self.clients_per_round)
        scaling = state.scaling
        if scaling:
            assert self.scaling is not None
            mean /= scaling.scales
            before = ScalingState([scaling.moment], [scaling.scales], scaling.drifts)
            scaling = _of_one_array(scaling_after(self.scaling, before, [mean], t))
        return mean, MeansState(np.array(t + 1), clip, scaling)

    def metrics(self, state: MeansState, total: UpdateSum) -> dict[str, float]:
        """Of the round that ended in `state`: noise_stddev (of Z), with quantile_clipping clip_norm
        and with a `Scaling` scale_drift (rho of the round) are public.

        clip_fraction and zeroed are exact functions of the clients' data, not covered by the
        guarantee.
        """
        stddev, row = np.float32(self.plan.stddev), {}
        if state.scaling:
            row["scale_drift"] = float(state.scaling.drifts[0])
        if state.clip:
            row["clip_norm"] = float(np.float32(state.clip.last))
            stddev *= np.float32(state.clip.last / self.plan.clip_norm)
        fraction = total.clipped / total.clients if total.clients else 0.0
        return row | {
            "clip_fraction": float(np.float32(fraction)),
            "zeroed": total.zeroed,
            "noise_stddev": float(stddev),
        }


def _of_one_array(state: ScalingState) -> ScalingState:
    """Returns a state of one array without the lists around it."""
    [moment], [scales] = state.moment, state.scales
    return ScalingState(moment, scales, state.drifts)


def in_shapes(flat: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """The parts of a vector as arrays of these shapes, views of it."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def leaves_of(name: str, update: Any, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """The arrays of an argument of this name.

    Raises:
      TypeError: no list of arrays of floats.
      ValueError: other shapes.
    """
    hint = f"give a list of float arrays of shapes={list(shapes)}"
    if not isinstance(update, list | tuple):
        raise TypeError(f"`{name}` is a {type(update).__name__}: {hint}")
    leaves = []
    for place, leaf in enumerate(update):
        try:
            leaves.append(np.asarray(leaf))
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"{name}[{place}] is a {type(leaf).__name__}, of which numpy makes no array: {hint}"
            ) from None
    found = [leaf.shape for leaf in leaves]
    if found != list(shapes):
        raise ValueError(f"`{name}` has arrays of shapes {found}: {hint}")
    for place, leaf in enumerate(leaves):
        if leaf.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
            raise TypeError(
                f"{name}[{place}] holds {leaf.dtype} entries: give floats, and leave out "
                "counters, which no clip bounds"
            )
    return leaves
