"""Tables of honest aggregators, and of mistakes that each change one step of one."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np

from tests.audits.aggregator_draws import (
    ended,
    flat,
    from_a_table,
    last_entries_again,
    none_in_one_draw_of,
    none_in_some_entries,
    of_period,
    of_uniforms,
    predicted_by,
    reversed_in_part,
    shuffled,
    smoothed,
    tiled,
)
from tests.audits.aggregator_states import (
    accumulating,
    adaptive,
    averaging,
    decreasing,
    following,
    larger_at_first,
    larger_in_late_rounds,
    of_alternate_rounds,
    remembering,
    taken_back,
)
from tests.audits.aggregators import (
    CLIENTS,
    MULTIPLIER,
    across,
    aggregator,
    as_one,
    at_the_median,
    below,
    but_for_the_last_array,
    by_capped_count,
    by_examples,
    by_largest_count,
    by_largest_entry,
    by_name,
    by_norm,
    by_spectral_norm,
    clipped_mean,
    divided,
    each_by_itself,
    finite_in,
    gaussian,
    in_float16,
    in_pairs,
    in_place,
    laplace,
    last_as_it_comes,
    less_beside_data,
    medians,
    noise_by_array,
    noisy,
    none_for_nobody,
    none_in_the_last,
    norm_of,
    norm_of_finite_arrays,
    of_numbers_alone,
    of_own_type,
    of_those_who_came,
    of_valid_updates,
    one_draw_for_arrays,
    only_where_nothing_is,
    plus,
    refusing,
    scaled,
    scaled_update,
    seeded,
    unclipped_if,
    with_data,
    without_care_for_nan,
    without_clip,
    without_extremes,
)

HONEST = {
    "clipped as one vector": aggregator(),
    "examples by name": by_name,
    "normalised": aggregator(scaled_update(lambda norm: 1 / norm)),
    "automatic clipping": aggregator(scaled_update(lambda norm: 1 / (norm + 0.01))),
    "smooth clipping": aggregator(scaled_update(lambda norm: np.tanh(norm) / norm)),
    "zero above the norm": aggregator(scaled_update(lambda norm: float(norm <= 1))),
    "a fifth more noise": aggregator(finish=scaled(1.2)),
    "a sum's noise on the mean": aggregator(finish=scaled(CLIENTS)),
    "more noise in the first rounds": decreasing,
    "an average over rounds before the noise": averaging(3),
    "noise and clip by array": noise_by_array,
    "each array clipped, with noise for it": aggregator(each_by_itself, finish=scaled(2)),
    "odd updates refused": refusing,
}


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A maker of an aggregator, a test that it fails, other settings of the claim, the noise
    multiplier that it comes to, where that is known, and whether it takes as much noise as users'
    audits have: for tails, and for what is near to the claim.
    """

    make: Callable[[], Callable[..., list]]
    test: str
    changes: dict[str, object] = dataclasses.field(default_factory=dict)
    multiplier: float | None = None
    needs_all_noise: bool = False


