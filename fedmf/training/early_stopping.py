"""An end where more rounds no longer make the model better."""

import math
import warnings

from fedmf import checks
from fedmf.privacy.private_metrics import mean_over
from fedmf.training.callbacks import Callback, Row
from fedmf.training.under_way import Training


class EarlyStopping(Callback):
    """Stops the run, saved and without a result, where its loss has not been below its least for
    `patience` evaluations in a row.

    The mean private loss since the last evaluation decides that where the run has private metrics;
    else the validation loss, which the guarantee does not cover. The run's rounds have the
    guarantee of all rounds of the plan.

    Args:
      patience: evaluations, of every `evaluate_every` rounds.

    Raises:
      TypeError, ValueError: patience is no whole number from 1 on.
    """

    def __init__(self, patience: int) -> None:
        hint = "it is the number of evaluations to wait"
        self._patience = checks.integer("patience", patience, low=1, hint=hint)

    def on_start(self, training: Training) -> None:
        """See `Callback`. A run that was stopped stops again."""
        self._rows = list(training.recorded.metrics)
        self._stop_if_no_better(training)

    def on_round(self, training: Training, row: Row) -> None:
        """See `Callback`."""
        self._rows.append(row)
        if training.done % training.config.evaluate_every == 0:
            self._stop_if_no_better(training)

    def _stop_if_no_better(self, training: Training) -> None:
        every, metrics = training.config.evaluate_every, training.plan.private_metrics
        ends = range(every, len(self._rows) + 1, every)
        if metrics is None:
            losses = [self._rows[end - 1]["validation"]["loss"] for end in ends]
        else:
            released, most = [row["private"] for row in self._rows], metrics.largest_loss
            losses = [
                mean_over(released[end - every : end], "loss", largest_loss=most) for end in ends
            ]
        # Of a loss of minus infinity the model has diverged, too.
        losses = [loss if math.isfinite(loss) else math.inf for loss in losses]
        before, newest = losses[: -self._patience], losses[-self._patience :]
        if not before or min(newest) < min(before):
            return
        if metrics is None:
            warnings.warn(
                "validation losses decide that the run stops here, which the guarantee does not "
                "cover: private metrics are covered",
                stacklevel=2,
            )
        training.stop()
