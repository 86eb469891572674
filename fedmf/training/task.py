"""A learning problem with clients, their examples, and a learner that trains and evaluates a model.

A task holds no privacy parameters.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Required, Self, TypedDict, Unpack

import numpy as np

from fedmf import checks, fields, nest
from fedmf.runs.config import TrainConfig
from fedmf.runs.vocabulary import RunVocabulary
from fedmf.training.class_weights import class_weight_table, with_class_weights
from fedmf.training.example_checks import check_examples
from fedmf.training.examples import (
    Examples,
    Weighted,
    count,
    errors_of,
    has_spec,
    spec_of,
    split_weights,
    with_unit_weights,
)
from fedmf.training.learner import ClientSettings, Learner
from fedmf.training.pooled_examples import pooled_examples
from fedmf.training.task_checks import UNKNOWN, checked_attributes

SPLITS = ("validation", "test")


class TaskAttributes(TypedDict, total=False):
    """Attributes of a `Task` that the caller of `Task.from_arrays` passes, because arrays do not
    determine them.
    """

    name: Required[str]
    learner: Required[Learner]
    batch_size: Required[int]
    description: str
    synthetic_clients: str
    class_weight: Mapping[int, float] | None
    headline_metric: str
    metric_note: str
    data_version: str
    validation_clients: str
    vocabulary: RunVocabulary | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A federated learning task, with the examples of clients and a learner that trains a model on
    them.

    All examples are numpy arrays, so that every execution of the training loop trains on the same
    examples in the same order. The loop shuffles them with its own seeds, and makes batches.

    Attributes:
      name: short name, such as "digits".
      description: one line for reports that names the data, the number of clients and the model.
      synthetic_clients: a description of the clients if no person or device owned their data, as
        in a partition ("60 clients partitioned by dirichlet:0.3 from 5000 images") or in generated
        data. Privacy statements quote it.
      client_ids: training clients in a fixed order, without missing, repeated or look-alike ids;
        the participation controller's index i is client_ids[i].
      client_examples: client id -> (x, y), structures of arrays of any dtype whose first axis
        counts the client's examples, possibly none. It must be pure, and return the same examples
        in the same order in every process: then a resumed run is bitwise identical to an
        uninterrupted one.
      evaluation_examples: "validation" or "test" -> (x, y). It must be pure, and the two splits
        disjoint.
      learner: the `Learner` of the model.
      batch_size: number of examples in a client's batch.
      sample_weight: client id -> weights of its examples in the loss, (examples,), finite and at
        least 0. It must be pure. Evaluation ignores weights.
      class_weight: class 0, 1, 2 ... -> weight of its examples in the loss. Labels are numbers
        (examples,), or one-hot floats. These weights multiply those of sample_weight.
      headline_metric: the metric that reports show; by default the first. A sweep maximises it, or
        minimises it if its name contains error, loss or perplexity.
      metric_note: a note on the headline metric, printed behind its name, such as "leaves out
        unknown words".
      data_version: a text that changes with the data, so that a run refuses to resume on other
        data; with "" a resume warns.
      validation_clients: "others" if no training client has data in the validation split, as in a
        split by clients; "unknown" if one may have some, as in a split in time. A private selection
        chooses by the validation loss only with "others".
      vocabulary: the words behind the model's word ids, which run folders and exports contain.

    Raises:
      TypeError: an attribute is not of its type, or no function of as many arguments.
      ValueError: a client id is missing, occurs twice or looks like another one; a number is out of
        its range; or a class weight is negative or not finite.

    Example:
      >>> import numpy as np
      >>> from fedmf.training import FunctionLearner
      >>> learner = FunctionLearner(
      ...     initial_weights=lambda seed: [np.zeros(1)],
      ...     client_update=lambda weights, epochs, settings: ([np.ones(1)], 0.5),
      ...     evaluate=lambda weights, examples: {"loss": 0.5},
      ... )
      >>> examples = np.ones((4, 1)), np.ones(4)
      >>> task = Task(
      ...     name="ones", learner=learner, batch_size=2, client_ids=["ann", "bo"],
      ...     client_examples=lambda client: examples, evaluation_examples=lambda split: examples,
      ... )
      >>> len(task.client_ids)
      2
    """

    name: str
    description: str = ""
    synthetic_clients: str = ""
    client_ids: Sequence[str]
    client_examples: Callable[[str], Examples]
    evaluation_examples: Callable[[str], Examples]
    learner: Learner
    batch_size: int
    sample_weight: Callable[[str], Any] | None = None
    class_weight: Mapping[int, float] | None = None
    headline_metric: str = ""
    metric_note: str = ""
    data_version: str = ""
    validation_clients: str = UNKNOWN
    vocabulary: RunVocabulary | None = None

    def __post_init__(self) -> None:
        fields.set_fields(self, checked_attributes(self))
        _ = self._class_table  # Reading the table raises an error if a class weight is invalid.

    @functools.cached_property
    def headline(self) -> str:
        """The name of the metric that reports show.

        Raises:
          ValueError: the learner has no metrics, or none is named `headline_metric`.
        """
        metric_names = self.learner.metric_names(self)
        if not metric_names:
            raise ValueError(
                f"metrics of task {self.name!r} gives no metric: reports need "
                "one, such as an accuracy"
            )
        return checks.one_of(
            "headline_metric", self.headline_metric or metric_names[0], (*metric_names, "loss")
        )

    @functools.cached_property
    def spec(self) -> Any:
        """The spec of the validation split, which all examples must have. It is their structure
        with an `ArraySpec` for each array.

        Raises:
          ValueError: examples have weights, and the learner does not support them.
        """
        x, y = spec_of(self._split("validation"))
        if isinstance(y, Weighted) and self.learner.takes_no_weights:
            raise ValueError(
                f"task {self.name!r} has sample_weight or class_weight beside a "
                f"{self.learner.takes_no_weights}, which takes none: leave one of them out"
            )
        return x, y

    def client_settings(
        self, config: TrainConfig, *, max_step_norm: float = math.inf
    ) -> ClientSettings:
        """Returns the settings with which clients train in a run of this task.

        Args:
          config: config of the run.
          max_step_norm: see `ClientSettings`.
        """
        return ClientSettings(
            task=self.name,
            seed=config.seed,
            batch_size=self.batch_size,
            spec=self.spec,
            cohort_size=config.cohort_size,
            optimizer=config.client_optimizer,
            learning_rate=config.client_learning_rate,
            momentum=config.client_momentum,
            proximal_strength=config.proximal_strength,
            epochs=config.client_epochs,
            is_scaled=config.scaling() is not None,
            max_step_norm=max_step_norm,
        )

    def examples_of(self, client_id: str) -> Examples:
        """Returns the training examples of a client.

        Raises:
          TypeError, ValueError: the examples are not structures of arrays with this task's `spec`,
            or hold NaN, infinite values or negative weights. The latter raise the subclass
            NotFinite of fedmf.training.examples, for which a run zeroes the client's update.
        """
        if not isinstance(client_id, Hashable) or client_id not in self._id_set:
            raise ValueError(
                f"client_id={client_id!r} is no client of task {self.name!r}: pass one of its "
                "client_ids"
            )
        examples = self._read(self._with_sample_weight, client_id)
        examples = self._with_class_weight(examples, self._origin(client_id))
        return self._check_spec(examples, client_id)

    def split(self, name: str) -> Examples:
        """Returns the examples of a split, at least one. If the task has weights, each example has
        weight 1.

        Raises:
          TypeError, ValueError: as `examples_of` does.
        """
        checks.one_of("name", name, SPLITS)
        examples = self._check_spec(self._split(name), name)
        # This call serves only to refuse examples of a class that has no weight. Its result is not
        # used, because evaluation counts each example once.
        self._with_class_weight(examples, self._origin(name))
        if not count(examples):
            raise ValueError(
                f"{self._origin(name)} is empty: evaluation needs at least one example"
            )
        return examples

    def initial_weights(self, seed: int) -> list[np.ndarray]:
        """Returns copies of the initial weights of a run with this seed. The weights are cached."""
        seed = checks.integer("seed", seed, low=0, hint="use a non-negative whole number")
        cache: dict[int, list[np.ndarray]] = self.__dict__.setdefault("_initial_weights", {})
        if seed not in cache:
            cache[seed] = [np.array(weight) for weight in self.learner.initial_weights(seed)]
        return [weight.copy() for weight in cache[seed]]

    def starting_from(self, weights: Sequence[np.ndarray]) -> Self:
        """Returns this task with models that start from `weights` for every seed.

        Args:
          weights: all weights of a model, as `Learner.all_weights` returns them.

        Raises:
          ValueError: the shapes differ from those of the task's model.
        """
        hint = "give the arrays of a model as a list"
        weight_copies = [np.array(array) for array in checks.entries("weights", weights, hint=hint)]
        task = self._with_learner(self.learner.starting_from(weight_copies))
        task.__dict__["_has_given_weights"] = True
        return task

    def _with_learner(self, learner: Learner) -> Self:
        """Returns this task with another learner."""
        return dataclasses.replace(self, learner=learner)

    @property
    def has_given_weights(self) -> bool:
        """True if `starting_from` made this task, with given initial weights, which privacy
        statements mention.
        """
        return bool(self.__dict__.get("_has_given_weights", False))

    @functools.cached_property
    def _id_set(self) -> frozenset[Any]:
        return frozenset(self.client_ids)

    def _origin(self, name: str) -> str:
        """Returns a phrase that names a client or split in errors."""
        if name in SPLITS:
            return f"the {name} split of task {self.name!r}"
        return f"client {name!r} of task {self.name!r}"

    @functools.cached_property
    def _class_table(self) -> np.ndarray | None:
        return None if self.class_weight is None else class_weight_table(self.class_weight)

    def _with_sample_weight(self, client_id: str) -> Any:
        """Returns a client's examples with their sample weights, before any check."""
        examples = self.client_examples(client_id)
        if self.sample_weight is None or not isinstance(examples, tuple) or len(examples) != 2:
            return examples
        x, y = examples
        if isinstance(y, Weighted):
            raise ValueError(
                f"{self._origin(client_id)} has weights beside sample_weight: leave one of them out"
            )
        return x, Weighted(y, self.sample_weight(client_id))

    def _with_class_weight(
        self, examples: Examples, origin: str, describe_example: Callable[[int], str] = str
    ) -> Examples:
        """Returns examples with the weights of their classes; unchanged if the task has no class
        weights.
        """
        if self._class_table is None:
            return examples
        return with_class_weights(examples, self._class_table, origin, describe_example)

    def _split(self, name: str) -> Examples:
        """Returns the examples of a split, before a check of their spec."""
        examples = self._read(self.evaluation_examples, name)
        has_weights = self.sample_weight is not None or self.class_weight is not None
        if has_weights or isinstance(examples[1], Weighted):
            return with_unit_weights(examples)
        return examples

    def _read(self, examples_of: Callable[[str], Examples], name: str) -> Examples:
        """Reads and checks the examples of a client or split, and returns them as arrays. Errors
        name the client or split.
        """
        origin = self._origin(name)
        with errors_of(f"reading the examples of {origin}", OSError):
            return check_examples(examples_of(name), origin)

    def _check_spec(self, examples: Examples, name: str) -> Examples:
        """Returns the examples, or raises a TypeError if their spec differs from the task's."""
        if not has_spec(examples, self.spec):
            raise TypeError(
                f"the examples of {self._origin(name)} are {_spec_text(spec_of(examples))} "
                f"where those of the validation split are {_spec_text(self.spec)}: give all the "
                "same shapes and dtypes"
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
        sample_weight: Any = None,
        **attributes: Unpack[TaskAttributes],
    ) -> Self:
        """Returns a task with all examples in memory, from arrays.

        Args:
          x, y: structures of arrays whose first axis counts all examples.
          client_ids: the client id of each example, of any dtype, none of them missing. The task
            sorts its clients by id; the examples of a client keep their order.
          validation, test: (x, y) of the splits.
          sample_weight: weight of each example in the loss, (examples,); None for 1.
          attributes: `name`, `learner`, `batch_size` and any other attribute of `Task`. The default
            of `data_version` is a digest of the arrays.

        Raises:
          TypeError, ValueError: as `Task` does, or the first axes of the arrays differ.
        """
        return cls._from_arrays(
            x=x,
            y=y,
            client_ids=client_ids,
            splits={"validation": validation, "test": test},
            sample_weight=sample_weight,
            attributes=attributes,
        )

    @classmethod
    def _from_arrays(
        cls,
        *,
        x: Any,
        y: Any,
        client_ids: Any,
        splits: Mapping[str, Examples],
        sample_weight: Any,
        attributes: Mapping[str, Any],
    ) -> Self:
        """Returns a task of this class with all examples in memory, as `from_arrays` describes.

        Args:
          x, y, client_ids, sample_weight: as in `from_arrays`.
          splits: (x, y) of "validation" and "test".
          attributes: attributes of the class.
        """
        examples_in_memory = pooled_examples(
            x=x, y=y, client_ids=client_ids, splits=splits, sample_weight=sample_weight
        )
        # Python raises a TypeError if the caller repeats an attribute that follows from the arrays.
        task = cls(
            **examples_in_memory.task_attributes, **{**examples_in_memory.defaults, **attributes}
        )
        # This call serves only to refuse examples of a class that has no weight, before the first
        # round.
        task._with_class_weight(
            examples_in_memory.examples, "x and y", examples_in_memory.describe_example
        )
        return task


def _spec_text(spec: Any) -> str:
    """Returns the spec of inputs and labels as text, such as "float32 (3,) and int64 ()"."""
    x, y = spec
    labels, _ = split_weights(y)
    structure_texts = (
        nest.map_leaves(lambda array_spec: f"{array_spec.dtype} {array_spec.shape}", structure)
        for structure in (x, labels)
    )
    return " and ".join(text if isinstance(text, str) else repr(text) for text in structure_texts)
