"""Checkpoints as bytes: what is read is what was written, whatever happened to the file."""

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fedmf
from fedmf.runs.checkpoint import Checkpoint
from tests.refusals import refusal

STATE = [
    np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5,
    np.array([-(2**31), 7], np.int32),
    np.array(True),
    np.array(3.5, np.float32),
    np.array(2**62, np.int64),
    np.zeros((0, 4), np.float32),
    np.array([np.nan, -0.0, np.inf, 5e-324]),
]


def checkpoint(rounds_done=3, digest="d", state=STATE):
    ledger = fedmf.ParticipationLedger(cohort_size=2)
    for cohort, selected in (([5, 1], [5, 1, 7]), ([], [3]), ([2], [2])):
        ledger.append(np.array(cohort, np.int64), selected=np.array(selected))
    return Checkpoint(rounds_done=rounds_done, config_digest=digest, state=state, ledger=ledger)


def contents(of):
    """All that a checkpoint holds; floats as bytes, so that NaNs and signed zeros count."""
    ledger = of.ledger
    leaves = [(a.dtype.str, a.shape, a.tobytes()) for a in map(np.asarray, of.state)]
    rounds = [(ledger.cohort(t).tolist(), ledger.selected(t).tolist()) for t in range(len(ledger))]
    return of.rounds_done, of.config_digest, ledger.cohort_size, rounds, leaves


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints") / "round-000003.ckpt"


def written(path, of):
    with path.open("wb") as out:
        of.write(out)
    return path.read_bytes()


@settings(max_examples=40)
@given(
    st.lists(
        hnp.arrays(
            st.sampled_from(
                ["float32", "float64", "int32", "int64", "uint8", "bool", "complex64", ">f4"]
            ),
            hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        ),
        max_size=12,
    )
)
@example(STATE)
def test_any_leaves_in_their_order(path, state):
    written(path, checkpoint(state=state))
    assert contents(Checkpoint.read(path)) == contents(checkpoint(state=state))


def test_an_entry_that_claims_fewer_numbers_than_it_has(path):
    """One bit in the header of a long leaf: numpy reads less, and never comes to the checksum."""
    content = written(path, checkpoint(state=[np.zeros(9098, np.float32)]))
    assert b"'shape': (9098,)" in content
    path.write_bytes(content.replace(b"(9098,)", b"(8098,)", 1))
    with refusal("is damaged or half-written"):
        Checkpoint.read(path)


@pytest.mark.parametrize("leaf", [np.array([None]), np.array(["a", 1], object), np.zeros(2, "V2")])
def test_what_could_not_be_read_back_is_not_written(path, leaf):
    with refusal("state_1 holds .* plain numeric arrays only", TypeError):
        written(path, checkpoint(state=[np.zeros(2), leaf]))


class TestDamage:
    """Every damage that a reader could see is refused with the path; none is ever read
    as something else.
    """

    def refused(self, path, damaged, *, harmless=False):
        """Whether it is refused; otherwise, where that may be, the same is read."""
        path.write_bytes(damaged)
        try:
            assert contents(Checkpoint.read(path)) == contents(checkpoint())
        except ValueError as error:
            message = str(error)
            assert (
                f"checkpoint {path} is damaged or half-written ({len(damaged)} "
                "bytes): delete this file" in message
            )
            assert "\n" not in message
            return True
        assert harmless
        return False

    def test_truncation(self, path):
        data = written(path, checkpoint())
        lengths = {*range(0, len(data), 7), *range(len(data) - 100, len(data))}
        assert all(self.refused(path, data[:length]) for length in lengths)

    @pytest.mark.slow
    def test_single_bit_flips(self, path):
        # An archive holds some bits that nobody reads, such as times. Those of the arrays
        # are all refused.
        data = written(path, checkpoint())
        start = data.index(STATE[0].tobytes())
        values = range(8 * start, 8 * (start + STATE[0].nbytes))
        for bit in {*values, *random.Random(1).sample(range(8 * len(data)), 1000)}:
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            assert (
                self.refused(path, bytes(damaged), harmless=bit not in values) or bit not in values
            )

    def test_blocks_of_zeros_as_left_by_a_crashed_disk(self, path):
        data = written(path, checkpoint())
        for start in range(0, len(data) - 512, 256):
            assert self.refused(path, data[:start] + bytes(512) + data[start + 512 :])

    def test_not_a_checkpoint(self, path):
        assert self.refused(path, b"PK\x03\x04" * 40)
