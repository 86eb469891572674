"""Buffers: matrix and stream follow the formula for single entries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fedmf.mechanisms import Buffers, NoiseStream
from tests.refusals import refusal


def random_buffers(seed, n, w, q):
    """Returns buffers of n rounds, a window of w columns and q sums."""
    rng = np.random.default_rng(seed)
    window = np.where(np.arange(n)[:, None] >= np.arange(w), rng.standard_normal((n, w)), 0.0)
    return Buffers(
        window=window,
        read=rng.standard_normal((n, q)),
        write=rng.standard_normal((n, q)),
        decay=rng.uniform(-1.0, 1.0, q),
    )


def matrix_by_entries(buffers):
    """Returns N from the formula for single entries."""
    n, w = buffers.window.shape
    N = np.zeros((n, n))
    for t in range(n):
        for s in range(t + 1):
            if t - s < w:
                N[t, s] = buffers.window[t, t - s]
            else:
                powers = buffers.decay ** (t - w - s)
                N[t, s] = buffers.read[t] @ (powers * buffers.write[s])
    return N


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 9), q=st.integers(0, 3), data=st.data())
@settings(max_examples=60)
def test_matrix_and_stream_follow_the_formula(seed, n, q, data):
    buffers = random_buffers(seed, n, data.draw(st.integers(1, n)), q)
    expected = matrix_by_entries(buffers)
    assert_allclose(buffers.matrix(), expected, atol=1e-12)
    stream = NoiseStream(rounds=n, sources=n, buffers=buffers)
    assert_allclose(np.stack(list(stream.rows(np.eye(n).__getitem__))), expected, atol=1e-12)


ONE = np.ones((3, 1))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"window": np.ones((3, 2))}, "window.*before round 0"),
        ({"write": np.ones((3, 2))}, r"write.*\(3, 2\).*\(3, 1\)"),
        ({"decay": [np.nan]}, "decay.*not finite"),
        ({"window": np.tri(3, 2), "feedback": True}, "feedback=True.*window of 2 columns"),
    ],
)
def test_wrong_fields_are_refused(fields, words):
    valid_fields = {"window": ONE, "read": ONE, "write": ONE, "decay": [0.5]}
    NoiseStream(rounds=3, sources=3, buffers=Buffers(**valid_fields))
    with refusal(words):
        Buffers(**valid_fields | fields)
    with refusal("rounds=4 and sources=4"):
        NoiseStream(rounds=4, sources=4, buffers=Buffers(**valid_fields))
