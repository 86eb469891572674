"""A run together with its task, with methods for its weights, its model and its metrics."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf import checks, fields
from fedmf.files import write_atomically
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.runs.export import check_export_path
from fedmf.runs.folder import Run, RunFolder
from fedmf.runs.plan_record import recorded_plan
from fedmf.runs.rounds import newest_round
from fedmf.runs.vocabulary import VOCABULARY
from fedmf.training.client_metrics import client_metrics
from fedmf.training.evaluation import Evaluator
from fedmf.training.execution.base import Release, RunOptions
from fedmf.training.execution.choice import build_execution
from fedmf.training.fine_tuning import fine_tuned_metrics, learning_rates
from fedmf.training.task import SPLITS, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedRun(Run):
    """A run together with its task. The weights of an unfinished run are those after its newest
    round.

    Metrics are exact functions of the data that they are measured on. The run's guarantee covers
    the model and not its metrics.

    Attributes:
      task: task of the run; see `of`.
    """

    task: Task = fields.validated(fields.instance(Task))

    @staticmethod
    def of(run: Run, task: Task) -> "TrainedRun":
        """Returns the run together with its task.

        Raises:
          ValueError: the shapes of the task's weights differ from those of the run's initial model.
        """
        fields.instance(Run)("run", run)
        fields.instance(Task)("task", task)
        initial_weights = RunFolder(run.path).initial_weights()
        if initial_weights is not None:
            task = task.starting_from(initial_weights)
        value_by_field = {field.name: getattr(run, field.name) for field in dataclasses.fields(Run)}
        return TrainedRun(**value_by_field, task=task)

    @property
    def weights(self) -> list[np.ndarray]:
        """The trained weights as a list of arrays, in the learner's order.

        Raises:
          ValueError: no round is committed yet, or the shapes differ from those of the task's
            weights.
        """
        weights = super().weights if self.result is not None else self._committed_weights()
        shapes = [weight.shape for weight in weights]
        task_shapes = [weight.shape for weight in self.task.initial_weights(self.config.seed)]
        if shapes != task_shapes:
            raise ValueError(
                f"the weights of run {self.path} have the shapes {shapes} and the model of task "
                f"{self.task.name!r} has {task_shapes}: use the task that the run was trained on"
            )
        return weights

    def _committed_weights(self) -> list[np.ndarray]:
        """Returns the weights of an unfinished run after its newest committed round.

        Raises:
          ValueError: no round is committed yet.
        """
        newest_committed = newest_round(self.path)
        if newest_committed is None:
            raise ValueError(f"run {self.path} has no model yet: no round is committed")
        run_options = RunOptions(progress=False)
        committed_release = Release(
            arrays=newest_committed.release,
            statistics=newest_committed.statistics,
            canaries=newest_committed.canaries,
        )
        plan = recorded_plan(self)
        with build_execution(self.task, plan, self.config, 0, options=run_options) as execution:
            state = execution.step(
                execution.from_before(newest_committed.before), committed_release
            )
            return execution.weights(state)

    def num_rounds(self) -> int:
        """Returns the number of rounds that the weights were trained for."""
        if self.result is None:
            return RunFolder(self.path).committed_rounds()
        return self.ended_after or self.config.rounds

    def model(self) -> Any:
        """Returns a model of the learner's framework with the run's weights. A tf.keras.Model, for
        example, can be saved and loaded without the task's code.

        Raises:
          ValueError: as `weights` does, or the task has functions or a model of TFF.
        """
        return self.task.learner.model(self.weights, self.config.seed)

    def starting_weights(self) -> list[np.ndarray]:
        """Returns all weights of the model for a warm start, including those that are not
        trained.
        """
        return self.task.learner.all_weights(self.weights, self.config.seed)

    @with_numpy_defaults
    def evaluate(self, split: str) -> dict[str, float]:
        """Returns the task's metrics on "validation" or "test"."""
        checks.one_of("split", split, SPLITS)
        return Evaluator(self.task, self.config)(self.weights, split)

    @with_numpy_defaults
    def evaluate_clients(self, *, progress: bool = False) -> dict[str, Any]:
        """Evaluates the headline metric on each client's training examples, and returns its
        distribution over clients.

        Two kinds of clients are left out and counted. The metric is undefined on a client's
        examples if these are NaN, or for example if all are of one class and the metric is an AUC.
        It is defined and not finite if the model's value is, such as the loss of a model that
        diverged; such clients raise a UserWarning.

        Returns:
          {"clients": number of clients that mean and deciles are over, "clients_without_examples",
          "clients_undefined", "clients_not_finite": numbers of clients that are left out, "mean":
          float, "deciles": the 10%, 20% ... 90% quantiles}.

        Raises:
          ValueError: the metric is defined and finite on no client's examples.
        """
        progress = checks.boolean("progress", progress)
        return client_metrics(self.task, self.config, self.weights, progress=progress)

    @with_numpy_defaults
    def evaluate_fine_tuned(
        self,
        epochs: int,
        *,
        clients: int = 1000,
        split: str | None = None,
        learning_rate: float | Sequence[float] | str | None = None,
        proximal_strength: float | None = None,
        progress: bool = False,
    ) -> dict[str, Any]:
        """Returns all metrics over clients, before and after the model is fine-tuned on each
        client's examples. The method is that of Wang et al. 2019, Federated Evaluation of On-device
        Personalization.

        Each client's examples are split at random into two halves, by the run's seed and the
        client's id. A copy of the model is trained on one half, with the client optimizer and batch
        size of the run, and is measured on the other half. A step changes the model by at most the
        run's `clip_norm` in L2; no update is clipped, and no noise is added. Warns (UserWarning) if
        the mean loss rose, or the loss of most clients.

        Args:
          epochs: passes over the half that is trained on, at least 1.
          clients: maximal number of training clients that are fine-tuned, drawn by the run's seed.
          split: "validation" or "test" to measure each client's model on that split; None for the
            other half of the client's examples, on which the run's model was trained.
          learning_rate: rate of the fine-tuning; None for a tenth of the run's client rate. If
            there are several, the one with the lowest mean loss over clients is used for all
            clients; "search" tries 0.1, 0.3, 1 and 3 times the default. For that choice a client
            trains on a random half of its training half and is measured on the other half of it.
            The examples that the results are measured on have no influence on the choice.
          proximal_strength: replaces the run's. With a strength s > 0 the objective, the loss plus
            s / 2 times the squared distance to the run's model, is Ditto's for personal models (Li
            et al. 2021, Ditto, Algorithm 1, where s is lambda).
          progress: whether to show a bar.

        Returns:
          {"epochs": int, "proximal_strength": float, "measured_on": split or "the other half",
          "learning_rate": float, "searched": {rate: mean loss}, empty for a single rate, "clients":
          number of measured clients, "population": number of training clients, "left_out": {reason:
          number of clients}, "metrics": {name: {"clients": number of clients that the metric is
          over, "clients_undefined": number of clients without a defined value before or after,
          "clients_not_finite": the same for values that are defined and not finite, which raise a
          warning, "before", "after", "change": {"mean": float, "deciles": the 10%, 20% ... 90%
          quantiles}; these three are missing if the metric is over no client}}}.

        Raises:
          TypeError: an argument is not of its type.
          ValueError: a number is out of its range, or no client has two examples.
        """
        progress = checks.boolean("progress", progress)
        hint = "1 is a usual choice"
        epochs = checks.integer("epochs", epochs, low=1, high=fields.MAX_COUNT, hint=hint)
        clients = checks.integer("clients", clients, low=1, hint="1000 is the default")
        if split is not None:
            checks.one_of("split", split, SPLITS)
        rates = learning_rates(learning_rate, self.config)
        config = dataclasses.replace(self.config, client_epochs=epochs, client_batches=None)
        if proximal_strength is not None:
            config = dataclasses.replace(config, proximal_strength=proximal_strength)
        settings = {
            "epochs": epochs,
            "proximal_strength": config.proximal_strength,
            "measured_on": split or "the other half",
        }
        return settings | fine_tuned_metrics(
            self.task,
            config,
            self.weights,
            rates=rates,
            clients=clients,
            split=split,
            progress=progress,
        )

    def export(self, path: str | os.PathLike[str]) -> Any:
        """Saves the run's model atomically to a file or folder, and returns the model.

        The vocabulary of a task that has one is saved as FILE.vocabulary.json beside the file, or
        as vocabulary.json in the folder.

        Args:
          path: FILE.keras, or FILE.pt for a PyTorch model, which is replaced if it exists; or a new
            or empty folder without a suffix, for a SavedModel.

        Raises:
          ValueError: the path has another suffix or is a folder that holds files; or as `weights`
            does.
        """
        path = check_export_path(path)
        model = self.task.learner.export(self.weights, self.config.seed, path)
        if self.task.vocabulary is not None:
            vocabulary_path = (
                path.with_suffix(".vocabulary.json") if path.suffix else path / VOCABULARY
            )
            write_atomically(vocabulary_path, self.task.vocabulary.to_json(), mode=0o600)
        return model
