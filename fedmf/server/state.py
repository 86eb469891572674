"""The state of the noise between rounds, and fingerprints by which a state is matched to its
plan.
"""

import dataclasses
import hashlib
from typing import Any, NamedTuple

import numpy as np

from fedmf.mechanisms.base import Mechanism
from fedmf.privacy.plan import Plan, bit_stddev
from fedmf.privacy.plan import check_plan as check_plan
from fedmf.privacy.plan import check_single_run as check_single_run
from fedmf.privacy.statement import mechanism_digest


class NoiseState(NamedTuple):
    """The state of the noise between rounds. It is secret, because it holds the key.

    Attributes:
      key: uint64 (4,), of the source.
      next_round: int32 ().
      made_for: int32 (), the round whose noise vector was handed in; -1 where none was.
      mechanism: uint64 (), the `state_fingerprint` of the plan and the noise strategy.
      rows: float32 (state rows, d).
    """

    key: Any
    next_round: Any
    made_for: Any
    mechanism: Any
    rows: Any


def text_fingerprint(text: str) -> int:
    """Returns the first 64 bits of a text's SHA-256 digest as an int."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)


def plan_fields(plan: Plan) -> dict[str, str]:
    """Returns a text for each field of a plan, by which plans are compared.

    Texts have six digits of each number: another processor may calibrate the same plan with other
    digits beyond.
    """
    return {field.name: _text_of(getattr(plan, field.name)) for field in dataclasses.fields(plan)}


def _text_of(value: Any) -> str:
    """Converts a field's value to a text that contains the whole value."""
    if isinstance(value, Mechanism):
        return mechanism_digest(value)
    if isinstance(value, float):
        return f"{value:.5e}"
    if isinstance(value, np.ndarray):
        return f"array({_text_of(value.tolist())})"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_text_of, value))})"
    if dataclasses.is_dataclass(value):
        text_by_field = {
            field.name: _text_of(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return f"{type(value).__name__}({text_by_field})"
    return repr(value)


def plan_fingerprint(plan: Plan) -> int:
    """Returns a 64-bit fingerprint of a plan, which depends on every field and on the scale of the
    noise.

    To repeat a round with the same noise at another scale, or with updates clipped to another norm,
    would reveal both. Nor does the noise of one plan give the guarantee of another.

    >>> import fedmf
    >>> once = fedmf.Participation(rounds=4, schema="single")
    >>> identity = fedmf.fit(fedmf.prefix_sum(4), once, family="identity")
    >>> targets = (2.0, 2.0, 8.0)
    >>> plans = [fedmf.calibrate(identity, once, epsilon=target, delta=1e-6) for target in targets]
    >>> [plan_fingerprint(plan) == plan_fingerprint(plans[0]) for plan in plans]
    [True, True, False]
    """
    return text_fingerprint(f"{plan_fields(plan)} {plan.stddev:.5e} {bit_stddev(plan):.5e}")


def state_fingerprint(plan: int, strategy: str, state_rows: int, size: int) -> int:
    """Returns a 64-bit fingerprint that differs between states of different plans, noise strategies
    or models.

    Each noise strategy reads the rows of a state differently: with another one, a row that was
    released already could be taken for the noise of the coming round.

    Args:
      plan: fingerprint that `plan_fingerprint` returned.
      strategy: the name of the `NoiseStrategy`.
      state_rows: rows of model size kept between rounds.
      size: coordinates in a row, d.

    >>> state_fingerprint(7, "recurrent", 32, 5) == state_fingerprint(7, "regenerated", 32, 5)
    False
    """
    return text_fingerprint(f"{plan} {strategy} {state_rows} {size}")
