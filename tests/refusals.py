"""Refusals as tables: what is called, the kind of error, and the argument that is named."""

import contextlib
import re

import pytest


def named(kind, call, **values):
    """Calls with one bad value each, which the message names as name=value."""
    for name, bad in values.items():
        for value in bad:
            words = re.escape(f"{name}={value!r}")
            yield (lambda n=name, v=value: call(**{n: v})), kind, words


@contextlib.contextmanager
def refusal(words, kind=ValueError, *, naming=()):
    """An error of this kind with these words, a regular expression, in one sentence that has these
    names.
    """
    with pytest.raises(kind, match=words) as caught:
        yield caught
    assert_one_sentence(caught)
    for name in naming:
        assert str(name) in str(caught.value)


def assert_refused(call, kind, words):
    """A call that is refused with an error of exactly this kind."""
    with refusal(words, kind) as caught:
        call()
    assert type(caught.value) is kind


def assert_one_sentence(caught):
    message = str(caught.value)
    assert "\n" not in message
    ours = re.sub(r"\(\w+Error: .*\)", "", message)  # without the words of another library
    assert not re.search(r"(?<!Prop)\. [A-Z]", ours.replace("et al. ", ""))
