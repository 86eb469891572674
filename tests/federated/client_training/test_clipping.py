"""Zeroing and clipping in TensorFlow agree with the reference in numpy, and keep the bound exactly.

tests/server/test_clipping.py has the tests of the reference, `clip_update`.
"""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedmf.federated.client_training import clipping
from fedmf.federated.client_training.clipping import clip_dtype, zero_and_clip
from fedmf.federated.client_training.records import Records
from fedmf.server.clipping import FLOAT32_CHUNK, FLOAT32_MARGIN, clip_update
from fedmf.server.messages import ClientParams

TINY = float(np.finfo(np.float32).tiny)


def exact(leaves):
    """Returns all entries as Python floats, which hold every value of every dtype.

    numpy reads them, because TensorFlow may take subnormal numbers for 0.
    """
    return [x for leaf in leaves for x in leaf.numpy().astype(np.float64).ravel().tolist()]


def norm(values):
    """Returns the L2 norm to the last digit of float64.

    Entries are relative to the largest one, and their squares are summed exactly.
    """
    largest_value = max((abs(x) for x in values), default=0.0)
    if largest_value == 0 or not math.isfinite(largest_value):
        return largest_value
    return largest_value * math.sqrt(math.fsum((x / largest_value) ** 2 for x in values))


@pytest.fixture(scope="module")
def clip():
    """Returns zero_and_clip in a graph, as TFF and tf.function run it, traced once for each
    structure.
    """

    @tf.function
    def traced(record, clip_norm, zeroing_norm):
        return zero_and_clip(record, clip_norm=clip_norm, zeroing_norm=zeroing_norm)

    def clip_record(record, clip_norm, zeroing_norm):
        norms = (tf.constant(norm, tf.float64) for norm in (clip_norm, zeroing_norm))
        return traced(record, *norms)

    return clip_record


SPECIAL = [0.0, -0.0, 1.0, TINY / 4, 3.4e38, -1.7e308, 65504.0, math.inf, -math.inf, math.nan]


@st.composite
def numbers(draw):
    """Draws 70 numbers with binary exponents in a random range, and at most three special ones."""
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
def test_the_bound_holds_when_compiled_by_xla(scale):
    """XLA has no kernel for TensorFlow's own norm on CPU, and may add in another order."""
    compiled = tf.function(
        lambda x: zero_and_clip([x], clip_norm=1.0, zeroing_norm=100.0), jit_compile=True
    )
    x = scale * np.random.default_rng(1).uniform(-1, 1, 10_007).astype(np.float32)
    result = compiled(tf.constant(x))
    reference = clip_update([x], clip_norm=1.0, zeroing_norm=100.0)
    assert norm(exact(result.record)) <= 1
    assert bool(result.zeroed) == reference.is_zeroed == (scale > 100)
    assert bool(result.clipped) == reference.is_clipped
    np.testing.assert_allclose(result.record, reference.values, rtol=4e-6, atol=TINY)


