"""A run that diverges, told from its training losses, and the server learning rate that its noise allows."""

import math

from fedmf.privacy.learning_rate import effective_rmse, on_grid, predicted_learning_rate
from fedmf.privacy.plan import Plan
from fedmf.workloads import prefix_sum

# The loss of a cohort of a few clients goes up and down: the start is the worst of some rounds, and one round above it says nothing.
START_ROUNDS = 5
ROUNDS_ABOVE_START = 20


class DivergenceWatch:
    """Follows a run's training losses, and says once when it diverges.

    A run diverges if its loss is not finite, or was above all losses of its first 5 rounds for 20 rounds in a row. Rounds without examples
    do not count. A resumed run is watched rightly if it is shown the rounds before, too.

    Args:
      plan: of the run.
      cohort_size: clients that a round's sum is divided by; of a run that simulates a larger cohort, the larger one.
      server_learning_rate: peak of the run's schedule.
    """

    def __init__(self, plan: Plan, *, cohort_size: int, server_learning_rate: float) -> None:
        self.plan, self.cohort_size, self.server_learning_rate = plan, cohort_size, server_learning_rate
        self._first: list[float] = []
        self._above = 0
        self._told = False

    def observe(self, t: int, train_loss: float, examples: int) -> str | None:
        """A sentence for the user if the run is seen to diverge in round `t`, and was not before; else None."""
        if self._told or not examples:
            return None
        if not math.isfinite(train_loss):
            return self._tell(f"the training loss of round {t} is {train_loss}", "client_learning_rate, or ")
        if len(self._first) < START_ROUNDS:
            self._first.append(train_loss)
            return None
        start = max(self._first)
        self._above = self._above + 1 if train_loss > start else 0
        if self._above < ROUNDS_ABOVE_START:
            return None
        return self._tell(
            f"the run diverges: in round {t} its training loss is {train_loss:.3g}, and for {ROUNDS_ABOVE_START} rounds it was above "
            f"{start:.3g}, the worst of the first {START_ROUNDS}"
        )

    def _tell(self, what: str, other: str = "") -> str:
        self._told = True
        rate = self._rate_for_the_noise()
        hint = f", such as {rate:.2g}, which `fedmf plan learning-rate` takes for this noise" if rate else ""
        return (
            f"{what}: start again with a smaller {other}server_learning_rate than {self.server_learning_rate:g}{hint}"
        )

    def _rate_for_the_noise(self) -> float | None:
        """What `fedmf plan learning-rate` prints, if that is smaller; None without noise, for which there is no rule."""
        if not self.plan.noise_multiplier:
            return None
        error = effective_rmse(self.plan, prefix_sum(self.plan.mechanism.rounds), cohort_size=self.cohort_size)
        rate = on_grid(predicted_learning_rate(error, clip_norm=self.plan.clip_norm, grid=None))
        return rate if rate < self.server_learning_rate else None
