"""Sentences to ids: the published recipe on small cases by hand, and its invariants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmf.tasks.stackoverflow.preprocessing import PAD, Preprocessor
from tests.refusals import refusal

# V = 3: the 1, cat 2, sat 3, unknown 4, begin 5, end 6.
WORDS = ("the", "cat", "sat")


@pytest.mark.parametrize(
    ("sentence", "x", "y"),
    [
        ("the cat sat", [5, 1, 2, 3], [1, 2, 3, 6]),  # three words of four: the end just fits
        ("the cat sat there", [5, 1, 2, 3], [1, 2, 3, 4]),  # four of four: no end
        ("the  dog", [5, 1, 4, 6], [1, 4, 6, 0]),  # blanks in a row are one
        ("The", [5, 4, 6, 0], [4, 6, 0, 0]),
    ],
)
def test_ids_equal_those_computed_by_hand(sentence, x, y):
    encoded_arrays = Preprocessor(WORDS, 3, 4).encode([sentence.encode()])
    assert [encoded_array.tolist() for encoded_array in encoded_arrays] == [[x], [y]]


@given(
    sentences=st.lists(
        st.lists(st.sampled_from([*WORDS, "dog", "é"]), max_size=9).map(" ".join), max_size=6
    ),
    length=st.integers(1, 7),
)
def test_ids_begin_end_and_are_padded_as_defined(sentences, length):
    preprocessor = Preprocessor(WORDS, 3, length)
    ids = preprocessor.ids
    x, y = preprocessor.encode(sentences)
    assert x.shape == y.shape == (len(sentences), length)
    assert x.dtype == y.dtype == np.int32
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    assert (x[:, :1] == ids.begin).all()
    assert not (y == ids.begin).any()
    for sentence, row in zip(sentences, y, strict=True):
        words = sentence.split()
        assert (row == ids.end).sum() == (len(words) < length)
        used = min(len(words), length)
        assert (row[:used] != PAD).all()
        assert (row[used + 1 :] == PAD).all()
        word_by_id = {1: "the", 2: "cat", 3: "sat"}
        assert [word_by_id.get(i) for i in row[:used]] == [
            word if word in WORDS else None for word in words[:length]
        ]


@pytest.mark.parametrize("words", [(*WORDS, "dog"), ("a", "a")])
def test_words_without_an_id_of_their_own_are_refused(words):
    with refusal("each needs one id"):
        Preprocessor(words, 3)
