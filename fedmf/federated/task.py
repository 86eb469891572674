"""`Task` of a Keras or TFF model: from arrays, from a TFF ClientData, or from functions."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf

from fedmf import fields, training
from fedmf.federated.datasets import read_examples
from fedmf.federated.learner import KerasLearner
from fedmf.federated.model_functions import CompiledEpoch, LossFunction
from fedmf.federated.task_checks import check_functions, check_model_function
from fedmf.federated.tff_models import loop_model
from fedmf.training import examples as of_examples
from fedmf.training.examples import Examples, Weighted
from fedmf.training.learner import Learner


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(training.Task):
    """A federated learning task with a model of Keras or TFF: from arrays, from a TFF ClientData,
    or from functions as here.

    Attributes:
      name: short name, such as "digits".
      description: one line for reports: which data, how many clients, which model.
      made_clients: how clients were made where they are no people's or devices' own, such as "60
        clients dealt by dirichlet:0.3 from 5000 images"; statements say so.
      client_ids: training clients in a fixed order, each once, none missing and no two that look
        alike; the participation controller's index i is client_ids[i].
      client_examples: client id -> (x, y), structures of arrays of any dtype whose first axis
        counts the client's examples, possibly none. Pure: the same in the same order whenever it is
        asked, in every process: a resumed run is then the uninterrupted one, to the bit.
      evaluation_examples: "validation" or "test" -> (x, y). Pure; the two splits are disjoint.
      build_model: seed -> an untrained tf.keras.Model of x, or a tff.learning.models VariableModel
        or FunctionalModel. The same seed gives the same weights. In training it must be a function
        of weights and inputs alone: no Dropout, no BatchNormalization.
      loss: a tf.keras.losses.Loss, which means what it means in `Model.fit`, or a function (labels,
        outputs, example_weights) -> the scalar mean that a client minimises. example_weights,
        float32 (batch,), is 1 for each example, or as below: a batch holds a client's own examples
        only, and its last may be short. None for a TFF model, which brings its own.
      metrics: () -> tf.keras.metrics.Metric objects with scalar results, for evaluation. One may be
        named "loss"; otherwise the loss is reported as the mean over examples. None for a TFF
        model, of whose own metrics the scalar ones are reported.
      batch_size: examples in a client's batch.
      sample_weight: client id -> how much each of its examples counts in the loss, (examples,),
        finite and at least 0, as in `Model.fit`. Pure. Evaluation counts each example once.
      class_weight: class 0, 1, 2 ... -> how much its examples count in the loss, as in `Model.fit`.
        Labels are numbers (examples,), or one-hot floats. With sample_weight too, they multiply.
      headline_metric: the metric that reports show; by default the first. A sweep chooses where it
        is largest, or smallest if its name has error, loss or perplexity.
      metric_note: what a reader of the headline metric must know, printed behind its name, such as
        "leaves out unknown words".
      data_version: another text whenever the data are others, so that a resume on them is refused;
        with "" a resume warns.
      compiled_epoch: () -> the same training of a client without automatic differentiation, or None
        where this machine cannot run it. Only the fast execution uses it; without it clients train
        by automatic differentiation of `build_model`.
      export_model: a model of `build_model` -> one of the same weights and outputs that Keras loads
        without the task's code; None where `build_model` has layers of Keras's only.
      vocabulary: the words that the model knows by number, which run folders and exports carry.

    Raises:
      TypeError, ValueError: naming the attribute, its value and what to do instead.
    """

    learner: Learner = dataclasses.field(init=False, repr=False, compare=False)
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

    def starting_from(self, weights: Sequence[np.ndarray]) -> Self:
        """See `training.Task.starting_from`.

        Args:
          weights: all of a model's, those that are not trained too, as tf.keras.Model.get_weights
            gives them.
        """
        learner = self.learner.starting_from(weights)
        assert isinstance(learner, KerasLearner)
        return dataclasses.replace(self, build_model=learner.build_model)

    @classmethod
    def from_arrays(  # type: ignore[override]
        cls,
        *,
        x: Any,
        y: Any,
        client_ids: Any,
        validation: Examples,
        test: Examples,
        model: Callable[[], Any],
        sample_weight: Any = None,
        **attributes: Any,
    ) -> Self:
        """Returns a task whose examples are held in memory.

        Args:
          x, y: structures of arrays; the first axis counts all examples.
          client_ids: an id for each example, of any dtype, none of them missing. Clients are in the
            order of their ids, examples in that of the arrays.
          validation, test: (x, y) of the splits.
          model: () -> a model as of `build_model`; its weights follow from the run's
            seed, by tf.keras.utils.set_random_seed.
          sample_weight: how much each example counts in the loss, (examples,); None for 1.
          attributes: `name`, `loss`, `metrics`, `batch_size` and any other attribute of `Task`.
            `data_version` is by default a digest of the contents.

        Raises:
          TypeError, ValueError: as `Task` does, and for arrays whose first axes differ.

        >>> rng = np.random.default_rng(0)
        >>> x, y = rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, 2, 60)
        >>> task = Task.from_arrays(
        ...     name="table", x=x, y=y, client_ids=np.arange(60) % 12, batch_size=5,
        ...     validation=(x, y), test=(x, y),
        ...     model=lambda: tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,))]),
        ...     loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        ...     metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
        ... )
        >>> len(task.client_ids), of_examples.count(task.examples_of("7"))
        (12, 5)
        """
        splits = {"validation": validation, "test": test}
        built = {"build_model": seeded(model), **attributes}
        return cls._of_arrays((x, y, sample_weight), client_ids, splits, built)

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
        """Returns a task on a tff.simulation.datasets.ClientData: TFF's own data sets,
        FilePerUserClientData, SqlClientData, TestClientData ...

        Args:
          train: the ClientData of the training clients.
          validation, test: a ClientData, all of whose clients are evaluated on, or (x, y).
          preprocess: a client's tf.data.Dataset -> a tf.data.Dataset of single examples (x, y), not
            batched; or (x, y) as arrays. Pure: without shuffle or random augmentation. As in Keras
            (x, y, weight) say how much each example counts in the loss.
          model: () -> a model as of `build_model`; its weights follow from the run's
            seed, by tf.keras.utils.set_random_seed.
          attributes: `name`, `loss`, `metrics`, `batch_size` and any other attribute of `Task`.
            Without a `data_version` a resume compares the first cohort's examples alone, and warns.

        Raises:
          TypeError, ValueError: as `Task` does.
        """

        def read(source: Any, client_id: str) -> Examples:
            return read_examples(
                preprocess(source.create_tf_dataset_for_client(client_id)), client_id
            )

        @functools.cache
        def evaluation_examples(split: str) -> Examples:
            source = {"validation": validation, "test": test}[split]
            if isinstance(source, tuple):
                first = read(train, train.client_ids[0])
                weighted = isinstance(first, tuple) and isinstance(first[-1], Weighted)
                checked = of_examples.checked(source, f"the {split} split")
                return of_examples.counted_once(checked) if weighted else checked
            parts = [
                of_examples.checked(read(source, name), f"client {name!r} of the {split} split")
                for name in source.client_ids
            ]
            return of_examples.concatenated(parts)

        return cls(
            client_ids=tuple(train.client_ids),
            client_examples=functools.partial(read, train),
            evaluation_examples=evaluation_examples,
            build_model=seeded(model),
            **{"description": f"{len(train.client_ids)} clients of a ClientData"} | attributes,
        )


def seeded(model: Callable[[], Any]) -> Callable[[int], Any]:
    """`Task.build_model` of a function without a seed: Keras's, TensorFlow's, numpy's and Python's
    own generators are seeded before.
    """
    check_model_function("model", model, num_arguments=0)

    def build(seed: int) -> Any:
        tf.keras.utils.set_random_seed(seed % 2**32)  # as long as numpy takes
        return model()

    return build
