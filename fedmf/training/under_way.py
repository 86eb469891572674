"""The state of a run in progress, which the training loop and callbacks share."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf.fields import flat
from fedmf.runs.folder import Run
from fedmf.runs.round_metrics import FinishedRound, compute_round_metrics
from fedmf.runs.rounds import CommittedRound, selected_of
from fedmf.server.journal import Committed
from fedmf.training.evaluation import Evaluator
from fedmf.training.execution.base import Execution, Release, RunOptions
from fedmf.training.private_metrics import PrivateRoundMetrics
from fedmf.training.run_setup import RunSetup

# Names of the entries of a round's row that are public, or that are computed from noisy releases
# alone, so the privacy guarantee covers them.
_COVERED = ("private", "clip_norm", "scale_drift", "noise_stddev")


class Training:
    """A run in progress, as callbacks see it.

    Attributes:
      task, config, plan, folder: task, config, plan and folder of the run.
      options: options of `train`.
      recorded: the run as its folder had it when this process started, with the rows of its rounds.
      done: number of committed rounds.
      last: number of rounds after which the run is finished.
      seconds: duration of the newest round, with its validation.
      cohort: indices of the newest round's clients, in the task's order.
      not_finite: number of clients in the cohort whose examples are not finite.
      stops: whether the run stops before its next round.
    """

    def __init__(self, setup: RunSetup, options: RunOptions, execution: Execution) -> None:
        self.task = setup.task
        self.config = setup.config
        self.plan = setup.plan
        self.folder = setup.folder
        self.options = options
        self.execution = execution
        self.controller = setup.controller()
        committed_rounds = self.folder.committed
        self.done = len(committed_rounds.rows)
        # The run cannot end before rounds that are released already, because its guarantee must
        # cover their releases.
        self.last = max(setup.rounds(), self.done)
        self.recorded = Run.load(self.folder.path)
        if self.recorded.ended_after is not None:
            raise ValueError(
                f"{self.folder.path} ended after {self.recorded.ended_after} rounds because of its "
                "`stop_at_epsilon`, and its statement is about these: it cannot be resumed; start "
                "a new folder for more rounds"
            )
        self.evaluator = Evaluator(self.task, self.config)
        self.private_metrics = None
        if self.plan.private_metrics is not None:
            self.private_metrics = PrivateRoundMetrics(
                self.task, self.plan, setup.noise_seed, self.evaluator
            )
        self.program = setup.program
        self._first_rounds = [
            0,
            *(row["round"] for row in committed_rounds.rows if "program" in row),
        ]
        self.folder.note_programs(self._first_rounds)
        self._canary_releases = [np.array(row.get("canaries", ())) for row in committed_rounds.rows]
        self.seconds = 0.0
        self.cohort: list[int] = []
        self.not_finite = 0
        self.stops = False
        self._state = execution.init()
        if committed_rounds.rows:
            self._resume_from(committed_rounds)
        self.folder.forget_committed()

    def _resume_from(self, committed: Committed) -> None:
        """Repeats the server's step of the newest committed round. If a crash prevented the round's
        row of metrics, it is computed now.
        """
        self.controller.restore(
            [np.array(row["clients"], np.int64) for row in committed.rows],
            [selected_of(row) for row in committed.rows],
        )
        newest_round = CommittedRound.of(committed)
        newest_release = Release(
            arrays=newest_round.release,
            statistics=newest_round.statistics,
            canaries=newest_round.canaries,
        )
        state_before = self.execution.from_before(newest_round.before)
        self._state = self.execution.step(state_before, newest_release)
        if "metrics_row" not in committed.rows[-1]:
            self.add_metrics_row(newest_round, self.execution.weights(state_before))
            self.recorded = Run.load(self.folder.path)

    def collect_release(self, clients: Sequence[Any], canaries: Sequence[int]) -> Release:
        """Trains the cohort and returns the release of the coming round, as
        `Execution.collect_release` does.
        """
        return self.execution.collect_release(self._state, clients, canaries)

    def weights_before_round(self) -> list[np.ndarray]:
        """Returns the weights before the coming round. They may be no copies, so callers must not
        change them.
        """
        return self.execution.weights(self._state)

    def take_step(self, release: Release) -> None:
        """Takes the server's step of the newest committed round."""
        self._state = self.execution.step(self._state, release)
        self.done += 1

    def canary_evidence(self) -> dict[str, np.ndarray]:
        """Returns the evidence by which the run's canaries are audited."""
        canary_releases = np.array(self._canary_releases)
        return self.execution.canary_evidence(self._state, canary_releases)

    def commit(self, release: Release, private: dict[str, Any] | None) -> CommittedRound:
        """Commits the coming round, before anything of it is returned, printed or written.

        Args:
          release: release of the round.
          private: private metrics of the round, or None.
        """
        t = self.done
        ledger = self.controller.ledger
        committed_round = CommittedRound(
            t=t,
            clients=ledger.cohort(t),
            selected=ledger.selected(t),
            statistics=dict(release.statistics),
            private=private,
            canaries=release.canaries,
            release=release.arrays,
            before=self.execution.before(self._state),
            program=self.program,
        )
        self.folder.commit(committed_round)
        if self.program is not None:
            self._first_rounds.append(t)
            self.folder.note_programs(self._first_rounds)
        self.program = None
        self._canary_releases.append(release.canaries)
        return committed_round

    def add_metrics_row(
        self, committed: CommittedRound, weights_before: list[np.ndarray]
    ) -> dict[str, Any]:
        """Writes the row of the newest round to metrics.jsonl, and returns it.

        Args:
          committed: the round.
          weights_before: weights before the round; empty if no metric needs them.
        """
        t = committed.t
        cohort_indices = committed.clients.tolist()
        metrics_row = committed.metrics_row()
        round_metrics = self.options.round_metrics
        weights_after = self.execution.weights(self._state)
        if round_metrics:
            # Canaries have the client indices after those of all real clients.
            num_clients = len(self.task.client_ids)
            client_ids = [
                self.task.client_ids[index] for index in cohort_indices if index < num_clients
            ]
            finished_round = FinishedRound(t, weights_before, weights_after, client_ids)
            metrics_row |= compute_round_metrics(round_metrics, finished_round)
        if (t + 1) % self.config.evaluate_every == 0 or t + 1 == self.last:
            metrics_row["validation"] = self.evaluator(weights_after, "validation")
        self.folder.add_metrics_row(metrics_row)
        return metrics_row

    def weights(self) -> list[np.ndarray]:
        """Returns copies of the model's trainable weights after the newest round."""
        return [np.array(weight) for weight in self.execution.weights(self._state)]

    def scalars(self, row: dict[str, Any]) -> dict[str, float]:
        """Returns the numbers of a row by names that say whether the guarantee covers them, such as
        "covered/private/loss" and "not_covered/train_loss".

        No number is covered in a run without noise, or in a simulation of a larger cohort, whose
        guarantee is that of the simulated cohort.
        """
        has_guarantee = self.plan.noise_multiplier > 0 and self.plan.simulation is None
        flat_numbers = flat({name: row[name] for name in row if name != "round"}, "/")
        scalar_by_name = {}
        for name, value in flat_numbers.items():
            is_covered = has_guarantee and name.split("/")[0] in _COVERED
            prefix = "covered" if is_covered else "not_covered"
            if value is not None:
                scalar_by_name[f"{prefix}/{name}"] = value
        return scalar_by_name

    def stop(self, *, by_data: bool = True) -> None:
        """Stops the run before its next round, without a result.

        Args:
          by_data: whether the decision depended on results of the run, such as a loss or a
            validation. `fedmf audit` then states the guarantee of all rounds of the plan,
            because the run is no run of a shorter plan.
        """
        self.stops = True
        if by_data and self.done < self.last:
            self.folder.mark_stopped_by_data(self.done)
