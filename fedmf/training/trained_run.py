"""`TrainedRun`: what people do with a run: its model, its metrics on a split and on every client,
its file.

And the weights that a run starts from: of a model's file, of another run, or drawn.
"""

import dataclasses
import math
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf import checks, fields
from fedmf.files import expanded, write_atomically
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.runs.audit import recorded_plan
from fedmf.runs.config import TrainConfig
from fedmf.runs.export import check_export_path
from fedmf.runs.folder import Run, RunFolder
from fedmf.runs.rounds import newest_round
from fedmf.runs.vocabulary import VOCABULARY
from fedmf.terminal import progress_bar
from fedmf.training.evaluation import Evaluator, mean_and_deciles
from fedmf.training.examples import NotFinite, count
from fedmf.training.execution.base import Release, RunOptions
from fedmf.training.execution.choice import build_execution
from fedmf.training.fine_tuning import fine_tuned_metrics, learning_rates
from fedmf.training.task import SPLITS, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedRun(Run):
    """A run with its task. Of an unfinished run the weights are those of its newest round.

    Metrics are exact functions of the data that they are measured on; the run's guarantee covers
    the model, not them.

    Attributes:
      task: of the run; see `of`.
    """

    task: Task = fields.validated(fields.instance(Task))

    @staticmethod
    def of(run: Run, task: Task) -> "TrainedRun":
        """The run with its task.

        Raises:
          ValueError: the task's model has other weights than the initial model
            that the run started from.
        """
        fields.instance(Run)("run", run)
        fields.instance(Task)("task", task)
        initial = RunFolder(run.path).initial_weights()
        values = {field.name: getattr(run, field.name) for field in dataclasses.fields(Run)}
        return TrainedRun(**values, task=task if initial is None else task.starting_from(initial))

    @property
    def weights(self) -> list[np.ndarray]:
        """The trained weights, in the learner's order.

        Raises:
          ValueError: no round is committed yet, or the task's model has other weights.
        """
        shapes = [weight.shape for weight in self.task.initial_weights(self.config.seed)]
        weights = super().weights if self.result is not None else self._committed_weights()
        if [weight.shape for weight in weights] != shapes:
            raise ValueError(
                f"the weights of run {self.path} have the shapes "
                f"{[weight.shape for weight in weights]} and the model of task "
                f"{self.task.name!r} has {shapes}: take the task that the run was trained on"
            )
        return weights

    def _committed_weights(self) -> list[np.ndarray]:
        """Returns the weights after the newest round that was committed."""
        newest = newest_round(self.path)
        if newest is None:
            raise ValueError(f"run {self.path} has no model yet: no round is committed")
        options = RunOptions(progress=False)
        release = Release(arrays=newest.release, row=newest.numbers, canaries=newest.canaries)
        plan = recorded_plan(self)
        with build_execution(self.task, plan, self.config, 0, options=options) as execution:
            state = execution.step(execution.from_before(newest.before), release)
            return execution.weights(state)

    def num_rounds(self) -> int:
        """The rounds that the weights were trained for."""
        if self.result is None:
            return RunFolder(self.path).committed_rounds()
        return self.ended_after or self.config.rounds

    def model(self) -> Any:
        """Returns a model of the learner's framework with the run's weights: a tf.keras.Model,
        which Keras saves and loads without the task's code.

        Raises:
          ValueError: as `weights` does, or the task has functions or a model of TFF.
        """
        return self.task.learner.model(self.weights, self.config.seed)

    def starting_weights(self) -> list[np.ndarray]:
        """Returns all weights of the model, those that are not trained too."""
        return self.task.learner.all_weights(self.weights, self.config.seed)

    @with_numpy_defaults
    def evaluate(self, split: str) -> dict[str, float]:
        """The task's metrics on "validation" or "test"."""
        checks.one_of("split", split, SPLITS)
        return Evaluator(self.task, self.config)(self.weights, split)

    @with_numpy_defaults
    def evaluate_clients(self, *, progress: bool = False) -> dict[str, Any]:
        """The headline metric on the training examples of each client by itself.

        Clients on whose examples it is not defined are left out: where these are NaN, an AUC where
        all are of one class, an accuracy that leaves out all labels. So are clients on whose
        examples it is defined and the model's value is not finite, as the loss of a model that
        diverged; these are counted apart, with a warning (UserWarning).

        Returns:
          {"clients": that the metric is over, "clients_without_examples": int, "clients_undefined",
          "clients_not_finite": int, those left out as above, "mean": float, "deciles": the 10%, 20%
          ... 90% quantiles}.

        Raises:
          ValueError: it is defined and finite on no client's examples.
        """
        progress = checks.boolean("progress", progress)
        evaluator, weights = Evaluator(self.task, self.config), self.weights
        headline, clients = self.task.headline, self.task.client_ids
        values: list[float] = []
        undefined = 0
        not_finite = 0
        with progress_bar.bar(
            total=len(clients), unit="client", desc="evaluating", disable=not progress
        ) as bar:
            for client_id in clients:
                bar.update()
                try:
                    examples = self.task.examples_of(client_id)
                except NotFinite:  # whose updates were zeroed
                    undefined += 1
                    continue
                if count(examples):
                    value = evaluator.told_apart(weights, examples)[headline]
                    if math.isnan(value):
                        undefined += 1
                    elif math.isinf(value):
                        not_finite += 1
                    else:
                        values.append(value)
        if not values and not_finite:
            raise ValueError(
                f"{headline} of task {self.task.name!r} is not finite on the examples of "
                f"{not_finite} of {len(clients)} clients, and finite on nobody's: the run "
                "diverged, train again with a smaller `server_learning_rate`"
            )
        if not values:
            raise ValueError(
                f"{headline} of task {self.task.name!r} is not defined on any client's examples "
                f"({undefined} of {len(clients)} clients have some): choose another headline_metric"
            )
        if not_finite:
            warnings.warn(
                f"{headline} is not finite on the examples of {not_finite} of {len(clients)} "
                "clients: the mean and deciles leave these clients out, and look better than the "
                "model is",
                stacklevel=2,
            )
        num_left_out = undefined + not_finite
        return {
            "clients": len(values),
            "clients_without_examples": len(clients) - len(values) - num_left_out,
            "clients_undefined": undefined,
            "clients_not_finite": not_finite,
            **mean_and_deciles(values),
        }

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
        """All metrics by client, before and after the model is trained on the client's own examples
        (Wang et al. 2019, Federated Evaluation of On-device Personalization).

        Each client's examples are divided at random, by the run's seed and the client's id. A copy
        of the model is trained on one half, with the client optimizer and batch size of the run,
        and is measured on the other half. A step changes the model by at most the run's
        `clip_norm`, in L2; no update is clipped, and no noise is added. Warns (UserWarning) where
        the mean loss rose, or the loss of most clients.

        Args:
          epochs: over the half that is trained on, at least 1.
          clients: most training clients that are fine-tuned, drawn by the run's seed.
          split: "validation" or "test" to measure each client's model on that; None for the other
            half of the client's examples, a part of what the run's model was trained on.
          learning_rate: of the fine-tuning; None for a tenth of the run's client rate. Of several
            the one with the lowest mean loss is taken, for all clients: "search" tries 0.1, 0.3, 1
            and 3 times the default. For that choice a client trains on half of the half that it is
            trained on, and is measured on the rest of that half. The examples that the results
            are of, the other half or the split, have no part in it.
          proximal_strength: in place of the run's. The objective with a strength s > 0, s / 2 times
            the squared distance to the run's model beside the loss, is Ditto's for personal
            models (Li et al. 2021, Ditto, Algorithm 1, where s is lambda).
          progress: whether to show a bar.

        Returns:
          {"epochs": int, "proximal_strength": float, "measured_on": split or "the other half",
          "learning_rate": float, "searched": {rate: mean loss}, empty where there was no choice,
          "clients": that were measured, "population": of training clients, "left_out": {reason:
          clients}, "metrics": {name: {"clients": that it is over, "clients_undefined": where it
          is not defined before or after, "clients_not_finite": where it is defined and not finite
          before or after, which is warned of, "before", "after", "change": {"mean": float,
          "deciles": the 10%, 20% ... 90% quantiles}; without these three where it is over no
          client}}}.

        Raises:
          TypeError, ValueError: an argument that cannot work; or no client has two examples.
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
        return {
            "epochs": epochs,
            "proximal_strength": config.proximal_strength,
            "measured_on": split or "the other half",
        } | fine_tuned_metrics(
            self.task,
            config,
            self.weights,
            rates=rates,
            clients=clients,
            split=split,
            progress=progress,
        )

    def export(self, path: str | os.PathLike[str]) -> Any:
        """Saves `model`, whole or not at all, and returns it.

        The words of a task with a vocabulary are saved beside it: in FILE.vocabulary.json, or in
        the folder as vocabulary.json.

        Args:
          path: FILE.keras, which is replaced; or a folder without a suffix, new or empty,
            for a SavedModel.

        Raises:
          ValueError: another suffix, a folder that holds files, or as `weights` does.
        """
        path = check_export_path(path)
        model = self.task.learner.export(self.weights, self.config.seed, path)
        if self.task.vocabulary is not None:
            words = path.with_suffix(".vocabulary.json") if path.suffix else path / VOCABULARY
            write_atomically(words, self.task.vocabulary.to_json(), mode=0o600)
        return model


def starting_task(task: Task, config: TrainConfig, resumed: RunFolder | None) -> Task:
    """The task whose models start as the run does: from `config.initial_model`, or as the task
    draws them.

    Args:
      task: of the run.
      config: of the run.
      resumed: folder of a run that goes on, which has the weights itself; None for a new run.

    Raises:
      FileNotFoundError, ValueError: no such file or run, one that cannot be read, or weights that
        do not fit the task's model.
    """
    if config.initial_model is None:
        return task
    if resumed is not None:
        weights = resumed.initial_weights()
        # `reopen_run` refuses a run that lost them
        return task if weights is None else task.starting_from(weights)
    try:
        return task.starting_from(_weights(task, expanded(config.initial_model)))
    except ValueError as error:
        raise ValueError(f"initial_model={config.initial_model!r} does not do: {error}") from error


def _weights(task: Task, path: pathlib.Path) -> list[np.ndarray]:
    """Returns all weights of a model's file, or of a run of the same model."""
    if not path.exists():
        raise FileNotFoundError(
            f"initial_model={str(path)!r} does not exist: name a FILE.keras or the folder of a run"
        )
    if path.is_dir():
        weights = TrainedRun.of(Run.load(path), task).starting_weights()
    else:
        weights = task.learner.load_weights(path)
    numbers = [weight for weight in weights if np.issubdtype(weight.dtype, np.number)]
    if not all(np.isfinite(weight).all() for weight in numbers):
        raise ValueError("its weights are not all finite; take an earlier model")
    return weights
