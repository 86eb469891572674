"""Computation of a round's release from its clipped sum and its noise vector. The functions are
pure, and `Server` keeps the state.
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

# Least clip norm. Clients may compute numbers below 2^-126 as 0, so they cannot measure smaller
# norms than this.
_LEAST_CLIP_NORM = 1e-20
_BLOCK = 16_384


def check_zeroing_norm(zeroing_norm: Any) -> float:
    """Checks a zeroing norm, and returns it as a positive float. None means no limit, and gives
    infinity.
    """
    if zeroing_norm is None:
        return math.inf
    hint = (
        "use a positive number such as 100, or None for no limit (a limit that adapts to the "
        "updates would let one client's update "
        "change another's, which the guarantee does not cover)"
    )
    return checks.positive("zeroing_norm", zeroing_norm, hint)


def check_clip_norm(plan: Plan) -> None:
    """Raises ValueError for a clip norm near the lower end of float32's range."""
    least_clip_norm = _LEAST_CLIP_NORM
    if plan.quantile_clipping is not None:
        least_clip_norm *= MOST_CHANGE
    if plan.clip_norm < least_clip_norm:
        raise ValueError(
            f"plan.clip_norm={plan.clip_norm:g} is below {least_clip_norm:g}, near the end of "
            "float32's range: rescale the updates, and `clip_norm` with them"
        )


def check_clients_per_round(plan: Plan, clients_per_round: Any) -> int:
    """Checks the number of clients that sums are divided by, and returns it as an int.

    Raises:
      TypeError, ValueError: it is not positive, or not the simulated cohort of a plan that has one.
    """
    hint = "use the number of clients a round, which the sum is divided by however many come"
    num_clients = checks.integer("clients_per_round", clients_per_round, low=1, hint=hint)
    check_simulated(plan, "clients_per_round", num_clients)
    return num_clients


def check_simulated(plan: Plan, name: str, clients: float) -> None:
    """Raises ValueError if the plan simulates a larger cohort, and `clients` is not the number of
    clients that it simulates with.
    """
    simulated_cohorts = plan.simulation
    if simulated_cohorts is not None and clients != simulated_cohorts.simulated:
        divisor = clients if clients % 1 else int(clients)
        raise ValueError(
            f"{name}={divisor} but the plan simulates {simulated_cohorts.simulated} clients a "
            f"round for {simulated_cohorts.claimed}: use {simulated_cohorts.simulated}, or a plan "
            "that does not simulate"
        )


