"""Clipping in numpy: the norm of a clipped update is at most clip_norm in exact arithmetic, and
short updates stay as they are.
"""

import fractions
import math

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest

from fedmf.server.clipping import _BLOCK, UpdateSum, clip_margin, clip_update

_FLOATS = (np.float16, np.float32, np.float64)


def added(leaves, **norms):
    total = UpdateSum(sum(np.size(leaf) for leaf in leaves), 1)
    total.add(leaves, **({"clip_norm": 1.0, "zeroing_norm": math.inf} | norms))
    return total


def squared_norm(vector):
    """Returns the squared norm in exact arithmetic."""
    return sum(fractions.Fraction(float(x)) ** 2 for x in vector)


def leaves_of(dtype):
    return st.lists(
        hypothesis.extra.numpy.arrays(
            dtype,
            st.integers(0, 9),
            elements=st.floats(width=8 * np.dtype(dtype).itemsize, allow_subnormal=True),
        ),
        min_size=1,
        max_size=3,
    )


@hypothesis.given(
    leaves=st.sampled_from(_FLOATS).flatmap(leaves_of),
    clip_norm=st.sampled_from([1e-20, 1e-3, 1.0, 7.3, 1e6]),
    zeroing_norm=st.sampled_from([1e-6, 100.0, math.inf]),
)
@hypothesis.settings(max_examples=400)
def test_clipped_norm_is_at_most_clip_norm(leaves, clip_norm, zeroing_norm):
    total = added(leaves, clip_norm=clip_norm, zeroing_norm=zeroing_norm)
    clipped_update = clip_update(leaves, clip_norm=clip_norm, zeroing_norm=zeroing_norm)
    assert [value.shape for value in clipped_update.values] == [leaf.shape for leaf in leaves]
    np.testing.assert_array_equal(np.concatenate(clipped_update.values), total.total)
    assert (clipped_update.is_clipped, clipped_update.is_zeroed) == (total.clipped, total.zeroed)
    entries = np.concatenate([leaf.astype(np.float64) for leaf in leaves])
    assert squared_norm(total.total) <= fractions.Fraction(clip_norm) ** 2
    good = np.isfinite(entries).all() and (np.abs(entries) <= zeroing_norm).all()
    assert total.zeroed == (not good)
    if not good:
        assert not total.total.any()
    elif squared_norm(entries) <= fractions.Fraction(clip_norm * (1 - 1e-9)) ** 2:
        assert not total.clipped
        np.testing.assert_array_equal(total.total, entries)
    elif squared_norm(entries) > fractions.Fraction(clip_norm) ** 2:
        assert total.clipped
        length = math.hypot(*total.total)
        assert length == pytest.approx(clip_norm, rel=1e-12)
        # In the direction of the update, of which float64 may not hold the squares.
        direction = entries / np.abs(entries).max()
        np.testing.assert_allclose(
            total.total, direction * (length / np.linalg.norm(direction)), rtol=1e-9, atol=1e-300
        )


def test_update_over_blocks_and_leaves_is_clipped_as_one_vector():
    rng = np.random.default_rng(0)
    vector = rng.standard_normal(3 * _BLOCK + 7).astype(np.float32)
    leaves = [vector[:5], vector[5:_BLOCK].reshape(-1, 3), vector[_BLOCK:]]
    total = added(leaves, clip_norm=2.0)
    expected = vector.astype(np.float64) * (2.0 / np.linalg.norm(vector.astype(np.float64)))
    np.testing.assert_allclose(total.total, expected, rtol=2 * clip_margin(len(vector), 1))
    assert math.fsum(np.square(total.total)) <= 4.0


def test_margin_refuses_sums_of_too_many_clients():
    """The margin of 10^8 clients would be twice the clip norm, and would reverse updates."""
    total = UpdateSum(3, 2_000_000)
    total.add([np.full(3, 9.0)], clip_norm=1.0, zeroing_norm=math.inf)
    assert 0.998 < np.linalg.norm(total.total) <= 1
    with pytest.raises(ValueError, match="clients_per_round=3000000 updates of 3 entries"):
        UpdateSum(3, 3_000_000)


def test_scales_are_applied_before_zeroing_and_clipping():
    update = [np.array([3.0, 400.0])]
    scales = [np.array([1.0, 0.01], np.float32)]
    total = added(update, clip_norm=2.5, zeroing_norm=100.0, scales=scales)
    np.testing.assert_allclose(total.total, [1.5, 2.0], rtol=1e-7)
    assert added(update, zeroing_norm=100.0).zeroed
