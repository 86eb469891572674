"""The noise's state between rounds, and the marks by which a state of another plan is told."""

import dataclasses
import hashlib
from typing import Any, NamedTuple

import numpy as np

from fedmf.mechanisms.base import Mechanism
from fedmf.privacy.plan import Plan, bit_stddev
from fedmf.privacy.plan import check_plan as check_plan
from fedmf.privacy.statement import mechanism_digest


class NoiseState(NamedTuple):
    """State of the noise between rounds; secret, because it holds the key.

    Attributes:
      key: uint64 (4,), of the source.
      next_round: int32 ().
      made_for: int32 (), the round whose row was handed in; -1 before that and where nothing is.
      mechanism: uint64 (), of which plan this is the noise, and by what strategy; see `state_mark`.
      rows: float32 (state rows, d).
    """

    key: Any
    next_round: Any
    made_for: Any
    mechanism: Any
    rows: Any


def mark_of(text: str) -> int:
    """64 bits by which such texts are told apart, 0 <= mark < 2^64."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)


def plan_fields(plan: Plan) -> dict[str, str]:
    """Returns a text for every field of a plan; two plans differ where their texts do.

    Numbers count to six digits: another processor may calibrate the same plan to others beyond.
    """
    return {field.name: _text_of(getattr(plan, field.name)) for field in dataclasses.fields(plan)}


def _text_of(value: Any) -> str:
    """Returns a text of all that a field's value holds."""
    if isinstance(value, Mechanism):
        return mechanism_digest(value)
    if isinstance(value, float):
        return f"{value:.5e}"
    if isinstance(value, np.ndarray):
        return f"array({_text_of(value.tolist())})"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_text_of, value))})"
    if dataclasses.is_dataclass(value):
        texts = {
            field.name: _text_of(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return f"{type(value).__name__}({texts})"
    return repr(value)


def plan_mark(plan: Plan) -> int:
    """Returns 64 bits by which plans are told apart: by every field, and by the noise that follows.

    A round that is done again with another scale of the same noise, or with updates clipped to
    another norm beside it, gives both away; and one plan's noise does not give another's guarantee.

    >>> import fedmf
    >>> once = fedmf.Participation(rounds=4, schema="single")
    >>> identity = fedmf.fit(fedmf.prefix_sum(4), once, family="identity")
    >>> targets = (2.0, 2.0, 8.0)
    >>> plans = [fedmf.calibrate(identity, once, epsilon=target, delta=1e-6) for target in targets]
    >>> [plan_mark(plan) == plan_mark(plans[0]) for plan in plans]
    [True, True, False]
    """
    return mark_of(f"{plan_fields(plan)} {plan.stddev:.5e} {bit_stddev(plan):.5e}")


def state_mark(plan: int, strategy: str, state_rows: int, size: int) -> int:
    """64 bits by which states are told apart: another plan, strategy or model would make other
    noise of their rows, or the same of others.

    A row that another strategy takes for that of the round may be one which was released already.

    Args:
      plan: of `plan_mark`.
      strategy: the name of the `NoiseStrategy`.
      state_rows: rows of model size kept between rounds.
      size: coordinates in a row, d.

    >>> state_mark(7, "recurrent", 32, 5) == state_mark(7, "regenerated", 32, 5)
    False
    """
    return mark_of(f"{plan} {strategy} {state_rows} {size}")
