"""`KerasLearner`: models of Keras and TFF, trained and evaluated on TensorFlow."""

import contextlib
import dataclasses
import json
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import tensorflow as tf

from fedmf import checks
from fedmf.federated.evaluation import KerasEvaluator
from fedmf.federated.execution import client_setup
from fedmf.federated.execution.threads import limited_threads, use_one_thread_per_operation
from fedmf.federated.fingerprint import fingerprint
from fedmf.federated.keras_file import deflate_words, load_keras_file
from fedmf.federated.model_check import check_model
from fedmf.federated.model_functions import ModelFunctions
from fedmf.federated.tensorflow_errors import misfit_reason
from fedmf.federated.tensorflow_import import check_eager, keras3_note
from fedmf.federated.tff_models import TffModel
from fedmf.runs.config import TrainConfig
from fedmf.runs.executions import execution_kind
from fedmf.training.client_work import ClientWork
from fedmf.training.learner import ClientSettings, Evaluate, Learner, Machine, TaskData


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class KerasLearner(ModelFunctions, Learner):
    """The learner of a task with a Keras or TFF model, made of the task's functions."""

    errors: ClassVar[tuple[type[Exception], ...]] = (tf.errors.InvalidArgumentError,)
    packages: ClassVar[tuple[str, ...]] = ("tensorflow",)

    @property
    def takes_no_weights(self) -> str:  # type: ignore[override]
        """See `Learner`."""
        if self.loss is None:
            return "TFF model with its own loss"
        return "" if self.compiled_epoch is None else "compiled_epoch"

    def initial_weights(self, seed: int) -> list[np.ndarray]:
        """See `Learner.initial_weights`."""
        return [variable.numpy() for variable in self.build_model(seed).trainable_variables]

    def prepare(self, task: TaskData, config: TrainConfig) -> None:
        """See `Learner.prepare`. Parallel clients get one thread for each operation."""
        check_eager()
        is_parallel = not execution_kind(config.execution).in_tff and task.batch_size > 1
        if is_parallel and self.work_kind(task.client_settings(config)) == "autodiff":
            use_one_thread_per_operation()

    def limited_threads(self, threads: int | None) -> contextlib.AbstractContextManager[None]:
        """See `Learner.limited_threads`."""
        return limited_threads(threads)

    def work_kind(self, settings: ClientSettings) -> str:
        """See `Learner.work_kind`: "compiled" or "autodiff"."""
        return client_setup.work_kind(self, settings)

    def slow(self, settings: ClientSettings) -> str:
        """See `Learner.slow`."""
        return client_setup.slow(self, settings)

    def client_work(self, settings: ClientSettings, machine: Machine) -> ClientWork:
        """See `Learner.client_work`."""
        return client_setup.client_work(self, settings, machine.threads)

    def on_workers(self) -> Self:
        """See `Learner.on_workers`."""
        return dataclasses.replace(self, metrics=self.metrics and list)

    def evaluator(self, settings: ClientSettings, machine: Machine) -> Evaluate:
        """See `Learner.evaluator`."""
        return KerasEvaluator(self, settings)

    def metric_names(self, task: TaskData) -> list[str]:
        """See `Learner.metric_names`."""
        if self.metrics is not None:
            metrics = self.metrics()
            for metric in metrics:
                if note := keras3_note(metric):
                    raise TypeError(f"metrics of task {self.name!r} gives a metric{note}")
                if not isinstance(metric, tf.keras.metrics.Metric):
                    raise TypeError(
                        f"metrics of task {self.name!r} gives {metric!r}: give objects of "
                        "tf.keras.metrics.Metric, such as "
                        'tf.keras.metrics.SparseCategoricalAccuracy("accuracy")'
                    )
            return [metric.name for metric in metrics]
        model: TffModel = self.build_model(0)
        model.reset_metrics()
        return list(model.metric_values()) or ["loss"]

    def check(self, task: TaskData, config: TrainConfig) -> None:
        """See `Learner.check`."""
        check_eager()
        check_model(self, task, config)

    def fingerprint(self, seed: int) -> dict[str, str]:
        """See `Learner.fingerprint`: layers, loss, and initial weights, also frozen ones."""
        return fingerprint(self, self.build_model(seed))

    def misfit_reason(self, error: Exception) -> str:
        """See `Learner.misfit_reason`."""
        return misfit_reason(error)

    def all_weights(self, weights: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
        """See `Learner.all_weights`: in the order of tf.keras.Model.get_weights."""
        all_weights: list[np.ndarray] = self._with_weights(weights, seed).get_weights()
        return all_weights

    def starting_from(self, weights: Sequence[np.ndarray]) -> Self:
        """See `Learner.starting_from`."""
        hint = "give all of a model's, as tf.keras.Model.get_weights does"
        weights = [np.array(weight) for weight in checks.entries("weights", weights, hint=hint)]
        model_shapes = [weight.shape for weight in self.build_model(0).get_weights()]
        shapes = [np.shape(weight) for weight in weights]
        if shapes != model_shapes:
            raise ValueError(
                f"the weights have the shapes {shapes} and the model of task {self.name!r} has "
                f"{model_shapes}: take the weights of the same model"
            )
        build_model = self.build_model

        def build(seed: int) -> Any:
            model = build_model(seed)
            # TFF builds models in graphs, and sets their weights afterwards.
            if tf.executing_eagerly():
                model.set_weights(weights)
            return model

        return dataclasses.replace(self, build_model=build)

    def load_weights(self, path: pathlib.Path) -> list[np.ndarray]:
        """See `Learner.load_weights`: reads a .keras file."""
        version = _keras_version(path)
        if version.startswith("3."):
            raise ValueError(
                f"Keras {version} has written it, and fedmf takes models of Keras 2 (the package "
                "tf-keras): build the model with tf.keras after `from fedmf import federated`, "
                "give it the weights and save it there"
            )
        try:
            weights: list[np.ndarray] = load_keras_file(path).get_weights()
        except Exception as error:  # Keras raises errors of many kinds.
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(
                f"Keras cannot load it ({lines[0]}); name a FILE.keras or the folder of a run"
            ) from error
        return weights

    def model(self, weights: Sequence[np.ndarray], seed: int) -> Any:
        """See `Learner.model`: a tf.keras.Model, which Keras saves and loads without the task's
        code.
        """
        model = self._with_weights(weights, seed)
        if isinstance(model, TffModel):
            raise ValueError(
                f"task {self.name!r} has a {model.kind} of TFF, which Keras cannot save: take the "
                "weights, `run.weights` or model.npz of the run folder, in the order of its "
                "trainable variables"
            )
        return model if self.export_model is None else self.export_model(model)

    def export(self, weights: Sequence[np.ndarray], seed: int, path: pathlib.Path) -> Any:
        """See `Learner.export`: as FILE.keras, or as a SavedModel in a folder."""
        model = self.model(weights, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            temporary_path = pathlib.Path(folder) / path.name
            save_format = "keras" if path.suffix else "tf"
            logger = tf.get_logger()
            level = logger.level
            logger.setLevel("ERROR")  # Keras warns that the model has no loss of its own.
            try:
                model.save(temporary_path, save_format=save_format)
            finally:
                logger.setLevel(level)
            if path.suffix:
                deflate_words(temporary_path)
            os.replace(temporary_path, path)
        return model

    def _with_weights(self, weights: Sequence[np.ndarray], seed: int) -> Any:
        """Returns a model of this seed with these trained weights."""
        model = self.build_model(seed)
        for variable, weight in zip(model.trainable_variables, weights, strict=True):
            variable.assign(weight)
        return model


def _keras_version(path: pathlib.Path) -> str:
    """Returns the version of Keras that wrote a .keras file; empty where the file names none."""
    try:
        with zipfile.ZipFile(path) as archive:
            metadata = json.loads(archive.read("metadata.json"))
        return str(metadata["keras_version"])
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile):
        return ""
