"""Steps of aggregators for the auditor, right ones and mistakes."""

import math

import numpy as np

from fedmf.audits.aggregator import AggregatorClaim

CLIENTS = 8
MULTIPLIER = 0.1
SHAPES = "30x20,20x5,90,3"


def claim(**changes):
    """Returns the claim that most of these aggregators make, with changes."""
    claim_values = {
        "clients": CLIENTS,
        "noise_multiplier": MULTIPLIER,
        "shapes": SHAPES,
        "rounds": 12,
    }
    return AggregatorClaim(**claim_values | changes)


def norm_of(update):
    """Returns the L2 norm of an update, in float64."""
    flat_update = np.concatenate([array.ravel() for array in update], dtype=float, casting="unsafe")
    return math.sqrt(flat_update.dot(flat_update))


def as_one(update):
    """Clips an update as one vector; one whose norm is not finite becomes zero."""
    update_norm = norm_of(update)
    clip_factor = min(1, 1 / max(update_norm, 1e-12)) if np.isfinite(update_norm) else 0
    if clip_factor == 0:
        return [np.zeros(array.shape) for array in update]
    return [np.multiply(array, clip_factor, dtype=float, casting="unsafe") for array in update]


def each_by_itself(update):
    """Clips each array of an update by itself."""
    return [array for single_array in update for array in as_one([single_array])]


def total(updates, examples):
    """Sums updates."""
    return [np.add.reduce(arrays) for arrays in zip(*updates, strict=True)]


def gaussian(arrays, scale, rng):
    """Draws Gaussian noise of a standard deviation for each array."""
    return [scale * rng.normal(size=array.shape) for array in arrays]


def divided(arrays, by):
    """Divides arrays by a number."""
    return [array / by for array in arrays]


def plus(arrays, added_arrays):
    """Adds arrays."""
    return [array + added_array for array, added_array in zip(arrays, added_arrays, strict=True)]


def mean(clipped, rng, noise=gaussian):
    """Adds noise of the claim to a sum and returns the mean over all clients."""
    return divided(plus(clipped, noise(clipped, MULTIPLIER, rng)), CLIENTS)


def aggregator(clip=as_one, add=total, finish=mean, seed=None):
    """Returns a maker of aggregators with these steps.

    Args:
      clip: update -> arrays.
      add: (clipped updates, examples) -> their sum.
      finish: (sum, generator, updates) -> release.
      seed: of the noise; None for a new one in each run.
    """

    def make():
        rng = np.random.default_rng(seed)

        def aggregate(updates, examples):
            arrays = add([clip(update) for update in updates], examples)
            return finish(arrays, rng) if finish is mean else finish(arrays, rng, updates)

        return aggregate

    return make


def by_examples(updates, examples):
    """Sums updates with weights by examples."""
    client_weights = CLIENTS * np.array(examples) / sum(examples)
    return total(
        [
            [client_weight * array for array in update]
            for client_weight, update in zip(client_weights, updates, strict=True)
        ],
        examples,
    )


def by_capped_count(updates, examples):
    """Sums updates with weights by examples, up to 1.15."""
    client_weights = np.minimum(np.array(examples) / 10, 1.15)
    return total(
        [
            [client_weight * array for array in update]
            for client_weight, update in zip(client_weights, updates, strict=True)
        ],
        examples,
    )


def in_float16(updates, examples):
    """Sums updates in half precision."""
    float16_sums = [np.zeros(array.shape, np.float16) for array in updates[0]]
    for update in updates:
        for float16_sum, array in zip(float16_sums, update, strict=True):
            float16_sum += array.astype(np.float16)
    return [array.astype(np.float64) for array in float16_sums]


def scaled(factor):
    """Returns a finish with the claimed noise times a factor."""
    return lambda arrays, rng, updates: mean(
        arrays, rng, lambda arrays, scale, rng: gaussian(arrays, factor * scale, rng)
    )


def without_clip(update):
    """Returns a finite update as it is."""
    update_norm = norm_of(update)
    return update if np.isfinite(update_norm) and update_norm < 1e20 else as_one(update)


def clipped_mean(arrays, rng, updates):
    """Clips the mean of the updates, and adds noise for one update."""
    unclipped_mean = divided(arrays, CLIENTS)
    return plus(as_one(unclipped_mean), gaussian(arrays, MULTIPLIER / CLIENTS, rng))


def of_those_who_came(arrays, rng, updates):
    """Divides by the number of present clients, with noise for all."""
    noise_arrays = gaussian(arrays, MULTIPLIER / CLIENTS, rng)
    return plus(divided(arrays, len(updates)), noise_arrays)


def noisy(noise):
    """Returns a finish with this noise: (arrays, scale, rng, updates) -> arrays."""
    return lambda arrays, rng, updates: mean(
        arrays, rng, lambda arrays, scale, rng: noise(arrays, scale, rng, updates)
    )


def one_draw_for_arrays(arrays, scale, rng, updates):
    """Draws one noise vector, whose beginning is used for every array."""
    shared_draw = scale * rng.normal(size=max(array.size for array in arrays))
    return [shared_draw[: array.size].reshape(array.shape) for array in arrays]


