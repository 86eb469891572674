"""Marks in TensorFlow graphs: where the query clips, and where it adds noise.

`check_process` finds them again in a built process. A mark is an identity operation with a name:
fedmf.KIND.PLAN/ROLE.NUMBER. Whoever writes a process to deceive can name operations so, too.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import tensorflow as tf

Method = TypeVar("Method", bound=Callable[..., Any])
_NAME = re.compile(
    r"((?:.*/)?fedmf\.(params|clip|noise|parts|whole)\.([0-9a-f]*)(?:_\d+)?)/([a-z]+)\.(\d+)"
)


# Roles of what a call takes; all others are of what it returns.
TAKEN = {"given", "sum", "state"}


class Mark(NamedTuple):
    """A mark that was read.

    Attributes:
      call: the name scope of the call that made it.
      kind: "params", "clip" or "noise", of the query's methods, or "parts" or "whole", of a secure
        sum.
      plan: that of the query's noise, hexadecimal; nothing for a secure sum.
      role: what the tensor is.
      number: of the tensor in the structure of the method's argument or result.
    """

    call: str
    kind: str
    plan: str
    role: str
    number: int


def read(name: str) -> Mark | None:
    """The mark that a node with this name is; None for other nodes.

    >>> read("a/fedmf.clip.0f_1/record.2")
    Mark(call='a/fedmf.clip.0f_1', kind='clip', plan='0f', role='record', number=2)
    """
    match = _NAME.fullmatch(name)
    return Mark(match[1], match[2], match[3], match[4], int(match[5])) if match else None


def scope(kind: str, plan: str = "") -> Any:
    """The name scope of one call."""
    return tf.name_scope(f"fedmf.{kind}.{plan}")


def marked(structure: Any, role: str, first: int = 0) -> Any:
    """The structure with a mark on each of its tensors, from number `first` on."""
    leaves = [
        tf.identity(leaf, name=f"{role}.{number}") if _is_symbolic(leaf) else leaf
        for number, leaf in enumerate(tf.nest.flatten(structure), first)
    ]
    return tf.nest.pack_sequence_as(structure, leaves)


def marked_sample(sample: Any) -> Any:
    """A `QuerySample` with marks "record" and "count"."""
    record = len(tf.nest.flatten(sample.record))
    counts = marked(tuple(sample)[1:], "count", record)
    return type(sample)(marked(sample.record, "record"), *counts)


def _marking(kind: str, mark: Callable[..., Any]) -> Callable[[Method], Method]:
    """A decorator of the query's methods: in a graph `mark`, which calls the method, marks what it
    takes and returns.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(query: Any, *arguments: Any, **named: Any) -> Any:
            if tf.executing_eagerly():
                return method(query, *arguments, **named)
            with scope(kind, f"{query._noise.mark:016x}"):
                return mark(functools.partial(method, query), *arguments, **named)

        # AutoGraph would take two seconds to convert code in which no Python statement depends on a
        # tensor.
        return cast(Method, tf.autograph.experimental.do_not_convert(call))

    return decorate


def _mark_noised(method: Callable[..., Any], sample_state: Any, global_state: Any) -> Any:
    sample, before = marked(sample_state, "sum"), marked(global_state, "state")
    result, after, event = method(sample, before)
    return marked(result, "result"), _marked_state(after), event


# Of `derive_sample_params`, `preprocess_record` and `get_noised_result`.
# TFF names their arguments, and so do these.
params = _marking("params", lambda method, global_state: marked(method(global_state), "params"))
clip = _marking(
    "clip",
    lambda method, params, record: marked_sample(method(marked(params, "given"), record)),
)
noise = _marking("noise", _mark_noised)


def _marked_state(state: Any) -> Any:
    """A `QueryState` with marks "secret", "count" and "public"."""

    def all_are(role: str, part: Any) -> Any:
        return tf.nest.map_structure(lambda _: role, part)

    roles = all_are("count", state)._replace(
        noise=all_are("secret", state.noise)._replace(next_round="public"),
        scaling=all_are("public", state.scaling),
        clip=all_are("public", state.clip),
        records="public",
    )
    pairs = zip(tf.nest.flatten(state), tf.nest.flatten(roles), strict=True)
    leaves = [marked(leaf, role, number) for number, (leaf, role) in enumerate(pairs)]
    return tf.nest.pack_sequence_as(state, leaves)


def _is_symbolic(leaf: Any) -> bool:
    # A constant from outside of the graph stays one: the query refuses states that are.
    return isinstance(leaf, tf.Tensor) and not isinstance(leaf, tf.__internal__.EagerTensor)
