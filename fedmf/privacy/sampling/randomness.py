"""Random number generators of client sampling, which all schemes use."""

import dataclasses

import numpy as np

# The second word of a generator's seed says what the generator is for: _RUN_WORD for draws of a
# whole run or epoch, _ROUND_WORD for draws of one round. The word 2 belongs to the order of a
# client's examples (fedmf/training).
_RUN_WORD = 0
_ROUND_WORD = 1


@dataclasses.dataclass(frozen=True)
class SamplingRandomness:
    """Independent random generators for a run, its epochs and its rounds, all made from one seed.

    Attributes:
      seed: the seed of client sampling.

    >>> randomness = SamplingRandomness(seed=1)
    >>> len(set(randomness.uniform_subset(t=0, population=7, size=3).tolist()))
    3
    """

    seed: int

    def of_run(self) -> np.random.Generator:
        """Returns the generator for draws that are made once for the whole run."""
        return np.random.default_rng([self.seed, _RUN_WORD])

    def of_epoch(self, epoch: int, partition: int) -> np.random.Generator:
        """Returns the generator for the draws of one partition in one epoch."""
        return np.random.default_rng([self.seed, _RUN_WORD, epoch, partition, 1])

    def of_round(self, t: int) -> np.random.Generator:
        """Returns the generator for the draws of round t."""
        return np.random.default_rng([self.seed, _ROUND_WORD, t])

    def uniform_subset(self, t: int, population: int, size: int) -> np.ndarray:
        """Draws a uniform subset of `size` of the clients of the population for round t, as an
        unsorted int64 array.
        """
        return _subset(self.of_round(t), population, size)

    def independent_subset(self, t: int, population: int, probability: float) -> np.ndarray:
        """Draws a subset of the clients of the population for round t, each independently with the
        same probability, as an unsorted int64 array.
        """
        generator = self.of_round(t)
        # If clients are sampled independently, the size of the sample is binomial, and all subsets
        # of the same size are equally likely. So the size is drawn first.
        subset_size = int(generator.binomial(population, probability))
        return _subset(generator, population, subset_size)

    def bins(self, population: int, bins: int) -> np.ndarray:
        """Draws a uniform bin for each client, once for the whole run. The array has the smallest
        unsigned integer type that holds all bins.
        """
        bin_dtype = np.min_scalar_type(bins - 1)
        return self.of_run().integers(bins, size=population, dtype=bin_dtype)

    def positions(self, epoch: int, partition: int, members: int, positions: int) -> np.ndarray:
        """Draws a uniform position, below `positions`, for each member of a partition, anew in each
        epoch.
        """
        position_dtype = np.min_scalar_type(positions - 1)
        return self.of_epoch(epoch, partition).integers(
            positions, size=members, dtype=position_dtype
        )

    def order(self, population: int, length: int) -> np.ndarray:
        """Draws a uniform sequence of `length` different clients, once for the whole run. The array
        has the smallest unsigned integer type that holds all client indices.
        """
        generator = self.of_run()
        client_dtype = np.min_scalar_type(population - 1)
        if length <= population // 50:
            return generator.choice(population, length, replace=False).astype(client_dtype)
        client_order = np.arange(population, dtype=client_dtype)
        generator.shuffle(client_order)
        return client_order[:length].copy() if length < population else client_order

    def stationary_wait(self, population: int, min_sep: int, probability: float) -> np.ndarray:
        """Draws for each client the number of rounds for which it is ineligible at the start of
        b-min-sep sampling.

        The draws follow the stationary state of the scheme: a client waits s rounds with
        probability p / (1 + (b - 1) p) for each s = 1 .. b - 1, and otherwise no round.
        """
        b = min_sep
        p = probability
        # Each client draws a uniform point in [0, 1 + (b - 1) p). If it is below 1 the client is
        # eligible at once. Each interval of length p above 1 means one more ineligible round.
        uniform_points = self.of_run().random(population) * (1 + (b - 1) * p)
        rounds_to_wait = np.minimum(np.floor(np.maximum(uniform_points - 1, 0) / p) + 1, b - 1)
        return np.where(uniform_points < 1, 0, rounds_to_wait).astype(np.min_scalar_type(b))


def _subset(generator: np.random.Generator, population: int, size: int) -> np.ndarray:
    """Draws a uniform subset of the integers from 0 to population - 1. The order of its entries is
    not random, which takes less time.
    """
    client_subset = generator.choice(population, size, replace=False, shuffle=False)
    return client_subset.astype(np.int64)
