"""Aggregators for the auditor that remember earlier rounds, right and wrong ones."""

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
    calls = itertools.count()
    finish = noisy(lambda arrays, scale, rng, _: gaussian(arrays, scale * (next(calls) % 2), rng))
    return aggregator(finish=finish)()


def taken_back():
    """Every other round has the noise of the round before, negated."""
    kept = []

    def noise(arrays, scale, rng, updates):
        if kept:
            return divided(kept.pop(), -1)
        kept.append(gaussian(arrays, scale, rng))
        return kept[0]

    return aggregator(finish=noisy(noise))()


def larger_in_late_rounds():
    """Makes an aggregator that clips at 1.06 from the seventh round on."""
    rng, rounds = np.random.default_rng(), itertools.count()

    def aggregate(updates):
        factor = 1.06 if next(rounds) >= 6 else 1.0
        return mean(divided(total(list(map(as_one, updates)), None), 1 / factor), rng)

    return aggregate


def larger_at_first():
    """Makes an aggregator that clips at 1.2 in its first round."""
    rng, rounds = np.random.default_rng(), itertools.count()

    def aggregate(updates):
        factor = 1.0 if next(rounds) else 1.2
        return mean(divided(total(list(map(as_one, updates)), None), 1 / factor), rng)

    return aggregate


def accumulating():
    rng, so_far = np.random.default_rng(), []

    def aggregate(updates):
        so_far.extend(as_one(update) for update in updates)
        return mean(total(so_far, None), rng)

    return aggregate


def adaptive(quantile, lag=1):
    """Returns what makes an aggregator with a clip norm that is a quantile of an earlier round."""

    def make():
        rng = np.random.default_rng()
        clip_norms = [1.0] * lag

        def aggregate(updates):
            norms = [norm_of(update) for update in updates]
            norms = np.nan_to_num(norms, nan=1e9, posinf=1e9)
            clip_norms.append(min(1.0, max(float(np.quantile(norms, quantile)), 1e-3)))
            limit = clip_norms[-1 - lag]
            clipped = [[limit * a for a in as_one(divided(update, limit))] for update in updates]
            return mean(total(clipped, None), rng)

        return aggregate

    return make


def following(step):
    """Returns what makes an aggregator with a clip norm that follows the updates' norms.

    Args:
      step: (clip norm, norms) -> the next clip norm, before a limit of 1.
    """

    def make():
        rng = np.random.default_rng()
        limit = 1.0

        def aggregate(updates):
            nonlocal limit
            norms = [norm_of(update) for update in updates]
            norms = np.minimum(np.nan_to_num(norms, nan=1.0, posinf=1.0), 1.0)
            clipped = [[limit * a for a in as_one(divided(update, limit))] for update in updates]
            limit = max(1e-3, min(1.0, float(step(limit, norms))))
            return mean(total(clipped, None), rng)

        return aggregate

    return make


def remembering(combine):
    """Returns what makes an aggregator of this round's sum and an earlier result.

    Args:
      combine: (sum, what it gave before, or None) -> arrays.
    """

    def make():
        rng = np.random.default_rng()
        before = None

        def aggregate(updates):
            nonlocal before
            before = combine(total([as_one(update) for update in updates], None), before)
            return mean(before, rng)

        return aggregate

    return make


def averaging(rounds):
    """Returns what makes an aggregator of the average over so many rounds."""

    def make():
        rng = np.random.default_rng()
        sums = collections.deque(maxlen=rounds)

        def aggregate(updates):
            sums.append(total([as_one(update) for update in updates], None))
            return mean(divided(total(sums, None), len(sums)), rng)

        return aggregate

    return make


def decreasing():
    """Makes an aggregator with more noise in its first rounds."""
    rounds = itertools.count(1)
    return aggregator(
        finish=lambda arrays, rng, updates: scaled(1 + 2 / next(rounds))(arrays, rng, updates)
    )()
