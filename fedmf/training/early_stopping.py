"""A callback that stops a run whose loss no longer improves."""

import math
import warnings

from fedmf import checks
from fedmf.privacy.private_metrics import mean_over
from fedmf.training.callbacks import Callback, Row
from fedmf.training.under_way import Training


class EarlyStopping(Callback):
    """A callback that stops a run whose loss has not improved for `patience` evaluations.

    The run is stopped without a result.

    If the run has private metrics, the loss of an evaluation is the mean private loss since the
    previous one. Otherwise it is the validation loss, which the guarantee does not cover. A stopped
    run has the guarantee of all rounds of the plan.

    Args:
      patience: number of evaluations, which happen every `evaluate_every` rounds.

    Raises:
      TypeError, ValueError: patience is no whole number of at least 1.
    """

    def __init__(self, patience: int) -> None:
        hint = "it is the number of evaluations to wait"
        self._patience = checks.integer("patience", patience, low=1, hint=hint)

    def on_start(self, training: Training) -> None:
        """Reads the losses of earlier rounds. A run that was stopped by this callback stops
        again.
        """
        self._rows = list(training.recorded.metrics)
        self._stop_if_not_improved(training)

    def on_round(self, training: Training, row: Row) -> None:
        """Records a round's loss, and after an evaluation stops the run if the loss has not
        improved.
        """
        self._rows.append(row)
        if training.done % training.config.evaluate_every == 0:
            self._stop_if_not_improved(training)

    def _stop_if_not_improved(self, training: Training) -> None:
        """Stops the run if none of the newest `patience` losses is below all earlier ones."""
        all_losses = self._evaluation_losses(training)
        newest_losses = all_losses[-self._patience :]
        earlier_losses = all_losses[: -self._patience]
        if not earlier_losses or min(newest_losses) < min(earlier_losses):
            return
        if training.plan.private_metrics is None:
            warnings.warn(
                "validation losses decide that the run stops here, which the guarantee does not "
                "cover: private metrics are covered",
                stacklevel=2,
            )
        training.stop()

    def _evaluation_losses(self, training: Training) -> list[float]:
        """Returns the loss of each evaluation so far; infinity for a loss that is not finite."""
        rounds_between = training.config.evaluate_every
        private_metrics = training.plan.private_metrics
        row_counts = range(rounds_between, len(self._rows) + 1, rounds_between)
        if private_metrics is None:
            losses = [self._rows[end - 1]["validation"]["loss"] for end in row_counts]
        else:
            releases = [row["private"] for row in self._rows]
            losses = [
                mean_over(
                    releases[end - rounds_between : end],
                    "loss",
                    largest_loss=private_metrics.largest_loss,
                )
                for end in row_counts
            ]
        # A loss of minus infinity is replaced by plus infinity, because a model with such a loss
        # has diverged.
        return [loss if math.isfinite(loss) else math.inf for loss in losses]
