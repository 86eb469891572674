"""Noise drawn for all entries together, for the auditor of aggregators: all of it is wrong."""

import functools

import numpy as np
import scipy.stats

from tests.audits.aggregators import aggregator, noisy


def flat(draw):
    """Returns what makes an aggregator whose noise is drawn for all entries together.

    Args:
      draw: (entries, generator, state of the run) -> standard normal noise, as is claimed.
    """

    def make():
        state = {}

        def noise(arrays, scale, rng, updates):
            sizes = [array.size for array in arrays]
            parts = np.split(scale * draw(sum(sizes), rng, state), np.cumsum(sizes)[:-1])
            return [part.reshape(a.shape) for part, a in zip(parts, arrays, strict=True)]

        return aggregator(finish=noisy(noise))()

    return make


def of_period(period):
    """Returns what draws noise for so many rounds, and then again the same."""

    def draw(size, rng, state):
        number = state["round"] = state.get("round", -1) + 1
        return state.setdefault(number % period, rng.normal(size=size))

    # `state` holds the round beside the noise of each.
    return draw


def tiled(size, rng, state):
    return np.tile(rng.normal(size=100), size // 100 + 1)[:size]


def shuffled(size, rng, state):
    half = rng.normal(size=size // 2 + 1)
    return np.concatenate([half, rng.permutation(half)])[:size]


def reversed_in_part(size, rng, state):
    noise = rng.normal(size=size)
    half = size // 2
    noise[-half:] = 0.5 * noise[:half][::-1] + 0.75**0.5 * noise[-half:]
    return noise


def last_entries_again(size, rng, state):
    noise = rng.normal(size=size)
    noise[-20:] = noise[:20]
    return noise


def from_a_table(size, rng, state):
    table = state.setdefault("table", rng.normal(size=20_000))
    start = rng.integers(0, len(table) - size)
    return table[start : start + size]


def smoothed(size, rng, state):
    noise = rng.normal(size=size + 1)
    return (noise[1:] + 0.3 * noise[:-1]) / 1.09**0.5


def ended(cut):
    """Returns what draws noise again where it is beyond the cut."""

    def draw(size, rng, state):
        noise = rng.normal(size=size)
        while (beyond := np.abs(noise) > cut).any():
            noise[beyond] = rng.normal(size=beyond.sum())
        return noise / noise_std(cut)

    return draw


def none_in_one_draw_of(number, left=0.0):
    """Returns what draws noise of which one entry in so many has this share alone."""

    def draw(size, rng, state):
        return rng.normal(size=size) * np.where(rng.random(size) < 1 / number, left, 1)

    return draw


def predicted_by(rounds):
    """Returns what draws noise whose last round follows from all rounds before it."""
    signs = np.random.default_rng(1).choice([-1.0, 1.0], rounds)

    def draw(size, rng, state):
        number = state["round"] = state.get("round", -1) + 1
        if number == rounds - 1:
            return state["sum"] / number**0.5
        noise = rng.normal(size=size)
        state["sum"] = state.get("sum", 0) + signs[number] * noise
        return noise

    return draw


@functools.cache
def noise_std(cut):
    """Returns the standard deviation of standard normal noise that ends at the cut."""
    return scipy.stats.truncnorm(-cut, cut).std()


def of_uniforms(number):
    """Returns what draws sums of so many uniform numbers."""
    return lambda size, rng, state: (
        (rng.random((number, size)).sum(axis=0) - number / 2) * (12 / number) ** 0.5
    )


def none_in_some_entries(size, rng, state):
    noise = rng.normal(size=size)
    noise[5:9] = 0
    return noise
