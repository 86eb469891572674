"""`Task`: clients, their examples, a model and how it is judged. It knows no privacy."""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

# One client's (or one split's) examples: inputs and labels, int32, each of shape (examples, length).
Examples = tuple[np.ndarray, np.ndarray]


class CompiledEpoch(Protocol):
    """A client's local epoch without automatic differentiation, for a model whose speed is worth it."""

    def __call__(
        self,
        weights: Sequence[np.ndarray],
        x: np.ndarray,
        y: np.ndarray,
        learning_rate: float,
        update: Sequence[np.ndarray],
        /,
    ) -> float:
        """One epoch of SGD over the examples in their order, in the task's batches, the last of which may be short.

        It must do what SGD on the task's model and loss does, to float32 rounding; give the same bits for the same input; write to
        nothing but `update`; and may be called from several threads at once, which it should let run side by side.

        Args:
          weights: the model's trainable weights, float32 and contiguous.
          x, y: int32 (m, length), contiguous.
          learning_rate: of SGD.
          update: arrays like the weights that the weights before less the weights after are written to.

        Returns:
          The sum over batches of the loss before the step times the batch's examples.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A federated learning task.

    All data leave the task as numpy arrays, so that the TFF path and the fast path of the training loop train on exactly the
    same examples in the same order; shuffling and batching belong to the loop, which seeds them.

    Attributes:
      name: short name, such as "stackoverflow_nwp".
      description: one line for reports: which file, how many clients, vocabulary, model sizes, loss.
      client_ids: training clients in a fixed order, each once; the participation controller's index i is client_ids[i].
      client_examples: client id -> (x, y), int32 (m, length), m >= 0, in file order, preprocessed and truncated. Pure.
      evaluation_examples: "validation" or "test" -> (x, y), int32 (m, length). Pure; the two splits are disjoint.
      build_model: seed -> an untrained tf.keras.Model, (batch, length) int32 -> logits (batch, length, classes). The same seed
        gives the same weights. In training it must be a function of weights and inputs alone: no Dropout, no BatchNormalization.
      loss: (labels, logits, example_weights) -> scalar float32 tensor, the mean the client minimises. labels (batch, length)
        int32, logits (batch, length, classes), example_weights (batch,) float32, 0 for examples that only pad a batch.
      metrics: (labels, logits, example_weights) -> {name: (numerator, denominator)}, float32 scalars that add up over batches.
      headline_metric: the metric that reports show.
      batch_size: examples in a client's batch.
      data_version: another text whenever the data are others, so that a resume on them is refused; "" says nothing.
      compiled_epoch: () -> the same training of a client without automatic differentiation, or None where this machine cannot run
        it. Only the fast execution uses it; without it clients train by automatic differentiation of `build_model`.
    """

    name: str
    description: str
    client_ids: Sequence[str]
    client_examples: Callable[[str], Examples]
    evaluation_examples: Callable[[str], Examples]
    build_model: Callable[[int], Any]
    loss: Callable[[Any, Any, Any], Any]
    metrics: Callable[[Any, Any, Any], Mapping[str, tuple[Any, Any]]]
    headline_metric: str
    batch_size: int
    data_version: str = ""
    compiled_epoch: Callable[[], CompiledEpoch | None] | None = None

    def __post_init__(self) -> None:
        if not len(self.client_ids):
            raise ValueError(f"client_ids of task {self.name!r} is empty: a task needs at least one training client")
        if len(set(self.client_ids)) != len(self.client_ids):
            twice = next(name for name, count in collections.Counter(self.client_ids).items() if count > 1)
            raise ValueError(
                f"client_ids of task {self.name!r} has {twice!r} more than once: the guarantee is for each client, so every one needs an "
                "id of its own"
            )
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be a positive integer")

    def checked(self, examples: Examples, origin: str) -> Examples:
        """`examples`, which must be two int32 arrays of one shape (m, length).

        Raises:
          TypeError: of another dtype; casting would change features without a word.
          ValueError: of another shape.
        """
        dtypes = [getattr(part, "dtype", type(part).__name__) for part in examples]
        if dtypes != [np.int32, np.int32]:
            raise TypeError(
                f"task {self.name!r}: the examples of {origin} are {' and '.join(map(str, dtypes))}, and tasks take int32 sequences "
                "only: turn them into ids"
            )
        x, y = examples
        if x.ndim != 2 or x.shape != y.shape:
            raise ValueError(
                f"task {self.name!r}: the examples of {origin} have the shapes {x.shape} and {y.shape} instead of one (m, length)"
            )
        return x, y
