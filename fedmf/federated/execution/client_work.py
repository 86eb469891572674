"""Client work of the fast execution: a local epoch for each client, whose clipped updates are
summed group by group.
"""

import abc
import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedmf.federated.execution.records import QuerySample, Records
from fedmf.runs.config import TrainConfig
from fedmf.server.messages import ClientParams
from fedmf.server.update_rules import Optimizer, OptimizerState
from fedmf.training.examples import Epochs, count
from fedmf.training.execution.groups import GroupSum


class Broadcast(NamedTuple):
    """What the server sends to the clients of a round.

    Attributes:
      weights: of the global model.
      params: of the round, by which updates are scaled, zeroed and clipped.
    """

    weights: Sequence[Any]
    params: ClientParams


def broadcast(
    weights: Iterable[Any], clip_norm: float, zeroing_norm: float, scales: Iterable[Any]
) -> Broadcast:
    """A broadcast of arrays; without a `Scaling` there are no scales."""
    clip, zeroing = (tf.constant(norm, tf.float64) for norm in (clip_norm, zeroing_norm))
    params = ClientParams(clip, zeroing, [tf.constant(scale) for scale in scales] or ())
    return Broadcast([tf.constant(w) for w in weights], params)


class ClientWork(abc.ABC):
    """The clients of a round. The same broadcast and groups give the same sums, bit for bit."""

    @abc.abstractmethod
    def explain(self) -> str:
        """Returns a sentence that says how the clients train, and why so."""

    @abc.abstractmethod
    def sums(self, sent: Broadcast, groups: Iterable[Sequence[Epochs]]) -> Iterator[GroupSum]:
        """Yields the sum of the clipped updates of each group's clients, added in their order.

        Args:
          sent: to the clients.
          groups: of the cohort, with each client's epochs.
        """


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def trained(group: Sequence[Epochs]) -> list[Epochs]:
    """The clients whose examples are finite."""
    return [epochs for epochs in group if epochs]


def group_sum(group: Sequence[Epochs], total: QuerySample, loss: float) -> GroupSum:
    """The group's sum, of the sum and the loss of its clients whose examples are finite.

    The others count as zeroed.
    """
    zeroed = len(group) - len(trained(group))
    counts = np.int32(total.clients + zeroed), np.int32(total.zeroed + zeroed)
    total = total._replace(clients=counts[0], zeroed=counts[1])
    examples = sum(count(epoch) for epochs in group for epoch in epochs)
    return GroupSum(total, loss, examples, zeroed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundedSteps:
    """An optimizer that shortens each step to a bound in L2 norm, over all arrays of a client.

    Attributes:
      optimizer: on tensors. Its momentum and moments are those of the whole gradients.
      largest_step: the bound, positive.

    >>> bounded = BoundedSteps(optimizer=Optimizer(xp=tf), largest_step=1.0)
    >>> weights = [tf.constant([0.0, 0.0])]
    >>> _, after = bounded.next(bounded.initial(weights), weights, [tf.constant([30.0, 40.0])], 0.1)
    >>> after[0].numpy().round(3)
    array([-0.6, -0.8], dtype=float32)
    """

    optimizer: Optimizer
    largest_step: float

    def initial(self, weights: Sequence[Any]) -> OptimizerState:
        """See `Optimizer.initial`."""
        return self.optimizer.initial(weights)

    def next(
        self, state: OptimizerState, weights: Sequence[Any], gradients: Sequence[Any], rate: Any
    ) -> tuple[OptimizerState, list[Any]]:
        """See `Optimizer.next`."""
        state, after = self.optimizer.next(state, weights, gradients, rate)
        steps = [w - before for w, before in zip(after, weights, strict=True)]
        # Of clients side by side the first axis counts clients.
        first_axis = state.step.shape.rank
        norm = tf.sqrt(
            tf.add_n(
                [
                    tf.reduce_sum(
                        tf.square(tf.cast(step, tf.float64)),
                        axis=list(range(first_axis, step.shape.rank)),
                    )
                    for step in steps
                ]
            )
        )
        factor = tf.minimum(tf.constant(1.0, tf.float64), self.largest_step / norm)
        bounded = [
            before + self.optimizer.scalar_like(factor, step) * step
            for before, step in zip(weights, steps, strict=True)
        ]
        return state, bounded


def client_optimizer(
    config: TrainConfig, largest_step: float = math.inf
) -> Optimizer | BoundedSteps:
    """Returns the clients' optimizer, on tensors; it begins anew with every client and round.

    The adaptive ones have TFF's defaults. With a finite `largest_step` its steps are bounded.
    """
    rule = config.client_optimizer
    optimizer = Optimizer(
        rule=rule,
        momentum=config.client_momentum if rule == "sgd" else 0.9,
        epsilon=1e-3 if rule == "yogi" else 1e-7,
        proximal=config.proximal_strength,
        xp=tf,
    )
    if math.isinf(largest_step):
        return optimizer
    return BoundedSteps(optimizer=optimizer, largest_step=largest_step)


def broadcast_spec(records: Records, config: TrainConfig) -> Broadcast:
    """Of `Broadcast`, for a run's clients."""
    number, specs = tf.TensorSpec([], tf.float64), records.flat_specs
    scales = [tf.TensorSpec(spec.shape, tf.float32) for spec in specs] if config.scaling() else ()
    return Broadcast(list(specs), ClientParams(number, number, scales))


def gradients(tape: Any, loss: Any, weights: Any) -> Any:
    """Of the loss by the weights, in their shapes; zeros where it does not depend on them."""
    found = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    for gradient, weight in zip(found, weights, strict=True):
        if not isinstance(gradient, tf.IndexedSlices):
            gradient.set_shape(weight.shape)  # of a gradient of one's own it may be unknown
    return found
