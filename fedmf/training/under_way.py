"""`Training`, a run under way: what its loop and its callbacks share."""

from typing import Any

import numpy as np

from fedmf.federated.evaluation import Evaluator
from fedmf.fields import flat
from fedmf.runs.checkpoint import Checkpoint
from fedmf.runs.folder import Run
from fedmf.training.execution.base import Execution, RunOptions
from fedmf.training.private_metrics import PrivateRoundMetrics
from fedmf.training.run_setup import RunSetup

# What of a row is public, or follows from what was released with noise.
_COVERED = ("private", "clip_norm", "scale_drift", "noise_stddev")


class Training:
    """A run under way, as its callbacks see it.

    Attributes:
      task, config, plan, folder: of the run.
      options: how this machine runs it.
      recorded: the run as its folder had it when this process began, with the rows so far.
      done: complete rounds; `state` is the execution's after them.
      canary_releases: `Release.canaries` of each round, float64 (rounds, canaries).
      last: rounds after which the run is finished.
      seconds: of the newest round, validation and all.
      cohort: indices of the newest round's clients, in the task's order.
      not_finite: how many of them have examples that are not finite.
      stops: it stops before its next round.
    """

    def __init__(self, setup: RunSetup, options: RunOptions, execution: Execution) -> None:
        self.task, self.config, self.plan = setup.task, setup.config, setup.plan
        self.folder, self.options, self.execution = setup.folder, options, execution
        self.controller = setup.controller()
        checkpoint = self.folder.load_checkpoint()
        self.canary_releases = np.zeros((self.config.rounds, self.config.canaries))
        if checkpoint is None:
            self.state, self.done = execution.init(), 0
        else:
            self.controller.go_on_from(checkpoint.ledger)
            *leaves, self.canary_releases = checkpoint.state
            self.state, self.done = execution.from_leaves(leaves), checkpoint.rounds_done
        # What was released must be in the guarantee
        self.last = max(setup.rounds(), self.folder.rounds_ever_done())
        if (ended := Run.load(self.folder.path).ended_after) is not None:
            raise ValueError(
                f"{self.folder.path} has ended after {ended} rounds, as its `stop_at_epsilon` "
                "said, and states their guarantee: it does not go on; start a new folder for more "
                "rounds"
            )
        self.evaluator = Evaluator(self.task, self.config)
        releases = self.folder.path / "private_metrics.jsonl"
        self.private_metrics = (
            PrivateRoundMetrics(self.task, self.plan, setup.noise_seed, self.evaluator, releases)
            if self.plan.private_metrics is not None
            else None
        )
        self.seconds, self.cohort, self.not_finite = 0.0, list[int](), 0
        self.stops = False
        self._saved, self._digest = self.done, self.folder.digest()
        self.folder.truncate_rows(self.done)
        self.recorded = Run.load(self.folder.path)

    def weights(self) -> list[np.ndarray]:
        """The model's trainable weights after `done` rounds."""
        return self.execution.weights(self.state)

    def scalars(self, row: dict[str, Any]) -> dict[str, float]:
        """The numbers of a row beside its round, under names that say whether the guarantee covers
        them, such as "covered/private/loss" and "not_covered/train_loss".

        Of a run without noise none is covered, and of a simulation of a larger cohort none either:
        its guarantee is that of the cohort that it stands for.
        """
        private = self.plan.noise_multiplier > 0 and self.plan.simulation is None
        numbers = flat({name: row[name] for name in row if name != "round"}, "/")
        return {
            f"{'' if private and name.split('/')[0] in _COVERED else 'not_'}covered/{name}": value
            for name, value in numbers.items()
            if value is not None
        }

    def stop(self, *, by_data: bool = True) -> None:
        """Stops the run before its next round, saved and without a result.

        Args:
          by_data: whether anything that the run showed decided that, such as a loss or a
            validation. `fedmf audit` then counts the rounds that are left as much as the plan
            allows, for the end is not that of a shorter plan.
        """
        self.stops = True
        if by_data and self.done < self.last:
            self.folder.mark_stopped_by_data(self.done)

    @property
    def saved(self) -> bool:
        """Whether the newest round is in a checkpoint."""
        return self.done == self._saved

    def save(self) -> None:
        """Saves the run, unless its newest round is saved."""
        if self.saved:
            return
        self.folder.save_checkpoint(
            Checkpoint(
                rounds_done=self.done,
                config_digest=self._digest,
                state=[*self.execution.leaves(self.state), self.canary_releases],
                ledger=self.controller.ledger.first(self.done),
            )
        )
        self._saved = self.done
