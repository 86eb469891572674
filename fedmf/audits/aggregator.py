"""What an aggregator of any origin guarantees at most, from what it hands out for chosen updates.

Noise is judged on updates of zeros; then a movement is a projection of releases onto the direction
that was sent, whose noise is known. Each p-value is exact or an upper bound; with correlated noise,
whose covariance over rounds is estimated, to first order in 1 / entries.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedmf.audits.aggregator_claim import (
    PLAYS,
    AggregatorAudit,
    AggregatorClaim,
    Evidence,
    Play,
    nearest,
)
from fedmf.audits.aggregator_noise import Noise, judge_noise

# Makes the function for a run of its own: updates, each a list of arrays -> arrays. One that has a
# parameter `examples` is told how many examples each client has.
Maker = Callable[[], Callable[..., Any]]

# Rounds of a run that are looked at.
MOST_ROUNDS = 8
# Entries that all clients together send in one play, and its calls.
_MOST_SENT, _MOST_CALLS = 1e8, 256
# Departures that calls are enough for: of all clients' movement, and of one client's.
_SEEN_OF_ALL, _SEEN_OF_ONE = 0.1, 0.5
# Relative error of a movement in float32, of a million entries.
_ROUNDING = 1e-4
_HUGE = 1e4
_PASSED = Play(name="", passed=True, verdict="")


def audit_aggregator(make: Maker, claim: AggregatorClaim) -> AggregatorAudit:
    """Plays with a function of updates, and says what it guarantees at most.

    Args:
      make: called for each run; gives the function, in the state of a start of the program.
      claim: what is held against it.

    Raises:
      ValueError: the function does not work on updates of zeros, or within the clip norm.

    Example:
      >>> def aggregate(updates, rng=np.random.default_rng()):
      ...     total = [np.zeros(array.shape) for array in updates[0]]
      ...     for update in updates:
      ...         norm = np.sqrt(sum((array.astype(float) ** 2).sum() for array in update))
      ...         factor = min(1, 1 / max(norm, 1e-12)) if np.isfinite(norm) else 0
      ...         for array, part in zip(total, update):
      ...             array += np.nan_to_num(part, posinf=0, neginf=0) * factor
      ...     return [(array + rng.normal(size=array.shape)) / 10 for array in total]
      >>> claim = AggregatorClaim(clients=10, noise_multiplier=1.0, shapes="30x20,20")
      >>> audit_aggregator(lambda: aggregate, claim).passed
      True
    """
    length = min(claim.rounds, MOST_ROUNDS)
    runs = _Runs(make, claim, length if claim.correlated else claim.rounds)
    rows = np.empty((2, length, sum(claim.sizes)))
    sent = np.zeros(rows.shape[2], np.float32)
    raised = ""
    try:
        runs.release([sent] * claim.clients)
    except Exception as error:  # then updates that move nothing of note show the noise
        sent += 1e-6 * claim.clip_norm / math.sqrt(len(sent))
        raised = f"it raised {type(error).__name__}"
    for run in rows:
        runs.start()
        for t in range(length):
            run[t] = runs.release([sent] * claim.clients)
    evidence = Evidence(claim)
    noise = judge_noise(rows, evidence, raised)
    if noise:
        _Movements(runs, evidence, noise).play()
    z = 0.0 if evidence.broken else evidence.most_noise / max(evidence.moves)
    one, run_epsilon = claim.epsilons(z)
    absent = (Play(name=name, passed=None, verdict="Not played.") for name in PLAYS)
    return AggregatorAudit(
        plays=tuple(evidence.plays.get(play.name, play) for play in absent),
        noise_multiplier=claim.multiplier(),
        noise_multiplier_most=z,
        epsilon_round=one,
        epsilon_run=run_epsilon,
        calls=runs.calls,
        confidence=claim.confidence,
        false_positive_rate=claim.false_positive_rate,
    )


class _Runs:
    """Calls of the function, in runs of so many rounds; releases are vectors in units."""

    def __init__(self, make: Maker, claim: AggregatorClaim, length: int) -> None:
        self._make = make
        self._claim = claim
        self._length = length
        self.calls = 0
        self.sizes = claim.sizes
        self._shapes = claim.arrays
        ends = np.cumsum(self.sizes).tolist()
        self._parts = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]
        self.start()

    def start(self) -> None:
        """Begins a run, in the state of a start of the program."""
        self._function = self._make()
        self._t = 0
        try:
            self.weighted = "examples" in inspect.signature(self._function).parameters
        except (TypeError, ValueError):  # a builtin
            self.weighted = False

    def release(self, updates: Sequence[np.ndarray], first_has: int = 10) -> np.ndarray:
        """Of updates that are vectors of any dtype; the first client has so many examples, the
        others 10.
        """
        if self._t == self._length:
            self.start()
        self._t += 1
        self.calls += 1
        places = list(zip(self._parts, self._shapes, strict=True))
        lists = [[u[part].reshape(shape) for part, shape in places] for u in map(np.copy, updates)]
        more = [[first_has] + [10] * (len(lists) - 1)] * self.weighted
        result = [np.asarray(array, np.float64) for array in self._function(lists, *more)]
        if [array.shape for array in result] != self._shapes:
            raise ValueError(
                f"the function gave arrays of shapes {[array.shape for array in result]} for "
                f"updates of shapes={self._claim.shapes!r}: it must give an aggregate of the same"
            )
        return np.concatenate([array.ravel() for array in result]) / self._claim.unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Trial:
    """What clients send, and what it is held against.

    Attributes:
      name, done: the play, and it in words.
      updates: one a client.
      project: a release -> its components along orthogonal unit vectors, each held against `one`.
      one: what a client may move each of them, in units, or all clients that send along it.
      departure: of a movement, in parts of `one`, that there are enough calls for.
      exact: whether it must move so much, and not at most so much.
      mistakes: what it is moved by each, in parts of `one`.
      otherwise: the mistake that other movements hint at.
      first_has: examples of the first client; the others have 10.
    """

    name: str
    done: str
    updates: Sequence[np.ndarray]
    project: Callable[[np.ndarray], np.ndarray]
    one: float = 1.0
    departure: float = _SEEN_OF_ALL
    exact: bool = False
    mistakes: Mapping[float, str] = dataclasses.field(default_factory=dict)
    otherwise: str = ""
    first_has: int = 10


class _Movements:
    """Plays that move a release: its projection onto what was sent, with the noise known."""

    def __init__(self, runs: _Runs, evidence: Evidence, noise: Noise) -> None:
        self.runs = runs
        self.evidence = evidence
        self.noise = noise
        self.claim = evidence.claim
        self.n = evidence.claim.clients
        self.d = sum(runs.sizes)
        self.length = len(noise.by_round)
        rng = np.random.default_rng(self.claim.seed)
        sizes = np.array(runs.sizes)
        # Two directions at right angles, with the same norm in every array: what clips each array
        # by itself, or each entry, lets most of them through.
        scale = np.sqrt(np.repeat(sizes * len(sizes), sizes))
        self.v, self.w = rng.choice([-1.0, 1.0], (2, self.d)) / scale
        self.w -= (self.w @ self.v) * self.v
        self.w /= np.linalg.norm(self.w)

    def play(self) -> None:
        """Plays all that are not left out."""
        left_out = (self.claim.leave_out or "").split(",")
        self._inside()
        for trial in self._trials():
            if trial.name not in left_out:
                self._judge(trial, self._guarded(trial))
        if "weights" not in self.evidence.plays and not self.runs.weighted:
            verdict = "Not played: the function has no parameter `examples`."
            self.evidence.plays["weights"] = Play(name="weights", passed=None, verdict=verdict)
        for name, play in {"not-finite": self._not_finite, "dropout": self._dropout}.items():
            if name not in left_out:
                play()

    def _watch(self, trial: _Trial) -> tuple[np.ndarray, float, np.ndarray]:
        """What releases are moved, in parts of `one`, its standard deviation, and the mean square
        of all other entries in each round of a run, beside that of updates of zeros.
        """
        departure = trial.departure * trial.one
        wanted = min((self.evidence.reach() * self.noise.sigma / departure) ** 2, _MOST_CALLS)
        affordable = _MOST_SENT / (self.n * self.d)
        runs = max(1, round(min(wanted, affordable) / self.length))
        seen = []
        rest = np.zeros(self.length)
        self.runs.start()
        for call in range(runs * self.length):
            row = self.runs.release(trial.updates, trial.first_has)
            seen.append(trial.project(row))
            rest[call % self.length] += max(row @ row - seen[-1] @ seen[-1], 0.0)
        moved = self.noise.weights @ np.array(seen).reshape(runs, self.length, -1).mean(axis=0)
        self.degrees = runs * (self.d - len(moved))
        other = rest / self.degrees / np.maximum(self.noise.by_round, 1e-300)
        spread = max(self.noise.spread / math.sqrt(runs), 1e-9)
        return moved / trial.one, spread / trial.one, other

    def _guarded(self, trial: _Trial) -> tuple[np.ndarray, float, np.ndarray] | None:
        """`_watch`, or None where the function refused or gave what is no number: then all is
        said.
        """
        try:
            found = self._watch(trial)
        except Exception as error:
            seen = f"it refused them ({type(error).__name__})"
            self.evidence.say(trial.name, 1.0, (trial.done, seen, "a clip or a refusal"), "")
            return None
        if np.isfinite(found[0]).all():
            return found
        self.evidence.broken = True
        facts = trial.done, "a release that is not a number", "numbers"
        mistake = "A norm that overflows or a division by 0 does this."
        self.evidence.say(trial.name, 0.0, facts, mistake)
        return None

    def _tail(self, excess: float) -> float:
        """Chance of so many standard deviations, which `judge_noise` estimated."""
        from scipy import stats

        return float(stats.t.sf(excess, 2 * self.d))

    def _judge(self, trial: _Trial, found: tuple[np.ndarray, float, np.ndarray] | None) -> None:
        if found is None:
            return
        moved, spread, _ = found
        count = len(moved)
        unit = self.claim.unit
        exact = trial.exact
        worst = float(moved[np.argmax(np.abs(moved - 1) if exact else moved)])
        excess = abs(worst - 1) if exact else worst - 1
        p = count * (1 + exact) * self._tail((excess - _ROUNDING) / spread)
        self.evidence.moves.append(worst - self.evidence.width(count) * spread)
        facts = (
            trial.done,
            f"one client moves the {self.claim.releases} by {worst * unit:.4g}",
            f"{unit:.4g}" + " at most" * (not exact),
        )
        failed = [n for n in ("inside", "huge") if not self.evidence.plays.get(n, _PASSED).passed]
        likely = nearest(worst, 4 * spread, trial.mistakes) or trial.otherwise
        if failed and likely == trial.otherwise:
            likely = f"The play {failed[0]} says why, if anything does."
        self.evidence.say(trial.name, p, facts, likely, 1 + self.evidence.reach(count) * spread)

    def _sent(self, norm: float, direction: np.ndarray) -> np.ndarray:
        """An update of so many clip norms."""
        return (norm * self.claim.clip_norm * direction).astype(np.float32)

    def _along(self, *directions: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return lambda row: np.array([direction @ row for direction in directions])

    def _inside(self) -> None:
        """Of the norm inside the clip at which sums in half precision lose most."""
        norms = np.linspace(0.5, 0.999, 64)
        n = self.n
        starts = np.cumsum([0, *self.claim.sizes[:-1]])
        exact = np.outer(norms * self.claim.clip_norm, np.abs(self.v[starts]))
        with np.errstate(over="ignore", invalid="ignore"):
            entry = exact.astype(np.float16)
            total = np.zeros_like(entry)
            for _ in range(n):
                total += entry
            lost = np.abs(np.nan_to_num((total / (n * exact)).mean(axis=1)) - 1)
        self.norm = norm = float(norms[lost.argmax()])
        self.inside = self._sent(norm, self.v)
        trial = _Trial(
            name="inside",
            done=f"{n} equal updates of {norm:.3g} clip norms, scaled to one",
            updates=[self.inside] * n,
            project=self._along(self.v),
            one=n * norm,
            exact=True,
            mistakes={
                n: "A sum that is handed out where a mean is claimed does this.",
                1 / n: "A mean that is handed out where a sum is claimed does this.",
            },
            otherwise="A clip at another norm does this, an array that is not summed, or a sum in "
            "half precision, whose last digits are lost.",
        )
        found = self._watch(trial)
        if not np.isfinite(found[0]).all():
            raise ValueError(
                "the function gives what is no number for updates within the clip norm: "
                "make it work on them first"
            )
        self.reached = float(found[0][0])
        self.error = found[1]
        self._judge(trial, found)
        if self.noise.by_round.any():
            self._noise_with_data(found[2])

    def _noise_with_data(self, other: np.ndarray) -> None:
        """An F-test for each round of a run: entries are independent."""
        from scipy import stats

        degrees = self.degrees, 2 * self.d
        p = (
            2
            * self.length
            * min(stats.f.cdf(other, *degrees).min(), stats.f.sf(other, *degrees).min())
        )
        least = (other / stats.f.ppf(self.evidence.error / self.length, *degrees)).min()
        self.evidence.most_noise *= min(1.0, math.sqrt(least))
        ratio = math.sqrt(other[np.abs(np.log(np.maximum(other, 1e-300))).argmax()])
        facts = (
            f"{self.n} equal updates inside the clip norm, beside updates of zeros",
            f"the noise is {ratio:.4g} times as large",
            "the same",
        )
        mistake = "Noise whose scale follows the updates does this: it must not know them."
        sees = 1 + self.evidence.reach() * math.sqrt(1 / (2 * degrees[0]) + 1 / (4 * self.d))
        self.evidence.say("noise-with-data", p, facts, mistake, sees)

    def _unclipped(self, norm: float) -> dict[float, str]:
        """Mistakes of clips by what an update of so many clip norms then moves, in units."""
        arrays = len(self.claim.sizes)
        return {
            norm: "No clip, one that begins above a threshold, or a clip of each array by itself, "
            "does this.",
            math.sqrt(arrays): f"Clipping each of the {arrays} arrays by itself does this: the "
            f"sensitivity is sqrt({arrays}).",
        }

    def _trials(self) -> Iterator[_Trial]:
        n = self.n
        v = self.v
        w = self.w
        signs = np.sign(self.v)
        integers = (max(1000, math.ceil(1000 * self.claim.clip_norm)) * signs).astype(np.int64)
        half = min(_HUGE * self.claim.clip_norm / math.sqrt(self.d), 6e4) * signs
        for name, kind, direction, update in (
            ("huge", "", v, self._sent(_HUGE, v)),
            ("slightly-above", "", v, self._sent(1.5, v)),
            ("integers", " of integers", signs / math.sqrt(self.d), integers),
            ("half-precision", " of float16", signs / math.sqrt(self.d), half.astype(np.float16)),
        ):
            norm = float(np.linalg.norm(update.astype(np.float64))) / self.claim.clip_norm
            yield _Trial(
                name=name,
                done=f"{n} updates{kind}, each of {norm:.3g} clip norms",
                updates=[update] * n,
                project=self._along(direction),
                one=n,
                mistakes=self._unclipped(norm),
                otherwise="A clip at a larger norm, by the largest entry, or one that leaves out "
                "an array or a kind of array does this: clip all arrays as one vector.",
            )
        norms = np.linspace(0.05, 0.95, n)
        yield _Trial(
            name="mixed",
            done=f"{n} updates of 0.05 to 0.95 clip norms, scaled to one",
            updates=[self._sent(norm, v) for norm in norms],
            project=self._along(v),
            one=float(norms.sum()),
            exact=True,
            otherwise="A clip norm that follows the updates of the round, as their median, does "
            "this: then one client moves what is kept of all.",
        )
        # What fails inside the clip is said there, and not again.
        kept = 1.0 if self.evidence.plays["inside"].passed else self.reached
        others = (n - 1) * self.norm * kept
        yield _Trial(
            name="one",
            done=f"one update of {_HUGE:g} clip norms among others inside the clip",
            updates=[self._sent(_HUGE, w)] + [self.inside] * (n - 1),
            # How far the others' sum is moved counts as well.
            project=lambda row: np.array([w @ row, v @ row - others, others - v @ row]),
            departure=_SEEN_OF_ONE,
            mistakes=self._unclipped(_HUGE)
            | {n: "Clipping the mean, and not each update before it, does this."},
            otherwise="A clip that follows the other clients' updates does this: fix it before.",
        )
        # Clients at up to 64 places, each along entries of its own.
        places = np.unique(np.linspace(0, n - 1, min(n, 64)).astype(int))
        owner = np.arange(self.d) % len(places)
        e = signs / np.sqrt(np.bincount(owner))[owner]
        updates = [np.zeros(self.d, np.float32)] * n
        for i, place in enumerate(places):
            updates[place] = self._sent(3, np.where(owner == i, e, 0))
        yield _Trial(
            name="order",
            done=f"{len(places)} updates of 3 clip norms, each along entries of its own",
            updates=updates,
            project=lambda row: np.bincount(owner, row * e),
            departure=_SEEN_OF_ONE,
            exact=True,
            mistakes=self._unclipped(3),
            otherwise="A client that is treated in another way for its place, or for its entries, "
            "does this.",
        )
        if self.runs.weighted:
            share = 10 / (n + 9)
            yield _Trial(
                name="weights",
                done="one client with ten times the others' examples",
                updates=[self._sent(_HUGE, w)] + [np.zeros(self.d, np.float32)] * (n - 1),
                project=self._along(w),
                departure=n * share - 1,
                mistakes=self._unclipped(_HUGE)
                | {
                    n * share: "Weights by examples with noise for equal weights do this: a client "
                    f"of share {share:.3g} moves a mean by {share:.3g} clip norms."
                },
                otherwise="A weight above 1 does this.",
                first_has=100,
            )

    def _not_finite(self) -> None:
        bad = []
        for value in (math.nan, math.inf, -math.inf, 1e30):
            update = self.inside.copy()
            update[0] = value
            try:
                row = self.runs.release([update] + [self.inside] * (self.n - 1))
            except Exception:
                self.runs.start()
                continue
            # A NaN is not below the bound either
            if not np.abs(row).max() < 1e3 * (self.n + self.noise.sigma):
                bad.append(f"{value:g}")
        self.evidence.broken |= bool(bad)
        seen = f"{', '.join(bad)} passed into the release" if bad else "nothing of them came out"
        facts = "an entry of NaN, of infinity, and of 1e30, whose square overflows", seen, "a clip"
        mistake = (
            "clip_norm / norm is no clip for them: such a release tells for certain that this "
            "client is there. Count an update whose norm is not finite as zero."
        )
        self.evidence.say("not-finite", float(not bad), facts, mistake)

    def _dropout(self) -> None:
        n = self.n
        m = self.n // 2
        trial = _Trial(
            name="dropout",
            done=f"{m} of {n} clients",
            updates=[self.inside] * m,
            project=self._along(self.v),
            one=m * self.norm,
        )
        found = self._guarded(trial)
        if not found:
            return
        moved, spread, other = found
        noise = math.sqrt(other.mean()) if self.noise.by_round.any() else 1.0
        # Beside what one of all moves; errors of the first order.
        reached = max(self.reached, 1e-9)
        by_one = float(moved[0]) / reached
        both = math.hypot(
            spread * noise / reached,
            by_one * self.error / reached,
            noise / math.sqrt(2 * self.d * self.length),
        )
        p = self._tail((by_one - noise * (1 + _ROUNDING)) / both)
        most = (by_one - self.evidence.width() * both) * reached / max(noise, 1e-9)
        self.evidence.moves.append(most)
        facts = (
            trial.done,
            f"one of them moves the {self.claim.releases} {by_one:.4g} times as far as with all, "
            f"and the noise is {noise:.4g} times as large",
            "at least as much more noise",
        )
        mistakes = {
            n / m: "A mean that divides by those who came, with noise for all, does this: divide "
            "by a fixed number."
        }
        otherwise = "Noise that becomes less where clients are missing does this."
        mistake = nearest(by_one / max(noise, 1e-9), 4 * both, mistakes) or otherwise
        self.evidence.say("dropout", p, facts, mistake, 1 + self.evidence.reach() * both)
