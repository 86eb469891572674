"""Fields of frozen dataclasses: checked, derived where they are left out, kept read-only."""

import dataclasses
import functools

import numpy as np

from fedmf import checks, fields
from tests.refusals import refusal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes(fields.Checked):
    rounds: int = fields.validated(checks.rounds)
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
        with refusal(name):
            Sizes(**given)
    with refusal("missing", TypeError):
        Sizes()


def test_arrays_are_copies_that_nobody_writes_to():
    mine = np.ones(2)
    kept = Sizes(rounds=1, weights=mine).weights
    mine[0] = 5.0
    assert kept.tolist() == [1.0, 1.0]
    with refusal("read-only"):
        kept[0] = 0.0
    with refusal("weights has shape"):
        Sizes(rounds=1, weights=np.ones((1, 1)))


def test_an_instance_names_its_class():
    with refusal(r"other=3 must be a .*test_fields\.Sizes", TypeError):
        fields.instance(Sizes)("other", 3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Much(fields.ShortRepr):
    """Fields that a whole page would not hold."""

    entries: np.ndarray
    cohorts: tuple[int, ...] = ()
    note: str = ""
    secret: str = dataclasses.field(default="", repr=False)

    _shown_first = ("rounds",)

    @property
    def rounds(self) -> int:
        return len(self.entries)


def test_a_short_repr_shows_shapes_and_leaves_out_defaults():
    assert repr(Much(entries=np.ones(3))) == "Much(rounds=3, entries=<float64 (3,)>)"
    whole = Much(entries=np.ones(3), cohorts=tuple(range(9)), note="a", secret="b")
    text = "Much(rounds=3, entries=<float64 (3,)>, cohorts=<9 entries>, note='a')"
    assert repr(whole) == text
