"""The changes in a wrapped strategy since its creation, in a form that a file can hold."""

import itertools
from typing import Any, NamedTuple

import numpy as np

from fedmf.flower.values import Packed

# A path consists of the names of the attributes that lead from the strategy to an object or an
# attribute.
AttributePath = tuple[str, ...]


class State(NamedTuple):
    """The changes in a strategy since the program created it.

    Attributes:
      attributes: values and references, by the path of the attribute.
      contents: contents of lists, dicts and arrays that the program made, by their address.
      new: contents of lists, dicts and arrays that rounds have made.
    """

    attributes: dict[AttributePath, Packed]
    contents: dict[AttributePath, Packed]
    new: list[Packed]

    def to_arrays(self) -> tuple[Any, list[np.ndarray]]:
        """Converts the state to a JSON tree and a list of arrays."""
        new_values = [
            ((), value) for value in self.new
        ]  # Values that the strategy has created later have no path.
        packed_values = [*self.attributes.items(), *self.contents.items(), *new_values]
        packed_trees = [[path, value.tree, len(value.arrays)] for path, value in packed_values]
        all_arrays = itertools.chain.from_iterable(value.arrays for _, value in packed_values)
        section_counts = [len(self.attributes), len(self.contents)]
        return [section_counts, packed_trees], list(all_arrays)

    @classmethod
    def from_arrays(cls, tree: Any, arrays: list[np.ndarray]) -> "State":
        """Restores a state from the JSON tree and the arrays of `to_arrays`."""
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
    """Returns the path of an attribute as Python code would write it, for messages.

    >>> path_text(("optimizers", "[0]", "rate"))
    'optimizers[0].rate'
    """
    return ".".join(path).replace(".[", "[").replace("@", "")
