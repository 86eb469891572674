"""Measurement of how far the updates of clients move a release.

A movement is the projection of releases on the direction of the updates, where the noise is known.

One client may move a release by w, with |w| / (standard deviation of the noise along w) at most
1 / noise_multiplier. By the Cauchy-Schwarz inequality a projection onto any direction is a lower
bound on this ratio, also if the noise of each array has its own scale. A movement is given relative
to the largest movement by one client that the claim allows: above 1 it contradicts the claim; below
1 it costs only utility.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from fedmf.audits.aggregator_claim import Outcomes
from fedmf.audits.aggregator_estimates import (
    BaselineEstimates,
    Estimate,
    Movement,
    NotFiniteReleaseError,
    Projection,
)
from fedmf.audits.aggregator_inputs import Inputs, Scenario, Updates
from fedmf.audits.aggregator_noise import NoiseModel
from fedmf.audits.aggregator_runs import AggregatorRuns

# Largest relative rounding error of a movement, which is the distance by which a client's update
# moves a release. It holds for updates of a million float32 entries.
_FLOAT32_ERROR = 1e-4
# Largest number of entries that all clients together send in one test scenario, summed over its
# rounds.
_MAX_SENT_ENTRIES = 1e8


@dataclasses.dataclass(kw_only=True)
class _MeasuredRounds:
    """Sums that are accumulated over the rounds of one measurement.

    Attributes:
      by_block: (blocks, owners), the estimated movement of each block of rounds.
      period_sums: (periods, owners), sums of the movements in the rounds of a period.
      period_counts: (periods,), number of these rounds.
      residual_squares: sum of squares of the noise beside the movement.
    """

    by_block: np.ndarray
    period_sums: np.ndarray
    period_counts: np.ndarray
    residual_squares: float = 0.0


class Measurements:
    """Measurements of how far updates move a release. Each calls the audited function as often as
    its noise requires.
    """

    def __init__(
        self, runs: AggregatorRuns, inputs: Inputs, noise_model: NoiseModel, outcomes: Outcomes
    ) -> None:
        self.runs = runs
        self.claim = inputs.claim
        self.noise_model = noise_model
        self.outcomes = outcomes
        self.array_of = inputs.array_of
        self.signs = inputs.signs
        self._num_arrays = inputs.num_arrays
        runs.length = len(noise_model.round_scale)
        runs.start()

    def allowed_deviation(self, num_clients: float) -> float:
        """Returns how far the claim allows several clients to move a release together.

        The movement is in standard deviations of the noise.
        """
        return num_clients / self.noise_model.movement_std

    def measure(self, scenario: Scenario, *, with_residual: bool = False) -> Estimate:
        """Measures how far the updates of a scenario move a release.

        Args:
          scenario: the updates to send.
          with_residual: whether the noise beside the movement is measured as well.

        Raises:
          NotFiniteReleaseError: a release holds NaN or an infinity.
          Exception: an error of the function, which refuses the updates.
        """
        round_weights, variance = self._round_weights(scenario)
        num_blocks = self._num_blocks(scenario, variance)
        projection = Projection(scenario.direction, self.noise_model.entry_std)
        measured_rounds = self._measure_rounds(
            scenario, projection, round_weights, num_blocks, with_residual=with_residual
        )
        residual_degrees = 0
        if with_residual:
            num_free_entries = len(self.array_of) - self._num_arrays
            residual_degrees = num_blocks * len(round_weights) * num_free_entries
        movement = measured_rounds.by_block.mean(axis=0)
        # Correlated noise is whitened over blocks of rounds, so single periods of a run have no
        # estimates of their own.
        is_measured = (measured_rounds.period_counts > 0) & (self.noise_model.block == 1)
        period_counts = measured_rounds.period_counts[is_measured]
        return Estimate(
            movement=movement,
            std=math.sqrt(variance / num_blocks),
            relative_error=self._relative_error(projection),
            gains=projection.gains,
            by_period=measured_rounds.period_sums[is_measured] / period_counts[:, None],
            period_stds=1 / np.sqrt(period_counts),
            period_names=tuple(itertools.compress(self._periods(), is_measured)),
            residual_squares=measured_rounds.residual_squares,
            residual_degrees=residual_degrees,
            along_squares=float(((measured_rounds.by_block - movement) ** 2).sum()) / variance,
            along_degrees=num_blocks - 1,
        )

    def _round_weights(self, scenario: Scenario) -> tuple[np.ndarray, float]:
        """Returns a weight for each round of a block, and the variance of the sum of the block's
        rounds with these weights.

        The weighted sum of the rounds' movements is the best linear unbiased estimate of the
        movement in the measured rounds of each cycle of earlier and measured rounds.
        """
        num_earlier = scenario.num_earlier_rounds
        cycle_length = num_earlier + scenario.num_measured_rounds
        block_length = max(self.noise_model.block, cycle_length)
        covariance = np.eye(block_length)
        if self.noise_model.block > 1:
            covariance = self.noise_model.covariance
        design_matrix = np.zeros((block_length, num_earlier + 1))
        for t in range(block_length):
            design_matrix[t, min(t % cycle_length, num_earlier)] = 1
        precision_matrix = np.linalg.inv(covariance)
        estimate_variances = np.linalg.inv(design_matrix.T @ precision_matrix @ design_matrix)
        return (estimate_variances @ design_matrix.T @ precision_matrix)[-1], float(
            estimate_variances[-1, -1]
        )

    def _num_blocks(self, scenario: Scenario, variance: float) -> int:
        """Returns the number of blocks of rounds that must be measured to detect a movement above
        the claim by `scenario.detectable_excess`.
        """
        detectable_deviation = (
            scenario.detectable_excess
            * self.allowed_deviation(scenario.allowed_movement)
            / self.outcomes.reach(8)
        )
        if scenario.baseline is not None:
            detectable_deviation /= math.sqrt(2)
        if scenario.by_period:
            detectable_deviation /= math.sqrt(2)
        cycle_length = scenario.num_earlier_rounds + scenario.num_measured_rounds
        block_length = max(self.noise_model.block, cycle_length)
        entries_per_block = self.claim.clients * len(self.array_of) * block_length
        max_blocks = min(scenario.max_calls / block_length, _MAX_SENT_ENTRIES / entries_per_block)
        min_blocks = 1.0
        if scenario.by_period:
            min_blocks = min(self.runs.length / block_length, max_blocks)
        num_blocks = min(variance / detectable_deviation**2, max_blocks)
        return max(1, math.ceil(max(min_blocks, num_blocks)))

    def _measure_rounds(
        self,
        scenario: Scenario,
        projection: Projection,
        round_weights: np.ndarray,
        num_blocks: int,
        *,
        with_residual: bool,
    ) -> _MeasuredRounds:
        """Calls the audited function with a scenario's updates, and sums projections of its
        releases.
        """
        update_makers: list[Updates] = [scenario.updates] * scenario.num_measured_rounds
        if scenario.earlier_updates is not None:
            update_makers = [scenario.earlier_updates] * scenario.num_earlier_rounds + update_makers
        updates_by_maker = {maker: maker() for maker in dict.fromkeys(update_makers)}
        cycle_updates = [updates_by_maker[maker] for maker in update_makers]
        rounds_by_period = self._periods()
        measured_rounds = _MeasuredRounds(
            by_block=np.zeros((num_blocks, projection.num_owners)),
            period_sums=np.zeros((len(rounds_by_period), projection.num_owners)),
            period_counts=np.zeros(len(rounds_by_period)),
        )
        # The scenario is measured in a new run. Otherwise, a function that averages over rounds
        # would mix in rounds of an earlier scenario.
        self.runs.start()
        for block_index in range(num_blocks):
            needs_new_run = self.noise_model.block > 1 or scenario.earlier_updates is not None
            if block_index and needs_new_run:
                self.runs.start()
            white_rows = []
            for t in range(len(round_weights)):
                scaled_release = self.release(
                    cycle_updates[t % len(cycle_updates)], scenario.examples
                )
                row_movement = projection(scaled_release)
                measured_rounds.by_block[block_index] += (
                    round_weights[t] * row_movement / projection.gains
                )
                if scenario.by_period:
                    is_in_period = np.array(
                        [self.runs.round in rounds for rounds in rounds_by_period.values()]
                    )
                    measured_rounds.period_sums += (
                        is_in_period[:, None] * row_movement / projection.gains
                    )
                    measured_rounds.period_counts += is_in_period
                if with_residual:
                    white_rows.append(scaled_release / self.noise_model.entry_std)
            if with_residual:
                measured_rounds.residual_squares += self._residual_squares(np.array(white_rows))
        return measured_rounds

    def _relative_error(self, projection: Projection) -> np.ndarray:
        """Returns the relative error of the estimated noise scale along each unit vector."""
        weight_by_array = np.zeros((projection.num_owners, self._num_arrays))
        owned_squares = projection.white_vector[projection.is_owned] ** 2
        owned_arrays = self.array_of[projection.is_owned]
        np.add.at(weight_by_array, (projection.owner, owned_arrays), owned_squares)
        weight_by_array /= projection.gains[:, None] ** 2
        array_samples = self.noise_model.array_samples
        relative_error = np.sqrt((weight_by_array**2 / (2 * array_samples)).sum(axis=1))
        return np.hypot(relative_error, self.noise_model.multiplier_error)

    def _periods(self) -> dict[str, range]:
        """Returns the parts of a run in which movements are tested, as ranges of rounds by name.

        The rounds of a part are numbered from 1.
        """
        run_length = self.runs.length
        return {
            "the first rounds": range(1, max(1, run_length // 4) + 1),
            "the second half of a run": range(run_length // 2 + 1, run_length + 1),
            "the last rounds": range(3 * run_length // 4 + 1, run_length + 1),
        }

    def release(
        self, updates: list[np.ndarray], examples: Sequence[int] | None = None
    ) -> np.ndarray:
        """Calls the audited function, and returns its release divided by the noise scale of the
        round.

        Raises:
          NotFiniteReleaseError: the release holds NaN or an infinity.
        """
        release_row = self.runs.release(updates, examples)
        if not np.isfinite(release_row).all():
            raise NotFiniteReleaseError("the release is not a number")
        return release_row / self.noise_model.round_scale[self.runs.round - 1]

    def _residual_squares(self, rows: np.ndarray) -> float:
        """Returns the sum of squares of the whitened noise, without the part that updates may have
        caused in each array.
        """
        whitener = np.linalg.inv(np.linalg.cholesky(self.noise_model.covariance))
        if self.noise_model.block > 1:
            rows = whitener @ rows
        total_squares = float((rows**2).sum())
        array_starts = np.cumsum([0, *self.claim.sizes[:-1]])
        array_sums = np.add.reduceat(rows * self.signs, array_starts, axis=1)
        array_movements = array_sums / np.sqrt(self.claim.sizes)
        return max(total_squares - float((array_movements**2).sum()), 0.0)

    def movements(
        self, scenario: Scenario, num_tests: int, baselines: BaselineEstimates
    ) -> Iterator[Movement]:
        """Measures a scenario, and yields the movement along each unit vector compared with the
        claim.

        Args:
          scenario: the updates to send.
          num_tests: number of movements over which the test's error rate is divided.
          baselines: estimates of the scenarios that are subtracted.
        """
        movement_estimate = self.measure(scenario)
        movement = movement_estimate.movement
        movement_std = movement_estimate.std
        if scenario.baseline is not None:
            baseline_estimate = baselines.get(scenario.baseline, self.measure)
            movement = movement - baseline_estimate.movement
            movement_std = math.hypot(movement_std, baseline_estimate.std)
        movement_groups = [(scenario, movement, movement_std)]
        for period_name, period_movement, period_std in zip(
            movement_estimate.period_names,
            movement_estimate.by_period,
            movement_estimate.period_stds,
            strict=True,
        ):
            scenario_text = f"{scenario.description}, in {period_name}"
            period_scenario = dataclasses.replace(scenario, description=scenario_text)
            movement_groups.append((period_scenario, period_movement, float(period_std)))
        num_comparisons = num_tests * len(movement) * len(movement_groups)
        for group_scenario, group_movement, group_std in movement_groups:
            for value, relative_error in zip(
                np.abs(group_movement), movement_estimate.relative_error, strict=True
            ):
                yield self.compare_with_claim(
                    group_scenario, float(value), group_std, float(relative_error), num_comparisons
                )

    def compare_with_claim(
        self,
        scenario: Scenario,
        movement: float,
        std: float,
        relative_error: float,
        num_comparisons: int,
    ) -> Movement:
        """Compares a movement, in standard deviations of the noise, with what the claim allows."""
        import scipy.special

        allowed_deviation = self.allowed_deviation(scenario.allowed_movement)
        relative_movement = movement / allowed_deviation
        std_at_claim = math.hypot(std / allowed_deviation, relative_error)
        degrees_of_freedom = math.inf
        if relative_error > 0:
            degrees_of_freedom = 1 / (2 * relative_error**2)
        standardised_excess = (relative_movement - 1 - _FLOAT32_ERROR) / std_at_claim
        # The p-value is doubled, because a client may move a release in either direction.
        tail_chance = float(scipy.special.stdtr(max(degrees_of_freedom, 1.0), -standardised_excess))
        return Movement(
            scenario=scenario,
            size=relative_movement,
            std_at_claim=std_at_claim,
            std=math.hypot(std / allowed_deviation, relative_movement * relative_error),
            p_value=2 * num_comparisons * tail_chance,
        )
