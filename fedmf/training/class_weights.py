"""Weights of examples in the loss by the class of their labels."""

from collections.abc import Callable, Mapping

import numpy as np

from fedmf import checks, nest
from fedmf.training.example_checks import check_weights, is_floating, is_real
from fedmf.training.examples import Examples, NotFinite, Weighted, split_weights


def class_weight_table(class_weight: Mapping[int, float]) -> np.ndarray:
    """Checks the weights of the classes, and returns them as a float32 array of shape (classes,).

    Raises:
      TypeError, ValueError: the keys are not these classes, as Keras requires; or a weight is not
        finite and at least 0.

    >>> class_weight_table({1: 0.5, 0: 2})
    array([2. , 0.5], dtype=float32)
    """
    hint = "give each of the classes 0, 1, 2 ... a finite weight of at least 0"
    if not isinstance(class_weight, Mapping):
        raise TypeError(f"class_weight={class_weight!r} is no dict: {hint}")
    if not class_weight or set(class_weight) != set(range(len(class_weight))):
        raise ValueError(
            f"class_weight={class_weight!r} has other keys than 0, 1, 2 ...: {hint}, as in Keras"
        )
    largest_float32 = float(np.finfo(np.float32).max)
    checked_weights = [
        checks.positive(
            f"class_weight[{c}]", class_weight[c], hint, below=largest_float32, allow_zero=True
        )
        for c in range(len(class_weight))
    ]
    return np.array(checked_weights, np.float32)


def with_class_weights(
    examples: Examples,
    table: np.ndarray,
    origin: str,
    describe_example: Callable[[int], str] = str,
) -> Examples:
    """Returns the examples with new weights. The weight of an example is that of its class, times
    its sample weight if it has one.

    Labels are converted to classes as in Keras 2.14.

    Args:
      examples: result of `check_examples`, whose labels are classes, (examples,) or (examples, 1),
        or one-hot floats (examples, classes).
      table: result of `class_weight_table`.
      origin, describe_example: as in `check_examples`.

    Raises:
      TypeError: the labels have another shape or dtype.
      NotFinite: a class has no weight, or a weight exceeds float32.
    """
    x, y = examples
    labels, sample_weights = split_weights(y)
    if nest.is_nested(labels) or not is_real(labels):
        raise TypeError(_NO_CLASSES.format(origin, "not one array of numbers"))
    if labels.shape[1:] == table.shape != (1,) and is_floating(labels.dtype):
        class_labels = labels.astype(np.float32).argmax(axis=1)
    elif labels.shape[1:] in ((), (1,)):
        class_labels = np.round(labels.reshape(len(labels)).astype(np.float64))
    else:
        raise TypeError(_NO_CLASSES.format(origin, f"{labels.dtype} {labels.shape}"))
    is_unknown = (class_labels < 0) | (class_labels >= len(table))
    if is_unknown.any():
        first_index = int(is_unknown.argmax())
        raise NotFinite(
            f"the labels of {origin} hold class {class_labels[first_index]:.0f}, first in example "
            f"{describe_example(first_index)}, and class_weight ends at {len(table) - 1}: give it "
            "a weight, too"
        )
    label_weights = table[class_labels.astype(np.int64)]
    if sample_weights is not None:
        with np.errstate(over="ignore"):
            label_weights = sample_weights * label_weights
    return x, Weighted(labels, check_weights(label_weights, origin, describe_example))


_NO_CLASSES = (
    "class_weight needs labels that are classes, and those of {} are {}: give numbers (examples,), "
    "or one-hot floats (examples, classes)"
)
