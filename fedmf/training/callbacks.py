"""The base class of code that is called after each round. The module also has the progress bar and
`StopAfter`.
"""

from typing import Any

import tqdm

from fedmf import checks
from fedmf.terminal import progress_bar
from fedmf.training.under_way import Training

Row = dict[str, Any]


class Callback:
    """Base class of callbacks, which the training loop calls. Its methods do nothing.

    A round's row is in metrics.jsonl when callbacks are called. The guarantee of the run covers
    `training.weights()` and those numbers of the row that are private metrics or follow from
    releases. It does not cover losses, counts and validations, which are exact functions of the
    clients' examples or of the evaluation data. `training.scalars(row)` names each number
    accordingly.

    `training.stop()` ends a run early in a way that the audit takes into account. An exception
    stops the run like a crash, after which it can be resumed. A callback is called at most once for
    a round: rows that it missed because of a crash are in `training.recorded` at `on_start`.

    Example:
      >>> class Losses(Callback):
      ...     def on_round(self, training, row):
      ...         print(row["round"], row["train_loss"])
    """

    def on_start(self, training: Training) -> None:
        """Runs before the first round of this process. `training.recorded` is the run as recorded
        so far.
        """

    def on_round(self, training: Training, row: Row) -> None:
        """Runs after each round, and gets the round's row of metrics.jsonl. The round's number is
        `training.done - 1`.
        """

    def on_end(self, training: Training) -> None:
        """Runs after the last round of this process, even if an error or Ctrl-C ended the run."""

    def on_result(self, training: Training) -> None:
        """Runs after `on_end`, when the result of a finished run has been written."""


class StopAfter(Callback):
    """A callback that stops the run after a number of rounds, without a result.

    The run can be resumed.

    Raises:
      TypeError, ValueError: rounds is no whole number of at least 1.
    """

    def __init__(self, rounds: int) -> None:
        hint = "it is the number of rounds after which the run stops"
        self.rounds = checks.integer("rounds", rounds, low=1, hint=hint)

    def on_start(self, training: Training) -> None:
        """Stops the run if the given number of rounds is done already."""
        if training.done >= self.rounds:
            training.stop(by_data=False)

    def on_round(self, training: Training, row: Row) -> None:
        """Stops the run after the given number of rounds."""
        self.on_start(training)


class Bar(Callback):
    """The progress bar of a run. It shows rounds, remaining time, the newest validation, the
    training loss and clients per second.

    The validation loss is first, so that a narrow terminal shows it: it falls from the first rounds
    on, while an accuracy that leaves out frequent labels may stay 0 for many rounds.
    """

    def on_start(self, training: Training) -> None:
        """Creates the progress bar, at the number of rounds that are done."""
        self._validation: dict[str, str] = {}
        self._bar: tqdm.tqdm[Any] = progress_bar.bar(
            total=training.config.rounds,
            initial=training.done,
            unit="round",
            desc=training.config.family,
        )

    def on_round(self, training: Training, row: Row) -> None:
        """Moves the progress bar by one round, and shows the newest metrics."""
        if "validation" in row:
            self._validation = _validation_texts(row["validation"], training.task.headline)
        bar_texts = self._validation | {
            "loss": f"{row['train_loss']:.3f}",
            "clients/s": f"{row['clients'] / training.seconds:.1f}",
        }
        self._bar.set_postfix(bar_texts, refresh=False)
        self._bar.update()

    def on_end(self, training: Training) -> None:
        """Closes the progress bar."""
        self._bar.close()


def _validation_texts(metrics: dict[str, float], headline: str) -> dict[str, str]:
    """Returns the loss and the headline metric of a validation as texts that the bar shows."""
    texts: dict[str, str] = {}
    if "loss" in metrics:
        texts["validation loss"] = f"{metrics['loss']:.3f}"
    if headline != "loss":
        texts[headline] = f"{metrics[headline]:.4f}"
    return texts
