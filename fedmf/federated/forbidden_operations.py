"""TensorFlow operations that would break the guarantee in a model's training."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from tensorflow.python.framework import op_def_registry


class ForbiddenOperations(NamedTuple):
    """Operations that break the guarantee.

    Attributes:
      pattern: regular expression of their names, matched from the start.
      effect: what they do, as a predicate.
      way_out: what to use instead.
    """

    pattern: str
    effect: str
    way_out: str


# Moving averages, states of recurrent layers, tables of words.
WRITES = ForbiddenOperations(
    r"Assign|Resource(Scatter|StridedSliceAssign|Apply)|Scatter(Nd)?(Add|Sub|Update)$"
    r"|LookupTable(Insert|Import|Remove)|Queue(En|De)queue",
    "writes a variable or a table",
    "its layer changes a variable in the forward pass, outside the clipped and noised update, "
    "and so carries what it has seen of one client to the next; leave out layers that keep "
    "something from batch to batch (BatchNormalization, SpectralNormalization, stateful=True)",
)
# Draws from a generator whose state changes with each call; tf.random.stateless_... does not match.
# TensorFlow does not count pooling and glimpses among the operations with a state.
DRAWS = ForbiddenOperations(
    r"Random|Multinomial|Parameterized|TruncatedNormal|Stateful(?!PartitionedCall)|Rng"
    r"|NonDeterministic|.*CandidateSampler|Fractional|ExtractGlimpse|Timestamp",
    "draws random numbers",
    "leave out layers such as Dropout, and sampled losses",
)
# Python inside a graph could do either.
PYTHON = ForbiddenOperations(r"(Eager)?PyFunc", "calls Python", "write it in TensorFlow")
# Operations that TensorFlow marks as having a state or an effect, although they keep nothing from
# call to call. All others with such a mark are refused, known or not.
_HARMLESS = re.compile(
    r"ReadVariableOp|ResourceGather(Nd)?|VariableShape|LookupTable(Find|Size)V2|If|While|Case"
    r"|StatefulPartitionedCall|DeviceIndex|Assert|CheckNumerics(V2)?|PrintV2"
    r"|StatelessRandomGetAlg|CudnnRNN(Backprop)?(V[23])?"
)


def stateful_operations(names: Iterable[str]) -> list[str]:
    """Returns the operations that TensorFlow marks as stateful, without those in `_HARMLESS`."""
    stateful = []
    for name in names:
        # Functions of the graph have no definition; their operations are checked as well.
        definition = op_def_registry.get(name)
        is_marked = definition is not None and definition.is_stateful
        if is_marked and not _HARMLESS.fullmatch(name):
            stateful.append(name)
    return stateful


def check_operations(name: str, operations: Iterable[str]) -> None:
    """Checks the operations of a model in training.

    Args:
      name: name of the task.
      operations: names of the operations.

    Raises:
      ValueError: an operation is forbidden.
    """
    stateful_pattern = "|".join(stateful_operations(operations)) or "$"
    stateful = ForbiddenOperations(
        stateful_pattern, "keeps a state or has an effect", "leave out its layer"
    )
    for forbidden in (WRITES, DRAWS, PYTHON, stateful):
        matching = sorted(filter(re.compile(forbidden.pattern).match, operations))
        if matching:
            raise ValueError(
                f"build_model of task {name!r} gives a model that {forbidden.effect} in training "
                f"({', '.join(matching)}), so that the guarantee would not hold: "
                f"{forbidden.way_out}"
            )