class MeansState(NamedTuple):
    """The state of a server's releases between rounds. It depends on releases alone, and is public.

    Attributes:
      next_round: int64 ().
      clip: state of the clip norm with quantile_clipping, else ().
      scaling: state of the scales with a `Scaling`, else ().
      metrics: the newest release of private metrics; () without them.
    """

    next_round: np.ndarray
    clip: ClipState | tuple[()]
    scaling: ScalingState | tuple[()]
    metrics: np.ndarray | tuple[()] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NoisyMeans:
    """Noisy means of clipped updates. The mean of round t is (sum + row t of N Z) /
    clients_per_round, where Z is Gaussian noise and N = C^-1 correlates its rounds
    (Denisov et al. 2022, Alg. 1 and Thm. 4.1; banded paper, Alg. 1).

    Attributes:
      plan: the only source of the noise's scale.
      size: parameters of the model, d.
      clients_per_round: the fixed divisor.
      zeroing_norm: positive; infinity for none.
      scaling: scaling of updates before they are clipped, or None.

    Raises:
      TypeError: plan is not a `fedmf.Plan`, or a number is not an integer.
      ValueError: size or clients_per_round is not positive, the clip norm is too small for float32,
        or clients_per_round does not suit the plan.
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
        """Returns the state before round 0."""
        clip_state: ClipState | tuple[()] = ()
        if self.plan.quantile_clipping is not None:
            clip_state = initial_clip(self.plan.clip_norm)
        scaling_state: ScalingState | tuple[()] = ()
        if self.scaling is not None:
            scaling_state = _without_lists(initial_scaling([self.size]))
        return MeansState(np.array(0), clip_state, scaling_state)

    def empty_sum(self, clients: int = 0) -> UpdateSum:
        """Returns an empty sum of updates.

        Args:
          clients: the most updates of a round, if they are more than clients_per_round.
        """
        return UpdateSum(self.size, max(clients, self.clients_per_round))

    def client_params(self, state: MeansState) -> ClientParams:
        """Returns the parameters with which clients clip their updates in the coming round."""
        clip_norm = float(state.clip.norm) if state.clip else self.plan.clip_norm
        scales = state.scaling.scales if state.scaling else np.zeros(0, np.float32)
        return ClientParams(clip_norm, self.zeroing_norm, scales)

    def release(
        self, state: MeansState, total: UpdateSum, noise_row: np.ndarray
    ) -> tuple[np.ndarray, MeansState]:
        """Returns the release of the coming round, float32 (d,), and the state after the round.

        The noise is added to the sum in float64, and the result is rounded once. The noise has no
        digits below those of float32, and the rounding removes such digits of the sum.

        Args:
          state: state before the round.
          total: sum of the round's updates, each clipped with `client_params(state)`.
          noise_row: noise vector of the round, row t of N Z, from `HostNoise` of the plan; the
            release overwrites it.
        """
        t = int(state.next_round)
        clip_state = state.clip
        stddev = noise_stddev(self.plan, clip_state)
        if clip_state:
            assert self.plan.quantile_clipping is not None
            clip_bits = released_bits(self.plan, total.clients, total.clipped, noise_row[-1])
            clip_state = clip_after(
                self.plan.quantile_clipping,
                self.plan.clip_norm,
                clip_state,
                clip_bits,
                self.clients_per_round,
                t,
            )
            noise_row = noise_row[:-1]
        # The noisy mean is written over the noise vector to save memory, in blocks of entries that
        # fit the processor's cache.
        mean_memory = noise_row
        for start in range(0, self.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            noise_row[block] *= stddev
            mean_memory[block] = noisy_mean(
                total.total[block], noise_row[block], self.clients_per_round
            )
        scaling_state = state.scaling
        if scaling_state:
            assert self.scaling is not None
            mean_memory /= scaling_state.scales
            scaling_before_round = ScalingState(
                [scaling_state.moment], [scaling_state.scales], scaling_state.drifts
            )
            scaling_state = _without_lists(
                scaling_after(self.scaling, scaling_before_round, [mean_memory], t)
            )
        return mean_memory, MeansState(np.array(t + 1), clip_state, scaling_state)

    def metrics(self, state: MeansState, total: UpdateSum) -> dict[str, float]:
        """Returns metrics of the newest round. `state` is the state after that round.

        noise_stddev (of Z), clip_norm (with quantile_clipping) and scale_drift (rho of a `Scaling`)
        are public. clip_fraction and zeroed are exact functions of the clients' data, not covered
        by the guarantee.
        """
        stddev = np.float32(self.plan.stddev)
        metric_by_name = {}
        if state.scaling:
            metric_by_name["scale_drift"] = float(state.scaling.drifts[0])
        if state.clip:
            metric_by_name["clip_norm"] = float(np.float32(state.clip.last))
            stddev *= np.float32(state.clip.last / self.plan.clip_norm)
        clipped_fraction = total.clipped / total.clients if total.clients else 0.0
        return metric_by_name | {
            "clip_fraction": float(np.float32(clipped_fraction)),
            "zeroed": total.zeroed,
            "noise_stddev": float(stddev),
        }


def _without_lists(state: ScalingState) -> ScalingState:
    """Returns a scaling state in which arrays take the place of lists of one array."""
    [moment] = state.moment
    [scales] = state.scales
    return ScalingState(moment, scales, state.drifts)


def in_shapes(flat: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Splits a vector into arrays of these shapes, and returns them as views."""
    leaf_ends = np.cumsum([math.prod(shape) for shape in shapes])
    flat_leaves = np.split(flat, leaf_ends[:-1])
    return [leaf.reshape(shape) for leaf, shape in zip(flat_leaves, shapes, strict=True)]


def leaves_of(name: str, update: Any, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Checks that an argument is a list of float arrays of these shapes, and returns the arrays.

    Args:
      name: name of the argument.
      update: value of the argument.
      shapes: shapes that its arrays must have.

    Raises:
      TypeError: no list of arrays of floats, or a masked array among them.
      ValueError: other shapes.
    """
    way_out = f"give a list of float arrays of shapes={list(shapes)}"
    if not isinstance(update, list | tuple):
        raise TypeError(f"`{name}` is a {type(update).__name__}: {way_out}")
    update_leaves = []
    for i, leaf in enumerate(update):
        if np.ma.isMaskedArray(leaf):
            raise TypeError(f"{name}[{i}] is a masked array: fill what is masked, and {way_out}")
        try:
            update_leaves.append(np.asarray(leaf))
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"{name}[{i}] is a {type(leaf).__name__}, of which numpy makes no array: {way_out}"
            ) from None
    leaf_shapes = [leaf.shape for leaf in update_leaves]
    if leaf_shapes != list(shapes):
        raise ValueError(f"`{name}` has arrays of shapes {leaf_shapes}: {way_out}")
    for i, leaf in enumerate(update_leaves):
        if leaf.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
            raise TypeError(
                f"{name}[{i}] holds {leaf.dtype} entries: give floats, and leave out "
                "counters, which no clip bounds"
            )
    return update_leaves
