"""`Training`, a run under way: what its loop and its callbacks share."""

from typing import Any

import numpy as np

from fedmf.fields import flat
from fedmf.runs.folder import Run
from fedmf.runs.round_metrics import FinishedRound, computed_metrics
from fedmf.runs.rounds import CommittedRound, selected_of
from fedmf.server.journal import Committed
from fedmf.training.evaluation import Evaluator
from fedmf.training.execution.base import Execution, Release, RunOptions
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
      done: committed rounds; `state` is the execution's after them.
      canary_releases: `Release.canaries` of each round, float64 (canaries,).
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
        committed = self.folder.rounds.committed
        self.done = len(committed.rows)
        # What was released must be in the guarantee
        self.last = max(setup.rounds(), self.done)
        self.recorded = Run.load(self.folder.path)
        if (ended := self.recorded.ended_after) is not None:
            raise ValueError(
                f"{self.folder.path} has ended after {ended} rounds, as its `stop_at_epsilon` "
                "said, and states their guarantee: it does not go on; start a new folder for more "
                "rounds"
            )
        self.evaluator = Evaluator(self.task, self.config)
        self.private_metrics = None
        if self.plan.private_metrics is not None:
            self.private_metrics = PrivateRoundMetrics(
                self.task, self.plan, setup.noise_seed, self.evaluator
            )
        self.program = setup.program
        self._first_rounds = [0, *(row["round"] for row in committed.rows if "program" in row)]
        self.folder.note_programs(self._first_rounds)
        self.canary_releases = [np.array(row.get("canaries", ())) for row in committed.rows]
        self.seconds, self.cohort, self.not_finite = 0.0, list[int](), 0
        self.stops = False
        self.state = execution.init()
        if committed.rows:
            self._go_on_from(committed)
        self.folder.rounds.forget_committed()

    def _go_on_from(self, committed: Committed) -> None:
        """Takes the newest step, from what was committed of its round, and measures what follows
        from it where a crash kept its record.
        """
        self.controller.restore(
            [np.array(row["clients"], np.int64) for row in committed.rows],
            [selected_of(row) for row in committed.rows],
        )
        newest = CommittedRound.of(committed)
        release = Release(arrays=newest.release, row=newest.numbers, canaries=newest.canaries)
        before = self.execution.from_before(newest.before)
        self.state = self.execution.step(before, release)
        if "record" not in committed.rows[-1]:
            self.add_record(newest, self.execution.weights(before))
            self.recorded = Run.load(self.folder.path)

    def commit(self, release: Release, private: dict[str, Any] | None) -> CommittedRound:
        """Commits the coming round: nobody has seen anything of it before."""
        t, ledger = self.done, self.controller.ledger
        committed = CommittedRound(
            t=t,
            clients=ledger.cohort(t),
            selected=ledger.selected(t),
            numbers=dict(release.row),
            private=private,
            canaries=release.canaries,
            release=release.arrays,
            before=self.execution.before(self.state),
            program=self.program,
        )
        self.folder.rounds.commit(committed)
        if self.program is not None:
            self._first_rounds.append(t)
            self.folder.note_programs(self._first_rounds)
        self.program = None
        self.canary_releases.append(release.canaries)
        return committed

    def add_record(
        self, committed: CommittedRound, weights_before: list[np.ndarray]
    ) -> dict[str, Any]:
        """Returns the row of the newest round, once it is written: what was committed of it, and
        what follows from its release.
        """
        t, config = committed.t, self.config
        clients = committed.clients.tolist()
        row = committed.record()
        own_metrics = self.options.round_metrics
        weights_after = self.execution.weights(self.state)
        if own_metrics:
            known = len(self.task.client_ids)  # canaries have the indices behind the clients'
            client_ids = [self.task.client_ids[client] for client in clients if client < known]
            finished = FinishedRound(t, weights_before, weights_after, client_ids)
            row |= computed_metrics(own_metrics, finished)
        if (t + 1) % config.evaluate_every == 0 or t + 1 == self.last:
            row["validation"] = self.evaluator(weights_after, "validation")
        self.folder.rounds.add_record(row)
        return row

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
        """Stops the run before its next round, without a result.

        Args:
          by_data: whether anything that the run showed decided that, such as a loss or a
            validation. `fedmf audit` then counts the rounds that are left as much as the plan
            allows, for the end is not that of a shorter plan.
        """
        self.stops = True
        if by_data and self.done < self.last:
            self.folder.mark_stopped_by_data(self.done)
