"""A run that diverges, told from its training losses, and the server learning rate
that its noise allows.
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

# The loss of a cohort of a few clients goes up and down: the start is the worst of some rounds, and
# one round above it says nothing.
START_ROUNDS = 5
ROUNDS_ABOVE_START = 20
_WORST_START = f"the worst of the first {START_ROUNDS}"
# Of the server in the runs that the rule of `fedmf plan learning-rate` was found from.
RULE_MOMENTUM = 0.95
# The demo's rates, which were tuned for a small model, are 3 to 4 times the rule's. With 8 times it
# 20 rounds of 20 clients ended above the loss of the untrained model.
FACTOR = 5.0
_RULE = "the rule of `fedmf plan learning-rate` takes for this noise and momentum"


class DivergedRun(RuntimeError):
    """The run diverged and was to stop then: its rounds are saved."""


class DivergenceWatch:
    """Follows a run's training losses, and says once when it diverges.

    A run diverges if its loss is not finite, or was for 20 rounds in a row above all losses of its
    first 5 rounds, or far above that of round 0: see `is_far_above`. A run that learns nothing does
    not diverge. Rounds without examples do not count. A resumed run is watched rightly if it is
    shown the rounds before, too.

    Args:
      server_learning_rate: peak of the run's schedule.
      rate_for_noise: the rate to name in its place, as `rate_for_noise` gives it.
    """

    def __init__(self, *, server_learning_rate: float, rate_for_noise: float | None) -> None:
        self.server_learning_rate, self.rate_for_noise = server_learning_rate, rate_for_noise
        self._first: list[float] = []
        self._latest = collections.deque[float](maxlen=ROUNDS_ABOVE_START)
        self._told = False

    def observe(self, t: int, train_loss: float, examples: int) -> str | None:
        """A sentence for the user if the run is seen to diverge in round `t`, and was not before;
        else None.
        """
        if self._told or not examples:
            return None
        if not math.isfinite(train_loss):
            return self._tell(
                f"the training loss of round {t} is {train_loss}", "`client_learning_rate`, or "
            )
        if len(self._first) < START_ROUNDS:
            self._first.append(train_loss)
        self._latest.append(train_loss)
        # Round 0 has the model that the run began with. A run that leaps at once stays above it.
        untrained_loss, worst_start = self._first[0], max(self._first)
        if len(self._latest) < ROUNDS_ABOVE_START:
            return None
        if min(self._latest) > worst_start:
            start, what = worst_start, _WORST_START
        elif is_far_above(self._latest, untrained_loss):
            start, what = untrained_loss, "that of the model that it began with"
        else:
            return None
        return self._tell(
            f"the run diverges: in round {t} its training loss is {train_loss:.3g}, and for "
            f"{ROUNDS_ABOVE_START} rounds it was above {start:.3g}, {what}"
        )

    def _tell(self, what: str, other: str = "") -> str:
        self._told = True
        rate, hint = self.rate_for_noise, ""
        if rate is not None and rate < self.server_learning_rate:
            hint = f", such as {rate:.2g}, which {_RULE}"
        return (
            f"{what}: start again with a smaller {other}`server_learning_rate` than "
            f"{self.server_learning_rate:g}{hint}"
        )


def is_far_above(losses: Sequence[float], start: float) -> bool:
    """Returns whether the least of some losses is above `start` by three standard deviations of
    these losses, or is more than twice `start`.

    `start` is a single loss. Where nothing is learned, 20 losses in a row are all above it in one
    run of 20, by chance. By three deviations they are in one of thousands.

    >>> is_far_above([44.0, 46.0] * 10, 12.0), is_far_above([12.5, 15.5] * 10, 12.0)
    (True, False)
    """
    margin = min(3 * float(np.std(losses)), abs(start))
    return min(losses) - start > margin


class Divergence(Callback):
    """Warns of a run that diverges, and before round 0 of a rate that the noise hardly allows."""

    stops = False

    def on_start(self, training: Training) -> None:
        """See `Callback`."""
        config = training.config
        rate = rate_for_noise(training.plan, config, training.recorded.plan["rmse"])
        if not training.done and (sentence := rate_warning(rate, config)):
            warnings.warn(sentence, stacklevel=4)
        self._watch = DivergenceWatch(
            server_learning_rate=config.server_learning_rate, rate_for_noise=rate
        )
        for row in training.recorded.metrics:
            self._observed(row)

    def on_round(self, training: Training, row: Row) -> None:
        """See `Callback`."""
        if said := self._observed(row):
            warnings.warn(said, stacklevel=4)

    def _observed(self, row: Row) -> str | None:
        """What the watch says of a row; it stops the run, or is said."""
        said = self._watch.observe(row["round"], *_loss(row))
        if said and self.stops:
            raise DivergedRun(said)
        return said


class StopOnDivergence(Divergence):
    """Stops the run with `DivergedRun`, without a result, where it would warn of a
    divergence.

    The private losses decide that where the run has private metrics; else the exact ones, which the
    guarantee does not cover. The run's rounds have the guarantee of all rounds of the plan.
    """

    stops = True


def _loss(row: Row) -> tuple[float, int]:
    """The private loss where there is one, which every round has: what is decided by it the
    guarantee covers. Else the exact one, and of how many examples it is.
    """
    private = row.get("private")
    if private is None:
        return row["train_loss"], row["examples"]
    # With less than one client the loss says nothing: it is the middle of its range.
    return private["loss"], int(private["clients"] >= 1)


def rate_for_noise(plan: Plan, config: TrainConfig, rmse: float) -> float | None:
    """What `fedmf plan learning-rate` prints for a run, at its momentum; None without noise, and
    for other server optimizers than sgd.

    A momentum m multiplies the sum of updates by 1 / (1 - m), so that at a smaller one a larger
    rate leaves as much noise in the model.

    Args:
      rmse: of the plan's mechanism on prefix sums, as `fedmf.rmse` gives it, for a long
        tree in a minute.
    """
    if not plan.noise_multiplier or config.server_optimizer != "sgd":
        return None
    error = update_noise_multiplier(plan) * rmse / (config.claimed_cohort or config.cohort_size)
    rate = on_grid(predicted_learning_rate(error, clip_norm=plan.clip_norm, grid=None))
    return rate * (1 - config.server_momentum) / (1 - RULE_MOMENTUM)


def rate_warning(rate: float | None, config: TrainConfig) -> str | None:
    """A sentence for the user if the run's rate is far above `rate_for_noise`; else None."""
    if rate is None or config.server_learning_rate <= FACTOR * rate:
        return None
    return (
        f"server_learning_rate={config.server_learning_rate:g} is "
        f"{config.server_learning_rate / rate:.0f} times the {rate:.2g} that "
        f"{_RULE}: the run may diverge. The rule is that of next-word prediction; for another task "
        "it is where a search begins"
    )