MISTAKES = {
    "each array clipped by itself": Mistake(
        aggregator(each_by_itself), "patterns", multiplier=MULTIPLIER / 2
    ),
    "no clip": Mistake(aggregator(without_clip), "norms"),
    "a clip at 1.05 times the norm": Mistake(
        aggregator(lambda update: [1.05 * array for array in as_one(update)]),
        "norms",
        needs_all_noise=True,
    ),
    "a clip at 1.06 times the norm in late rounds": Mistake(
        larger_in_late_rounds, "norms", needs_all_noise=True
    ),
    "a clip at 1.2 times the norm in the first round": Mistake(larger_at_first, "norms"),
    "one array 1.06 times": Mistake(
        aggregator(lambda update: [1.06 * as_one(update)[0], *as_one(update)[1:]]),
        "patterns",
        needs_all_noise=True,
    ),
    "a clip that begins at 1.05": Mistake(aggregator(below(1.05)), "norms", needs_all_noise=True),
    "a clip that begins at 1.4": Mistake(aggregator(below(1.4)), "norms"),
    "a clip that begins at 10": Mistake(aggregator(below(10)), "norms"),
    "a clip that begins at 10,000": Mistake(aggregator(below(1e4)), "norms"),
    "a clip by the spectral norm": Mistake(aggregator(by_spectral_norm), "norms"),
    "a clip by the largest entry": Mistake(aggregator(by_largest_entry), "norms"),
    "an array that is not clipped": Mistake(aggregator(but_for_the_last_array), "patterns"),
    "unclipped where the first array is zero": Mistake(
        aggregator(unclipped_if(lambda update: not update[0].any())), "patterns"
    ),
    "unclipped where the last array is zero": Mistake(
        aggregator(unclipped_if(lambda update: not update[-1].any())), "patterns"
    ),
    "unclipped where two arrays are zero": Mistake(
        aggregator(unclipped_if(lambda update: sum(not array.any() for array in update) == 2)),
        "patterns",
    ),
    "unclipped where no entry is positive": Mistake(
        aggregator(unclipped_if(lambda update: max(array.max() for array in update) <= 0)),
        "patterns",
    ),
    "float64 that is not clipped": Mistake(
        aggregator(unclipped_if(lambda update: update[0].dtype == np.float64)), "types"
    ),
    "float16 that is not clipped": Mistake(
        aggregator(unclipped_if(lambda update: update[0].dtype == np.float16)), "types"
    ),
    "bool that is not clipped": Mistake(
        aggregator(unclipped_if(lambda update: update[0].dtype == bool)), "types"
    ),
    **{
        f"squares in {dtype}": Mistake(aggregator(of_own_type(dtype)), "types")
        for dtype in ("int8", "int16", "int32", "int64", "uint8")
    },
    "a NaN that passes": Mistake(aggregator(without_care_for_nan), "not-finite"),
    "a NaN in the second array": Mistake(aggregator(finite_in(0)), "not-finite"),
    "a NaN in the first array": Mistake(aggregator(finite_in(3)), "not-finite"),
    "a norm of NaN that counts as zero": Mistake(
        aggregator(of_numbers_alone(lambda update: np.nan_to_num(norm_of(update)))), "not-finite"
    ),
    "a norm of the finite arrays": Mistake(
        aggregator(of_numbers_alone(norm_of_finite_arrays)), "not-finite"
    ),
    "clipping after the mean": Mistake(
        aggregator(without_clip, finish=clipped_mean), "one", multiplier=MULTIPLIER / (2 * CLIENTS)
    ),
    "weights by examples": Mistake(
        aggregator(add=by_examples), "weights", multiplier=MULTIPLIER / CLIENTS
    ),
    "weights by the largest client": Mistake(aggregator(add=by_largest_count), "weights"),
    "weights up to 1.15": Mistake(aggregator(add=by_capped_count), "weights"),
    "weights by norms": Mistake(aggregator(add=by_norm), "cohort"),
    "a clip at the median of the round": Mistake(aggregator(add=at_the_median), "cohort"),
    "a clip at a quantile of the last round": Mistake(adaptive(0.9), "cohort"),
    "a clip at a quantile of an earlier round": Mistake(adaptive(0.5, lag=2), "cohort"),
    "a clip that follows a quantile by 3% a round": Mistake(
        following(lambda limit, norms: limit + 0.03 * (np.quantile(norms, 0.6) - limit)),
        "cohort",
        {"rounds": 20},
    ),
    "a clip that follows a share of clients by at most 5% a round": Mistake(
        following(lambda limit, norms: limit * np.exp(0.1 * (0.5 - np.mean(norms <= limit)))),
        "cohort",
        {"rounds": 20},
    ),
    "a clip of pairs of clients": Mistake(in_pairs, "one"),
    "a median of each entry": Mistake(aggregator(add=medians), "cohort"),
    "a mean without the two extremes": Mistake(aggregator(add=without_extremes), "cohort"),
    "the first client counted twice": Mistake(aggregator(add=in_place), "order"),
    "the last client not clipped": Mistake(last_as_it_comes, "order"),
    "sums that go on": Mistake(accumulating, "norms"),
    "momentum before the noise": Mistake(
        remembering(
            lambda arrays, before: arrays if before is None else plus(arrays, divided(before, 2))
        ),
        "norms",
    ),
    "sums in float16": Mistake(
        aggregator(
            add=in_float16,
            finish=lambda arrays, rng, _: plus(arrays, gaussian(arrays, MULTIPLIER, rng)),
        ),
        "sums",
        {"clients": 200, "shapes": "1500", "releases": "sum"},
    ),
    "the divisor follows those who came": Mistake(
        aggregator(finish=of_those_who_came), "dropout", multiplier=MULTIPLIER / CLIENTS
    ),
    "the divisor leaves out updates of NaN": Mistake(of_valid_updates, "dropout"),
    "nothing where nobody comes": Mistake(aggregator(finish=none_for_nobody), "dropout"),
    "a sum where a mean is claimed": Mistake(
        aggregator(finish=lambda arrays, rng, _: plus(arrays, gaussian(arrays, MULTIPLIER, rng))),
        "releases",
    ),
    "a mean's noise on the sum": Mistake(
        aggregator(
            finish=lambda arrays, rng, _: plus(arrays, gaussian(arrays, MULTIPLIER / CLIENTS, rng))
        ),
        "noise",
        {"releases": "sum"},
        MULTIPLIER / CLIENTS,
    ),
    "hardly any noise as epsilon 10": Mistake(
        aggregator(finish=scaled(4.845e-5 / MULTIPLIER)),
        "noise",
        {"noise_multiplier": None, "epsilon": 10.0, "rounds": 1},
        4.845e-5,
    ),
    "noise that is too small by 3%": Mistake(
        aggregator(finish=scaled(0.97)),
        "noise",
        multiplier=0.97 * MULTIPLIER,
        needs_all_noise=True,
    ),
    "no noise in the last array": Mistake(aggregator(finish=noisy(none_in_the_last)), "noise"),
    "no noise in some entries": Mistake(flat(none_in_some_entries), "noise"),
    "noise in every other round": Mistake(of_alternate_rounds, "noise"),
    "less noise beside data": Mistake(
        aggregator(finish=noisy(less_beside_data)), "noise-with-data", multiplier=0.9 * MULTIPLIER
    ),
    "noise that follows the largest update": Mistake(
        aggregator(finish=noisy(with_data)), "noise-with-data"
    ),
    "noise where nothing was sent": Mistake(
        aggregator(finish=noisy(only_where_nothing_is)), "noise-with-data"
    ),
    "no noise along the sum": Mistake(aggregator(finish=across), "noise-with-data"),
    "a seed that is a constant": Mistake(aggregator(seed=3), "start"),
    "the round's number as seed": Mistake(seeded(itertools.count), "start"),
    "the same noise each round": Mistake(
        seeded(lambda: itertools.repeat(int(np.random.default_rng().integers(2**60)))), "dependence"
    ),
    "noise of eleven rounds in turn": Mistake(flat(of_period(11)), "dependence"),
    "one draw for all arrays": Mistake(aggregator(finish=noisy(one_draw_for_arrays)), "dependence"),
    "noise that is taken back": Mistake(taken_back, "dependence"),
    "one tile of noise": Mistake(flat(tiled), "dependence"),
    "the same draws in another order": Mistake(flat(shuffled), "dependence"),
    "far entries with the draws of the first": Mistake(flat(last_entries_again), "dependence"),
    "noise from a table": Mistake(flat(from_a_table), "dependence"),
    "noise that entries share in part in reverse": Mistake(flat(reversed_in_part), "dependence"),
    "noise that entries share in part": Mistake(flat(smoothed), "dependence"),
    "a last round that follows from the others": Mistake(
        flat(predicted_by(64)), "dependence", {"rounds": 64}
    ),
    "no noise in one entry of a hundred": Mistake(
        flat(none_in_one_draw_of(100)), "tails", needs_all_noise=True
    ),
    "no noise in one entry of a thousand": Mistake(
        flat(none_in_one_draw_of(1000)), "tails", needs_all_noise=True
    ),
    "hardly any noise in one entry of a thousand": Mistake(
        flat(none_in_one_draw_of(1000, left=1e-3)), "tails", needs_all_noise=True
    ),
    "Laplace noise": Mistake(aggregator(finish=noisy(laplace)), "tails", needs_all_noise=True),
    "noise that ends at 2.5": Mistake(flat(ended(2.5)), "tails", needs_all_noise=True),
    "noise that ends at 4": Mistake(flat(ended(4.0)), "tails", needs_all_noise=True),
    "sums of twelve uniforms": Mistake(flat(of_uniforms(12)), "tails", needs_all_noise=True),
}
