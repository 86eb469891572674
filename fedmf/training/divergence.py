"""Detection of runs whose training losses diverge, and the server learning rate that suits the
noise of a run.
"""

import collections
import math
import warnings
from collections.abc import Sequence

import numpy as np

from fedmf.privacy.learning_rate import on_grid, predicted_learning_rate
from fedmf.privacy.plan import Plan, update_noise_multiplier
from fedmf.runs.config import TrainConfig
from fedmf.training.callbacks import Callback, Row
from fedmf.training.under_way import Training

# A run is reported as diverging if ROUNDS_ABOVE_START losses in a row are above the worst loss of
# its first START_ROUNDS rounds, or far above that of round 0. Single rounds do not count, because
# the loss of a small cohort fluctuates.
START_ROUNDS = 5
ROUNDS_ABOVE_START = 20
_WORST_START = f"the worst of the first {START_ROUNDS}"
# Server momentum of the runs to which the learning-rate rule of `fedmf plan learning-rate` was
# fitted.
RULE_MOMENTUM = 0.95
# A warning is given if the server learning rate is above this many times the rate by the rule of
# `fedmf plan learning-rate`. The rates that were tuned for the demo's small model are 3 to 4 times
# those by the rule.
FACTOR = 5.0
_RULE = "the rule of `fedmf plan learning-rate` takes for this noise and momentum"


class DivergedRun(RuntimeError):
    """The error of a run that was stopped because it diverged. Its rounds are saved."""


class DivergenceWatch:
    """An observer of a run's training losses, which reports once if the run diverges.

    A run diverges if its loss is not finite, if for 20 rounds in a row it was above all losses of
    the first 5 rounds, or if for 20 rounds it was far above that of round 0 (`is_far_above`). A run
    that learns nothing does not diverge. Rounds without examples do not count. For a resumed run,
    `observe` must be called for its earlier rounds too.

    Args:
      server_learning_rate: peak of the run's schedule.
      rate_for_noise: a smaller rate to suggest, as `rate_for_noise` returns it.
    """

    def __init__(self, *, server_learning_rate: float, rate_for_noise: float | None) -> None:
        self.server_learning_rate = server_learning_rate
        self.rate_for_noise = rate_for_noise
        self._first_losses: list[float] = []
        self._newest_losses = collections.deque[float](maxlen=ROUNDS_ABOVE_START)
        self._has_reported = False

    def observe(self, t: int, train_loss: float, examples: int) -> str | None:
        """Observes the loss of a round. Returns a message when the run is first seen to diverge,
        and None in every other round.
        """
        if self._has_reported or not examples:
            return None
        if not math.isfinite(train_loss):
            return self._report(
                f"the training loss of round {t} is {train_loss}", "`client_learning_rate`, or "
            )
        if len(self._first_losses) < START_ROUNDS:
            self._first_losses.append(train_loss)
        self._newest_losses.append(train_loss)
        # The loss of round 0 is that of the untrained model. If a run diverges in its first step,
        # its later losses stay above the loss of round 0, but need not exceed those of rounds 1 to
        # 4.
        untrained_loss = self._first_losses[0]
        worst_start = max(self._first_losses)
        if len(self._newest_losses) < ROUNDS_ABOVE_START:
            return None
        if min(self._newest_losses) > worst_start:
            start_text = f"{worst_start:.3g}, {_WORST_START}"
        elif is_far_above(self._newest_losses, untrained_loss):
            start_text = f"{untrained_loss:.3g}, that of the model that it began with"
        else:
            return None
        return self._report(
            f"the run diverges: in round {t} its training loss is {train_loss:.3g}, and for "
            f"{ROUNDS_ABOVE_START} rounds it was above {start_text}"
        )

    def _report(self, problem: str, client_rate: str = "") -> str:
        """Returns a message that says what to change, and remembers that the run was reported."""
        self._has_reported = True
        suggested_rate = self.rate_for_noise
        suggestion_text = ""
        if suggested_rate is not None and suggested_rate < self.server_learning_rate:
            suggestion_text = f", such as {suggested_rate:.2g}, which {_RULE}"
        return (
            f"{problem}: start again with a smaller {client_rate}`server_learning_rate` than "
            f"{self.server_learning_rate:g}{suggestion_text}"
        )


