"""Refuses models whose clients would not be apart: what a client trains on may reach the others through the clipped sum only."""

import re

import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.runs.config import TrainConfig

# Operations that write a variable, a table or a queue: moving averages, states of recurrent layers, words seen so far.
_WRITES = re.compile(
    r"Assign|ResourceScatter|Scatter(Nd)?(Add|Sub|Update)$|ResourceApply|LookupTable(Insert|Import|Remove)|Queue(En|De)queue"
)
# Those that draw from a generator that goes on from call to call; tf.random.stateless_... is not among them.
_DRAWS = re.compile(
    r"Random|Multinomial|Parameterized|TruncatedNormal|Stateful(?!PartitionedCall)|Rng|NonDeterministic"
)
# Python inside a graph: it could do either.
_PYTHON = re.compile(r"(Eager)?PyFunc")


def check_model(task: Task, config: TrainConfig) -> None:
    """Looks at every operation of the task's model and loss in training.

    Raises:
      ValueError: training on a batch writes a variable or a table, so that a client's data reaches the next client's update without being
        clipped and the sensitivity is not what the plan says; draws random numbers, so that a resumed run would repeat its noise on
        other updates, whose difference is then free of it; or calls Python, which may do both. Or a model for TFF has weights that are
        not trained, which TFF's state does not hold.
    """
    model = task.build_model(config.seed)
    shape = (task.batch_size, config.sequence_length)
    examples, real = tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape[:1], tf.float32)
    forward = tf.function(lambda x, y, real: task.loss(y, model(x, training=True), real))
    graph = forward.get_concrete_function(examples, examples, real).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    for does, what, instead in (
        (
            _WRITES,
            "writes a variable or a table",
            "leave out layers that keep something from batch to batch (BatchNormalization, stateful=True)",
        ),
        (_DRAWS, "draws random numbers", "leave out layers such as Dropout"),
        (_PYTHON, "calls Python", "write it in TensorFlow"),
    ):
        found = sorted({node.op for node in nodes if does.match(node.op)})
        if found:
            raise ValueError(
                f"build_model of task {task.name!r} gives a model that {what} in training ({', '.join(found)}), so that the guarantee "
                f"would not hold: {instead}"
            )
    kept = [variable.name for variable in model.non_trainable_variables]
    if kept and config.execution != "fast":
        raise ValueError(
            f"build_model of task {task.name!r} gives a model with weights that are not trained ({', '.join(kept)}), which "
            f"execution={config.execution!r} does not take: use execution='fast'"
        )