@settings(deadline=None, max_examples=200)
@given(
    values=numbers(),
    dtypes=st.sampled_from(MIXED),
    clip_norm=st.sampled_from([1e-15, 1e-3, 1 / 3, 1.0, 30.0, 1e30]),
    zeroing_norm=st.sampled_from([1e-2, 100.0, math.inf]),
)
@example(values=[100.0] * 70, dtypes=("float32", "float32"), clip_norm=1.0, zeroing_norm=100.0)
@example(values=[0.1] * 70, dtypes=("float32", "float64"), clip_norm=1.0, zeroing_norm=0.1)
@example(
    values=[TINY / 4] * 70, dtypes=("float32", "float32"), clip_norm=1e-15, zeroing_norm=math.inf
)
@example(values=[-0.0] * 70, dtypes=("float32", "float64"), clip_norm=1e-15, zeroing_norm=math.inf)
@example(values=[1.7e308] * 70, dtypes=("float64", "float64"), clip_norm=1.0, zeroing_norm=math.inf)
@example(values=[3.4e38] * 70, dtypes=("float32", "float64"), clip_norm=1.0, zeroing_norm=math.inf)
@example(
    values=[1.0] * 69 + [math.nan],
    dtypes=("float16", "bfloat16"),
    clip_norm=1.0,
    zeroing_norm=math.inf,
)
@example(
    # Records of norm (1 - 1e-6) clip_norm are between the bound and the margin in float32.
    values=[0.0] * 69 + [1 - 1e-6],
    dtypes=("float32", "float32"),
    clip_norm=1.0,
    zeroing_norm=math.inf,
)
def test_the_kernel_agrees_with_the_reference(clip, values, dtypes, clip_norm, zeroing_norm):
    """Decisions are the same, values the same within the proven margin, and no norm is too large.

    Only for an update between (1 - 2 margins) clip_norm and clip_norm the decision may differ.
    """
    values = np.array(values)
    # 66 and 4 entries: whole chunks with a remainder, and leaves that are only a remainder; beside
    # them a scalar and an empty leaf.
    record = {
        "a": tf.cast(values[:66].reshape(11, 6), dtypes[0]),
        "b": [tf.cast(values[66:69], dtypes[1]), tf.zeros([2, 0], dtypes[1])],
        "c": tf.cast(values[69], dtypes[0]),
    }
    result = clip(record, clip_norm, zeroing_norm)
    leaves = tf.nest.flatten(record)
    reference = clip_update(
        [leaf.numpy() for leaf in leaves], clip_norm=clip_norm, zeroing_norm=zeroing_norm
    )

    tf.nest.assert_same_structure(result.record, record)
    result_leaves = tf.nest.flatten(result.record)
    assert [leaf.dtype for leaf in result_leaves] == [clip_dtype(leaf.dtype) for leaf in leaves]
    result_entries = exact(result_leaves)
    reference_entries = np.concatenate([leaf.ravel() for leaf in reference.values])
    assert norm(result_entries) <= clip_norm  # There is no tolerance.
    assert bool(result.zeroed) == reference.is_zeroed
    assert not (result.zeroed and result.clipped)
    record_norm = norm(exact(leaves))
    if reference.is_zeroed:
        assert result_entries == [0.0] * len(result_entries)
    elif record_norm <= clip_norm * (1 - 2 * FLOAT32_MARGIN):
        assert not result.clipped
        assert not reference.is_clipped
        # The bits are the same, but TensorFlow may take numbers below float32's range for 0.
        are_equal = reference_entries == result_entries
        are_tiny = (np.array(result_entries) == 0) & (np.abs(reference_entries) < TINY)
        assert np.all(are_equal | are_tiny)
    else:
        if record_norm > clip_norm:
            assert result.clipped
            assert reference.is_clipped
        np.testing.assert_allclose(
            result_entries, reference_entries, rtol=2 * FLOAT32_MARGIN + 1e-6, atol=TINY
        )
        assert norm(result_entries) >= clip_norm * (1 - 2 * FLOAT32_MARGIN - 1e-6)


@pytest.mark.parametrize("zeroing_norm", [0.5, math.inf])
def test_scaled_records_agree_with_the_reference(zeroing_norm):
    rng = np.random.default_rng(2)
    update = [rng.normal(size=shape).astype(np.float32) for shape in ((7, 5), (9,))]
    # Powers of 2, by which float32 multiplies exactly.
    scales = [2.0 ** rng.integers(-3, 3, leaf.shape) for leaf in update]
    scales = [scale.astype(np.float32) for scale in scales]
    params = ClientParams(clip_norm=2.0, zeroing_norm=zeroing_norm, scales=scales)
    sample = Records(update).clipped(params, update)
    reference = clip_update(update, clip_norm=2.0, zeroing_norm=zeroing_norm, scales=scales)
    assert bool(sample.clipped) == reference.is_clipped == math.isinf(zeroing_norm)
    assert bool(sample.zeroed) == reference.is_zeroed == math.isfinite(zeroing_norm)
    for leaf, expected in zip(sample.record, reference.values, strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=2 * FLOAT32_MARGIN)


def test_the_margin_is_larger_than_its_proof_needs():
    unit_roundoff = 2.0**-24
    assert 1.3 * ((FLOAT32_CHUNK / 2 + 2) * unit_roundoff + 1.5e-8) < FLOAT32_MARGIN


@pytest.mark.parametrize("size", [31, 32, 33, 2**12, 2**20 + 5])
def test_the_margin_covers_the_rounding_of_long_records(clip, size):
    rng = np.random.default_rng(size)
    for values in (rng.standard_normal(size), np.full(size, 1 / 3), rng.standard_cauchy(size)):
        result = clip([tf.constant(values, tf.float32)], 1.0, math.inf)
        [leaf] = result.record
        clipped_norm = np.linalg.norm(leaf.numpy().astype(np.longdouble))
        assert 1 - 2 * FLOAT32_MARGIN - 1e-6 <= clipped_norm <= 1


def test_without_the_margin_rounding_lifts_records_over_the_clip_norm(monkeypatch):
    """Negative control of the tests above."""
    monkeypatch.setattr(clipping, "FLOAT32_MARGIN", 0.0)
    rng = np.random.default_rng(1)
    records = [[tf.constant(rng.standard_normal(99), tf.float32)] for _ in range(50)]
    results = [zero_and_clip(record, clip_norm=1.0, zeroing_norm=1e9) for record in records]
    assert max(norm(exact(result.record)) for result in results) > 1
