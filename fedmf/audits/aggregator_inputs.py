"""Inputs of the tests of movement: a table of what clients send, beside what one of them may move.

A row is a `Scenario`; rows with the same `test` are one test. To add a mistake that a row would
catch, add the row: ten lines.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from fedmf.audits.aggregator_claim import AggregatorClaim
from fedmf.audits.aggregator_runs import NUM_EXAMPLES

# Norm of an update that no clip may let through, and of one just within the clip norm, in clip
# norms.
HUGE, INSIDE = 1e4, 0.999
# A clip that begins at 1.05 clip norms lets this one through.
_BARELY_ABOVE = 1.045
# Norms above the clip norm: no clip that begins above and ends sqrt(10) later escapes them.
_NORMS = (
    1.1,
    1.2,
    1.4,
    2.0,
    2.8,
    4.0,
    6.0,
    10.0,
    20.0,
    40.0,
    100.0,
    300.0,
    1e3,
    3e3,
    3e4,
    1e5,
)
_LARGEST = 1e6
# Arrays and places that are tried one by one, at most.
_MOST_ARRAYS, _MOST_PLACES = 16, 64
# Of so few arrays all subsets are sent.
_MOST_SUBSETS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Direction:
    """Unit vectors along which a release is projected: one for each owner of entries.

    Attributes:
      vector: (entries,), of norm 1 for each owner.
      owner: (entries,), its number; -1 for nobody.
    """

    vector: np.ndarray
    owner: np.ndarray

    @property
    def count(self) -> int:
        """Number of owners."""
        return int(self.owner.max()) + 1


Updates = Callable[[], list[np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """Updates of one round, and what clients may move.

    Attributes:
      test: name of the test.
      sent: the updates in words.
      updates: makes one vector a client.
      direction: along which the movement is measured.
      clients: that send along each of its vectors: each may move the release by 1.
      excess: relative excess of a movement that there are enough calls for.
      beside: a scenario whose release is subtracted: then `clients` may differ.
      in_parts: whether the movements in the first and in the last rounds of a run are held against
        the claim, too.
      before: makes the updates of so many rounds at the start of a run, before the measured ones.
      rounds_before: their number.
      rounds_measured: rounds of one movement that follow, where there are rounds before.
      examples: of each client, where a test sends other numbers.
      most_calls: of the function.
      mistakes: movement that each makes -> what it is.
      mistake: what another excess shows.
    """

    test: str
    sent: str
    updates: Updates
    direction: Direction
    clients: float = 1.0
    excess: float = 0.5
    beside: "Scenario | None" = None
    in_parts: bool = False
    before: Updates | None = None
    rounds_before: int = 0
    rounds_measured: int = 1
    examples: Sequence[int] | None = None
    most_calls: int = 1000
    mistakes: Mapping[float, str] = dataclasses.field(default_factory=dict)
    mistake: str = (
        "A clip at a larger norm, by the largest entry, or one that leaves out an array or a kind "
        "of array does this: clip all arrays as one vector."
    )


class Inputs:
    """Updates for the shapes of a claim.

    Attributes:
      signs: (entries,), 1 or -1 at random.
      array_of: (entries,), the number of the array.
      zeros: an update of zeros, or a small one where the function raises an error on zeros.
    """

    def __init__(self, claim: AggregatorClaim, zeros: np.ndarray) -> None:
        self.claim = claim
        self.zeros = zeros
        self.clients = claim.clients
        sizes = np.array(claim.sizes)
        self.num_entries = int(sizes.sum())
        self.num_arrays = len(sizes)
        rng = np.random.default_rng(claim.seed)
        self.signs = rng.choice([-1.0, 1.0], self.num_entries)
        self.array_of = np.repeat(np.arange(len(sizes)), sizes)
        self.starts = np.cumsum([0, *sizes[:-1]])
        self._everyone = np.zeros(self.num_entries, int)
        self.flat = self.direction(self.signs)
        # Every other entry, and the rest.
        self.even = self.direction(self.signs * (np.arange(self.num_entries) % 2 == 0))
        self.odd = self.direction(self.signs * (np.arange(self.num_entries) % 2 == 1))

    def direction(self, vector: np.ndarray) -> Direction:
        """Returns the direction of a vector."""
        unit = np.asarray(vector, np.float64)
        return Direction(vector=unit / np.linalg.norm(unit), owner=self._everyone)

    def sent(self, norm: float, direction: Direction, dtype: type = np.float32) -> np.ndarray:
        """Returns an update of so many clip norms along a direction with one vector."""
        return (norm * self.claim.clip_norm * direction.vector).astype(dtype)

    def everyone(self, update: np.ndarray) -> Updates:
        """Makes the same update for all clients."""
        return lambda: [update] * self.clients

    def first(self, update: np.ndarray, others: np.ndarray, place: int = 0) -> Updates:
        """Makes an update of one client, and another one of all others."""

        def updates() -> list[np.ndarray]:
            sent = [others] * self.clients
            sent[place] = update
            return sent

        return updates

    def of_first(self, number: int, update: np.ndarray, others: np.ndarray) -> Updates:
        """Makes an update of so many clients, and another one of the rest."""
        return lambda: [update] * number + [others] * (self.clients - number)

    def unclipped(self, norm: float) -> dict[float, str]:
        """Returns mistakes by what one update of so many clip norms then moves."""
        arrays = self.num_arrays
        return {
            norm: "No clip, one that begins above a threshold, or a clip of each array by itself, "
            "does this.",
            math.sqrt(arrays): f"Clipping each of the {arrays} arrays by itself does this: the "
            f"sensitivity is sqrt({arrays}).",
        }

    def scenarios(self) -> Iterator[Scenario]:
        """Yields the table: cheap rows first."""
        yield from self._types()
        yield from self._patterns()
        yield from self._one()
        yield from self._order()
        yield from self._weights()
        yield from self._norms()
        yield from self._sums()

    def _norms(self) -> Iterator[Scenario]:
        precise = (1 - INSIDE) + 0.05
        for norm, excess in (
            (0.5, 0.3),
            (INSIDE, precise),
            (HUGE, precise),
            (_BARELY_ABOVE, (_BARELY_ABOVE - 1) * 0.95),
            *((norm, min(0.5, 0.9 * (norm - 1))) for norm in _NORMS),
            (_LARGEST, 0.5),
        ):
            yield Scenario(
                test="norms",
                sent=f"{self.clients} equal updates, each of {norm:.4g} clip norms",
                updates=self.everyone(self.sent(norm, self.flat)),
                direction=self.flat,
                clients=self.clients,
                excess=excess,
                in_parts=norm == HUGE,
                mistakes=self.unclipped(norm) if norm > 1 else {},
                mistake="A clip at a larger norm does this, one that begins above the clip norm, "
                "an update that counts again in later rounds, or less noise than claimed.",
            )

        yield Scenario(
            test="norms",
            sent=f"{self.clients} equal updates of {HUGE:g} clip norms, after zeros a round before",
            updates=self.everyone(self.sent(HUGE, self.flat)),
            direction=self.flat,
            clients=self.clients,
            before=self.everyone(self.zeros),
            rounds_before=1,
            mistakes=self.unclipped(HUGE),
            mistake="A clip by the norms of the round before does this.",
        )

    def _patterns(self) -> Iterator[Scenario]:
        sizes = np.bincount(self.array_of)
        by_array = self.signs / np.sqrt(sizes[self.array_of])
        arrays = np.unique(
            np.linspace(0, self.num_arrays - 1, min(self.num_arrays, _MOST_ARRAYS)).astype(int)
        )
        patterns = {
            "with the same norm in each array": by_array,
            "of positive entries": np.abs(self.signs),
            "of negative entries": -np.abs(self.signs),
        }
        one_array = set()
        if self.num_arrays > 1:
            for array in arrays:
                inside = self.array_of == array
                patterns[f"whose array {array + 1} alone is not zero"] = self.signs * inside
                one_array.add(f"whose array {array + 1} alone is not zero")
                patterns[f"whose array {array + 1} is zero"] = self.signs * ~inside
        if self.num_arrays <= _MOST_SUBSETS:
            for number in range(2, self.num_arrays - 1):
                for subset in itertools.combinations(range(self.num_arrays), number):
                    names = " and ".join(str(array + 1) for array in subset)
                    inside = np.isin(self.array_of, subset)
                    patterns[f"whose arrays {names} alone are not zero"] = self.signs * inside
        for place in np.unique([0, self.num_entries // 2, self.num_entries - 1]):
            entry = np.arange(self.num_entries) == place
            patterns[f"whose entry {place + 1} alone is not zero"] = self.signs * entry
        for words, vector in patterns.items():
            direction = self.direction(vector)
            for norm in (1.5, HUGE):
                # A factor on one array moves all other directions by less.
                precise = norm == HUGE and words in one_array
                excess = 0.25
                most_calls = 60
                if precise:
                    excess = (1 - INSIDE) + 0.05
                    most_calls = 500
                yield Scenario(
                    test="patterns",
                    sent=f"{self.clients} equal updates of {norm:.4g} clip norms, {words}",
                    updates=self.everyone(self.sent(norm, direction)),
                    direction=direction,
                    clients=self.clients,
                    excess=excess,
                    most_calls=most_calls,
                    mistakes=self.unclipped(norm),
                )

    def _types(self) -> Iterator[Scenario]:
        for words, update in self._typed_updates():
            norm = float(np.linalg.norm(update.astype(np.float64))) / self.claim.clip_norm
            if norm < 1.4 or not math.isfinite(norm):
                continue
            direction = self.direction(np.sign(update.astype(np.float64)))
            yield Scenario(
                test="types",
                sent=f"{self.clients} updates {words}, each of {norm:.3g} clip norms",
                updates=self.everyone(update),
                direction=direction,
                clients=self.clients,
                most_calls=20,
                mistakes=self.unclipped(norm),
                mistake="A square or a sum in the array's own type, which overflows, or a type "
                "that is not clipped, does this: compute the norm in float64.",
            )

    def _typed_updates(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields updates of other types; integers whose squares, or sums of them, wrap to 0."""
        for norm in (1.5, HUGE):
            yield "of float64", self.sent(norm, self.flat, np.float64)
            yield "of long double", self.sent(norm, self.flat, np.longdouble)
        yield "of bool", np.ones(self.num_entries, bool)
        root = math.sqrt(self.num_entries)
        for entry in (2 * self.claim.clip_norm / root, 1.0, 300.0, 6e4):
            if 6e-8 < entry <= 6.5e4:
                yield "of float16", (entry * self.signs).astype(np.float16)
        for bits in (8, 16, 32, 64):
            half = 2.0 ** (bits // 2)
            largest = 2.0 ** (bits - 1) - 1
            entries = {half, half / 2, min(1.4 * half, largest), 3 * half / 4, largest / 2, 1.0}
            for entry in sorted(entries):
                whole = math.floor(entry)
                # Of both signs for signed types, of one for others.
                signed = (whole * self.signs.astype(np.int64)).astype(f"int{bits}")
                yield f"of int{bits}", signed
                if bits < 64:
                    positive = np.full(self.num_entries, whole, f"uint{bits}")
                    yield f"of uint{bits}", positive
            lowest = np.full(self.num_entries, -(2 ** (bits - 1)), f"int{bits}")
            yield f"of int{bits}", lowest

    def _one(self) -> Iterator[Scenario]:
        huge = self.sent(HUGE, self.flat)
        mistakes = self.unclipped(HUGE)
        mistakes[float(self.clients)] = (
            "Clipping the mean, and not each update before it, does this."
        )
        for place in (0, self.clients - 1):
            yield Scenario(
                test="one",
                sent=f"one update of {HUGE:g} clip norms, of client {place + 1}, among zeros",
                updates=self.first(huge, self.zeros, place),
                direction=self.flat,
                mistakes=mistakes,
                most_calls=400,
            )
        others = self.sent(INSIDE, self.odd)
        alone = Scenario(
            test="one",
            sent="updates inside the clip norm",
            updates=self.first(self.zeros, others),
            direction=self.odd,
            excess=1.0,
            most_calls=200,
        )
        for norm in (INSIDE, HUGE):
            yield dataclasses.replace(
                alone,
                sent=f"one update of {norm:g} clip norms, or none, beside others",
                updates=self.first(self.sent(norm, self.even), others),
                beside=alone,
                mistake="A clip or a weight that follows the other clients' updates does this.",
            )
        others = self.sent(INSIDE, self.flat)
        yield dataclasses.replace(
            alone,
            sent=f"one update of {HUGE:g} clip norms, or none, against those of others",
            updates=self.first(self.sent(-HUGE, self.flat), others),
            direction=self.flat,
            beside=dataclasses.replace(
                alone, updates=self.first(self.zeros, others), direction=self.flat
            ),
            mistake="A clip of sums of several clients' updates does this: clip each before.",
        )

    def _order(self) -> Iterator[Scenario]:
        """Yields clients at up to 64 places, each along entries of its own."""
        most = min(self.clients, _MOST_PLACES, self.num_entries)
        places = np.unique(np.linspace(0, self.clients - 1, most).astype(int))
        owner = np.arange(self.num_entries) % len(places)
        vector = self.signs / np.sqrt(np.bincount(owner))[owner]
        for norm in (3.0, HUGE):

            def updates(norm: float = norm) -> list[np.ndarray]:
                sent = [self.zeros] * self.clients
                for number, place in enumerate(places):
                    along = np.where(owner == number, vector, 0)
                    sent[place] = (norm * self.claim.clip_norm * along).astype(np.float32)
                return sent

            yield Scenario(
                test="order",
                sent=f"{len(places)} updates of {norm:g} clip norms, each along entries of its own",
                updates=updates,
                direction=Direction(vector=vector, owner=owner),
                excess=0.9,
                most_calls=400,
                mistakes=self.unclipped(norm) | {2.0: "A client that counts twice does this."},
                mistake="A client that is treated in another way for its place, or for its "
                "entries, does this.",
            )

    def _weights(self) -> Iterator[Scenario]:
        """Yields rows for functions that are told how many examples each client has."""
        others = self.sent(INSIDE, self.odd)
        fallback = "A weight that follows the other clients' examples, or one above 1, does this."
        plain = Scenario(
            test="weights",
            sent="clients with equally many examples",
            updates=self.first(self.zeros, others),
            direction=self.odd,
            clients=2,
            most_calls=200,
            mistake=fallback,
        )
        for number in (0, 1, 10 * NUM_EXAMPLES, 1000 * NUM_EXAMPLES, 10**6):
            counts = [number] + [NUM_EXAMPLES] * (self.clients - 1)
            share = number / sum(counts)
            yield dataclasses.replace(
                plain,
                sent=f"one client with {number:,} examples, or {NUM_EXAMPLES}, beside others",
                beside=plain,
                examples=counts,
            )
            yield Scenario(
                test="weights",
                sent=f"an update of one client with {number:,} examples, among zeros",
                updates=self.first(self.sent(HUGE, self.flat), self.zeros),
                direction=self.flat,
                examples=counts,
                most_calls=400,
                mistakes=self.unclipped(HUGE)
                | {
                    self.clients * share: "Weights by examples with noise for equal weights do "
                    f"this: a client of share {share:.3g} moves a mean by {share:.3g} clip norms."
                },
                mistake=fallback,
            )
        # Many clients together show a weight that is barely above 1.
        half = self.clients // 2
        for number in (1, 10 * NUM_EXAMPLES, 10**6):
            yield Scenario(
                test="weights",
                sent=f"updates of {half} clients with {number:,} examples, zeros of others with 1",
                updates=self.of_first(half, self.sent(HUGE, self.flat), self.zeros),
                direction=self.flat,
                clients=half,
                excess=0.1,
                examples=[number] * half + [1] * (self.clients - half),
                most_calls=200,
                mistake=fallback,
            )

    def _sums(self) -> Iterator[Scenario]:
        """Yields an update whose sum in half precision is rounded up most often."""
        sizes = np.unique(np.linspace(0.5, 1.0, 64) * self.num_entries).astype(int)
        exact = INSIDE * self.claim.clip_norm / np.sqrt(np.maximum(sizes, 1))
        with np.errstate(over="ignore"):
            entries = exact.astype(np.float16)
            total = np.zeros_like(entries)
            for _ in range(self.clients):
                total += entries
        gains = np.nan_to_num(total / (self.clients * exact), posinf=0.0)
        best_gain = float(gains.max())
        best_size = int(sizes[gains.argmax()])
        direction = self.direction(self.signs * (np.arange(self.num_entries) < best_size))
        yield Scenario(
            test="sums",
            sent=f"{self.clients} equal updates whose sum in half precision is {best_gain:.4g} "
            "times too large",
            updates=self.everyone(self.sent(INSIDE, direction)),
            direction=direction,
            clients=self.clients,
            excess=max(0.03, 0.9 * (INSIDE * best_gain - 1)),
            most_calls=300,
            mistake="A sum in half precision does this: sum in float32 or float64.",
        )
