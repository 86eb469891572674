"""What every execution is: `Execution`, a pure state machine over rounds; and what they share."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.noise.host import HostNoise
from fedmf.federated.task import Examples
from fedmf.federated.training.server_optimizer import ScheduledSGDM
from fedmf.runs.config import TrainConfig


class Execution(abc.ABC):
    """init / next over an opaque state; `leaves` and `from_leaves` carry it through a checkpoint bit for bit.

    The noise is made by the host and handed into the state; a round of any number may be asked for, but rounds in order are fast.
    """

    noise: HostNoise
    slow = ""  # why rounds take longer than they might on another machine, for whoever watches

    @abc.abstractmethod
    def init(self) -> Any:
        """State before round 0."""

    @abc.abstractmethod
    def next(self, state: Any, cohort: Sequence[Examples]) -> tuple[Any, dict[str, float]]:
        """One round on the cohort's examples, each (x, y) int32 (m, length).

        Returns:
          The new state and {"examples", "train_loss"} with the query's {"clip_fraction", "zeroed", "noise_stddev"}.
        """

    @abc.abstractmethod
    def weights(self, state: Any) -> list[np.ndarray]:
        """The global model's trainable weights."""

    def leaves(self, state: Any) -> list[np.ndarray]:
        """The state as numpy arrays in a fixed order, and after it what the noise goes on from."""
        return [np.asarray(leaf) for leaf in tf.nest.flatten(state)] + self.noise.snapshot()

    def from_leaves(self, leaves: Sequence[np.ndarray]) -> Any:
        """The inverse of `leaves`. Noise of another strategy is made anew, from the seed.

        Raises:
          ValueError: the leaves are not those of this execution.
        """
        template = self.init()
        count = len(tf.nest.flatten(template))
        leaves, noise = leaves[:count], leaves[count:]
        expected = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in tf.nest.flatten(template)]
        if expected != [(leaf.shape, leaf.dtype) for leaf in leaves]:
            raise ValueError(
                "the checkpoint's state does not fit this model and mechanism: resume with the version that wrote it"
            )
        self.noise.restore(noise)
        return tf.nest.pack_sequence_as(template, list(leaves))


def server_optimizer(config: TrainConfig) -> ScheduledSGDM:
    """SGD with momentum at the config's schedule."""
    return ScheduledSGDM(config.server_schedule().learning_rates(), momentum=config.server_momentum)


def released_numbers(released: Mapping[str, Any]) -> dict[str, float]:
    """The query's metrics but those that a row of metrics.jsonl has already."""
    return {
        "clip_fraction": float(released["clip_fraction"]),
        "zeroed": int(released["zeroed"]),
        "noise_stddev": float(released["noise_stddev"]),
    }
