"""Tests of how far clients move a release, and an upper bound on the largest movement."""

import math
from collections.abc import Callable, Mapping

from fedmf.audits.aggregator_claim import MOVEMENT_TESTS, nearest_mistake
from fedmf.audits.aggregator_estimates import BaselineEstimates, Movement, NotFiniteReleaseError
from fedmf.audits.aggregator_inputs import Inputs, Scenario
from fedmf.audits.aggregator_movement import Measurements
from fedmf.audits.aggregator_runs import WrongResult
from fedmf.audits.aggregator_scenarios import scenarios

# A known mistake counts as the explanation of a measured movement if the movement that it predicts
# differs by at most this many standard deviations.
_MAX_DEVIATIONS_FROM_MISTAKE = 4.0


class MovementTests:
    """All movement tests of an aggregator, and the bounds that follow from their results.

    Attributes:
      max_movement: lower bound on the largest movement by one client, relative to the allowed one;
        until a movement is measured, the claimed one up to the error of the noise.
      has_nonfinite_release: whether a release held NaN or an infinity.
      smaller_arrays: arrays that one client moves by less than the claim allows.
    """

    def __init__(self, measurements: Measurements, inputs: Inputs) -> None:
        self.measurements = measurements
        self.inputs = inputs
        self.claim = measurements.claim
        self.outcomes = measurements.outcomes
        noise_model = measurements.noise_model
        num_samples = float(noise_model.array_samples.sum())
        noise_error = math.hypot(math.sqrt(1 / (2 * num_samples)), noise_model.multiplier_error)
        self.max_movement = 1 - self.outcomes.width() * noise_error
        self._is_measured = False
        self.has_nonfinite_release = False
        self.smaller_arrays: list[int] = []
        self._skipped_names = (self.claim.leave_out or "").split(",")

    def run(self, special_tests: "Mapping[str, SpecialTest]") -> None:
        """Runs all movement tests except those that the claim excludes.

        Args:
          special_tests: test name -> test that needs more than rows of the table.
        """
        scenario_rows = list(scenarios(self.inputs))
        for test_name in dict.fromkeys(row.test for row in scenario_rows):
            if test_name not in self._skipped_names:
                self._run_scenarios(
                    test_name, [row for row in scenario_rows if row.test == test_name]
                )
        for test_name, special_test in special_tests.items():
            if test_name in self._skipped_names:
                continue
            try:
                special_test(self)
            except NotFiniteReleaseError:
                self.add_nonfinite_release(test_name, "Updates of numbers")
        for test_name in MOVEMENT_TESTS:
            if test_name not in self.outcomes.by_name:
                self.outcomes.skip(test_name, "Not made.")

    def _run_scenarios(self, test_name: str, rows: list[Scenario]) -> None:
        """Measures all scenarios of one test, and adds the outcome of the test."""
        if test_name == "weights" and not self.measurements.runs.takes_examples:
            skip_reason = "Not made: the function has no parameter `examples`."
            self.outcomes.skip(test_name, skip_reason)
            return
        num_tests = sum(row.direction.count for row in rows)
        baseline_estimates = BaselineEstimates()
        movements = []
        error_names = []
        for row in rows:
            try:
                movements += list(self.measurements.movements(row, num_tests, baseline_estimates))
            except WrongResult:
                raise
            except NotFiniteReleaseError:
                self.add_nonfinite_release(test_name, row.description)
                return
            except Exception as error:
                # An aggregation function that refuses updates protects clients as well as one that
                # clips them. A new run is started, because the function may remember the refused
                # updates.
                error_names.append(type(error).__name__)
                self.measurements.runs.start()
        self.add_outcome(test_name, movements, error_names)

    def add_nonfinite_release(self, test_name: str, description: str) -> None:
        """Adds a failed outcome for a test in which a release contained NaN or an infinity."""
        self.has_nonfinite_release = True
        self.measurements.runs.start()
        self.outcomes.add(
            test_name,
            0.0,
            f"{description}: a release that is not a number; claimed are numbers.",
            mistake="A norm that overflows or a division by 0 does this.",
        )

    def add_outcome(
        self, test_name: str, movements: list[Movement], error_names: list[str], remark: str = ""
    ) -> None:
        """Adds the outcome of a test, given the movements that it measured.

        Args:
          test_name: one of `MOVEMENT_TESTS`.
          movements: all that were measured.
          error_names: names of the exceptions with which the function refused updates.
          remark: comment on a passed test.
        """
        if not movements:
            refusal_text = (
                f"The function refused all updates ({', '.join(sorted(set(error_names)))})."
            )
            self.outcomes.add(test_name, 1.0, refusal_text)
            return
        if not self._is_measured:
            self._is_measured = True
            self.max_movement = 1e-9
        interval_width = self.outcomes.width(len(movements))
        for movement in movements:
            self.max_movement = max(
                self.max_movement, movement.size - interval_width * movement.std
            )
        worst_movement = min(movements, key=lambda movement: (movement.p_value, -movement.size))
        smallest_std = min(movement.std_at_claim for movement in movements)
        self.outcomes.add(
            test_name,
            worst_movement.p_value,
            f"{worst_movement.scenario.description}: {self._in_words(worst_movement)}.",
            mistake=self._mistake(worst_movement),
            remark=remark,
            sees=1 + self.outcomes.reach(len(movements)) * smallest_std,
        )

    def _in_words(self, movement: Movement) -> str:
        """Returns a text on how far one client moves a release, and how far the claim allows."""
        noise_model = self.measurements.noise_model
        allowed_movement = self.claim.unit * noise_model.overall_std / noise_model.movement_std
        return (
            f"one client moves the {self.claim.releases} by "
            f"{movement.size * allowed_movement:.4g}; claimed is {allowed_movement:.4g} at most, "
            "for noise of this size"
        )

    def _mistake(self, movement: Movement) -> str:
        """Returns a text on the mistake that most likely causes a movement."""
        scenario = movement.scenario
        ratio_error = _MAX_DEVIATIONS_FROM_MISTAKE * movement.std_at_claim
        return nearest_mistake(movement.size, ratio_error, scenario.mistakes) or scenario.mistake


SpecialTest = Callable[[MovementTests], None]
