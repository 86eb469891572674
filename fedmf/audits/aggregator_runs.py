"""Calls of an audited aggregation function, and checks of its results."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fedmf.audits.aggregator_claim import AggregatorClaim

# A function without arguments that returns a new aggregation function for one run. The aggregation
# function maps the clients' updates, each a list of arrays, to one list of arrays.
Maker = Callable[[], Callable[..., Any]]

# Each client has this many examples, unless a test passes other numbers.
NUM_EXAMPLES = 10


class WrongResult(ValueError):
    """An error for a result that is not an aggregate of the updates."""


class AggregatorRuns:
    """Runs of the audited function, each with a fixed number of rounds.

    A release is one vector, in units of the claimed sensitivity.

    Attributes:
      calls: number of calls so far.
      round: index of the next release in its run.
      length: number of rounds after which a new run starts.
      takes_examples: whether the function has a parameter for the clients' numbers of examples.
    """

    def __init__(self, make: Maker, claim: AggregatorClaim, length: int) -> None:
        self._make = make
        self._claim = claim
        self._shapes = claim.arrays
        array_ends = np.cumsum(claim.sizes).tolist()
        self._slices = [
            slice(end - size, end) for end, size in zip(array_ends, claim.sizes, strict=True)
        ]
        self.length = length
        self.calls = 0
        self.start()

    def start(self) -> None:
        """Starts a run with a new aggregation function in its initial state."""
        self._function = self._make()
        self.round = 0
        try:
            examples_parameter = inspect.signature(self._function).parameters.get("examples")
        except (TypeError, ValueError):
            # Python cannot report the signature of some builtin functions, which then get no
            # numbers of examples.
            examples_parameter = None
        self.takes_examples = examples_parameter is not None
        self._is_positional = (
            examples_parameter is not None
            and examples_parameter.kind is examples_parameter.POSITIONAL_ONLY
        )

    def release(
        self, updates: Sequence[np.ndarray], examples: Sequence[int] | None = None
    ) -> np.ndarray:
        """Calls the audited function for one round and returns its release.

        Args:
          updates: one vector for each client, of any dtype; the function gets copies.
          examples: number of examples of each client; None for the same number for all.

        Raises:
          WrongResult: the function does not return an aggregate of the updates.
        """
        if self.round == self.length:
            self.start()
        self.round += 1
        self.calls += 1
        return self.call([self._arrays_of(np.copy(update)) for update in updates], examples)

    def _arrays_of(self, vector: np.ndarray) -> list[np.ndarray]:
        """Splits an update, given as a vector, into its arrays, which share the vector's memory."""
        slices_and_shapes = zip(self._slices, self._shapes, strict=True)
        return [vector[entries].reshape(shape) for entries, shape in slices_and_shapes]

    def call(
        self, arrays: list[list[np.ndarray]], examples: Sequence[int] | None = None
    ) -> np.ndarray:
        """Calls the audited function with lists of arrays and returns its release as a vector."""
        # Some tests send updates whose squares overflow. Warnings about these are silenced.
        with np.errstate(all="ignore"):
            result = self._result(arrays, examples)
        aggregate = self._checked(result)
        return np.concatenate([array.ravel() for array in aggregate]) / self._claim.unit

    def _result(self, arrays: list[list[np.ndarray]], examples: Sequence[int] | None) -> object:
        """Calls the audited function, with the clients' numbers of examples if it has such a
        parameter.
        """
        if not self.takes_examples:
            return self._function(arrays)
        if examples is None:
            examples = [NUM_EXAMPLES] * len(arrays)
        if self._is_positional:
            return self._function(arrays, list(examples))
        return self._function(arrays, examples=list(examples))

    def _checked(self, result: object) -> list[np.ndarray]:
        """Checks the result of the audited function, and converts it to float64 arrays.

        Raises:
          WrongResult: it is no list of arrays with the shapes of an update.
        """
        advice = "it must return the aggregate itself, a list of arrays"
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise WrongResult(
                f"the function gave a {type(result).__name__}, which is not awaited: {advice}; "
                "call a coroutine with asyncio.run in a function of yours"
            )
        if result is None:
            raise WrongResult(f"the function gave None: {advice}")
        if isinstance(result, str | bytes | dict | set) or not isinstance(result, Iterable):
            raise WrongResult(f"the function gave a {type(result).__name__}: {advice}")
        result_arrays = [np.asarray(array) for array in result]
        for array in result_arrays:
            if array.dtype.kind not in "fiub":
                raise WrongResult(f"the function gave an array of dtype {array.dtype}: {advice}")
        if [array.shape for array in result_arrays] != self._shapes:
            raise WrongResult(
                f"the function gave arrays of shapes {[array.shape for array in result_arrays]} "
                f"for updates of shapes={self._claim.shapes!r}: it must give an aggregate of the "
                "same"
            )
        return [array.astype(np.float64) for array in result_arrays]
