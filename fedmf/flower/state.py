"""The state of a wrapped strategy as a record that a file holds."""

import itertools
from typing import Any, NamedTuple

import numpy as np

from fedmf.flower.values import Packed

# The names that lead from the strategy to an object, or to an attribute.
AttributePath = tuple[str, ...]


class State(NamedTuple):
    """The changes in a strategy since the program made it.

    Attributes:
      attributes: values and references, by the path of the attribute.
      contents: of lists, dicts and arrays that the program made, by their address.
      new: contents of lists, dicts and arrays that rounds have made.
    """

    attributes: dict[AttributePath, Packed]
    contents: dict[AttributePath, Packed]
    new: list[Packed]

    def to_arrays(self) -> tuple[Any, list[np.ndarray]]:
        """Returns the state as JSON and arrays."""
        new_values = [((), value) for value in self.new]  # They have no paths.
        packed_values = [*self.attributes.items(), *self.contents.items(), *new_values]
        packed_trees = [[path, value.tree, len(value.arrays)] for path, value in packed_values]
        arrays = itertools.chain.from_iterable(value.arrays for _, value in packed_values)
        counts = [len(self.attributes), len(self.contents)]
        return [counts, packed_trees], list(arrays)

    @classmethod
    def from_arrays(cls, tree: Any, arrays: list[np.ndarray]) -> "State":
        """Inverts `to_arrays`."""
        [num_attributes, num_contents], entries = tree
        array_iterator = iter(arrays)
        packed_values = [
            (tuple(path), Packed(value, list(itertools.islice(array_iterator, num_arrays))))
            for path, value, num_arrays in entries
        ]
        contents_end = num_attributes + num_contents
        contents = dict(packed_values[num_attributes:contents_end])
        return cls(
            dict(packed_values[:num_attributes]),
            contents,
            [value for _, value in packed_values[contents_end:]],
        )


EMPTY = State({}, {}, [])


def path_text(path: AttributePath) -> str:
    """Returns the names that lead to an attribute, for a sentence.

    >>> path_text(("optimizers", "[0]", "rate"))
    'optimizers[0].rate'
    """
    return ".".join(path).replace(".[", "[").replace("@", "")
