"""Steps of aggregators for the auditor, and mistakes in them."""

import math

import numpy as np

from fedmf.audits.aggregator import AggregatorClaim

CLIENTS, MULTIPLIER = 8, 0.1
SHAPES = "30x20,20x5,90,3"


def claim(**changes):
    values = {"clients": CLIENTS, "noise_multiplier": MULTIPLIER, "shapes": SHAPES, "rounds": 12}
    return AggregatorClaim(**values | changes)


def norm_of(update):
    flat = np.concatenate([array.ravel() for array in update], dtype=float, casting="unsafe")
    return math.sqrt(flat.dot(flat))


def as_one(update):
    norm = norm_of(update)
    factor = min(1, 1 / max(norm, 1e-12)) if np.isfinite(norm) else 0
    if factor == 0:
        return [np.zeros(array.shape) for array in update]
    return [np.multiply(array, factor, dtype=float, casting="unsafe") for array in update]


def each_by_itself(update):
    return [array for one in update for array in as_one([one])]


def total(updates, examples):
    return [np.add.reduce(arrays) for arrays in zip(*updates, strict=True)]


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


def by_capped_count(updates, examples):
    factors = np.minimum(np.array(examples) / 10, 1.15)
    return total([[f * a for a in u] for f, u in zip(factors, updates, strict=True)], examples)


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


def none_in_the_last(arrays, scale, rng, updates):
    return [*gaussian(arrays[:-1], scale, rng), np.zeros(arrays[-1].shape)]


def less_beside_data(arrays, scale, rng, updates):
    return gaussian(arrays, scale * (0.9 if any(map(norm_of, updates)) else 1), rng)


def laplace(arrays, scale, rng, updates):
    return [rng.laplace(scale=scale / 2**0.5, size=array.shape) for array in arrays]


def only_where_nothing_is(arrays, scale, rng, updates):
    noise = gaussian(arrays, scale, rng)
    return [one * (array == 0) for one, array in zip(noise, arrays, strict=True)]


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


def in_pairs():
    """Makes an aggregator that clips sums of two clients' updates, as servers at the edge may."""
    rng = np.random.default_rng()

    def aggregate(updates):
        pairs = [total(updates[i : i + 2], None) for i in range(0, len(updates), 2)]
        return mean(total([as_one(pair) for pair in pairs], None), rng)

    return aggregate


def medians(updates, examples):
    clipped = [np.array(arrays) for arrays in zip(*updates, strict=True)]
    return [CLIENTS * np.median(arrays, axis=0) for arrays in clipped]


def without_extremes(updates, examples):
    sums = []
    for arrays in zip(*updates, strict=True):
        middle = np.sort(np.array(arrays), axis=0)[1:-1]
        sums.append(middle.sum(axis=0) * CLIENTS / max(len(middle), 1))
    return sums


def of_valid_updates():
    """Makes an aggregator of a mean over those of all clients whose update is finite."""
    rng = np.random.default_rng()

    def aggregate(updates):
        number = sum(np.isfinite(norm_of(update)) for update in updates)
        missing = CLIENTS - len(updates)
        arrays = divided(total(list(map(as_one, updates)), None), max(number + missing, 1))
        return plus(arrays, gaussian(arrays, MULTIPLIER / CLIENTS, rng))

    return aggregate


def none_for_nobody(arrays, rng, updates):
    if not updates:
        return [np.zeros(shape) for shape in claim().arrays]
    return mean(arrays, rng)


def across(arrays, rng, updates):
    """A mean with noise that leaves the direction of the sum as it is."""
    noise = gaussian(arrays, MULTIPLIER, rng)
    square = sum(float((array**2).sum()) for array in arrays)
    if square > 0:
        share = sum(float((a * z).sum()) for a, z in zip(arrays, noise, strict=True)) / square
        noise = [z - share * a for a, z in zip(arrays, noise, strict=True)]
    return divided(plus(arrays, noise), CLIENTS)