def none_in_the_last(arrays, scale, rng, updates):
    """Draws noise for all arrays but the last."""
    return [*gaussian(arrays[:-1], scale, rng), np.zeros(arrays[-1].shape)]


def less_beside_data(arrays, scale, rng, updates):
    """Draws noise that is smaller if an update is not zero."""
    return gaussian(arrays, scale * (0.9 if any(map(norm_of, updates)) else 1), rng)


def laplace(arrays, scale, rng, updates):
    """Draws Laplace noise of the claimed variance."""
    return [rng.laplace(scale=scale / 2**0.5, size=array.shape) for array in arrays]


def only_where_nothing_is(arrays, scale, rng, updates):
    """Draws noise for the entries whose sum is zero."""
    noise_arrays = gaussian(arrays, scale, rng)
    return [
        noise_array * (array == 0) for noise_array, array in zip(noise_arrays, arrays, strict=True)
    ]


def by_spectral_norm(update):
    """Clips an update by the spectral norms of its arrays."""
    if not norm_of(update) < 1e20:
        return as_one(update)
    spectral_norms = [
        np.linalg.norm(np.atleast_2d(array.astype(np.float64)), 2) for array in update
    ]
    return divided(update, max(1, float(np.linalg.norm(spectral_norms))))


def seeded(start):
    """Returns a maker of aggregators whose noise has `start()` as its seeds."""

    def make():
        rounds = start()

        def aggregate(updates):
            rng = np.random.default_rng(next(rounds))
            return mean(total([as_one(update) for update in updates], None), rng)

        return aggregate

    return make


def by_largest_entry(update):
    """Clips an update by its largest entry."""
    largest_entry = max(float(np.abs(array.astype(np.float64)).max()) for array in update)
    if not np.isfinite(largest_entry):
        update = as_one(update)
    return divided(update, max(1, largest_entry))


def but_for_the_last_array(update):
    """Clips all arrays of an update but the last."""
    return [*as_one(update)[:-1], np.nan_to_num(update[-1].astype(np.float64))]


def without_care_for_nan(update):
    """Clips an update by a norm that may be NaN."""
    return [array * min(1, 1 / max(norm_of(update), 1e-12)) for array in update]


def in_place(updates, examples):
    """Sums updates into the first one, which then counts again."""
    return plus(total(updates, examples), updates[0])


def last_as_it_comes():
    """Makes an aggregator that does not clip the last update."""
    rng = np.random.default_rng()

    def aggregate(updates):
        clipped_updates = [as_one(update) for update in updates[:-1]]
        return mean(total([*clipped_updates, without_clip(updates[-1])], None), rng)

    return aggregate


def at_the_median(updates, examples):
    """Sums updates that are clipped once more, at the median norm of the round."""
    median_norm = max(float(np.median([norm_of(update) for update in updates])), 1e-9)
    return total(
        [
            [array * min(1, median_norm / max(norm_of(update), 1e-12)) for array in update]
            for update in updates
        ],
        examples,
    )


def in_pairs():
    """Makes an aggregator that clips sums of two clients' updates, as servers at the edge may."""
    rng = np.random.default_rng()

    def aggregate(updates):
        pair_sums = [total(updates[i : i + 2], None) for i in range(0, len(updates), 2)]
        return mean(total([as_one(pair_sum) for pair_sum in pair_sums], None), rng)

    return aggregate


def medians(updates, examples):
    """Computes the median of each entry in place of the mean."""
    client_arrays = [np.array(arrays) for arrays in zip(*updates, strict=True)]
    return [CLIENTS * np.median(arrays, axis=0) for arrays in client_arrays]


def without_extremes(updates, examples):
    """Sums each entry without its two extremes."""
    trimmed_sums = []
    for arrays in zip(*updates, strict=True):
        middle_values = np.sort(np.array(arrays), axis=0)[1:-1]
        trimmed_sums.append(middle_values.sum(axis=0) * CLIENTS / max(len(middle_values), 1))
    return trimmed_sums


def of_valid_updates():
    """Makes an aggregator of a mean over those of all clients whose update is finite."""
    rng = np.random.default_rng()

    def aggregate(updates):
        num_finite = sum(np.isfinite(norm_of(update)) for update in updates)
        num_missing = CLIENTS - len(updates)
        mean_arrays = divided(
            total(list(map(as_one, updates)), None), max(num_finite + num_missing, 1)
        )
        return plus(mean_arrays, gaussian(mean_arrays, MULTIPLIER / CLIENTS, rng))

    return aggregate


def none_for_nobody(arrays, rng, updates):
    """Releases zeros if there is no client."""
    if not updates:
        return [np.zeros(shape) for shape in claim().arrays]
    return mean(arrays, rng)


