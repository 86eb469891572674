"""Zeroing and clipping: the bound holds for every input, exactly, and nothing else changes."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedmf.federated.execution import clipping
from fedmf.federated.execution.clipping import ROUNDING_MARGIN, clip_dtype, zero_and_clip

TINY = float(np.finfo(np.float32).tiny)


def exact(leaves):
    """All entries as Python floats, which hold every value of every dtype; by numpy, for which
    subnormal numbers are numbers.
    """
    return [x for leaf in leaves for x in leaf.numpy().astype(np.float64).ravel().tolist()]


def norm(values):
    """The L2 norm to float64's last digit: relative to the largest entry and summed exactly."""
    largest = max((abs(x) for x in values), default=0.0)
    if largest == 0 or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(math.fsum((x / largest) ** 2 for x in values))


@pytest.fixture(scope="module")
def clip():
    """zero_and_clip in a graph, as TFF and tf.function run it; one trace for each structure."""
    function = tf.function(lambda record, c, z: zero_and_clip(record, clip_norm=c, zeroing_norm=z))
    return lambda record, c, z: function(
        record, tf.constant(c, tf.float64), tf.constant(z, tf.float64)
    )


# 70 numbers whose binary exponents lie anywhere between two ends, and a few ends of ranges among
# them.
SPECIAL = [0.0, -0.0, 1.0, TINY / 4, 3.4e38, -1.7e308, 65504.0, math.inf, -math.inf, math.nan]


@st.composite
def numbers(draw):
    low, high = sorted([draw(st.integers(-1074, 1022)), draw(st.integers(-160, 140))])
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.uniform(-2, 2, 70) * 2.0 ** rng.integers(low, high, 70, endpoint=True)
    for position, value in draw(
        st.dictionaries(st.integers(0, 69), st.sampled_from(SPECIAL), max_size=3)
    ).items():
        values[position] = value
    return values


MIXED = [
    ("float16", "float16"),
    ("bfloat16", "float64"),
    ("float32", "float32"),
    ("float64", "float64"),
    ("float32", "float16"),
]


@pytest.mark.parametrize("scale", [0.1, 30.0, 1e30])
def test_compiled_by_xla_the_bound_is_the_same(scale):
    """XLA has no kernel for TensorFlow's own norm on CPU, and may add in another order."""
    compiled = tf.function(
        lambda x: zero_and_clip([x], clip_norm=1.0, zeroing_norm=100.0), jit_compile=True
    )
    x = scale * np.random.default_rng(1).uniform(-1, 1, 10_007).astype(np.float32)
    out = compiled(tf.constant(x))
    assert norm(exact(out.record)) <= 1
    if scale < 100:
        factor = min(1.0, (1 - ROUNDING_MARGIN) / norm(x.astype(np.float64).tolist()))
        np.testing.assert_allclose(out.record[0], factor * x, rtol=2e-6, atol=TINY)
    assert (int(out.zeroed), int(out.clipped)) == (int(scale > 100), int(0.1 <= scale <= 100))


@settings(deadline=None, max_examples=200)
@given(
    values=numbers(),
    dtypes=st.sampled_from(MIXED),
    clip_norm=st.sampled_from([1e-15, 1e-3, 1 / 3, 1.0, 30.0, 1e30]),
    limit=st.sampled_from([1e-2, 100.0, math.inf]),
)
@example(values=[100.0] * 70, dtypes=("float32", "float32"), clip_norm=1.0, limit=100.0)
@example(values=[0.1] * 70, dtypes=("float32", "float64"), clip_norm=1.0, limit=0.1)
@example(values=[TINY / 4] * 70, dtypes=("float32", "float32"), clip_norm=1e-15, limit=math.inf)
@example(values=[-0.0] * 70, dtypes=("float32", "float64"), clip_norm=1e-15, limit=math.inf)
@example(values=[1.7e308] * 70, dtypes=("float64", "float64"), clip_norm=1.0, limit=math.inf)
@example(values=[3.4e38] * 70, dtypes=("float32", "float64"), clip_norm=1.0, limit=math.inf)
@example(
    values=[1.0] * 69 + [math.nan], dtypes=("float16", "bfloat16"), clip_norm=1.0, limit=math.inf
)
def test_no_record_is_longer_than_the_clip_norm(clip, values, dtypes, clip_norm, limit):
    values = np.array(values)
    # 66 and 4: whole chunks, a rest, and a leaf that is only a rest; beside them a scalar and an
    # empty leaf.
    given_record = {
        "a": tf.cast(values[:66].reshape(11, 6), dtypes[0]),
        "b": [tf.cast(values[66:69], dtypes[1]), tf.zeros([2, 0], dtypes[1])],
        "c": tf.cast(values[69], dtypes[0]),
    }
    out = clip(given_record, clip_norm, limit)
    before, after = exact(tf.nest.flatten(given_record)), exact(tf.nest.flatten(out.record))
    size = max(abs(x) for x in before)

    assert norm(after) <= clip_norm  # without a tolerance
    assert [leaf.dtype for leaf in tf.nest.flatten(out.record)] == [
        clip_dtype(x.dtype) for x in tf.nest.flatten(given_record)
    ]
    tf.nest.assert_same_structure(out.record, given_record)
    zeroed, clipped = int(out.zeroed), int(out.clipped)
    assert zeroed == (not all(math.isfinite(x) for x in before) or size > limit)
    if zeroed:
        assert after == [0.0] * len(after)
        assert clipped == 0
    elif norm(before) <= clip_norm * (1 - 2 * ROUNDING_MARGIN):
        # Unchanged to the bit, but that TensorFlow may take numbers below float32's normal range
        # for 0.
        assert clipped == 0
        assert all(a == b or (a == 0 and abs(b) < TINY) for a, b in zip(after, before, strict=True))
    elif norm(before) > clip_norm:
        # The direction is kept, and of the clip norm all but the rounding margin.
        assert clipped == 1
        target = [x / size * (clip_norm / norm([y / size for y in before])) for x in before]
        np.testing.assert_allclose(after, target, rtol=2 * ROUNDING_MARGIN + 1e-6, atol=TINY)


@pytest.mark.parametrize("size", [31, 32, 33, 2**12, 2**20 + 5])
def test_the_margin_covers_the_rounding_of_long_records(clip, size):
    rng = np.random.default_rng(size)
    for values in (rng.standard_normal(size), np.full(size, 1 / 3), rng.standard_cauchy(size)):
        out = clip([tf.constant(values, tf.float32)], 1.0, math.inf)
        reached = np.linalg.norm(out.record[0].numpy().astype(np.longdouble))
        assert 1 - 2 * ROUNDING_MARGIN - 1e-6 <= reached <= 1


def test_without_the_margin_rounding_lifts_records_over_the_clip_norm(monkeypatch):
    """The control of the tests above: they would see it."""
    monkeypatch.setattr(clipping, "ROUNDING_MARGIN", 0.0)
    rng = np.random.default_rng(1)
    records = [[tf.constant(rng.standard_normal(99), tf.float32)] for _ in range(50)]
    clipped = [zero_and_clip(each, clip_norm=1.0, zeroing_norm=1e9).record for each in records]
    assert max(map(norm, map(exact, clipped))) > 1