def of_numbers_alone(norm):
    """Returns a clip by such a norm, which then sets what is no number to zero."""

    def clip(update):
        factor = min(1, 1 / max(float(norm(update)), 1e-12))
        return [np.nan_to_num(array * factor, posinf=0, neginf=0) for array in update]

    return clip


def norm_of_finite_arrays(update):
    norms = [norm_of([array]) for array in update]
    return float(np.linalg.norm([norm for norm in norms if np.isfinite(norm)]))


def below(threshold):
    """Returns a clip that begins at a threshold."""
    return lambda update: update if norm_of(update) < threshold else as_one(update)


def of_own_type(dtype):
    """Returns a clip that squares arrays of this type in it."""

    def clip(update):
        squares = [
            float((a * a if a.dtype == dtype else a.astype(np.float64) ** 2).sum()) for a in update
        ]
        norm = max(sum(squares), 0.0) ** 0.5
        if not np.isfinite(norm):
            return [np.zeros(array.shape) for array in update]
        return [array.astype(np.float64) * min(1, 1 / max(norm, 1e-12)) for array in update]

    return clip


def unclipped_if(condition):
    """Returns a clip that lets finite updates through under a condition."""
    return lambda update: without_clip(update) if condition(update) else as_one(update)


def finite_in(array):
    """Returns a clip that looks for NaN in one array alone."""

    def clip(update):
        if not np.isfinite(update[array].astype(np.float64)).all():
            return [np.zeros(one.shape) for one in update]
        norm = norm_of(update)
        return divided(update, 1.0 if np.isnan(norm) else max(norm, 1))

    return clip


def by_largest_count(updates, examples):
    shares = np.array(examples) / max(*examples, 1)
    return total([[s * a for a in u] for s, u in zip(shares, updates, strict=True)], examples)


def by_norm(updates, examples):
    norms = np.array([norm_of(update) for update in updates])
    shares = CLIENTS * norms / max(norms.sum(), 1e-9)
    return total([[s * a for a in u] for s, u in zip(shares, updates, strict=True)], examples)


def with_data(arrays, scale, rng, updates):
    norms = [min(norm_of(update), 1.0) for update in updates if np.isfinite(norm_of(update))]
    return gaussian(arrays, scale * max(1.0, 1.2 * max([*norms, 0.0])), rng)


def scaled_update(factor):
    """Returns a clip that multiplies an update by factor(norm)."""

    def clip(update):
        norm = norm_of(update)
        if not np.isfinite(norm) or norm < 1e-12:
            return [np.zeros(array.shape) for array in update]
        return [array.astype(np.float64) * factor(norm) for array in update]

    return clip


def noise_by_array():
    """Makes an aggregator with a clip and noise for each array: (c / (2 z c))^2, four times."""
    rng = np.random.default_rng()
    shares = np.array([0.8, 0.5, 0.3, 0.14142])
    shares /= np.linalg.norm(shares)

    def aggregate(updates):
        clipped = [
            [c * as_one([a / c])[0] for a, c in zip(update, shares, strict=True)]
            for update in updates
        ]
        noise = [
            2 * MULTIPLIER * c * rng.normal(size=a.shape)
            for a, c in zip(updates[0], shares, strict=True)
        ]
        return divided(plus(total(clipped, None), noise), CLIENTS)

    return aggregate


def by_name():
    """Makes an aggregator that takes the examples by name alone."""
    inner = aggregator()()
    return lambda updates, *, examples: inner(updates, examples)


def refusing():
    """Makes an aggregator that refuses what it does not expect."""
    inner = aggregator()()

    def aggregate(updates):
        arrays = [array for update in updates for array in update]
        if not all(array.dtype == np.float32 and np.isfinite(array).all() for array in arrays):
            raise TypeError("float32 alone")
        return inner(updates, None)

    return aggregate
