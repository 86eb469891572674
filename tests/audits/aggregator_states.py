"""Aggregators with a state between rounds, right ones and mistakes, for the auditor."""

import collections
import itertools

import numpy as np

from tests.audits.aggregators import (
    aggregator,
    as_one,
    divided,
    gaussian,
    mean,
    noisy,
    norm_of,
    scaled,
    total,
)


def of_alternate_rounds():
    """Makes an aggregator with noise in every other round alone."""
    call_counter = itertools.count()
    noisy_finish = noisy(
        lambda arrays, scale, rng, _: gaussian(arrays, scale * (next(call_counter) % 2), rng)
    )
    return aggregator(finish=noisy_finish)()


def taken_back():
    """Makes an aggregator that subtracts the noise of a round in the next one."""
    previous_noise = []

    def noise(arrays, scale, rng, updates):
        if previous_noise:
            return divided(previous_noise.pop(), -1)
        previous_noise.append(gaussian(arrays, scale, rng))
        return previous_noise[0]

    return aggregator(finish=noisy(noise))()


def larger_in_late_rounds():
    """Makes an aggregator that clips at 1.06 from the seventh round on."""
    rng = np.random.default_rng()
    round_counter = itertools.count()

    def aggregate(updates):
        clip_norm = 1.06 if next(round_counter) >= 6 else 1.0
        return mean(divided(total(list(map(as_one, updates)), None), 1 / clip_norm), rng)

    return aggregate


def larger_at_first():
    """Makes an aggregator that clips at 1.2 in its first round."""
    rng = np.random.default_rng()
    round_counter = itertools.count()

    def aggregate(updates):
        clip_norm = 1.0 if next(round_counter) else 1.2
        return mean(divided(total(list(map(as_one, updates)), None), 1 / clip_norm), rng)

    return aggregate


def accumulating():
    """Makes an aggregator that sums the updates of all rounds so far."""
    rng = np.random.default_rng()
    all_updates = []

    def aggregate(updates):
        all_updates.extend(as_one(update) for update in updates)
        return mean(total(all_updates, None), rng)

    return aggregate


def adaptive(quantile, lag=1):
    """Returns a maker of aggregators whose clip norm is a quantile of an earlier round's norms."""

    def make():
        rng = np.random.default_rng()
        clip_norms = [1.0] * lag

        def aggregate(updates):
            update_norms = [norm_of(update) for update in updates]
            update_norms = np.nan_to_num(update_norms, nan=1e9, posinf=1e9)
            clip_norms.append(min(1.0, max(float(np.quantile(update_norms, quantile)), 1e-3)))
            clip_norm = clip_norms[-1 - lag]
            clipped_updates = [
                [clip_norm * array for array in as_one(divided(update, clip_norm))]
                for update in updates
            ]
            return mean(total(clipped_updates, None), rng)

        return aggregate

    return make


def following(step):
    """Returns a maker of aggregators whose clip norm follows the norms of the updates.

    Args:
      step: (clip norm, norms) -> the next clip norm, before a limit of 1.
    """

    def make():
        rng = np.random.default_rng()
        clip_norm = 1.0

        def aggregate(updates):
            nonlocal clip_norm
            update_norms = [norm_of(update) for update in updates]
            update_norms = np.minimum(np.nan_to_num(update_norms, nan=1.0, posinf=1.0), 1.0)
            clipped_updates = [
                [clip_norm * array for array in as_one(divided(update, clip_norm))]
                for update in updates
            ]
            clip_norm = max(1e-3, min(1.0, float(step(clip_norm, update_norms))))
            return mean(total(clipped_updates, None), rng)

        return aggregate

    return make


def remembering(combine):
    """Returns a maker of aggregators that combine this round's sum with the previous result.

    Args:
      combine: (sum, previous result or None) -> arrays.
    """

    def make():
        rng = np.random.default_rng()
        previous_result = None

        def aggregate(updates):
            nonlocal previous_result
            previous_result = combine(
                total([as_one(update) for update in updates], None), previous_result
            )
            return mean(previous_result, rng)

        return aggregate

    return make


def averaging(rounds):
    """Returns a maker of aggregators of the average over the last rounds."""

    def make():
        rng = np.random.default_rng()
        recent_sums = collections.deque(maxlen=rounds)

        def aggregate(updates):
            recent_sums.append(total([as_one(update) for update in updates], None))
            return mean(divided(total(recent_sums, None), len(recent_sums)), rng)

        return aggregate

    return make


def decreasing():
    """Makes an aggregator with larger noise in its first rounds."""
    round_counter = itertools.count(1)
    return aggregator(
        finish=lambda arrays, rng, updates: scaled(1 + 2 / next(round_counter))(
            arrays, rng, updates
        )
    )()
