"""`Callback`, what follows a run from round to round; the bar, an earlier end."""

from typing import Any

import tqdm

from fedmf import checks
from fedmf.terminal import progress_bar
from fedmf.training.under_way import Training

Row = dict[str, Any]


class Callback:
    """Follows a run from round to round; its methods do nothing here.

    A round's row is in metrics.jsonl when a callback sees it. The guarantee of the run covers
    `training.weights()` and, of the row, the private metrics and what follows from releases. It
    does not cover losses, counts and validations, which are exact functions of the clients'
    examples or of the evaluation data. `training.scalars(row)` names every number by that.

    To end a run early call `training.stop()`, which the audit knows of. An exception stops the run
    like a crash: a resume goes on after the newest round. No round is seen twice: the rows that a
    crash kept from a callback are in `training.recorded` at `on_start`.

    Example:
      >>> class Losses(Callback):
      ...     def on_round(self, training, row):
      ...         print(row["round"], row["train_loss"])
    """

    def on_start(self, training: Training) -> None:
        """Called before the first round of this process; `training.recorded` is the run so far."""

    def on_round(self, training: Training, row: Row) -> None:
        """Called after a round, `training.done - 1`, with its row of metrics.jsonl."""

    def on_end(self, training: Training) -> None:
        """Called after the last round of this process, also where an error or Ctrl-C ended it."""


class StopAfter(Callback):
    """Stops the run after so many rounds, without a result, to go on at a resume.

    Raises:
      TypeError, ValueError: rounds is no whole number from 1 on.
    """

    def __init__(self, rounds: int) -> None:
        hint = "it is the number of rounds after which the run stops"
        self.rounds = checks.integer("rounds", rounds, low=1, hint=hint)

    def on_start(self, training: Training) -> None:
        """See `Callback`."""
        if training.done >= self.rounds:
            training.stop(by_data=False)

    def on_round(self, training: Training, row: Row) -> None:
        """See `Callback`."""
        self.on_start(training)


class Bar(Callback):
    """The progress bar: rounds, time left, the newest validation, the training loss, clients/s.

    The validation loss stands first, so that a narrow terminal shows it: it falls from the first
    rounds on, while an accuracy that leaves out frequent labels may stay 0 for many rounds.
    """

    def on_start(self, training: Training) -> None:
        """See `Callback`."""
        self._validation: dict[str, str] = {}
        self._bar: tqdm.tqdm[Any] = progress_bar.bar(
            total=training.config.rounds,
            initial=training.done,
            unit="round",
            desc=training.config.family,
        )

    def on_round(self, training: Training, row: Row) -> None:
        """See `Callback`."""
        if "validation" in row:
            self._validation = _shown_validation(row["validation"], training.task.headline)
        latest = self._validation | {
            "loss": f"{row['train_loss']:.3f}",
            "clients/s": f"{row['clients'] / training.seconds:.1f}",
        }
        self._bar.set_postfix(latest, refresh=False)
        self._bar.update()

    def on_end(self, training: Training) -> None:
        """See `Callback`."""
        self._bar.close()


def _shown_validation(metrics: dict[str, float], headline: str) -> dict[str, str]:
    """Returns the loss of a validation and its headline metric, as the bar shows them."""
    shown: dict[str, str] = {}
    if "loss" in metrics:
        shown["validation loss"] = f"{metrics['loss']:.3f}"
    if headline != "loss":
        shown[headline] = f"{metrics[headline]:.4f}"
    return shown
