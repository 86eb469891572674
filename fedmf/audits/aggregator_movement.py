"""Tests of what clients move: a projection of releases along what was sent, whose noise is known.

One client may move a release by w, with |w| / (standard deviation of the noise along w) at most
1 / noise_multiplier. A projection along any direction bounds that from below, by Cauchy and
Schwarz, also where arrays have noise of their own. A movement is given in parts of the most that
one client may move: above 1 it contradicts the claim; below, it costs only utility.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from fedmf.audits.aggregator_claim import MOVEMENT_TESTS, Outcomes, nearest
from fedmf.audits.aggregator_inputs import Inputs, Scenario, Updates
from fedmf.audits.aggregator_noise import NoiseModel
from fedmf.audits.aggregator_runs import AggregatorRuns, WrongResult

# Relative error of a movement in float32, of a million entries.
_ROUNDING = 1e-4
# Entries that all clients together send in one scenario, at most.
_MOST_SENT = 1e8
# Standard deviations of an estimate within which a movement is that of a known mistake.
_NEAR = 4.0


class NotFinite(ArithmeticError):
    """The function gave what is no number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Movement of a release along the vectors of a direction.

    Attributes:
      white: (owners,), in standard deviations of the noise.
      spread: standard deviation of each.
      relative: relative standard error of the standard deviation of the noise, (owners,).
      gains: (owners,), of a movement by 1 unit in `white`.
      in_parts: (parts, owners), the same as white of some rounds of a run, where that was measured.
      part_spreads: (parts,), standard deviation of each.
      part_names: (parts,), the rounds in words.
      squares, degrees: of the noise that is left beside the movement, scaled to 1, and its degrees
        of freedom; 0 where that was not measured.
      squares_along, degrees_along: the same of the noise along the movement, of one owner.
    """

    white: np.ndarray
    spread: float
    relative: np.ndarray
    gains: np.ndarray
    in_parts: np.ndarray
    part_spreads: np.ndarray
    part_names: tuple[str, ...]
    squares: float = 0.0
    degrees: int = 0
    squares_along: float = 0.0
    degrees_along: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Movement:
    """A movement held against the claim.

    Attributes:
      scenario: that was sent.
      size: in parts of what is allowed.
      spread: its standard deviation if it is 1.
      spread_here: its standard deviation as it is.
      p_value: of at most what is allowed.
    """

    scenario: Scenario
    size: float
    spread: float
    spread_here: float
    p_value: float


class Measurements:
    """Movements of releases, measured with as many calls as their noise asks for."""

    def __init__(
        self, runs: AggregatorRuns, inputs: Inputs, noise: NoiseModel, outcomes: Outcomes
    ) -> None:
        claim = inputs.claim
        self.runs = runs
        self.claim = claim
        self.noise = noise
        self.outcomes = outcomes
        self.array_of = inputs.array_of
        self.signs = inputs.signs
        runs.length = len(noise.round_scale)
        runs.start()

    def weights(self, scenario: Scenario) -> tuple[np.ndarray, float]:
        """Returns weights of the rounds of a block, for the best estimate of the movement in the
        measured rounds of each cycle, and the variance of that estimate.
        """
        before = scenario.rounds_before
        cycle = before + scenario.rounds_measured
        block = max(self.noise.block, cycle)
        covariance = np.eye(block)
        if self.noise.block > 1:
            covariance = self.noise.covariance
        design = np.zeros((block, before + 1))
        for t in range(block):
            design[t, min(t % cycle, before)] = 1
        precision = np.linalg.inv(covariance)
        variance = np.linalg.inv(design.T @ precision @ design)
        return (variance @ design.T @ precision)[-1], float(variance[-1, -1])

    def allowed(self, clients: float) -> float:
        """Returns what so many clients may move a release, in standard deviations of its noise."""
        return clients / self.noise.movement_std

    def calls(self, scenario: Scenario, variance: float) -> int:
        """Returns the blocks of calls that show the scenario's excess."""
        target = scenario.excess * self.allowed(scenario.clients) / self.outcomes.reach(8)
        if scenario.beside is not None:
            target /= math.sqrt(2)
        if scenario.in_parts:
            target /= math.sqrt(2)
        cycle = scenario.rounds_before + scenario.rounds_measured
        block = max(self.noise.block, cycle)
        affordable = _MOST_SENT / (self.claim.clients * len(self.array_of) * block)
        most = min(scenario.most_calls / block, affordable)
        least = 1.0
        if scenario.in_parts:
            least = min(self.runs.length / block, most)
        return max(1, math.ceil(max(least, min(variance / target**2, most))))

    def measure(self, scenario: Scenario, *, beside_noise: bool = False) -> Estimate:
        """Measures the movement of a scenario.

        Args:
          scenario: what is sent.
          beside_noise: whether the noise that is left is measured as well.

        Raises:
          NotFinite: a release is no number.
          Exception: of the function, which refuses the updates.
        """
        steps: list[Updates] = [scenario.updates] * scenario.rounds_measured
        if scenario.before is not None:
            steps = [scenario.before] * scenario.rounds_before + steps
        weights, variance = self.weights(scenario)
        num_blocks = self.calls(scenario, variance)
        direction = scenario.direction
        white_vector = direction.vector / self.noise.entry_std
        used = direction.owner >= 0
        owner = direction.owner[used]
        gains = np.sqrt(np.bincount(owner, white_vector[used] ** 2, minlength=direction.count))
        projection = white_vector / self.noise.entry_std
        updates_by_step = {step: step() for step in dict.fromkeys(steps)}
        sent = [updates_by_step[step] for step in steps]
        parts = self._parts()
        in_parts = np.zeros((len(parts), direction.count))
        num_in_parts = np.zeros(len(parts))
        squares = 0.0
        by_block = np.zeros((num_blocks, direction.count))
        # Rounds of another scenario may count again, as in an average over rounds.
        self.runs.start()
        for number in range(num_blocks):
            if number and (self.noise.block > 1 or scenario.before is not None):
                self.runs.start()
            rows = []
            for t in range(len(weights)):
                row = self.release(sent[t % len(sent)], scenario.examples)
                along = np.bincount(owner, (row * projection)[used], minlength=direction.count)
                by_block[number] += weights[t] * along / gains
                if scenario.in_parts:
                    is_inside = np.array([self.runs.round in part for part in parts.values()])
                    in_parts += is_inside[:, None] * along / gains
                    num_in_parts += is_inside
                if beside_noise:
                    rows.append(row / self.noise.entry_std)
            if beside_noise:
                squares += self._left(np.array(rows))
        degrees = num_blocks * len(weights) * (len(self.array_of) - self.claim_arrays)
        white = by_block.mean(axis=0)
        is_measured = (num_in_parts > 0) & (self.noise.block == 1)
        names = itertools.compress(parts, is_measured)
        share = np.zeros((direction.count, self.claim_arrays))
        np.add.at(share, (owner, self.array_of[used]), white_vector[used] ** 2)
        share /= gains[:, None] ** 2
        relative = np.sqrt((share**2 / (2 * self.noise.array_samples)).sum(axis=1))
        return Estimate(
            white=white,
            spread=math.sqrt(variance / num_blocks),
            relative=np.hypot(relative, self.noise.multiplier_error),
            gains=gains,
            in_parts=in_parts[is_measured] / num_in_parts[is_measured, None],
            part_spreads=1 / np.sqrt(num_in_parts[is_measured]),
            part_names=tuple(names),
            squares=squares,
            degrees=degrees if beside_noise else 0,
            squares_along=float(((by_block - white) ** 2).sum()) / variance,
            degrees_along=num_blocks - 1,
        )

    def _parts(self) -> dict[str, range]:
        """Returns rounds of a run, numbered from 1, in which a movement is measured by itself."""
        length = self.runs.length
        return {
            "the first rounds": range(1, max(1, length // 4) + 1),
            "the second half of a run": range(length // 2 + 1, length + 1),
            "the last rounds": range(3 * length // 4 + 1, length + 1),
        }

    @property
    def claim_arrays(self) -> int:
        """Number of arrays of an update."""
        return len(self.claim.sizes)

    def release(
        self, updates: list[np.ndarray], examples: Sequence[int] | None = None
    ) -> np.ndarray:
        """Returns a release, scaled for the noise of its round.

        Raises:
          NotFinite: it is no number.
        """
        row = self.runs.release(updates, examples)
        if not np.isfinite(row).all():
            raise NotFinite("the release is not a number")
        return row / self.noise.round_scale[self.runs.round - 1]

    def _left(self, rows: np.ndarray) -> float:
        """Returns the sum of squares of white noise beside the movement of each array."""
        factor = np.linalg.inv(np.linalg.cholesky(self.noise.covariance))
        if self.noise.block > 1:
            rows = factor @ rows
        total = float((rows**2).sum())
        starts = np.cumsum([0, *self.claim.sizes[:-1]])
        along = np.add.reduceat(rows * self.signs, starts, axis=1) / np.sqrt(self.claim.sizes)
        return max(total - float((along**2).sum()), 0.0)

    def movements(
        self, scenario: Scenario, num_tests: int, beside: dict[int, Estimate]
    ) -> Iterator[Movement]:
        """Yields the movement along each vector of a scenario, held against the claim.

        Args:
          scenario: what is sent.
          num_tests: that share the test's rate of false positives.
          beside: estimates of scenarios that are subtracted, measured once.
        """
        estimate = self.measure(scenario)
        white = estimate.white
        spread = estimate.spread
        if scenario.beside is not None:
            key = id(scenario.beside)
            if key not in beside:
                beside[key] = self.measure(scenario.beside)
            white = white - beside[key].white
            spread = math.hypot(spread, beside[key].spread)
        groups = [(scenario, white, spread)]
        for name, values, part_spread in zip(
            estimate.part_names, estimate.in_parts, estimate.part_spreads, strict=True
        ):
            part = dataclasses.replace(scenario, sent=f"{scenario.sent}, in {name}")
            groups.append((part, values, float(part_spread)))
        for group, values, group_spread in groups:
            for value, relative in zip(np.abs(values), estimate.relative, strict=True):
                yield self.against_claim(
                    group,
                    float(value),
                    group_spread,
                    float(relative),
                    num_tests * len(white) * len(groups),
                )

    def against_claim(
        self, scenario: Scenario, white: float, spread: float, relative: float, num_tests: int
    ) -> Movement:
        """Returns a movement held against what the scenario's clients may move."""
        import scipy.special

        most = self.allowed(scenario.clients)
        size = white / most
        spread_of_one = math.hypot(spread / most, relative)
        degrees = 1 / (2 * relative**2) if relative > 0 else math.inf
        excess = (size - 1 - _ROUNDING) / spread_of_one
        # Two-sided: a client may move a release either way.
        p_value = 2 * num_tests * float(scipy.special.stdtr(max(degrees, 1.0), -excess))
        return Movement(
            scenario=scenario,
            size=size,
            spread=spread_of_one,
            spread_here=math.hypot(spread / most, size * relative),
            p_value=p_value,
        )


class MovementTests:
    """All tests of movement, and the bounds that follow from them.

    Attributes:
      most_moved: lower bound on what one client moves, in parts of what is allowed; as is claimed,
        but for the error of the noise, until a movement is measured.
      broken: whether some release was no number.
      smaller_arrays: arrays that one client moves by less than the claim allows.
    """

    def __init__(self, measurements: Measurements, inputs: Inputs) -> None:
        self.measurements = measurements
        self.inputs = inputs
        self.claim = measurements.claim
        self.outcomes = measurements.outcomes
        noise = measurements.noise
        error = math.sqrt(1 / (2 * float(noise.array_samples.sum())))
        error = math.hypot(error, noise.multiplier_error)
        self.most_moved = 1 - self.outcomes.width() * error
        self._is_measured = False
        self.broken = False
        self.smaller_arrays: list[int] = []
        self._left_out = (self.claim.leave_out or "").split(",")

    def make(self, special_tests: "Mapping[str, SpecialTest]") -> None:
        """Makes all tests that are not left out.

        Args:
          special_tests: those that are more than rows of the table.
        """
        rows = list(self.inputs.scenarios())
        for test in dict.fromkeys(row.test for row in rows):
            if test not in self._left_out:
                self._test(test, [row for row in rows if row.test == test])
        for name, special in special_tests.items():
            if name in self._left_out:
                continue
            try:
                special(self)
            except NotFinite:
                self.not_finite(name, "Updates of numbers")
        for name in MOVEMENT_TESTS:
            if name not in self.outcomes.by_name:
                self.outcomes.skip(name, "Not made.")

    def _test(self, name: str, rows: list[Scenario]) -> None:
        if name == "weights" and not self.measurements.runs.takes_examples:
            self.outcomes.skip(name, "Not made: the function has no parameter `examples`.")
            return
        num_tests = sum(row.direction.count for row in rows)
        beside: dict[int, Estimate] = {}
        movements = []
        refused = []
        for row in rows:
            try:
                movements += list(self.measurements.movements(row, num_tests, beside))
            except WrongResult:
                raise
            except NotFinite:
                self.not_finite(name, row.sent)
                return
            except Exception as error:
                # A refusal is as good as a clip; what the function remembers of it is not.
                refused.append(type(error).__name__)
                self.measurements.runs.start()
        self.conclude(name, movements, refused)

    def not_finite(self, name: str, sent: str) -> None:
        """Adds the failure of a test in which a release was no number."""
        self.broken = True
        self.measurements.runs.start()
        self.outcomes.add(
            name,
            0.0,
            f"{sent}: a release that is not a number; claimed are numbers.",
            mistake="A norm that overflows or a division by 0 does this.",
        )

    def conclude(
        self, name: str, movements: list[Movement], refused: list[str], remark: str = ""
    ) -> None:
        """Adds the outcome of a test from its movements."""
        if not movements:
            words = f"The function refused all updates ({', '.join(sorted(set(refused)))})."
            self.outcomes.add(name, 1.0, words)
            return
        if not self._is_measured:
            self._is_measured = True
            self.most_moved = 1e-9
        width = self.outcomes.width(len(movements))
        for movement in movements:
            least = movement.size - width * movement.spread_here
            self.most_moved = max(self.most_moved, least)
        worst = min(movements, key=lambda movement: (movement.p_value, -movement.size))
        self.outcomes.add(
            name,
            worst.p_value,
            f"{worst.scenario.sent}: {self._moved(worst)}.",
            mistake=self._mistake(worst),
            remark=remark,
            sees=1 + self.outcomes.reach(len(movements)) * min(m.spread for m in movements),
        )

    def _moved(self, movement: Movement) -> str:
        """Returns in words what one client moves, beside the claim."""
        noise = self.measurements.noise
        unit = self.claim.unit * noise.overall_std / noise.movement_std
        return (
            f"one client moves the {self.claim.releases} by {movement.size * unit:.4g}; claimed "
            f"is {unit:.4g} at most, for noise of this size"
        )

    def _mistake(self, movement: Movement) -> str:
        scenario = movement.scenario
        known = nearest(movement.size, _NEAR * movement.spread, scenario.mistakes)
        return known or scenario.mistake


SpecialTest = Callable[[MovementTests], None]
