"""Runs of a function that aggregates updates, as the auditor of aggregators calls it."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fedmf.audits.aggregator_claim import AggregatorClaim

# Makes the function for one run: updates, each a list of arrays -> arrays. A function with a
# parameter `examples` is told how many examples each client has.
Maker = Callable[[], Callable[..., Any]]

# Examples of a client, unless a test sends other numbers.
NUM_EXAMPLES = 10


class WrongResult(ValueError):
    """The function works, and what it gives is no aggregate."""


class AggregatorRuns:
    """Calls of the function in runs of a fixed number of rounds; a release is a vector in units.

    Attributes:
      calls: of the function so far.
      round: of the next release in its run.
      length: rounds of a run; then the function is made anew.
      takes_examples: whether the function is told how many examples each client has.
    """

    def __init__(self, make: Maker, claim: AggregatorClaim, length: int) -> None:
        self._make = make
        self._claim = claim
        self._shapes = claim.arrays
        ends = np.cumsum(claim.sizes).tolist()
        self._slices = [slice(end - size, end) for end, size in zip(ends, claim.sizes, strict=True)]
        self.length = length
        self.calls = 0
        self.start()

    def start(self) -> None:
        """Begins a run, in the state of a start of the program."""
        self._function = self._make()
        self.round = 0
        try:
            parameter = inspect.signature(self._function).parameters.get("examples")
        except (TypeError, ValueError):  # a builtin
            parameter = None
        self.takes_examples = parameter is not None
        self._by_place = parameter is not None and parameter.kind is parameter.POSITIONAL_ONLY

    def release(
        self, updates: Sequence[np.ndarray], examples: Sequence[int] | None = None
    ) -> np.ndarray:
        """Returns the release of one round.

        Args:
          updates: one vector a client, of any dtype; the function gets copies.
          examples: of each client; None for the same number of all.

        Raises:
          WrongResult: the function gives no aggregate of the updates.
        """
        if self.round == self.length:
            self.start()
        self.round += 1
        self.calls += 1
        places = list(zip(self._slices, self._shapes, strict=True))
        arrays = [
            [vector[place].reshape(shape) for place, shape in places]
            for vector in map(np.copy, updates)
        ]
        return self.call(arrays, examples)

    def call(
        self, arrays: list[list[np.ndarray]], examples: Sequence[int] | None = None
    ) -> np.ndarray:
        """Returns the function's result for lists of arrays as a vector in units."""
        # Updates whose squares overflow are sent on purpose.
        with np.errstate(all="ignore"):
            result = self._result(arrays, examples)
        aggregate = self._checked(result)
        return np.concatenate([array.ravel() for array in aggregate]) / self._claim.unit

    def _result(self, arrays: list[list[np.ndarray]], examples: Sequence[int] | None) -> Any:
        if not self.takes_examples:
            return self._function(arrays)
        counts = [NUM_EXAMPLES] * len(arrays) if examples is None else list(examples)
        if self._by_place:
            return self._function(arrays, counts)
        return self._function(arrays, examples=counts)

    def _checked(self, result: Any) -> list[np.ndarray]:
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
        arrays = [np.asarray(array) for array in result]
        for array in arrays:
            if array.dtype.kind not in "fiub":
                raise WrongResult(f"the function gave an array of dtype {array.dtype}: {advice}")
        if [array.shape for array in arrays] != self._shapes:
            raise WrongResult(
                f"the function gave arrays of shapes {[array.shape for array in arrays]} for "
                f"updates of shapes={self._claim.shapes!r}: it must give an aggregate of the same"
            )
        return [array.astype(np.float64) for array in arrays]
