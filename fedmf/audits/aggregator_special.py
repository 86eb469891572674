"""Tests of movement whose statistic is more than one projection: scans over numbers of clients,
missing clients, entries that are no numbers, and the noise beside data.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from fedmf.audits.aggregator_inputs import HUGE, INSIDE, Scenario
from fedmf.audits.aggregator_movement import (
    Estimate,
    Movement,
    MovementTests,
    NotFinite,
    SpecialTest,
)
from fedmf.audits.aggregator_runs import WrongResult

# Arrays whose entries that are no numbers are tried at three places each; of more, in the middle.
_FEW_ARRAYS, _MOST_ARRAYS = 8, 64
# Inputs with entries that are no numbers; fewer are sent.
_MOST_INPUTS = 200
# Rounds of a run that a clip norm may follow slowly.
_MOST_BEFORE = 24
_RELEASE_ERROR = 0.05
# Entries of noise that are looked at beside data.
_ENTRIES_BESIDE_DATA = 30_000


def follow_cohort(tests: MovementTests) -> None:
    """Tests that no client moves the clip norm or the weight of others, in this round or later.

    The number of clients with large updates is scanned: between two numbers the release may move
    by their difference; where other clients' updates are not zero, or of another round, by twice
    that.
    """
    inputs = tests.inputs
    clients = inputs.clients
    inside = inputs.sent(INSIDE, inputs.flat)
    small = inputs.sent(0.05, inputs.flat)
    huge = inputs.sent(HUGE, inputs.flat)
    plain = Scenario(
        test="cohort",
        sent="updates inside the clip norm, of {} clients, others zero",
        updates=inputs.everyone(inside),
        direction=inputs.flat,
        excess=1.0,
        most_calls=100,
        mistake="A clip norm or a weight that follows the other clients' updates, of this round "
        "or of earlier ones, does this: fix it before, or account for it.",
    )
    numbers = _numbers(clients)
    rows = [
        dataclasses.replace(plain, updates=inputs.of_first(number, inside, inputs.zeros))
        for number in numbers
    ]
    movements = list(_scan(tests, numbers, rows, 1))
    plain = dataclasses.replace(plain, excess=max(1.0, clients / 4), most_calls=60)
    rows = [
        dataclasses.replace(
            plain,
            sent="updates inside the clip norm, of {} clients, others small",
            updates=inputs.of_first(number, inside, small),
        )
        for number in numbers
    ]
    movements += _scan(tests, numbers, rows, 2)
    slow = min(tests.measurements.runs.length, _MOST_BEFORE) - 1
    for words, update, rounds in (
        ("updates inside the clip norm of {} clients, a round before", inside, 1),
        ("huge updates of {} clients, a round before", huge, 1),
        ("updates inside the clip norm of {} clients, in rounds before", inside, slow),
    ):
        rows = [
            dataclasses.replace(
                plain,
                sent=words,
                before=inputs.of_first(number, update, inputs.zeros),
                rounds_before=rounds,
            )
            for number in numbers
        ]
        if slow >= rounds:
            movements += _scan(tests, numbers, rows, 2)
    scaled = [
        dataclasses.replace(movement, p_value=movement.p_value * len(movements))
        for movement in movements
    ]
    tests.conclude("cohort", scaled, [])


def _numbers(clients: int) -> list[int]:
    """Returns numbers of clients: of any two next to each other at most a quarter are between."""
    half = clients // 2
    numbers = {0, 1, 2, 3, clients // 4, half - 1, half, half + 1}
    numbers |= {3 * clients // 4, clients - 2, clients - 1, clients}
    return sorted(number for number in numbers if 0 <= number <= clients)


def _scan(
    tests: MovementTests, numbers: Sequence[int], rows: Sequence[Scenario], allowed: int
) -> Iterator[Movement]:
    """Yields movements between any two numbers of clients."""
    measurements = tests.measurements
    estimates: list[tuple[int, Scenario, Estimate]] = []
    for number, row in zip(numbers, rows, strict=True):
        try:
            estimates.append((number, row, measurements.measure(row)))
        except (WrongResult, NotFinite):
            raise
        except Exception:  # refused
            measurements.runs.start()
    for (fewer, row, low), (more, _, high) in itertools.combinations(estimates, 2):
        words = f"from {fewer} to {more}"
        scenario = dataclasses.replace(
            row, sent=row.sent.format(words), clients=allowed * (more - fewer)
        )
        yield measurements.against_claim(
            scenario,
            abs(float(high.white[0] - low.white[0])),
            math.hypot(low.spread, high.spread),
            float(low.relative[0]),
            1,
        )


def miss_clients(tests: MovementTests) -> None:
    """Tests that clients who are missing do not raise what the others move."""
    inputs = tests.inputs
    clients = inputs.clients
    inside = inputs.sent(INSIDE, inputs.flat)
    movements = []
    refused = []
    for number in sorted({1, clients // 2, clients - 1}):
        ratio = clients / number
        scenario = Scenario(
            test="dropout",
            sent=f"{number} of {clients} clients",
            updates=functools.partial(_repeat, inside, number),
            direction=inputs.flat,
            clients=number,
            excess=min(0.5, 0.9 * (ratio - 1)),
            most_calls=400,
            mistakes={
                ratio: "A mean that divides by those who came, with noise for all, does this: "
                "divide by a fixed number."
            },
            mistake="Noise that becomes less where clients are missing does this.",
        )
        try:
            estimate = tests.measurements.measure(scenario, beside_noise=True)
        except (WrongResult, NotFinite):
            raise
        except Exception as error:
            refused.append(type(error).__name__)
            tests.measurements.runs.start()
            continue
        noise = max(math.sqrt(estimate.squares / estimate.degrees), 1e-9)
        if not tests.measurements.noise.exists:
            noise = 1.0
        movements.append(
            tests.measurements.against_claim(
                scenario,
                abs(float(estimate.white[0])) / noise,
                estimate.spread,
                math.hypot(float(estimate.relative[0]), math.sqrt(1 / (2 * estimate.degrees))),
                3,
            )
        )
    tests.conclude("dropout", movements, refused)


def _repeat(update: np.ndarray, number: int) -> list[np.ndarray]:
    return [update] * number


def compare_releases(tests: MovementTests) -> None:
    """Tests that the release is a mean where a mean is claimed, and a sum where a sum is."""
    inputs = tests.inputs
    measurements = tests.measurements
    claim = tests.claim
    ratio = float(claim.clients) if claim.releases == "mean" else 1 / claim.clients
    noise = measurements.noise.overall_std / measurements.noise.required_std
    sizes = []
    matches = abs(noise / ratio - 1) < 0.1
    for norm in (0.5, INSIDE):
        scenario = Scenario(
            test="releases",
            sent=f"{claim.clients} equal updates of {norm:g} clip norms",
            updates=inputs.everyone(inputs.sent(norm, inputs.flat)),
            direction=inputs.flat,
            clients=claim.clients,
            most_calls=60,
        )
        estimate = measurements.measure(scenario)
        one = claim.clients * norm * float(estimate.gains[0])
        size = float(estimate.white[0]) / one
        sizes.append(size)
        error = _RELEASE_ERROR + 4 * estimate.spread / one / ratio
        matches = matches and error < 1 and abs(size / ratio - 1) < error
    other = "sum" if claim.releases == "mean" else "mean"
    remark = ""
    if not matches and max(sizes) < 0.9:
        remark = f"Remark: updates count {max(sizes):.3g} times, which costs utility."
    tests.outcomes.add(
        "releases",
        float(not matches),
        f"{claim.clients} equal updates inside the clip norm move the release {sizes[0]:.4g} and "
        f"{sizes[1]:.4g} times as far as the {claim.releases} that is claimed.",
        mistake=f"The release is a {other}, with the noise of one: claim `releases`={other!r}.",
        remark=remark,
    )


def hide_noise(tests: MovementTests) -> None:
    """Tests that the noise does not follow the updates: F-tests, since entries are independent."""
    from scipy import stats

    inputs = tests.inputs
    measurements = tests.measurements
    if not measurements.noise.exists:
        tests.outcomes.skip("noise-with-data", "Not made: there is no noise.")
        return
    huge = inputs.sent(HUGE, inputs.flat)
    base = int(measurements.noise.array_samples.sum())
    results = []
    rows = {
        f"{inputs.clients} equal updates inside the clip norm": inputs.everyone(
            inputs.sent(INSIDE, inputs.flat)
        ),
        f"one update of {HUGE:g} clip norms among zeros": inputs.first(huge, inputs.zeros),
    }
    for sent, updates in rows.items():
        scenario = Scenario(
            test="noise-with-data",
            sent=sent,
            updates=updates,
            direction=inputs.flat,
            excess=0.1,
            most_calls=max(16, math.ceil(_ENTRIES_BESIDE_DATA / inputs.num_entries)),
        )
        try:
            estimate = measurements.measure(scenario, beside_noise=True)
        except (WrongResult, NotFinite):
            raise
        except Exception:  # refused
            measurements.runs.start()
            continue
        ratio = estimate.squares / estimate.degrees
        smaller = stats.f.cdf(ratio, estimate.degrees, base)
        larger = stats.f.sf(ratio, estimate.degrees, base)
        p_value = 2 * len(rows) * float(min(smaller, larger))
        results.append((p_value, sent, math.sqrt(ratio), estimate.degrees))
    if not results:
        tests.outcomes.add("noise-with-data", 1.0, "The function refused all updates.")
        return
    p_value, sent, ratio, degrees = min(results)
    error = math.sqrt(1 / (2 * degrees) + 1 / (2 * base))
    if ratio < 1 and p_value < tests.outcomes.threshold:
        # The estimate is F-distributed about the true ratio: this is an upper bound on it.
        lowest = float(stats.f.ppf(tests.outcomes.error / len(rows), degrees, base))
        largest_ratio = ratio / math.sqrt(lowest)
        tests.most_moved = max(tests.most_moved, 1 / max(largest_ratio, 1e-9))
    tests.outcomes.add(
        "noise-with-data",
        p_value,
        f"{sent}, beside updates of zeros: the noise is {ratio:.4g} times as large; claimed is the "
        "same.",
        mistake="Noise whose scale follows the updates does this: it must not know them.",
        sees=1 + tests.outcomes.reach(len(rows)) * error,
    )


def send_non_numbers(tests: MovementTests) -> None:
    """Tests that NaN, infinities and squares that overflow do not pass, in any array."""
    measurements = tests.measurements
    inputs = tests.inputs
    inside = inputs.sent(INSIDE, inputs.flat)
    passed = []
    largest_chance = 1.0
    num_inputs = 0
    for words, update, place in _non_numbers(tests, inside):
        num_inputs += 1
        p_value = 1.0
        try:
            row = measurements.release(inputs.first(update, inside, place)())
            p_value = _unlike_others(tests, row)
        except WrongResult:
            raise
        except NotFinite:
            p_value = 0.0
        except Exception:  # a refusal is as good as a zero
            measurements.runs.start()
            continue
        largest_chance = min(largest_chance, p_value)
        if p_value * _MOST_INPUTS < tests.outcomes.threshold:
            passed.append(words)
            measurements.runs.start()
            continue
        try:
            measurements.release(inputs.everyone(inside)())
        except NotFinite:
            passed.append(f"{words} a round before")
            largest_chance = 0.0
            measurements.runs.start()
        except WrongResult:
            raise
        except Exception:
            measurements.runs.start()
    tests.broken |= largest_chance == 0
    seen = "nothing of them came out"
    if passed:
        seen = f"they passed into the release ({'; '.join(passed[:3])})"
    tests.outcomes.add(
        "not-finite",
        min(1.0, num_inputs * largest_chance),
        f"{num_inputs} updates with NaN, infinities, or entries whose squares overflow: {seen}; "
        "claimed is a clip.",
        mistake="clip_norm / norm is no clip for them: such a release tells for certain that this "
        "client is there. Count an update whose norm is not finite as zero.",
    )


def _non_numbers(tests: MovementTests, inside: np.ndarray) -> Iterator[tuple[str, np.ndarray, int]]:
    """Yields words, an update with an entry that is no number, and its client."""
    inputs = tests.inputs
    sizes = np.array(tests.claim.sizes)
    shares: tuple[float, ...]
    values: tuple[float, ...]
    if inputs.num_arrays <= _FEW_ARRAYS:
        arrays = np.arange(inputs.num_arrays)
        shares = (0.0, 0.5, 1.0)
        values = (math.nan, math.inf, -math.inf, 1e30)
    else:
        most = min(inputs.num_arrays, _MOST_ARRAYS)
        arrays = np.unique(np.linspace(0, inputs.num_arrays - 1, most).astype(int))
        shares = (0.5,)
        values = (math.nan, math.inf)
    for array in arrays:
        places = {int(inputs.starts[array] + share * (sizes[array] - 1)) for share in shares}
        for place, value in itertools.product(sorted(places), values):
            update = inside.copy()
            update[place] = value
            yield f"{value:g} in array {array + 1}", update, 0
    for value in (math.nan, math.inf, 1e25):
        yield f"{value:g} in all entries", np.full_like(inside, value), 0
        yield f"{value:g} in all entries", np.full_like(inside, value), inputs.clients - 1
    both = inside.copy()
    both[0] = math.inf
    both[-1] = -math.inf
    yield "both infinities", both, 0
    for value in (math.nan, math.inf, 1e200):
        double = inside.astype(np.float64)
        double[-1] = value
        yield f"{value:g} of float64", double, 0
    # Squares that vanish: the norm is 0, and the update is not.
    yield "1e-30 in all entries", np.full_like(inside, 1e-30), 0
    yield "1e-200 of float64 in all entries", np.full(len(inside), 1e-200), 0


def _unlike_others(tests: MovementTests, row: np.ndarray) -> float:
    """Returns an upper bound on the chance of the release's largest entry beside the others'."""
    from scipy import stats

    measurements = tests.measurements
    noise = measurements.noise
    white = row / noise.entry_std
    if noise.block > 1:
        white /= math.sqrt(float(np.diagonal(noise.covariance).max()))
        if measurements.runs.round > noise.block:
            return 1.0
    starts = tests.inputs.starts
    signs = tests.inputs.signs
    means = np.add.reduceat(white * signs, starts) / np.array(tests.claim.sizes)
    white = white - signs * means[tests.inputs.array_of]
    # One client may move an entry by so many standard deviations.
    excess = float(np.abs(white).max()) * (1 - 1e-3) - 2 * measurements.allowed(1)
    return min(1.0, 2 * len(white) * float(stats.norm.sf(excess)))


def find_smaller_arrays(tests: MovementTests) -> None:
    """Finds arrays with less noise than claimed that one client is seen to move by less."""
    from scipy import stats

    noise = tests.measurements.noise
    inputs = tests.inputs
    chances = stats.chi2.cdf(
        noise.array_samples * (noise.array_std / noise.required_std) ** 2, noise.array_samples
    )
    for array in np.flatnonzero(chances < tests.outcomes.threshold):
        ratio = float(noise.array_std[array] / noise.required_std)
        in_claim = float(noise.array_std[array] / noise.movement_std)
        direction = inputs.direction(inputs.signs * (inputs.array_of == array))
        is_smaller = True
        for norm in (INSIDE, HUGE):
            scenario = Scenario(
                test="noise",
                sent=f"{inputs.clients} equal updates of {norm:g} clip norms, in array {array + 1}",
                updates=inputs.everyone(inputs.sent(norm, direction)),
                direction=direction,
                clients=inputs.clients,
                excess=max(0.02, (1 - ratio) / 2),
                most_calls=1000,
            )
            [movement] = tests.measurements.movements(scenario, 2 * inputs.num_arrays, {})
            # In parts of what the claim says, whatever the noise is.
            absolute = movement.size * in_claim
            spread = movement.spread * in_claim
            # Of noise as it is: at most what the claim allows.
            excess = absolute / ratio - 1
            contradicted = excess > tests.outcomes.deviations(2) * spread / ratio
            as_claimed = absolute + tests.outcomes.reach(2) * spread >= 1
            is_smaller = is_smaller and not contradicted and not as_claimed
        if is_smaller:
            tests.smaller_arrays.append(int(array))


TESTS: dict[str, SpecialTest] = {
    "dropout": miss_clients,
    "releases": compare_releases,
    "noise-with-data": hide_noise,
    "cohort": follow_cohort,
    "not-finite": send_non_numbers,
}
