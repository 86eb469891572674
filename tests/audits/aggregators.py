"""Aggregators for the referee: an honest one, and mistakes that each change one step of it."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np

from fedmf.audits.aggregator import AggregatorClaim

CLIENTS, MULTIPLIER = 20, 0.4
SHAPES = "60x50,50x20,500,3"
# For audits of many calls, whose mistake any number of entries shows.
SMALL = {"shapes": "20x10,90,1", "rounds": 6}


def claim(**changes):
    values = {"clients": CLIENTS, "noise_multiplier": MULTIPLIER, "shapes": SHAPES, "rounds": 20}
    return AggregatorClaim(**values | changes)


def norm_of(update):
    return float(np.linalg.norm(np.concatenate([*map(np.ravel, update)]).astype(np.float64)))


def as_one(update):
    norm = norm_of(update)
    factor = min(1, 1 / max(norm, 1e-12)) if np.isfinite(norm) else 0
    if factor == 0:
        return [np.zeros(array.shape) for array in update]
    return [array.astype(np.float64) * factor for array in update]


def each_by_itself(update):
    return [array for one in update for array in as_one([one])]


def total(updates, examples):
    return [np.sum(arrays, axis=0) for arrays in zip(*updates, strict=True)]


def gaussian(arrays, scale, rng):
    return [scale * rng.normal(size=array.shape) for array in arrays]


def divided(arrays, by):
    return [array / by for array in arrays]


def plus(arrays, others):
    return [array + other for array, other in zip(arrays, others, strict=True)]


def mean(clipped, rng, noise=gaussian):
    return divided(plus(clipped, noise(clipped, MULTIPLIER, rng)), CLIENTS)


def aggregator(clip=as_one, add=total, finish=mean, seed=None):
    """What makes the function of a run, with these steps."""

    def make():
        rng = np.random.default_rng(seed)

        def aggregate(updates, examples):
            arrays = add([clip(update) for update in updates], examples)
            return finish(arrays, rng) if finish is mean else finish(arrays, rng, updates)

        return aggregate

    return make


def by_examples(updates, examples):
    shares = CLIENTS * np.array(examples) / sum(examples)
    return total([[s * a for a in u] for s, u in zip(shares, updates, strict=True)], examples)


def in_float16(updates, examples):
    sums = [np.zeros(array.shape, np.float16) for array in updates[0]]
    for update in updates:
        for so_far, array in zip(sums, update, strict=True):
            so_far += array.astype(np.float16)
    return [array.astype(np.float64) for array in sums]


def scaled(factor):
    """Noise of the claim times a factor."""
    return lambda arrays, rng, updates: mean(
        arrays, rng, lambda arrays, scale, rng: gaussian(arrays, factor * scale, rng)
    )


def without_clip(update):
    norm = norm_of(update)
    return update if np.isfinite(norm) and norm < 1e20 else as_one(update)


def clipped_mean(arrays, rng, updates):
    clipped = divided(arrays, CLIENTS)
    return plus(as_one(clipped), gaussian(arrays, MULTIPLIER / CLIENTS, rng))


def of_those_who_came(arrays, rng, updates):
    noise = gaussian(arrays, MULTIPLIER / CLIENTS, rng)
    return plus(divided(arrays, len(updates)), noise)


def noisy(noise):
    """A mean with this noise: (arrays, scale, rng, updates) -> arrays."""
    return lambda arrays, rng, updates: mean(
        arrays, rng, lambda arrays, scale, rng: noise(arrays, scale, rng, updates)
    )


def one_draw_for_arrays(arrays, scale, rng, updates):
    draw = scale * rng.normal(size=max(array.size for array in arrays))
    return [draw[: array.size].reshape(array.shape) for array in arrays]


def of_alternate_rounds():
    calls = itertools.count()
    finish = noisy(lambda arrays, scale, rng, _: gaussian(arrays, scale * (next(calls) % 2), rng))
    return aggregator(finish=finish)()


def none_in_the_last(arrays, scale, rng, updates):
    return [*gaussian(arrays[:-1], scale, rng), np.zeros(arrays[-1].shape)]


def less_beside_data(arrays, scale, rng, updates):
    return gaussian(arrays, scale * (0.9 if any(map(norm_of, updates)) else 1), rng)


def laplace(arrays, scale, rng, updates):
    return [rng.laplace(scale=scale / 2**0.5, size=array.shape) for array in arrays]


def only_where_nothing_is(arrays, scale, rng, updates):
    noise = gaussian(arrays, scale, rng)
    return [one * (array == 0) for one, array in zip(noise, arrays, strict=True)]


def taken_back():
    """Every other round has the noise of the round before, negated."""
    kept = []

    def noise(arrays, scale, rng, updates):
        if kept:
            return divided(kept.pop(), -1)
        kept.append(gaussian(arrays, scale, rng))
        return kept[0]

    return aggregator(finish=noisy(noise))()


def by_spectral_norm(update):
    if not norm_of(update) < 1e20:
        return as_one(update)
    norms = [np.linalg.norm(np.atleast_2d(array.astype(np.float64)), 2) for array in update]
    return divided(update, max(1, float(np.linalg.norm(norms))))


def seeded(start):
    """Noise whose seed is a number of the round, from `start()` on."""

    def make():
        rounds = start()

        def aggregate(updates):
            rng = np.random.default_rng(next(rounds))
            return mean(total([as_one(update) for update in updates], None), rng)

        return aggregate

    return make


def by_largest_entry(update):
    largest = max(float(np.abs(array.astype(np.float64)).max()) for array in update)
    return divided(as_one(update) if not np.isfinite(largest) else update, max(1, largest))


def above_a_threshold(update):
    return as_one(update) if not norm_of(update) < 10 else update


def but_for_the_last_array(update):
    return [*as_one(update)[:-1], np.nan_to_num(update[-1].astype(np.float64))]


def without_care_for_nan(update):
    return [array * min(1, 1 / max(norm_of(update), 1e-12)) for array in update]


def in_place(updates, examples):
    """The first update serves as the sum, and is then counted again."""
    return plus(total(updates, examples), updates[0])


def last_as_it_comes():
    rng = np.random.default_rng()

    def aggregate(updates):
        clipped = [as_one(update) for update in updates[:-1]]
        return mean(total([*clipped, without_clip(updates[-1])], None), rng)

    return aggregate


def at_the_median(updates, examples):
    """Clipped once more, at the median norm of the round."""
    limit = max(float(np.median([norm_of(update) for update in updates])), 1e-9)
    return total(
        [[a * min(1, limit / max(norm_of(u), 1e-12)) for a in u] for u in updates], examples
    )


def accumulating():
    rng, so_far = np.random.default_rng(), []

    def aggregate(updates):
        so_far.extend(as_one(update) for update in updates)
        return mean(total(so_far, None), rng)

    return aggregate


@dataclasses.dataclass(frozen=True)
class Mistake:
    """What makes it, a play that it fails, other settings of the claim, and the noise multiplier
    that it comes to, where that is known.
    """

    make: Callable[[], Callable[..., list]]
    play: str
    changes: dict[str, object] = dataclasses.field(default_factory=dict)
    multiplier: float | None = None


MISTAKES = {
    "each array clipped by itself": Mistake(
        aggregator(each_by_itself), "huge", multiplier=MULTIPLIER / 2
    ),
    "no clip": Mistake(aggregator(without_clip), "huge"),
    "a sum's noise on the mean": Mistake(aggregator(finish=scaled(CLIENTS)), "noise", SMALL),
    "a mean's noise on the sum": Mistake(
        aggregator(
            finish=lambda arrays, rng, _: plus(arrays, gaussian(arrays, MULTIPLIER / CLIENTS, rng))
        ),
        "noise",
        {"releases": "sum"},
        MULTIPLIER / CLIENTS,
    ),
    "a sum where a mean is claimed": Mistake(
        aggregator(finish=lambda arrays, rng, _: plus(arrays, gaussian(arrays, MULTIPLIER, rng))),
        "inside",
        SMALL,
    ),
    "clipping after the mean": Mistake(
        aggregator(without_clip, finish=clipped_mean), "one", multiplier=MULTIPLIER / CLIENTS
    ),
    "weights by examples": Mistake(
        aggregator(add=by_examples),
        "weights",
        multiplier=MULTIPLIER / (CLIENTS * 10 / (CLIENTS + 9)),
    ),
    "noise twice": Mistake(
        aggregator(finish=scaled(2**0.5)), "noise", multiplier=MULTIPLIER * 2**0.5
    ),
    "hardly any noise as epsilon 10": Mistake(
        aggregator(finish=scaled(4.845e-5 / MULTIPLIER)),
        "noise",
        {"noise_multiplier": None, "epsilon": 10.0, "rounds": 1},
        4.845e-5,
    ),
    "the divisor follows those who came": Mistake(
        aggregator(finish=of_those_who_came), "dropout", multiplier=MULTIPLIER / 2
    ),
    "a seed that is a constant": Mistake(aggregator(seed=3), "start"),
    "the round's number as seed": Mistake(seeded(itertools.count), "start"),
    "the same noise each round": Mistake(
        seeded(lambda: itertools.repeat(int(np.random.default_rng().integers(2**60)))), "dependence"
    ),
    "one draw for all arrays": Mistake(aggregator(finish=noisy(one_draw_for_arrays)), "dependence"),
    "noise in every other round": Mistake(of_alternate_rounds, "dependence"),
    "no noise in the last array": Mistake(aggregator(finish=noisy(none_in_the_last)), "arrays"),
    "less noise beside data": Mistake(
        aggregator(finish=noisy(less_beside_data)), "noise-with-data", multiplier=0.9 * MULTIPLIER
    ),
    "noise that is taken back": Mistake(taken_back, "dependence"),
    "noise where nothing was sent": Mistake(
        aggregator(finish=noisy(only_where_nothing_is)), "noise-with-data"
    ),
    "a clip by the spectral norm": Mistake(aggregator(by_spectral_norm), "huge", SMALL),
    "Laplace noise": Mistake(aggregator(finish=noisy(laplace)), "dependence"),
    "a clip by the largest entry": Mistake(aggregator(by_largest_entry), "huge"),
    "a clip above a threshold": Mistake(aggregator(above_a_threshold), "slightly-above"),
    "an array that is not clipped": Mistake(aggregator(but_for_the_last_array), "huge"),
    "a NaN that passes": Mistake(aggregator(without_care_for_nan), "not-finite"),
    "the first client counted twice": Mistake(aggregator(add=in_place), "order"),
    "the last client not clipped": Mistake(last_as_it_comes, "order"),
    "a clip at the median of the round": Mistake(aggregator(add=at_the_median), "mixed"),
    "sums that go on": Mistake(accumulating, "inside"),
    "sums in float16": Mistake(
        aggregator(
            add=in_float16,
            finish=lambda arrays, rng, _: plus(arrays, gaussian(arrays, MULTIPLIER, rng)),
        ),
        "inside",
        {"clients": 200, "shapes": "300", "releases": "sum"},
    ),
}
