"""Checks of refusals: the kind of error, the argument that it names, and one sentence."""

import contextlib
import re

import pytest


def named(kind, call, **values):
    """Yields (call, kind, words) for each bad value; the message has to name it as name=value."""
    for name, bad_values in values.items():
        for value in bad_values:
            words = re.escape(f"{name}={value!r}")
            yield (lambda bad_name=name, v=value: call(**{bad_name: v})), kind, words


@contextlib.contextmanager
def refusal(words, kind=ValueError, *, naming=()):
    """Checks that the block raises an error of this kind, in one sentence.

    The sentence matches the regular expression `words` and contains each name of `naming`.
    """
    with pytest.raises(kind, match=words) as caught:
        yield caught
    assert_one_sentence(caught)
    for name in naming:
        assert str(name) in str(caught.value)


def assert_refused(call, kind, words):
    """Checks that a call raises an error of exactly this kind."""
    with refusal(words, kind) as caught:
        call()
    assert type(caught.value) is kind


def assert_one_sentence(caught):
    message = str(caught.value)
    assert "\n" not in message
    # The words of another library do not count.
    own_words = re.sub(r"\(\w+Error: .*\)", "", message)
    assert not re.search(r"(?<!Prop)\. [A-Z]", own_words.replace("et al. ", ""))
