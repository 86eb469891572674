"""Fields of frozen dataclasses: checks, derived defaults, and read-only arrays."""

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


def test_fields_are_checked_in_order_and_derived_from_earlier_ones():
    sizes = Sizes(rounds=np.int64(7))
    assert (type(sizes.rounds), sizes.half) == (int, 3)
    assert Sizes(rounds=7, half=5).half == 5
    for arguments, name in (({"rounds": 0}, "rounds=0"), ({"rounds": 4, "half": -1}, "half=-1")):
        with refusal(name):
            Sizes(**arguments)
    with refusal("missing", TypeError):
        Sizes()


def test_arrays_are_read_only_copies():
    array = np.ones(2)
    stored = Sizes(rounds=1, weights=array).weights
    array[0] = 5.0
    assert stored.tolist() == [1.0, 1.0]
    with refusal("read-only"):
        stored[0] = 0.0
    with refusal("weights has shape"):
        Sizes(rounds=1, weights=np.ones((1, 1)))


def test_the_error_of_instance_names_the_class():
    with refusal(r"other=3 must be a .*test_fields\.Sizes", TypeError):
        fields.instance(Sizes)("other", 3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargeFields(fields.ShortRepr):
    """Dataclass with fields that would fill a page."""

    entries: np.ndarray
    cohorts: tuple[int, ...] = ()
    note: str = ""
    secret: str = dataclasses.field(default="", repr=False)

    _shown_first = ("rounds",)

    @property
    def rounds(self) -> int:
        return len(self.entries)


def test_short_repr_shows_shapes_and_omits_defaults():
    assert repr(LargeFields(entries=np.ones(3))) == "LargeFields(rounds=3, entries=<float64 (3,)>)"
    all_fields = LargeFields(entries=np.ones(3), cohorts=tuple(range(9)), note="a", secret="b")
    text = "LargeFields(rounds=3, entries=<float64 (3,)>, cohorts=<9 entries>, note='a')"
    assert repr(all_fields) == text
