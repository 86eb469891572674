"""The data, the Keras or TFF model and the loss of a federated learning task."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import tensorflow as tf

from fedmf import fields
from fedmf.federated.datasets import read_examples
from fedmf.federated.learner import KerasLearner
from fedmf.federated.model_functions import CompiledEpoch, LossFunction
from fedmf.federated.task_checks import check_functions, check_model_function
from fedmf.federated.tff_models import loop_model
from fedmf.training.example_checks import check_examples
from fedmf.training.examples import Examples, Weighted, concatenate, with_unit_weights
from fedmf.training.model_task import ModelTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(ModelTask):
    """A federated learning task, with the clients' examples, a Keras or TFF model, its loss and
    metrics.

    `from_arrays` makes one of arrays in memory, and `from_client_data` of a TFF ClientData; the
    run's seed determines the weights of their `model` by tf.keras.utils.set_random_seed. The
    constructor takes functions. A task has all attributes of `training.Task` but `learner`, and
    these:

    Attributes:
      build_model: seed -> an untrained tf.keras.Model of x, or a tff.learning.models VariableModel
        or FunctionalModel. The same seed gives the same weights. In training it must be a function
        of weights and inputs alone: no Dropout, no BatchNormalization.
      loss: a tf.keras.losses.Loss, used as in `Model.fit`, or a function (labels, outputs,
        example_weights) -> the scalar mean that a client minimises. example_weights, float32
        (batch,), is 1 for each example, or the product of sample_weight and class_weight, as in
        `Model.fit`. A batch holds the examples of one client, and a client's last batch may be
        smaller. None for a TFF model, which has its own loss.
      metrics: () -> tf.keras.metrics.Metric objects with scalar results, for evaluation. One may be
        named "loss"; otherwise the loss is reported as the mean over examples. None for a TFF
        model, whose own scalar metrics are reported.
      compiled_epoch: () -> the training of a client without automatic differentiation, or None if
        this machine cannot run it. Only the fast execution uses it; without it clients train by
        automatic differentiation of `build_model`.
      export_model: a model of `build_model` -> a model with the same weights and outputs that Keras
        loads without the task's code; None if all layers of `build_model` are Keras's own.

    Raises:
      TypeError: an attribute is not of its type, or no function of as many arguments.
      ValueError: as `training.Task`, or only one of loss and metrics is given.

    Example:
      >>> import numpy as np
      >>> examples = (np.zeros((2, 3), np.float32), np.zeros(2, np.int64))
      >>> task = Task(
      ...     name="toy", client_ids=["ann", "bo"], client_examples=lambda client_id: examples,
      ...     evaluation_examples=lambda split: examples, batch_size=2,
      ...     build_model=lambda seed: tf.keras.Sequential(
      ...         [tf.keras.layers.Dense(2, input_shape=(3,))]
      ...     ),
      ...     loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      ...     metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
      ... )
      >>> task.client_ids, task.headline
      (('ann', 'bo'), 'accuracy')
      >>> rng = np.random.default_rng(0)
      >>> x, y = rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, 2, 60)
      >>> task = Task.from_arrays(
      ...     name="table", x=x, y=y, client_ids=np.arange(60) % 12, batch_size=5,
      ...     validation=(x, y), test=(x, y),
      ...     model=lambda: tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,))]),
      ...     loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      ...     metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
      ... )
      >>> len(task.client_ids), len(task.examples_of("7")[0])
      (12, 5)
    """

    build_model: Callable[[int], Any]
    loss: tf.keras.losses.Loss | LossFunction | None = None
    metrics: Callable[[], Sequence[tf.keras.metrics.Metric]] | None = None
    compiled_epoch: Callable[[], CompiledEpoch | None] | None = None
    export_model: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        check_functions(self)
        build_model = functools.partial(loop_model, self.name, self.build_model, self.loss is None)
        learner = KerasLearner(
            name=self.name,
            build_model=build_model,
            loss=self.loss,
            metrics=self.metrics,
            compiled_epoch=self.compiled_epoch,
            export_model=self.export_model,
        )
        fields.set_fields(self, {"build_model": build_model, "learner": learner})
        super().__post_init__()

    @staticmethod
    def _seeded(model: Callable[[], Any]) -> Callable[[int], Any]:
        """Returns a function of a seed, as `build_model` is, from a function without arguments."""
        return seeded(model)

    @classmethod
    def from_client_data(
        cls,
        *,
        train: Any,
        validation: Any,
        test: Any,
        preprocess: Callable[[tf.data.Dataset], Any],
        model: Callable[[], Any],
        **attributes: Any,
    ) -> Self:
        """Returns a task whose examples come from a tff.simulation.datasets.ClientData.

        Args:
          train: the ClientData of the training clients.
          validation, test: a ClientData, on all of whose clients models are evaluated, or (x, y).
          preprocess: a client's tf.data.Dataset -> a tf.data.Dataset of single examples (x, y), not
            batched; or (x, y) as arrays. It must be pure, without shuffling or random augmentation.
            Examples may be (x, y, weight) as in Keras.
          model: () -> a model, as `build_model` returns it.
          attributes: `name`, `loss`, `metrics`, `batch_size` and any other attribute of `Task`.
            Without a `data_version` other data would go unnoticed, and a resume warns.

        Raises:
          TypeError, ValueError: as `Task` does.
        """

        def read(source: Any, client_id: str) -> Examples:
            return read_examples(
                preprocess(source.create_tf_dataset_for_client(client_id)), client_id
            )

        @functools.cache
        def evaluation_examples(split: str) -> Examples:
            split_data = {"validation": validation, "test": test}[split]
            if isinstance(split_data, tuple):
                examples = check_examples(split_data, f"the {split} split")
                first_client = read(train, train.client_ids[0])
                has_weights = isinstance(first_client, tuple) and isinstance(
                    first_client[-1], Weighted
                )
                return with_unit_weights(examples) if has_weights else examples
            examples_of_clients = [
                check_examples(read(split_data, name), f"client {name!r} of the {split} split")
                for name in split_data.client_ids
            ]
            return concatenate(examples_of_clients)

        task_description = f"{len(train.client_ids)} clients of a ClientData"
        return cls(
            client_ids=tuple(train.client_ids),
            client_examples=functools.partial(read, train),
            evaluation_examples=evaluation_examples,
            build_model=seeded(model),
            **{"description": task_description, **attributes},
        )


def seeded(model: Callable[[], Any]) -> Callable[[int], Any]:
    """Returns a function of a seed, as `Task.build_model` is, from a function without arguments.

    Before it calls the function, it seeds the random number generators of Keras, TensorFlow, numpy
    and Python.
    """
    check_model_function("model", model, num_arguments=0)

    def build(seed: int) -> Any:
        tf.keras.utils.set_random_seed(seed % 2**32)  # Seeds of numpy have at most 32 bits.
        return model()

    return build
