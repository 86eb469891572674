"""Clipping of tensors agrees with the reference in numpy, and keeps the bound exactly.

tests/server/test_clipping.py has the tests of the reference, `clip_update`.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedmf.pytorch.client_training.clipping import clip_stacked
from fedmf.server.clipping import FLOAT32_CHUNK, FLOAT32_MARGIN, clip_update
from fedmf.server.messages import ClientParams

TINY = float(np.finfo(np.float32).tiny)
SPECIAL = [0.0, -0.0, 1.0, TINY / 4, 3.4e38, 65504.0, math.inf, -math.inf, math.nan]
numbers = st.one_of(
    st.sampled_from(SPECIAL), st.floats(-10, 10, width=32), st.floats(width=32, allow_nan=False)
)
norms = st.sampled_from([1e-18, 1e-6, 0.3, 1.0, 1e6, 1e30, math.inf])


def norm(values):
    """Returns the L2 norm to the last digit of float64."""
    largest_value = max((abs(x) for x in values), default=0.0)
    if largest_value == 0 or not math.isfinite(largest_value):
        return largest_value
    return largest_value * math.sqrt(math.fsum((x / largest_value) ** 2 for x in values))


@settings(max_examples=100)
@given(
    rows=st.integers(1, 70).flatmap(
        lambda size: st.lists(
            st.lists(numbers, min_size=size, max_size=size), min_size=1, max_size=4
        )
    ),
    clip_norm=norms,
    zeroing_norm=norms,
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@example(rows=[[3e38] * 3], clip_norm=1.0, zeroing_norm=math.inf, dtype=torch.float32)
@example(rows=[[math.nan, 1.0]], clip_norm=math.inf, zeroing_norm=math.inf, dtype=torch.float32)
def test_each_client_is_clipped_as_the_reference_does(rows, clip_norm, zeroing_norm, dtype):
    updates = torch.tensor(rows, dtype=dtype)
    half = updates.shape[1] // 2
    leaves = [updates[:, :half], updates[:, half:].unsqueeze(2)]
    params = ClientParams(clip_norm=clip_norm, zeroing_norm=zeroing_norm, scales=())
    clipped = clip_stacked(leaves, params, ())
    for client in range(len(rows)):
        values = torch.cat([leaf[client].flatten() for leaf in clipped.leaves]).tolist()
        assert norm(values) <= clip_norm
        reference = clip_update(
            [updates[client].numpy()], clip_norm=clip_norm, zeroing_norm=zeroing_norm
        )
        assert bool(clipped.is_zeroed[client]) == reference.is_zeroed
        is_near_bound = reference.is_zeroed or math.isclose(
            norm(updates[client].tolist()), clip_norm, rel_tol=4e-6
        )
        assert is_near_bound or bool(clipped.is_clipped[client]) == reference.is_clipped
        tolerance = max(4e-6 * norm(reference.values[0].tolist()), TINY)
        np.testing.assert_allclose(values, reference.values[0], rtol=0, atol=tolerance)


def test_an_update_within_the_bound_keeps_its_bits():
    update = torch.tensor([[0.1, -0.2, 1e-30], [30.0, 40.0, 0.0]])
    clipped = clip_stacked([update], ClientParams(0.5, 100.0, ()), ())
    assert torch.equal(clipped.leaves[0][0], update[0])
    assert clipped.is_clipped.tolist() == [False, True]


def test_scales_come_before_zeroing_and_clipping():
    update = torch.tensor([[3.0, 4.0]])
    scales = [torch.tensor([10.0, 0.0])]
    clipped = clip_stacked([update], ClientParams(0.5, 100.0, ()), scales)
    assert clipped.leaves[0][0].tolist() == pytest.approx([0.5, 0.0], rel=2e-6)
    clipped = clip_stacked([update], ClientParams(0.5, 20.0, ()), scales)
    assert clipped.is_zeroed.tolist() == [True]


def test_a_norm_is_summed_in_chunks_as_the_proof_assumes():
    """A sum in float32 over all entries would stop growing, and let the update pass unclipped."""
    update = torch.full((1, 2**25), 1e-4)
    clipped = clip_stacked([update], ClientParams(0.5, 100.0, ()), ())
    exact_norm = math.sqrt(2**25) * float(clipped.leaves[0][0, 0])
    assert 0.5 * (1 - 2 * FLOAT32_MARGIN) <= exact_norm <= 0.5
    assert FLOAT32_CHUNK == 32