def across(arrays, rng, updates):
    """Adds noise that is orthogonal to the sum."""
    noise_arrays = gaussian(arrays, MULTIPLIER, rng)
    sum_of_squares = sum(float((array**2).sum()) for array in arrays)
    if sum_of_squares > 0:
        sum_fraction = (
            sum(
                float((array * noise_array).sum())
                for array, noise_array in zip(arrays, noise_arrays, strict=True)
            )
            / sum_of_squares
        )
        noise_arrays = [
            noise_array - sum_fraction * array
            for array, noise_array in zip(arrays, noise_arrays, strict=True)
        ]
    return divided(plus(arrays, noise_arrays), CLIENTS)


def of_numbers_alone(norm):
    """Returns a clip by this norm, which then sets entries that are not finite to zero."""

    def clip(update):
        clip_factor = min(1, 1 / max(float(norm(update)), 1e-12))
        return [np.nan_to_num(array * clip_factor, posinf=0, neginf=0) for array in update]

    return clip


def norm_of_finite_arrays(update):
    """Returns the norm of the arrays whose own norm is finite."""
    array_norms = [norm_of([array]) for array in update]
    return float(
        np.linalg.norm([array_norm for array_norm in array_norms if np.isfinite(array_norm)])
    )


def below(threshold):
    """Returns a clip that begins at a threshold."""
    return lambda update: update if norm_of(update) < threshold else as_one(update)


def of_own_type(dtype):
    """Returns a clip that squares arrays of this dtype without a conversion."""

    def clip(update):
        array_squares = [
            float((array * array if array.dtype == dtype else array.astype(np.float64) ** 2).sum())
            for array in update
        ]
        update_norm = max(sum(array_squares), 0.0) ** 0.5
        if not np.isfinite(update_norm):
            return [np.zeros(array.shape) for array in update]
        return [array.astype(np.float64) * min(1, 1 / max(update_norm, 1e-12)) for array in update]

    return clip


def unclipped_if(condition):
    """Returns a clip that does not change finite updates under a condition."""
    return lambda update: without_clip(update) if condition(update) else as_one(update)


def finite_in(array):
    """Returns a clip that checks one array alone for NaN."""

    def clip(update):
        if not np.isfinite(update[array].astype(np.float64)).all():
            return [np.zeros(other_array.shape) for other_array in update]
        update_norm = norm_of(update)
        divisor = 1.0 if np.isnan(update_norm) else max(update_norm, 1)
        return divided(update, divisor)

    return clip


def by_largest_count(updates, examples):
    """Sums updates with weights by examples, relative to the largest client."""
    client_weights = np.array(examples) / max(*examples, 1)
    return total(
        [
            [client_weight * array for array in update]
            for client_weight, update in zip(client_weights, updates, strict=True)
        ],
        examples,
    )


def by_norm(updates, examples):
    """Sums updates with weights by their norms."""
    update_norms = np.array([norm_of(update) for update in updates])
    client_weights = CLIENTS * update_norms / max(update_norms.sum(), 1e-9)
    return total(
        [
            [client_weight * array for array in update]
            for client_weight, update in zip(client_weights, updates, strict=True)
        ],
        examples,
    )


def with_data(arrays, scale, rng, updates):
    """Draws noise that is larger beside a large update."""
    finite_norms = [min(norm_of(update), 1.0) for update in updates if np.isfinite(norm_of(update))]
    return gaussian(arrays, scale * max(1.0, 1.2 * max([*finite_norms, 0.0])), rng)


def scaled_update(factor):
    """Returns a clip that multiplies an update by factor(norm)."""

    def clip(update):
        update_norm = norm_of(update)
        if not np.isfinite(update_norm) or update_norm < 1e-12:
            return [np.zeros(array.shape) for array in update]
        return [array.astype(np.float64) * factor(update_norm) for array in update]

    return clip


def noise_by_array():
    """Makes an aggregator with a clip norm c and noise 2 z c for each array."""
    rng = np.random.default_rng()
    clip_norms = np.array([0.8, 0.5, 0.3, 0.14142])
    clip_norms /= np.linalg.norm(clip_norms)

    def aggregate(updates):
        clipped_updates = [
            [
                clip_norm * as_one([array / clip_norm])[0]
                for array, clip_norm in zip(update, clip_norms, strict=True)
            ]
            for update in updates
        ]
        noise_arrays = [
            2 * MULTIPLIER * clip_norm * rng.normal(size=array.shape)
            for array, clip_norm in zip(updates[0], clip_norms, strict=True)
        ]
        return divided(plus(total(clipped_updates, None), noise_arrays), CLIENTS)

    return aggregate


def by_name():
    """Makes an aggregator that takes the numbers of examples by keyword alone."""
    inner_aggregate = aggregator()()
    return lambda updates, *, examples: inner_aggregate(updates, examples)


def refusing():
    """Makes an aggregator that raises an error on anything but finite float32."""
    inner_aggregate = aggregator()()

    def aggregate(updates):
        all_arrays = [array for update in updates for array in update]
        if not all(array.dtype == np.float32 and np.isfinite(array).all() for array in all_arrays):
            raise TypeError("float32 alone")
        return inner_aggregate(updates, None)

    return aggregate
