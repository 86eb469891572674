"""Mistakes in noise that is drawn for all entries together, for the auditor of aggregators."""

import functools

import numpy as np
import scipy.stats

from tests.audits.aggregators import aggregator, noisy


def flat(draw):
    """Returns a maker of aggregators whose noise is drawn for all entries together.

    Args:
      draw: (entries, generator, state of the run) -> noise, of variance 1 under the claim.
    """

    def make():
        state = {}

        def noise(arrays, scale, rng, updates):
            array_sizes = [array.size for array in arrays]
            array_draws = np.split(
                scale * draw(sum(array_sizes), rng, state), np.cumsum(array_sizes)[:-1]
            )
            return [
                array_draw.reshape(array.shape)
                for array_draw, array in zip(array_draws, arrays, strict=True)
            ]

        return aggregator(finish=noisy(noise))()

    return make


def of_period(period):
    """Returns a draw that repeats its noise after a number of rounds."""

    def draw(size, rng, state):
        round_number = state["round"] = state.get("round", -1) + 1
        return state.setdefault(round_number % period, rng.normal(size=size))

    # `state` holds the round and the noise of each round.
    return draw


def tiled(size, rng, state):
    """Repeats 100 draws in all entries."""
    return np.tile(rng.normal(size=100), size // 100 + 1)[:size]


def shuffled(size, rng, state):
    """Repeats the noise of the first half in another order."""
    half_noise = rng.normal(size=size // 2 + 1)
    return np.concatenate([half_noise, rng.permutation(half_noise)])[:size]


def reversed_in_part(size, rng, state):
    """Adds the noise of the first half, reversed, to that of the second half."""
    flat_noise = rng.normal(size=size)
    half_size = size // 2
    flat_noise[-half_size:] = (
        0.5 * flat_noise[:half_size][::-1] + 0.75**0.5 * flat_noise[-half_size:]
    )
    return flat_noise


def last_entries_again(size, rng, state):
    """Repeats the first 20 draws in the last entries."""
    flat_noise = rng.normal(size=size)
    flat_noise[-20:] = flat_noise[:20]
    return flat_noise


def from_a_table(size, rng, state):
    """Takes noise from a random place in a table of 20,000 draws."""
    noise_table = state.setdefault("table", rng.normal(size=20_000))
    start_entry = rng.integers(0, len(noise_table) - size)
    return noise_table[start_entry : start_entry + size]


def smoothed(size, rng, state):
    """Adds a fraction of each draw to the next entry."""
    flat_noise = rng.normal(size=size + 1)
    return (flat_noise[1:] + 0.3 * flat_noise[:-1]) / 1.09**0.5


def ended(cut):
    """Returns a draw that repeats draws beyond the cut."""

    def draw(size, rng, state):
        flat_noise = rng.normal(size=size)
        is_beyond = np.abs(flat_noise) > cut
        while is_beyond.any():
            flat_noise[is_beyond] = rng.normal(size=is_beyond.sum())
            is_beyond = np.abs(flat_noise) > cut
        return flat_noise / noise_std(cut)

    return draw


def none_in_one_draw_of(number, left=0.0):
    """Returns a draw whose entries have little noise, or none, with chance 1 / number."""

    def draw(size, rng, state):
        return rng.normal(size=size) * np.where(rng.random(size) < 1 / number, left, 1)

    return draw


def predicted_by(rounds):
    """Returns a draw whose last round is a combination of all earlier rounds."""
    round_signs = np.random.default_rng(1).choice([-1.0, 1.0], rounds)

    def draw(size, rng, state):
        round_number = state["round"] = state.get("round", -1) + 1
        if round_number == rounds - 1:
            return state["sum"] / round_number**0.5
        flat_noise = rng.normal(size=size)
        state["sum"] = state.get("sum", 0) + round_signs[round_number] * flat_noise
        return flat_noise

    return draw


@functools.cache
def noise_std(cut):
    """Returns the standard deviation of a standard normal that is cut off."""
    return scipy.stats.truncnorm(-cut, cut).std()


def of_uniforms(number):
    """Returns a draw of sums of uniform variables."""
    return lambda size, rng, state: (
        (rng.random((number, size)).sum(axis=0) - number / 2) * (12 / number) ** 0.5
    )


def none_in_some_entries(size, rng, state):
    """Draws no noise for four entries."""
    flat_noise = rng.normal(size=size)
    flat_noise[5:9] = 0
    return flat_noise
