"""Checks for TensorFlow operations that would break the privacy guarantee if a model had them."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from tensorflow.python.framework import op_def_registry


class ForbiddenOperations(NamedTuple):
    """A kind of TensorFlow operations that break the guarantee, with the texts for its error.

    Attributes:
      pattern: regular expression of their names, matched from the start.
      effect: what they do, as a predicate.
      way_out: what to use instead.
    """

    pattern: str
    effect: str
    way_out: str


# These operations write variables or tables, such as moving averages, states of recurrent layers or
# vocabularies.
WRITES = ForbiddenOperations(
    r"Assign|Resource(Scatter|StridedSliceAssign|Apply)|Scatter(Nd)?(Add|Sub|Update)$"
    r"|LookupTable(Insert|Import|Remove)|Queue(En|De)queue",
    "writes a variable or a table",
    "its layer changes a variable in the forward pass, outside the clipped and noised update, "
    "and so carries what it has seen of one client to the next; leave out layers that keep "
    "something from batch to batch (BatchNormalization, SpectralNormalization, stateful=True)",
)
# These operations draw from a generator whose state changes with each call. Operations of
# tf.random.stateless_... do not match. Fractional pooling and glimpses are listed here because
# TensorFlow does not mark them as stateful.
DRAWS = ForbiddenOperations(
    r"Random|Multinomial|Parameterized|TruncatedNormal|Stateful(?!PartitionedCall)|Rng"
    r"|NonDeterministic|.*CandidateSampler|Fractional|ExtractGlimpse|Timestamp",
    "draws random numbers",
    "leave out layers such as Dropout, and sampled losses",
)
# Python code that a graph calls could write variables or draw random numbers.
PYTHON = ForbiddenOperations(r"(Eager)?PyFunc", "calls Python", "write it in TensorFlow")
# Operations that TensorFlow marks as stateful, although they keep nothing from call to call. Every
# other operation with this mark is refused, even if no pattern in this module names it.
_HARMLESS = re.compile(
    r"ReadVariableOp|ResourceGather(Nd)?|VariableShape|LookupTable(Find|Size)V2|If|While|Case"
    r"|StatefulPartitionedCall|DeviceIndex|Assert|CheckNumerics(V2)?|PrintV2"
    r"|StatelessRandomGetAlg|CudnnRNN(Backprop)?(V[23])?"
)


def stateful_operations(names: Iterable[str]) -> list[str]:
    """Returns those operations that TensorFlow marks as stateful and `_HARMLESS` does not match."""
    stateful_names = []
    for name in names:
        # If TensorFlow has no definition of an operation, it calls a function of the graph, and
        # the operations inside this function are in `names` as well.
        operation_definition = op_def_registry.get(name)
        is_marked = operation_definition is not None and operation_definition.is_stateful
        if is_marked and not _HARMLESS.fullmatch(name):
            stateful_names.append(name)
    return stateful_names


def check_operations(name: str, operations: Iterable[str]) -> None:
    """Raises an error if a model in training has an operation that breaks the guarantee.

    Args:
      name: name of the task.
      operations: names of the operations.

    Raises:
      ValueError: an operation is forbidden.
    """
    stateful_pattern = "|".join(stateful_operations(operations)) or "$"
    stateful_kind = ForbiddenOperations(
        stateful_pattern, "keeps a state or has an effect", "leave out its layer"
    )
    for forbidden in (WRITES, DRAWS, PYTHON, stateful_kind):
        matching_operations = sorted(filter(re.compile(forbidden.pattern).match, operations))
        if matching_operations:
            raise ValueError(
                f"build_model of task {name!r} gives a model that {forbidden.effect} in training "
                f"({', '.join(matching_operations)}), so that the guarantee would not hold: "
                f"{forbidden.way_out}"
            )
