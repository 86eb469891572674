"""Scaling, zeroing and clipping of clients' updates as tensors.

No clipped update exceeds the clip norm, whatever the input. `fedmf.server.clipping` has the numpy
reference that it is tested against, and the proof.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from fedmf.server.clipping import FLOAT32_CHUNK, FLOAT32_LEAST_NORM, FLOAT32_MARGIN, clip_update
from fedmf.server.messages import ClientParams


class ClippedUpdates(NamedTuple):
    """Updates of several clients after scaling, zeroing and clipping.

    Attributes:
      leaves: tensors (clients, ...) in the dtypes of the updates.
      is_clipped, is_zeroed: bool (clients,); no update is both.
    """

    leaves: list[torch.Tensor]
    is_clipped: torch.Tensor
    is_zeroed: torch.Tensor


def clip_stacked(
    leaves: Sequence[torch.Tensor], params: ClientParams, scales: Sequence[torch.Tensor]
) -> ClippedUpdates:
    """Scales updates, and then zeroes each or clips its L2 norm over all tensors to the clip norm.

    An update with NaN, infinity or an entry above the zeroing norm counts as zero. Each client is
    computed by itself.

    Args:
      leaves: float32 or float64 tensors (clients, ...), one for each weight.
      params: clip norm and zeroing norm of the round.
      scales: tensors in the shapes of the weights; empty for none.

    >>> params = ClientParams(clip_norm=0.5, zeroing_norm=100.0, scales=())
    >>> updates = [torch.tensor([[30.0, 40.0], [0.1, 0.0], [torch.nan, 0.0]])]
    >>> clipped = clip_stacked(updates, params, ())
    >>> clipped.leaves[0].numpy().round(3).tolist()
    [[0.30000001192092896, 0.4000000059604645], [0.10000000149011612, 0.0], [0.0, 0.0]]
    >>> clipped.is_clipped.tolist(), clipped.is_zeroed.tolist()
    ([True, False, False], [False, False, True])
    """
    if scales:
        leaves = [leaf * scale.to(leaf.dtype) for leaf, scale in zip(leaves, scales, strict=True)]
    num_clients = leaves[0].shape[0]
    rows = [leaf.reshape(num_clients, math.prod(leaf.shape[1:])) for leaf in leaves]
    clip_norm = float(params.clip_norm)
    zeroing_norm = float(params.zeroing_norm)
    norms = _norms(rows)
    least_norm = FLOAT32_LEAST_NORM * math.sqrt(sum(row.shape[1] for row in rows))
    # If an entry is NaN or infinite, or if its square overflows, the norm is NaN or infinite.
    is_within_margin = (norms < math.inf) & (min(clip_norm, zeroing_norm) >= least_norm)
    target_norm = clip_norm * (1 - FLOAT32_MARGIN)
    is_zeroed = torch.zeros(num_clients, dtype=torch.bool, device=norms.device)
    # No entry is larger than the norm, so that most updates need not be searched for a large entry.
    if not bool((norms <= zeroing_norm / 2).all()):
        is_zeroed = _largest_entries(rows) > zeroing_norm
    is_clipped = ~is_zeroed & (norms > target_norm)
    factors = torch.where(is_clipped, target_norm / norms, torch.ones_like(norms))
    clipped_rows = [row * factors.to(row.dtype)[:, None] for row in rows]
    # The zeros are not products with 0, because 0 times NaN is NaN.
    if bool(is_zeroed.any()):
        clipped_rows = [row.masked_fill(is_zeroed[:, None], 0.0) for row in clipped_rows]
    for client in torch.nonzero(~is_within_margin).flatten().tolist():
        client_rows = [row[client].cpu().numpy() for row in rows]
        with np.errstate(over="ignore"):
            result = clip_update(
                client_rows, clip_norm=target_norm, zeroing_norm=zeroing_norm, max_clients=1
            )
        is_clipped[client] = result.is_clipped
        is_zeroed[client] = result.is_zeroed
        for row, values in zip(clipped_rows, result.values, strict=True):
            row[client] = torch.from_numpy(values)
    clipped_leaves = [
        row.reshape(leaf.shape) for row, leaf in zip(clipped_rows, leaves, strict=True)
    ]
    return ClippedUpdates(clipped_leaves, is_clipped, is_zeroed)


def _norms(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the L2 norm of each client's update, float64 (clients,). It is infinite or NaN if an
    entry is, or if a square overflows.
    """
    squared_norms = torch.zeros(rows[0].shape[0], dtype=torch.float64, device=rows[0].device)
    for row in rows:
        num_clients, num_entries = row.shape
        num_chunked = num_entries // FLOAT32_CHUNK * FLOAT32_CHUNK
        chunks = row[:, :num_chunked].reshape(num_clients, -1, FLOAT32_CHUNK)
        for block in (chunks, row[:, None, num_chunked:]):
            if block.numel():
                squared_norms += block.square().sum(2).double().sum(1)
    return squared_norms.sqrt()


def _largest_entries(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the largest absolute value of each client's update, float64 (clients,); NaN if an
    entry is NaN.
    """
    largest_of_rows = [row.abs().amax(1).double() for row in rows if row.shape[1]]
    return torch.stack(largest_of_rows).amax(0)
