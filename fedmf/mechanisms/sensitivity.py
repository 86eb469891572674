"""The function `fedmf.sensitivity`, which computes the sensitivity of a mechanism or encoder under
a participation by the method of its schema.
"""

import weakref
from typing import Any

from fedmf.mechanisms.base import Mechanism
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import Participation
from fedmf.participation.sensitivity import check_columns
from fedmf.participation.sharpening import Sensitivity

__all__ = ["Sensitivity", "sensitivity"]

# Cache of the sensitivities that were computed for each mechanism, because a dense encoder takes
# seconds. Mechanisms never change, so cached values stay valid.
_COMPUTED: weakref.WeakKeyDictionary[Mechanism, dict[Any, Any]] = weakref.WeakKeyDictionary()


@with_numpy_defaults
def sensitivity(encoder_or_mechanism: Any, participation: Participation) -> Sensitivity:
    """Returns the L2 sensitivity of an encoder under a participation, or the smallest upper bound
    that is known if the exact value is not.

    Args:
      encoder_or_mechanism: C, float64 (m, rounds), or a mechanism, of which only C is used: its
        `binary_trees()`, `toeplitz_coefficients()`, `toeplitz_gram()` or `banded_rows()` if it has
        them, otherwise its `encoder()`.
      participation: the rounds that one client may take part in.

    Returns:
      The value, whether it is exact, and the algorithm.

    Raises:
      TypeError: the first argument is neither an array of numbers nor a mechanism, or the second is
        no Participation.
      ValueError: the encoder is not 2-D, not finite, or its number of columns is not
        participation.rounds.

    >>> import numpy as np
    >>> sensitivity(np.eye(6), Participation(rounds=6, schema="min_sep", min_sep=2)).value ** 2
    2.9999999999999996
    """
    if not isinstance(participation, Participation):
        raise TypeError(
            f"participation is of type {type(participation).__name__}: pass a fedmf.Participation"
        )
    check_columns(
        getattr(encoder_or_mechanism, "rounds", participation.rounds), participation.rounds
    )
    argument_class = type(encoder_or_mechanism)
    computed_values: dict[Any, Any] = {}
    # Only mechanisms that compare by identity are cached. Otherwise the cache could return the
    # entry of another mechanism that compares as equal.
    if issubclass(argument_class, Mechanism) and argument_class.__hash__ is object.__hash__:
        computed_values = _COMPUTED.setdefault(encoder_or_mechanism, {})
    if participation not in computed_values:
        computed_values[participation] = participation.sensitivity(encoder_or_mechanism)
    return computed_values[participation]
