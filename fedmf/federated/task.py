"""`Task`: clients, their examples, a model and how it is judged. It knows no privacy."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from fedmf import checks, fields, nest
from fedmf.federated.datasets import read_examples
from fedmf.federated.task_checks import check_model_function, checked_attributes
from fedmf.federated.tensorflow_import import keras3_note
from fedmf.federated.tff_models import TffModel, loop_model
from fedmf.identifiers import client_array
from fedmf.runs.vocabulary import RunVocabulary
from fedmf.training import examples as of_examples
from fedmf.training.examples import Examples, Weighted

SPLITS = ("validation", "test")
# (labels, outputs, example weights) -> scalar; see `Task.loss`.
LossFunction = Callable[[Any, Any, Any], Any]


class CompiledEpoch(Protocol):
    """A client's local epoch without automatic differentiation, for a model whose
    speed is worth it.
    """

    def __call__(
        self,
        weights: Sequence[np.ndarray],
        x: np.ndarray,
        y: np.ndarray,
        learning_rate: float,
        update: Sequence[np.ndarray],
        /,
    ) -> float:
        """One epoch of SGD over the examples in their order, in the task's batches, the last of
        which may be short.

        It must do what SGD on the task's model and loss does, to float32 rounding; give the same
        bits for the same input; write to nothing but `update`; and may be called from several
        threads at once, which it should let run side by side.

        Args:
          weights: the model's trainable weights, float32 and contiguous.
          x, y: a client's examples, contiguous.
          learning_rate: of SGD.
          update: arrays like the weights that the weights before less the weights after
            are written to.

        Returns:
          The sum over batches of the loss before the step times the batch's examples.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A federated learning task: from arrays, from a TFF ClientData, or from functions as here.

    All data leave the task as numpy arrays, so that every execution of the training loop trains on
    exactly the same examples in the same order; shuffling and batching along the first axis belong
    to the loop, which seeds them.

    Attributes:
      name: short name, such as "digits".
      description: one line for reports: which data, how many clients, which model.
      made_clients: how clients were made where they are no people's or devices' own, such as "60
        clients dealt by dirichlet:0.3 from 5000 images"; statements say so.
      client_ids: training clients in a fixed order, each once, none missing and no two that look
        alike; the participation controller's index i is client_ids[i].
      client_examples: client id -> (x, y), structures of arrays of any dtype whose first axis
        counts the client's examples, possibly none. Pure: the same in the same order whenever it is
        asked, in every process. A resume repeats its noise.
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

    name: str
    description: str = ""
    made_clients: str = ""
    client_ids: Sequence[str]
    client_examples: Callable[[str], Examples]
    evaluation_examples: Callable[[str], Examples]
    build_model: Callable[[int], Any]
    loss: tf.keras.losses.Loss | LossFunction | None = None
    metrics: Callable[[], Sequence[tf.keras.metrics.Metric]] | None = None
    batch_size: int
    sample_weight: Callable[[str], Any] | None = None
    class_weight: Mapping[int, float] | None = None
    headline_metric: str = ""
    metric_note: str = ""
    data_version: str = ""
    compiled_epoch: Callable[[], CompiledEpoch | None] | None = None
    export_model: Callable[[Any], Any] | None = None
    vocabulary: RunVocabulary | None = None

    def __post_init__(self) -> None:
        fields.set_fields(self, checked_attributes(self))
        _ = self._class_table  # refuses what are no weights
        built = functools.partial(loop_model, self.name, self.build_model, self.loss is None)
        fields.set_fields(self, {"build_model": built})

    @functools.cached_property
    def headline(self) -> str:
        """The metric that reports show.

        Raises:
          ValueError: there are no metrics, or none of the name in `headline_metric`.
        """
        names = self._metric_names()
        if not names:
            raise ValueError(
                f"metrics of task {self.name!r} gives no metric: reports need "
                "one, such as an accuracy"
            )
        return checks.one_of("headline_metric", self.headline_metric or names[0], (*names, "loss"))

    def _metric_names(self) -> list[str]:
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

    @functools.cached_property
    def spec(self) -> Any:
        """The examples as a structure of `ArraySpec`; all clients' and splits' are like the
        validation split's.

        Raises:
          ValueError: examples have weights, and something of the task does not take them.
        """
        x, y = of_examples.spec(self._split("validation"))
        if isinstance(y, Weighted) and (self.loss is None or self.compiled_epoch is not None):
            other = "compiled_epoch" if self.loss is not None else "TFF model with its own loss"
            raise ValueError(
                f"task {self.name!r} has sample_weight or class_weight beside a {other}, which "
                "takes none: leave one of them out"
            )
        return x, y

    def examples_of(self, client_id: str) -> Examples:
        """A client's examples.

        Raises:
          TypeError, ValueError: not structures of arrays as `spec` has them, or NaN or infinite
            values or negative weights in them; naming the client. For the latter it is a NotFinite
            of fedmf.training.examples, and a run zeroes the client's update and goes on.
        """
        if not isinstance(client_id, Hashable) or client_id not in self._known_ids:
            raise ValueError(
                f"client_id={client_id!r} is none of task {self.name!r}: pass one of its client_ids"
            )
        examples = self._read(self._with_sample_weight, client_id)
        weighted = self._with_class_weight(examples, self._origin(client_id))
        return self._like_others(weighted, client_id)

    def split(self, name: str) -> Examples:
        """The examples of a split, at least one; each of weight 1 if clients' have weights.

        Raises:
          TypeError, ValueError: as `examples_of` does.
        """
        checks.one_of("name", name, SPLITS)
        examples = self._like_others(self._split(name), name)
        self._with_class_weight(examples, self._origin(name))  # refuses a class without a weight
        if not of_examples.count(examples):
            raise ValueError(
                f"{self._origin(name)} is empty: evaluation needs at least one example"
            )
        return examples

    def initial_weights(self, seed: int) -> list[np.ndarray]:
        """The trained weights of `build_model(seed)`, which is built once for them."""
        seed = checks.integer("seed", seed, low=0, hint="use a non-negative whole number")
        known: dict[int, list[np.ndarray]] = self.__dict__.setdefault("_initial_weights", {})
        if seed not in known:
            known[seed] = [v.numpy() for v in self.build_model(seed).trainable_variables]
        return known[seed]

    def starting_from(self, weights: Sequence[np.ndarray]) -> "Task":
        """This task with models that start from `weights`, whatever the seed.

        Args:
          weights: all of a model's, those that are not trained too, as tf.keras.Model.get_weights
            gives them.

        Raises:
          ValueError: the shapes are not those of the task's model.
        """
        hint = "give all of a model's, as tf.keras.Model.get_weights does"
        weights = checks.entries("weights", weights, hint=hint)
        expected = [weight.shape for weight in self.build_model(0).get_weights()]
        given = [np.shape(weight) for weight in weights]
        if expected != given:
            raise ValueError(
                f"the weights have the shapes {given} and the model of task {self.name!r} has "
                f"{expected}: take those of the same model"
            )

        # And not the task, whose examples would go wherever the function goes
        build_model = self.build_model

        def build(seed: int) -> Any:
            model = build_model(seed)
            # TFF builds models in graphs, and sets their weights afterwards
            if tf.executing_eagerly():
                model.set_weights(weights)
            return model

        return dataclasses.replace(self, build_model=build)

    def without_examples(self) -> "Task":
        """This task as other machines get it: its model, its loss and its batches."""
        light = dataclasses.replace(
            self,
            client_ids=("none",),
            client_examples=_elsewhere,
            evaluation_examples=_elsewhere,
            sample_weight=None,
            class_weight=None,
            metrics=self.metrics and list,
        )
        light.__dict__["spec"] = self.spec
        return light

    @property
    def tensor_specs(self) -> Any:
        """A batch of the examples as a structure of tf.TensorSpec, (None, ...)."""
        return tf.nest.map_structure(
            lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), self.spec
        )

    @functools.cached_property
    def _known_ids(self) -> frozenset[Any]:
        return frozenset(self.client_ids)

    def _origin(self, name: str) -> str:
        return (
            f"the {name} split of task {self.name!r}"
            if name in SPLITS
            else f"client {name!r} of task {self.name!r}"
        )

    @functools.cached_property
    def _class_table(self) -> np.ndarray | None:
        return None if self.class_weight is None else of_examples.class_table(self.class_weight)

    def _with_sample_weight(self, client_id: str) -> Any:
        examples = self.client_examples(client_id)
        if self.sample_weight is None or not isinstance(examples, tuple) or len(examples) != 2:
            return examples
        if isinstance(examples[1], Weighted):
            raise ValueError(
                f"{self._origin(client_id)} has weights beside sample_weight: leave one of them out"
            )
        return examples[0], Weighted(examples[1], self.sample_weight(client_id))

    def _with_class_weight(
        self, examples: Examples, origin: str, owner: Callable[[int], str] = str
    ) -> Examples:
        if self._class_table is None:
            return examples
        return of_examples.class_weighted(examples, self._class_table, origin, owner)

    def _split(self, name: str) -> Examples:
        examples = self._read(self.evaluation_examples, name)
        weighted = not (self.sample_weight is None and self.class_weight is None)
        if weighted or isinstance(examples[1], Weighted):
            return of_examples.counted_once(examples)
        return examples

    def _read(self, examples_of: Callable[[str], Examples], name: str) -> Examples:
        origin = self._origin(name)
        with of_examples.errors_of(f"reading the examples of {origin}", OSError):
            return of_examples.checked(examples_of(name), origin)

    def _like_others(self, examples: Examples, name: str) -> Examples:
        if not of_examples.fits(examples, self.spec):
            raise TypeError(
                f"the examples of {self._origin(name)} are {_shown(of_examples.spec(examples))} "
                f"where those of the validation split are {_shown(self.spec)}: give all the same "
                "shapes and dtypes"
            )
        return examples

    @classmethod
    def from_arrays(
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
    ) -> "Task":
        """A task whose examples are held in memory.

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
        ids = client_array("client_ids", client_ids)

        def place(example: int) -> str:
            return f"{example}, of client {ids.ravel().tolist()[example]!r}"

        labels = y if sample_weight is None else Weighted(y, sample_weight)
        examples = of_examples.checked((x, labels), "x and y", place)
        if ids.shape != (of_examples.count(examples),):
            raise ValueError(
                f"client_ids has the shape {ids.shape} and x and y hold "
                f"{of_examples.count(examples)} examples: give each example an id"
            )
        names, owner = np.unique(ids, return_inverse=True)
        order = np.argsort(owner, kind="stable")
        ends = np.searchsorted(owner[order], np.arange(len(names) + 1))
        index = {str(name): i for i, name in enumerate(names)}
        checked = {
            name: of_examples.checked(split, f"the {name} split")
            for name, split in zip(SPLITS, (validation, test), strict=True)
        }
        if sample_weight is not None:
            checked = {name: of_examples.counted_once(split) for name, split in checked.items()}
        given: dict[str, Any] = {
            "description": f"{ids.size} examples of {len(names)} clients",
            "data_version": of_examples.digest(examples, ids, *checked.values()),
        }
        task = cls(
            client_ids=tuple(index),
            client_examples=lambda name: of_examples.take(
                examples, order[ends[index[name]] : ends[index[name] + 1]]
            ),
            evaluation_examples=checked.__getitem__,
            build_model=seeded(model),
            **given | attributes,
        )
        task._with_class_weight(examples, "x and y", place)  # refuses a class without a weight
        return task

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
    ) -> "Task":
        """A task on a tff.simulation.datasets.ClientData: TFF's own data sets,
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


def _shown(spec: Any) -> str:
    """Inputs and labels of a spec, as "float32 (3,) and int64 ()" for each example."""
    parts = (
        nest.map_leaves(lambda spec: f"{spec.dtype} {spec.shape}", part)
        for part in (spec[0], of_examples.apart(spec[1])[0])
    )
    return " and ".join(part if isinstance(part, str) else repr(part) for part in parts)


def _elsewhere(name: str) -> Examples:
    raise ValueError(f"the examples of {name} are not on this machine")


def seeded(model: Callable[[], Any]) -> Callable[[int], Any]:
    """`Task.build_model` of a function without a seed: Keras's, TensorFlow's, numpy's and Python's
    own generators are seeded before.
    """
    check_model_function("model", model, num_arguments=0)

    def build(seed: int) -> Any:
        tf.keras.utils.set_random_seed(seed % 2**32)  # as long as numpy takes
        return model()

    return build