def is_far_above(losses: Sequence[float], start: float) -> bool:
    """Returns whether all losses are far above the loss `start`. This is so if the smallest exceeds
    it by more than three standard deviations of the losses, or by more than `start` itself.

    `start` is a single loss. If nothing is learned, all of 20 losses are above it in one of 20 runs
    by chance, and above it by three standard deviations in one of thousands.

    >>> is_far_above([44.0, 46.0] * 10, 12.0), is_far_above([12.5, 15.5] * 10, 12.0)
    (True, False)
    """
    loss_margin = min(3 * float(np.std(losses)), abs(start))
    return min(losses) - start > loss_margin


class Divergence(Callback):
    """A callback that warns if a run diverges, and before round 0 if its learning rate is too large
    for its noise.
    """

    stops = False

    def on_start(self, training: Training) -> None:
        """Warns of a learning rate that is too large for the noise, and observes the losses of
        earlier rounds.
        """
        config = training.config
        rate_by_rule = rate_for_noise(training.plan, config, training.recorded.plan["rmse"])
        warning_text = rate_warning(rate_by_rule, config)
        if warning_text is not None and not training.done:
            warnings.warn(warning_text, stacklevel=4)
        self._watch = DivergenceWatch(
            server_learning_rate=config.server_learning_rate, rate_for_noise=rate_by_rule
        )
        for row in training.recorded.metrics:
            self._observe(row)

    def on_round(self, training: Training, row: Row) -> None:
        """Observes the loss of a round, and warns if the run diverges."""
        warning_text = self._observe(row)
        if warning_text is not None:
            warnings.warn(warning_text, stacklevel=4)

    def _observe(self, row: Row) -> str | None:
        """Observes the loss in a row of metrics.jsonl. Returns a message if the run diverges, or
        raises DivergedRun with it if such a run must stop.
        """
        train_loss, num_examples = _loss_and_examples(row)
        warning_text = self._watch.observe(row["round"], train_loss, num_examples)
        if warning_text is not None and self.stops:
            raise DivergedRun(warning_text)
        return warning_text


class StopOnDivergence(Divergence):
    """A callback that stops a run when it diverges, by raising `DivergedRun`. The run has no result
    then.

    Private losses decide that if the run has private metrics, and otherwise exact losses, which the
    guarantee does not cover. A stopped run has the guarantee of all rounds of the plan.
    """

    stops = True


def _loss_and_examples(row: Row) -> tuple[float, int]:
    """Returns the training loss of a round, and the number of examples that it is over.

    For a run with private metrics the loss is the private one, so that the guarantee covers
    decisions that depend on it. The number of examples is then 1, or 0 if the loss has no meaning.
    """
    private_metrics = row.get("private")
    if private_metrics is None:
        return row["train_loss"], row["examples"]
    # If the noisy number of clients is below one, the reported loss is the middle of its range and
    # has no meaning.
    return private_metrics["loss"], int(private_metrics["clients"] >= 1)


def rate_for_noise(plan: Plan, config: TrainConfig, rmse: float) -> float | None:
    """Returns the server learning rate that suits a run's noise, by the rule of `fedmf plan
    learning-rate` and for the run's momentum. None without noise, and for server optimizers other
    than sgd.

    A momentum m multiplies the sum of updates by 1 / (1 - m), so that with a smaller momentum a
    larger rate leaves as much noise in the model.

    Args:
      plan: plan of the run.
      config: config of the run.
      rmse: error of the plan's mechanism on prefix sums, as `fedmf.rmse` returns it. It can take
        a minute for a long run, and is therefore passed.
    """
    if not plan.noise_multiplier or config.server_optimizer != "sgd":
        return None
    effective_error = (
        update_noise_multiplier(plan) * rmse / (config.claimed_cohort or config.cohort_size)
    )
    suggested_rate = on_grid(
        predicted_learning_rate(effective_error, clip_norm=plan.clip_norm, grid=None)
    )
    return suggested_rate * (1 - config.server_momentum) / (1 - RULE_MOMENTUM)


def rate_warning(rate: float | None, config: TrainConfig) -> str | None:
    """Returns a warning if the run's server learning rate is far above `rate`; None otherwise."""
    if rate is None or config.server_learning_rate <= FACTOR * rate:
        return None
    return (
        f"server_learning_rate={config.server_learning_rate:g} is "
        f"{config.server_learning_rate / rate:.0f} times the {rate:.2g} that "
        f"{_RULE}: the run may diverge. The rule was fitted to next-word prediction; for another "
        "task it is a start for a search"
    )
