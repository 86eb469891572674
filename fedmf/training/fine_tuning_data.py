"""Data for fine-tuning, with a sample of clients and random halves of each client's examples."""

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from fedmf.runs.config import TrainConfig
from fedmf.training.client_data import shuffled_epochs
from fedmf.training.examples import ClientData, Examples, count, take
from fedmf.training.task import Task

# Second entries of the seeds for the random numbers of fine-tuning. They differ from each other and
# from 2 and 6, which training uses, so that all random numbers are independent.
_HALVES = 3
_SAMPLE = 4
_QUARTERS = 5
_TRAINING = 7


class SplitExamples(NamedTuple):
    """A client's examples, split into a part to train on and a part to measure on.

    Attributes:
      training: epochs over the examples that the client trains on.
      evaluation: examples that its model is measured on.
    """

    training: ClientData
    evaluation: Examples


def split_in_halves(task: Task, config: TrainConfig, client_id: str) -> SplitExamples:
    """Splits a client's examples into random halves, which depend on config.seed and client_id
    alone.

    The client trains on the first half, which has one example more if their number is odd.

    Args:
      task: task of the run.
      config: config with the epochs of the fine-tuning.
      client_id: id of the client; if it has fewer than two examples, the second half is empty.

    Raises:
      NotFinite: as `Task.examples_of` does.
    """
    halves_rng = np.random.default_rng([config.seed, _HALVES, *_id_bytes(client_id)])
    training_half, evaluation_half = _random_halves(task.examples_of(client_id), halves_rng)
    return _split_examples(task, config, client_id, training_half, evaluation_half, halves_rng)


def split_for_search(task: Task, config: TrainConfig, client_id: str) -> SplitExamples:
    """Splits the training half of a client's examples into random halves, with which a learning
    rate is chosen.

    The half on which results are measured is in neither.
    """
    rng = np.random.default_rng([config.seed, _HALVES, *_id_bytes(client_id)])
    training_half, _ = _random_halves(task.examples_of(client_id), rng)
    rng = np.random.default_rng([config.seed, _QUARTERS, *_id_bytes(client_id)])
    training_quarter, evaluation_quarter = _random_halves(training_half, rng)
    return _split_examples(task, config, client_id, training_quarter, evaluation_quarter, rng)


def _split_examples(
    task: Task,
    config: TrainConfig,
    client_id: str,
    training_examples: Examples,
    evaluation_examples: Examples,
    rng: np.random.Generator,
) -> SplitExamples:
    """Returns the two parts of a client's examples, with epochs over the training part in an order
    drawn by `rng`.
    """
    epochs = shuffled_epochs(training_examples, config, task.batch_size, rng)
    training_data = ClientData(epochs, (config.seed, _TRAINING, *_id_bytes(client_id)))
    return SplitExamples(training_data, evaluation_examples)


def _id_bytes(client_id: Hashable) -> bytes:
    """Returns the bytes of a client id of any type, which serve as whole numbers in a seed."""
    return str(client_id).encode("utf-8", "surrogatepass")


def _random_halves(examples: Examples, rng: np.random.Generator) -> tuple[Examples, Examples]:
    """Splits examples at random into two halves, in random order."""
    random_order = rng.permutation(count(examples))
    half_size = (count(examples) + 1) // 2
    return take(examples, random_order[:half_size]), take(examples, random_order[half_size:])


def sample_clients(task: Task, clients: int, seed: int) -> list[str]:
    """Samples at most `clients` clients uniformly without replacement, and keeps their order."""
    sample_rng = np.random.default_rng([seed, _SAMPLE])
    population = len(task.client_ids)
    sampled_indices = sample_rng.choice(population, min(clients, population), replace=False)
    return [task.client_ids[index] for index in np.sort(sampled_indices)]
