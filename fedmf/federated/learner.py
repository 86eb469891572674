"""Training, evaluation and export of Keras and TFF models with TensorFlow."""

import contextlib
import dataclasses
import json
import pathlib
import zipfile
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import tensorflow as tf

from fedmf import checks
from fedmf.federated.client_training import client_setup
from fedmf.federated.client_training.threads import limited_threads, use_one_thread_per_operation
from fedmf.federated.evaluation import KerasEvaluator
from fedmf.federated.fingerprint import fingerprint
from fedmf.federated.keras_file import deflate_words, load_keras_file
from fedmf.federated.model_check import check_model
from fedmf.federated.model_functions import ModelFunctions
from fedmf.federated.tensorflow_errors import misfit_reason
from fedmf.federated.tensorflow_import import check_eager, keras3_note
from fedmf.federated.tff_models import TffModel
from fedmf.files import replacement_of
from fedmf.runs.config import TrainConfig
from fedmf.runs.executions import execution_kind
from fedmf.training.client_work import ClientWork
from fedmf.training.learner import ClientSettings, Evaluate, Machine, TaskData
from fedmf.training.model_task import ModelLearner


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class KerasLearner(ModelFunctions, ModelLearner):
    """An implementation of `Learner` for tasks with a Keras or TFF model.

    It is made of the functions of the task, which build the model and compute loss and metrics.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (tf.errors.InvalidArgumentError,)
    packages: ClassVar[tuple[str, ...]] = ("tensorflow",)

    @property
    def takes_no_weights(self) -> str:  # type: ignore[override]
        """Name of the part of the task that supports no example weights; empty if all parts do."""
        if self.loss is None:
            return "TFF model with its own loss"
        return "" if self.compiled_epoch is None else "compiled_epoch"

    def initial_weights(self, seed: int) -> list[np.ndarray]:
        """Returns the trainable weights that the model has when it is built with this seed."""
        return [variable.numpy() for variable in self.build_model(seed).trainable_variables]

    def prepare(self, task: TaskData, config: TrainConfig) -> None:
        """Prepares TensorFlow for a run, so that operations of clients that train in parallel get
        one thread each.
        """
        check_eager()
        is_parallel = not execution_kind(config.execution).in_tff and task.batch_size > 1
        if is_parallel and self.work_kind(task.client_settings(config)) == "autodiff":
            use_one_thread_per_operation()

    def limited_threads(self, threads: int | None) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which TensorFlow computes with at most this number of threads."""
        return limited_threads(threads)

    def work_kind(self, settings: ClientSettings) -> str:
        """Returns "compiled" if the task's compiled epoch runs on this machine, else "autodiff"."""
        return client_setup.work_kind(self, settings)

    def slowness_warning(self, settings: ClientSettings) -> str:
        """Returns a sentence on why clients train slowly on this machine; empty if they do not."""
        return client_setup.slowness_warning(self, settings)

    def client_work(self, settings: ClientSettings, machine: Machine) -> ClientWork:
        """Returns the object that trains clients and sums their clipped updates."""
        return client_setup.client_work(self, settings, machine.threads)

    def on_workers(self) -> Self:
        """Returns a learner for the workers of a cluster, which has no metrics because workers only
        train.
        """
        return dataclasses.replace(self, metrics=self.metrics and list)

    def evaluator(self, settings: ClientSettings, machine: Machine) -> Evaluate:
        """Returns a function that computes the metrics of given weights on given examples."""
        return KerasEvaluator(self, settings)

    def metric_names(self, task: TaskData) -> list[str]:
        """Returns the names of the metrics; reports show the first one."""
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
        """Checks that the model can be trained and that the privacy guarantee holds for it."""
        check_eager()
        check_model(self, task, config)

    def fingerprint(self, seed: int) -> dict[str, str]:
        """Returns texts that change if layers, loss or initial weights of the model change."""
        return fingerprint(self, self.build_model(seed))

    def misfit_reason(self, error: Exception) -> str:
        """Returns the part of TensorFlow's error message that says how the examples do not fit."""
        return misfit_reason(error)

    def all_weights(self, weights: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
        """Returns all weights of the model, trained or not, in the order of Keras's get_weights."""
        all_weights: list[np.ndarray] = self._with_weights(weights, seed).get_weights()
        return all_weights

    def starting_from(self, weights: Sequence[np.ndarray]) -> Self:
        """Returns a learner whose models start from these weights, whatever their seed is."""
        hint = "give all of a model's, as tf.keras.Model.get_weights does"
        weights = [np.array(weight) for weight in checks.entries("weights", weights, hint=hint)]
        model_shapes = [weight.shape for weight in self.build_model(0).get_weights()]
        given_shapes = [np.shape(weight) for weight in weights]
        if given_shapes != model_shapes:
            raise ValueError(
                f"the weights have the shapes {given_shapes} and the model of task {self.name!r} "
                f"has {model_shapes}: take the weights of the same model"
            )
        build_model = self.build_model

        def build(seed: int) -> Any:
            model = build_model(seed)
            # While TFF builds a graph, the model's weights cannot be set here. TFF sets them
            # afterwards.
            if tf.executing_eagerly():
                model.set_weights(weights)
            return model

        return dataclasses.replace(self, build_model=build)

    def load_weights(self, path: pathlib.Path) -> list[np.ndarray]:
        """Returns all weights of the model in a .keras file."""
        keras_version = _keras_version(path)
        if keras_version.startswith("3."):
            raise ValueError(
                f"Keras {keras_version} has written it, and fedmf takes models of Keras 2 (the "
                "package tf-keras): build the model with tf.keras after `from fedmf import "
                "federated`, give it the weights and save it there"
            )
        try:
            weights: list[np.ndarray] = load_keras_file(path).get_weights()
        except Exception as error:
            # Keras raises errors of many types for a file that it cannot load.
            error_lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(
                f"Keras cannot load it ({error_lines[0]}); name a FILE.keras or the folder of a run"
            ) from error
        return weights

    def model(self, weights: Sequence[np.ndarray], seed: int) -> Any:
        """Returns a Keras model with these weights, which loads without the task's code."""
        model_with_weights = self._with_weights(weights, seed)
        if isinstance(model_with_weights, TffModel):
            raise ValueError(
                f"task {self.name!r} has a {model_with_weights.kind} of TFF, which Keras cannot "
                "save: take the weights, `run.weights` or model.npz of the run folder, in the "
                "order of its trainable variables"
            )
        return (
            model_with_weights
            if self.export_model is None
            else self.export_model(model_with_weights)
        )

    def model_summary(self, model: Any) -> dict[str, Any]:
        """Returns the number of parameters and the shapes of inputs and outputs of a model."""
        return {
            "parameters": model.count_params(),
            "inputs": _shapes_text(model.inputs),
            "outputs": _shapes_text(model.outputs),
        }

    def export(self, weights: Sequence[np.ndarray], seed: int, path: pathlib.Path) -> Any:
        """Saves a model with these weights, as FILE.keras or a SavedModel, and returns it."""
        if path.suffix not in ("", ".keras"):
            raise ValueError(
                f"out={str(path)!r} cannot hold the Keras model of task {self.name!r}: name a "
                "FILE.keras, or a folder without a suffix for a SavedModel"
            )
        exported_model = self.model(weights, seed)
        with replacement_of(path) as temporary_path:
            save_format = "keras" if path.suffix else "tf"
            logger = tf.get_logger()
            previous_level = logger.level
            # Keras would warn that the model is not compiled with a loss.
            logger.setLevel("ERROR")
            try:
                exported_model.save(temporary_path, save_format=save_format)
            finally:
                logger.setLevel(previous_level)
            if path.suffix:
                deflate_words(temporary_path)
        return exported_model

    def _with_weights(self, weights: Sequence[np.ndarray], seed: int) -> Any:
        """Builds the model with a seed, sets its trainable weights to these, and returns it."""
        built_model = self.build_model(seed)
        for variable, weight in zip(built_model.trainable_variables, weights, strict=True):
            variable.assign(weight)
        return built_model


def _keras_version(path: pathlib.Path) -> str:
    """Returns the version of Keras that wrote a .keras file; empty if it is unknown."""
    try:
        with zipfile.ZipFile(path) as archive:
            file_metadata = json.loads(archive.read("metadata.json"))
        return str(file_metadata["keras_version"])
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile):
        return ""


def _shapes_text(tensors: Any) -> list[str]:
    """Returns the data type and the shape of each tensor of a model as text."""
    return [
        f"{tensor.dtype.name} {tuple(tensor.shape)}".replace("None", "any") for tensor in tensors
    ]
