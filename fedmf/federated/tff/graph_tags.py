"""Names of tensors in TensorFlow graphs that mark where the query clips and adds noise.

`check_process` reads these tags in a built process. A tag is an identity operation with a name
fedmf.KIND.PLAN/ROLE.NUMBER. A process that is written to deceive can name its operations so, too.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import tensorflow as tf

Method = TypeVar("Method", bound=Callable[..., Any])
_NAME = re.compile(
    r"(?P<call>(?:.*/)?fedmf\.(?P<kind>params|clip|noise|parts|whole)\.(?P<plan>[0-9a-f]*)(?:_\d+)?)"
    r"/(?P<role>[a-z]+)\.(?P<number>\d+)"
)


# Roles of the tags that mark arguments of a call. Tags with any other role mark results.
ARGUMENT_ROLES = {"argument", "sum", "state"}


class GraphTag(NamedTuple):
    """The name of a tensor in a graph, which says what role the tensor has in a call of the query.

    Attributes:
      call: name scope of the call that made the tag.
      kind: "params", "clip" or "noise", after the query's methods, or "parts" or "whole", of a
        secure sum.
      plan: fingerprint of the plan of the query's noise, hexadecimal; empty for a secure sum.
      role: the meaning of the tensor.
      number: index of the tensor in the method's argument or result.
    """

    call: str
    kind: str
    plan: str
    role: str
    number: int


def parse_tag(name: str) -> GraphTag | None:
    """Returns the tag that a node of a graph has as its name; None if the name is no tag.

    >>> parse_tag("a/fedmf.clip.0f_1/record.2")
    GraphTag(call='a/fedmf.clip.0f_1', kind='clip', plan='0f', role='record', number=2)
    """
    name_match = _NAME.fullmatch(name)
    if name_match is None:
        return None
    return GraphTag(
        name_match["call"],
        name_match["kind"],
        name_match["plan"],
        name_match["role"],
        int(name_match["number"]),
    )


def call_scope(kind: str, plan: str = "") -> Any:
    """Returns a TensorFlow name scope for the tags of one call."""
    return tf.name_scope(f"fedmf.{kind}.{plan}")


def tagged(structure: Any, role: str, first_number: int = 0) -> Any:
    """Tags each tensor of a structure with a role and a number, from `first_number` on."""
    tagged_leaves = [
        _tagged_leaf(leaf, f"{role}.{number}")
        for number, leaf in enumerate(tf.nest.flatten(structure), first_number)
    ]
    return tf.nest.pack_sequence_as(structure, tagged_leaves)


def tagged_sample(sample: Any) -> Any:
    """Tags the record of a `QuerySample` as "record", and its counts as "count"."""
    num_leaves = len(tf.nest.flatten(sample.record))
    count_tensors = (sample.clients, sample.clipped, sample.zeroed)
    return type(sample)(
        tagged(sample.record, "record"), *tagged(count_tensors, "count", first_number=num_leaves)
    )


def _tagging(kind: str, call_and_tag: Callable[..., Any]) -> Callable[[Method], Method]:
    """Returns a decorator of the query's methods that tags arguments and results in a graph.

    Args:
      kind: kind of the tags.
      call_and_tag: (method, arguments of the method) -> the method's tagged result. It tags the
        arguments and calls the method.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(query: Any, *arguments: Any, **named_arguments: Any) -> Any:
            if tf.executing_eagerly():
                return method(query, *arguments, **named_arguments)
            with call_scope(kind, f"{query._noise.plan_fingerprint:016x}"):
                bound_method = functools.partial(method, query)
                return call_and_tag(bound_method, *arguments, **named_arguments)

        # AutoGraph is disabled, because it would take two seconds, and no Python statement in this
        # code depends on a tensor.
        return cast(Method, tf.autograph.experimental.do_not_convert(call))

    return decorate


# TFF passes arguments by name, so that the parameters of these functions must have the names
# global_state, params, record and sample_state.
def _tag_params(method: Callable[..., Any], global_state: Any) -> Any:
    """Calls `derive_sample_params`, and tags its result."""
    return tagged(method(global_state), "params")


def _tag_clipping(method: Callable[..., Any], params: Any, record: Any) -> Any:
    """Calls `preprocess_record`, and tags its argument `params` and its result."""
    return tagged_sample(method(tagged(params, "argument"), record))


def _tag_noise(method: Callable[..., Any], sample_state: Any, global_state: Any) -> Any:
    """Calls `get_noised_result`, and tags its arguments and its results."""
    result, next_state, event = method(tagged(sample_state, "sum"), tagged(global_state, "state"))
    return tagged(result, "result"), _tagged_state(next_state), event


tags_params = _tagging("params", _tag_params)
tags_clipping = _tagging("clip", _tag_clipping)
tags_noise = _tagging("noise", _tag_noise)


def _tagged_state(state: Any) -> Any:
    """Tags each tensor of a `QueryState` as "secret", "count" or "public"."""

    def same_role(structure: Any, role: str) -> Any:
        return tf.nest.map_structure(lambda _: role, structure)

    role_structure = same_role(state, "count")._replace(
        noise=same_role(state.noise, "secret")._replace(next_round="public"),
        scaling=same_role(state.scaling, "public"),
        clip=same_role(state.clip, "public"),
        records="public",
    )
    state_leaves = tf.nest.flatten(state)
    leaf_roles = tf.nest.flatten(role_structure)
    tagged_leaves = [
        tagged(leaf, role, first_number=number)
        for number, (leaf, role) in enumerate(zip(state_leaves, leaf_roles, strict=True))
    ]
    return tf.nest.pack_sequence_as(state, tagged_leaves)


def _tagged_leaf(leaf: Any, name: str) -> Any:
    """Tags a tensor of the graph being built with this name. It returns any other value unchanged.

    A constant from outside of the graph must stay a constant, because the query refuses states that
    are constants.
    """
    is_in_graph = isinstance(leaf, tf.Tensor) and not isinstance(leaf, tf.__internal__.EagerTensor)
    return tf.identity(leaf, name=name) if is_in_graph else leaf
