"""Fields of frozen dataclasses: checked, derived where they are left out, kept read-only."""

import dataclasses
import functools

import numpy as np
import pytest

from fedmf import checks, fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes(fields.Checked):
    rounds: int = fields.checked(checks.rounds)
    half: int = fields.derived(
        functools.partial(checks.integer, low=0, hint="use a whole number"),
        lambda sizes: sizes.rounds // 2,
    )
    weights: np.ndarray | None = fields.array(1, None)
    other: "Sizes | None" = None


def test_values_are_checked_in_order_and_derived_from_those_before():
    sizes = Sizes(rounds=np.int64(7))
    assert (type(sizes.rounds), sizes.half) == (int, 3)
    assert Sizes(rounds=7, half=5).half == 5
    for given, name in (({"rounds": 0}, "rounds=0"), ({"rounds": 4, "half": -1}, "half=-1")):
        with pytest.raises(ValueError, match=name):
            Sizes(**given)
    with pytest.raises(TypeError, match="missing"):
        Sizes()


def test_arrays_are_copies_that_nobody_writes_to():
    mine = np.ones(2)
    kept = Sizes(rounds=1, weights=mine).weights
    mine[0] = 5.0
    assert kept.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 0.0
    with pytest.raises(ValueError, match="weights has shape"):
        Sizes(rounds=1, weights=np.ones((1, 1)))


def test_an_instance_names_its_class():
    with pytest.raises(TypeError, match=r"other=3 must be a .*test_fields\.Sizes"):
        fields.instance(Sizes)("other", 3)
