"""Strategies that compute the noise vectors inside a TensorFlow graph, and their costs."""

import math

import numpy as np

from fedmf import checks
from fedmf.noise.blocks import block_form, equal_blocks
from fedmf.noise.float32_check import check_float32
from fedmf.noise.strategy import PRODUCTS_PER_DRAW, NoiseStrategy, row_bytes
from fedmf.noise.stream import NoiseStream

GRAPH_STRATEGIES = ("recurrent", "precomputed")
# Largest state of the noise generator, in bytes, in a TFF graph. TFF copies its server state
# between processes many times a round, which takes 0.1 to 0.9 s for 16 MB.
MAX_STATE_BYTES = 128 * 2**20
# Largest table of constants, in bytes, for a recurrence that computes noise in a TFF graph.
_MAX_TABLE_BYTES = 64 * 2**20
# Estimated cost of copying one vector of model size through the server state of TFF. The unit is
# the cost of drawing such a vector.
_PASSING_COST = 5.0


def graph_strategy(stream: NoiseStream, size: int, *, any_state: bool = False) -> NoiseStrategy:
    """Returns the strategy "recurrent" for a TensorFlow graph, whose state TFF passes from round to
    round.

    Args:
      stream: noise stream of the mechanism.
      size: number of model parameters.
      any_state: whether the state may be larger than MAX_STATE_BYTES.
    """
    max_width = stream.rounds
    if not any_state:
        max_width = min(max_width, MAX_STATE_BYTES // row_bytes(size))
    has_feedback = stream.buffers is not None and stream.buffers.feedback
    num_matrices = 1
    if stream.contraction is not None or has_feedback:
        # The coefficients differ from round to round.
        num_matrices = stream.rounds
    elif stream.tree is not None:
        num_matrices = len(np.unique(stream.tree.round_kinds()))
    if num_matrices > 1:
        # The graph holds a table of matrices with (1 + width)^2 entries each.
        max_width = min(max_width, math.isqrt(_MAX_TABLE_BYTES // (4 * num_matrices)) - 1)
    one_round_form = block_form(stream, bounds=equal_blocks(stream.rounds, 1), max_width=max_width)
    if one_round_form is None:
        return NoiseStrategy(
            name="recurrent",
            reason=f"it has no recurrence of at most {max_width} rows, which a state may have",
        )
    product_cost = (1 + one_round_form.width) ** 2 / PRODUCTS_PER_DRAW
    return NoiseStrategy(
        name="recurrent",
        length=1,
        width=one_round_form.width,
        cost=1 + product_cost + _PASSING_COST * one_round_form.width,
        memory=row_bytes(size) * one_round_form.width,
        reason=f"{one_round_form.width} rows in the state carry what the future needs of the past",
        form=one_round_form,
    )


def check_graph_strategy(name: str | None) -> None:
    """Raises TypeError or ValueError unless `name` is None or one of GRAPH_STRATEGIES."""
    if name is not None:
        checks.one_of("noise_strategy", name, GRAPH_STRATEGIES)


def choose_graph_strategy(stream: NoiseStream, size: int, name: str | None = None) -> NoiseStrategy:
    """Returns the noise strategy of a TensorFlow graph, which is "precomputed" if `name` asks for
    it, and otherwise "recurrent".

    Args:
      stream: noise stream of the mechanism.
      size: number of model parameters.
      name: one of GRAPH_STRATEGIES, whose state may then be of any size; or None.

    Raises:
      ValueError: the name is unknown, the state is too large, or float32 cannot represent the
        noise.
    """
    check_graph_strategy(name)
    if name == "precomputed":
        return NoiseStrategy(
            name="precomputed", length=1, width=1, cost=_PASSING_COST, memory=row_bytes(size)
        )
    strategy = graph_strategy(stream, size, any_state=name is not None)
    if strategy.form is None:
        raise ValueError(
            f"noise_strategy={name!r} cannot make this noise in the graph: {strategy.reason}; use "
            "noise_strategy='precomputed' with federated.HostNoise"
        )
    check_float32(stream.causal(), strategy.form)
    return strategy
