"""Training data of a client in a round, that is its examples in the order of each epoch."""

from typing import NamedTuple

import numpy as np

from fedmf.runs.config import TrainConfig
from fedmf.training.examples import ClientData, Epochs, Examples, NotFinite, count, take
from fedmf.training.task import Task

# The order of a client's examples and the client's training use random numbers whose seeds have
# different second entries, so that the two are independent.
_ORDER = 2
_TRAINING = 6


class ClientRound(NamedTuple):
    """The index of a client and the round t. With these two numbers, a worker of a cluster can read
    the client's examples itself.
    """

    t: int
    client: int


def client_data(task: Task, config: TrainConfig, t: int, client: int) -> ClientData:
    """Returns a client's training data in round t, a pure function of (config.seed, t, client).

    They hold no epoch if the client's examples are not finite.
    """
    training_seed = (config.seed, _TRAINING, t, client)
    try:
        examples = task.examples_of(task.client_ids[client])
    except NotFinite:
        return ClientData([], training_seed)
    order_rng = np.random.default_rng([config.seed, _ORDER, t, client])
    return ClientData(shuffled_epochs(examples, config, task.batch_size, order_rng), training_seed)


def shuffled_epochs(
    examples: Examples, config: TrainConfig, batch_size: int, rng: np.random.Generator
) -> Epochs:
    """Returns the epochs of a client in a round. Each epoch shuffles the examples independently."""
    epochs: list[Examples] = []
    batches_left = config.client_batches
    for _ in range(config.client_epochs):
        example_order = rng.permutation(count(examples))
        if batches_left is not None:
            example_order = example_order[: batches_left * batch_size]
            batches_left -= -(-len(example_order) // batch_size)
        epochs.append(take(examples, example_order))
    return epochs
