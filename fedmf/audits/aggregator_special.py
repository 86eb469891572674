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
from fedmf.audits.aggregator_not_finite import send_non_numbers
from fedmf.audits.aggregator_runs import WrongResult

# Rounds of a run that a clip norm may follow slowly, and what is looked for there: an excess, with
# so many calls at most.
_MOST_BEFORE, _SLOW_EXCESS, _MOST_SLOW_CALLS = 24, 0.4, 240
_RELEASE_ERROR = 0.05
# Rows of the test of missing clients.
_DROPOUT_ROWS = 5
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
    for words, update in (
        ("updates inside the clip norm of {} clients, a round before", inside),
        ("huge updates of {} clients, a round before", huge),
    ):
        rows = [
            dataclasses.replace(
                plain,
                sent=words,
                before=inputs.of_first(number, update, inputs.zeros),
                rounds_before=1,
            )
            for number in numbers
        ]
        if tests.measurements.runs.length > 1:
            movements += _scan(tests, numbers, rows, 2)
    movements += _follow_slowly(tests, plain)
    scaled = [
        dataclasses.replace(movement, p_value=movement.p_value * len(movements))
        for movement in movements
    ]
    tests.conclude("cohort", scaled, [])


def _follow_slowly(tests: MovementTests, plain: Scenario) -> Iterator[Movement]:
    """Yields what a quarter of the clients moves by taking part in all rounds of a run, or in none.

    In the first three quarters of the rounds some of the others are there, in the last ones all of
    them: a clip norm that has followed those who were there, if slowly, counts for all.
    """
    inputs = tests.inputs
    clients = inputs.clients
    inside = inputs.sent(INSIDE, inputs.flat)
    length = min(tests.measurements.runs.length, _MOST_BEFORE)
    measured = max(1, length // 4)
    if length <= measured:
        return
    beside: dict[int, Estimate] = {}
    quarters = sorted({0, clients // 4, clients // 2, 3 * clients // 4, clients})
    for fewer, more in itertools.pairwise(quarters):
        absent = [inside] * fewer + [inputs.zeros] * (more - fewer)
        absent += [inside] * (clients - more)
        row = dataclasses.replace(
            plain,
            sent=f"updates inside the clip norm of {more - fewer} clients, or none, in all rounds "
            f"of a run, beside those of {fewer} clients and, in its last rounds, of all",
            updates=inputs.everyone(inside),
            before=inputs.of_first(more, inside, inputs.zeros),
            rounds_before=length - measured,
            rounds_measured=measured,
            clients=more - fewer,
            excess=_SLOW_EXCESS,
            most_calls=_MOST_SLOW_CALLS,
        )
        without = dataclasses.replace(
            row,
            updates=functools.partial(list, absent),
            before=inputs.of_first(fewer, inside, inputs.zeros),
        )
        try:
            yield from tests.measurements.movements(
                dataclasses.replace(row, beside=without), 1, beside
            )
        except (WrongResult, NotFinite):
            raise
        except Exception:  # refused
            tests.measurements.runs.start()


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
    chance, seen = _nobody(tests)
    if chance < tests.outcomes.threshold:
        tests.outcomes.add(
            "dropout",
            chance,
            f"No client: {seen}; claimed is noise.",
            mistake="A release without noise tells that nobody came: add the noise of a full "
            "round, or release nothing where one client is missing.",
        )
        return
    nan = np.full_like(inside, math.nan)
    numbers = sorted({1, clients // 2, clients - 1})
    rows = {f"{number} of {clients} clients": (number, [inside] * number) for number in numbers}
    rows[f"one client, and updates of NaN of {clients - 1} others"] = (
        1,
        [inside] + [nan] * (clients - 1),
    )
    for sent, (number, updates) in rows.items():
        ratio = clients / number
        scenario = Scenario(
            test="dropout",
            sent=sent,
            updates=functools.partial(list, updates),
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
        except WrongResult:
            raise
        except NotFinite:
            if len(updates) < clients:
                raise
            # Another test answers for updates of NaN.
            tests.measurements.runs.start()
            continue
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
                _DROPOUT_ROWS,
            )
        )
    tests.conclude("dropout", movements, refused)


def _nobody(tests: MovementTests) -> tuple[float, str]:
    """Returns the chance of so little noise where no client came, and the noise in words.

    It is 1 where the function refuses.
    """
    from scipy import stats

    measurements = tests.measurements
    base = int(measurements.noise.array_samples.sum())
    scenario = Scenario(test="dropout", sent="", updates=list, direction=tests.inputs.flat)
    try:
        estimate = measurements.measure(
            dataclasses.replace(scenario, most_calls=1), beside_noise=True
        )
    except Exception:  # refused, or no release
        measurements.runs.start()
        return 1.0, ""
    if not measurements.noise.exists:
        return 1.0, ""
    ratio = estimate.squares / estimate.degrees
    chance = float(stats.f.cdf(ratio, estimate.degrees, base))
    words = f"the noise is {math.sqrt(ratio):.4g} times as large as with updates of zeros"
    return chance * _DROPOUT_ROWS, words


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
        p_value = 4 * len(rows) * float(min(smaller, larger))
        results.append((p_value, sent, math.sqrt(ratio), estimate.degrees))
        if estimate.degrees_along:
            # A movement that differs between rounds makes it larger, which is no mistake.
            ratio = estimate.squares_along / estimate.degrees_along
            smaller = stats.f.cdf(ratio, estimate.degrees_along, base)
            p_value = 2 * len(rows) * float(smaller)
            words = f"{sent}, along them"
            results.append((p_value, words, math.sqrt(ratio), estimate.degrees_along))
    if not results:
        tests.outcomes.add("noise-with-data", 1.0, "The function refused all updates.")
        return
    p_value, sent, ratio, degrees = min(results)
    most_degrees = max(result[-1] for result in results)
    error = math.sqrt(1 / (2 * most_degrees) + 1 / (2 * base))
    if ratio < 1 and p_value < tests.outcomes.threshold:
        # The estimate is F-distributed about the true ratio: this is an upper bound on it.
        lowest = float(stats.f.ppf(tests.outcomes.error / len(rows) / 2, degrees, base))
        largest_ratio = ratio / math.sqrt(lowest)
        tests.most_moved = max(tests.most_moved, 1 / max(largest_ratio, 1e-9))
    tests.outcomes.add(
        "noise-with-data",
        p_value,
        f"{sent}, beside updates of zeros: the noise is {ratio:.4g} times as large; claimed is the "
        "same.",
        mistake="Noise whose scale follows the updates does this: it must not know them.",
        sees=1 + tests.outcomes.reach(2 * len(rows)) * error,
    )


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
