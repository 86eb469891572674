"""The check that float32 represents the noise of a stream."""

import dataclasses

import numpy as np
import pytest

from fedmf.noise.blocks import block_form, equal_blocks, growing_blocks
from fedmf.noise.buffers import Buffers
from fedmf.noise.float32_check import check_float32
from fedmf.noise.stream import NoiseStream
from tests.mechanisms.registry import every_mechanism
from tests.refusals import refusal

ROUNDS = 48
FORMS = ("recurrence", "contraction", "buffers")


def two_band_stream(form, below):
    """Returns the stream of C with 1 on the diagonal and `below` under it, in a form.

    The inverse of C has the entries (-below)^k.
    """
    ones = np.ones((ROUNDS, 1))
    if form == "buffers":
        buffers = Buffers(window=ones, read=-below * ones, write=ones, decay=[-below])
        return NoiseStream(rounds=ROUNDS, sources=ROUNDS, buffers=buffers)
    if form == "contraction":
        t = np.arange(ROUNDS)
        N = np.tril((-below) ** np.maximum(t[:, None] - t, 0.0))
        return NoiseStream(rounds=ROUNDS, sources=ROUNDS, contraction=N)
    recurrence = np.hstack([ones, below * ones])
    recurrence[0, 1] = 0.0
    return NoiseStream(rounds=ROUNDS, sources=ROUNDS, recurrence=recurrence)


@every_mechanism
@pytest.mark.parametrize("length", [1, 16])
def test_every_mechanism_passes_in_blocks(build, length):
    stream = build(40).stream().causal()
    check_float32(stream, block_form(stream, bounds=equal_blocks(40, length)))


@pytest.mark.parametrize("form", FORMS)
def test_the_check_uses_the_block_form(form):
    stream = two_band_stream(form, 0.9)
    blocks = block_form(stream, bounds=equal_blocks(ROUNDS, 8))
    check_float32(stream, blocks)
    wrong_blocks = dataclasses.replace(blocks, matrix=lambda b: 1.002 * blocks.matrix(b))
    with refusal("too ill-conditioned for float32"):
        check_float32(stream, wrong_blocks)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("below", [0.9, 2.0, 1e3])
def test_a_stream_is_refused_if_and_only_if_the_error_is_large(form, below):
    """Compares with rows of the reference that are rounded to float32, and decoded by C."""
    stream = two_band_stream(form, below)
    C = np.eye(ROUNDS) + below * np.eye(ROUNDS, k=-1)
    z = np.random.default_rng(1).standard_normal((ROUNDS, 50))
    with np.errstate(all="ignore"):  # The noise overflows.
        rows = np.stack(list(stream.rows(lambda i: z[i]))).astype(np.float32)
        error = np.abs(C @ rows.astype(np.float64) - z).max()
    if below < 1:
        assert error < 1e-3
        check_float32(stream)
    else:
        assert not error < 1e-3
        with refusal("too ill-conditioned for float32, in which its noise is made: it is wrong by"):
            check_float32(stream)


@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_equal_coefficients_share_one_matrix(form, monkeypatch):
    """Checks why a server of 20,000 rounds opens in a second."""
    stream = two_band_stream(form, 0.5)
    block = NoiseStream.block
    starts = []

    def counting_block(self, start, stop):
        starts.append(start)
        return block(self, start, stop)

    monkeypatch.setattr(NoiseStream, "block", counting_block)
    check_float32(stream, block_form(stream, bounds=growing_blocks(ROUNDS, 4)))
    # There are blocks of 1, 1, 2 and 4 rounds, and blocks of the first rounds. The check has longer
    # blocks of its own.
    assert len(starts) <= 7
