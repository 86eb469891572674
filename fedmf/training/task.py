"""`Task`: clients, their examples, and a learner that trains and judges a model. It knows no
privacy.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Required, Self, TypedDict, Unpack

import numpy as np

from fedmf import checks, fields, nest
from fedmf.identifiers import client_array
from fedmf.runs.config import TrainConfig
from fedmf.runs.vocabulary import RunVocabulary
from fedmf.training import examples as of_examples
from fedmf.training.examples import Examples, Weighted
from fedmf.training.learner import ClientSettings, Learner
from fedmf.training.task_checks import checked_attributes

SPLITS = ("validation", "test")


class TaskAttributes(TypedDict, total=False):
    """The attributes of a `Task` that do not follow from arrays."""

    name: Required[str]
    learner: Required[Learner]
    batch_size: Required[int]
    description: str
    made_clients: str
    class_weight: Mapping[int, float] | None
    headline_metric: str
    metric_note: str
    data_version: str
    vocabulary: RunVocabulary | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A federated learning task: data of clients, and a learner.

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
        asked, in every process: a resumed run is then the uninterrupted one, to the bit.
      evaluation_examples: "validation" or "test" -> (x, y). Pure; the two splits are disjoint.
      learner: of the model; see `Learner`.
      batch_size: examples in a client's batch.
      sample_weight: client id -> how much each of its examples counts in the loss, (examples,),
        finite and at least 0. Pure. Evaluation counts each example once.
      class_weight: class 0, 1, 2 ... -> how much its examples count in the loss. Labels are numbers
        (examples,), or one-hot floats. With sample_weight too, they multiply.
      headline_metric: the metric that reports show; by default the first. A sweep chooses where it
        is largest, or smallest if its name has error, loss or perplexity.
      metric_note: what a reader of the headline metric must know, printed behind its name, such as
        "leaves out unknown words".
      data_version: another text whenever the data are others, so that a resume on them is refused;
        with "" a resume warns.
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
    learner: Learner
    batch_size: int
    sample_weight: Callable[[str], Any] | None = None
    class_weight: Mapping[int, float] | None = None
    headline_metric: str = ""
    metric_note: str = ""
    data_version: str = ""
    vocabulary: RunVocabulary | None = None

    def __post_init__(self) -> None:
        fields.set_fields(self, checked_attributes(self))
        _ = self._class_table  # refuses what are no weights

    @functools.cached_property
    def headline(self) -> str:
        """The metric that reports show.

        Raises:
          ValueError: there are no metrics, or none of the name in `headline_metric`.
        """
        names = self.learner.metric_names(self)
        if not names:
            raise ValueError(
                f"metrics of task {self.name!r} gives no metric: reports need "
                "one, such as an accuracy"
            )
        return checks.one_of("headline_metric", self.headline_metric or names[0], (*names, "loss"))

    @functools.cached_property
    def spec(self) -> Any:
        """The examples as a structure of `ArraySpec`; all clients' and splits' are like the
        validation split's.

        Raises:
          ValueError: examples have weights, and something of the task does not take them.
        """
        x, y = of_examples.spec(self._split("validation"))
        if isinstance(y, Weighted) and self.learner.takes_no_weights:
            raise ValueError(
                f"task {self.name!r} has sample_weight or class_weight beside a "
                f"{self.learner.takes_no_weights}, which takes none: leave one of them out"
            )
        return x, y

    def client_settings(
        self, config: TrainConfig, *, max_step_norm: float = math.inf
    ) -> ClientSettings:
        """Returns how the clients of a run of this task train.

        Args:
          config: of the run.
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
        """Returns the weights that a run of this seed begins with; they are made once."""
        seed = checks.integer("seed", seed, low=0, hint="use a non-negative whole number")
        known: dict[int, list[np.ndarray]] = self.__dict__.setdefault("_initial_weights", {})
        if seed not in known:
            known[seed] = self.learner.initial_weights(seed)
        return known[seed]

    def starting_from(self, weights: Sequence[np.ndarray]) -> Self:
        """Returns this task with models that start from `weights`, whatever the seed.

        Args:
          weights: all of a model's, as `Learner.all_weights` returns them.

        Raises:
          ValueError: the shapes are not those of the task's model.
        """
        return dataclasses.replace(self, learner=self.learner.starting_from(weights))

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
        sample_weight: Any = None,
        **attributes: Unpack[TaskAttributes],
    ) -> Self:
        """Returns a task whose examples are held in memory.

        Args:
          x, y: structures of arrays; the first axis counts all examples.
          client_ids: an id for each example, of any dtype, none of them missing. Clients are in the
            order of their ids, examples in that of the arrays.
          validation, test: (x, y) of the splits.
          sample_weight: how much each example counts in the loss, (examples,); None for 1.
          attributes: `name`, `learner`, `batch_size` and any other attribute of `Task`.
            `data_version` is by default a digest of the contents.

        Raises:
          TypeError, ValueError: as `Task` does, and for arrays whose first axes differ.
        """
        splits = {"validation": validation, "test": test}
        return cls._of_arrays((x, y, sample_weight), client_ids, splits, attributes)

    @classmethod
    def _of_arrays(
        cls,
        arrays: tuple[Any, Any, Any],
        client_ids: Any,
        splits: Mapping[str, Examples],
        attributes: Mapping[str, Any],
    ) -> Self:
        """See `from_arrays`.

        Args:
          arrays: x, y and sample_weight.
          client_ids: of `from_arrays`.
          splits: validation and test.
          attributes: of the class.
        """
        x, y, sample_weight = arrays
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
            name: of_examples.checked(split, f"the {name} split") for name, split in splits.items()
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
            **{**given, **attributes},
        )
        task._with_class_weight(examples, "x and y", place)  # refuses a class without a weight
        return task


def _shown(spec: Any) -> str:
    """Inputs and labels of a spec, as "float32 (3,) and int64 ()" for each example."""
    parts = (
        nest.map_leaves(lambda spec: f"{spec.dtype} {spec.shape}", part)
        for part in (spec[0], of_examples.apart(spec[1])[0])
    )
    return " and ".join(part if isinstance(part, str) else repr(part) for part in parts)
