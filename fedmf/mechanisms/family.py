"""The record of a family: the one place that says how a kind of mechanism is named, fitted, stored,
labelled and drawn.
"""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedmf.mechanisms.base import Mechanism


class Option(NamedTuple):
    """An option of a family's fit, of `fedmf.fit` and of the command line; kind is int, float, str
    or bool. A text with choices is one of them.
    """

    name: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of mechanism.

    Attributes:
      mechanism: the class. Its `family` is the name of the family,
        and its `from_state` reads files.
      label: the name in reports. May hold {bands} and {decoder}.
      color: of its curves, as "#rrggbb".
      fit: (workload, participation, stopping, **options) -> mechanism. None for a family that is
        not fitted.
      help: a phrase for each option of `fit`.
      choices: what options of `fit` are one of, by their names.
      tolerance: the default of `fedmf.fit`.
      max_iterations: the default of `fedmf.fit`.
      proves_gap: whether tolerance bounds a certified gap; otherwise a fit stops where its steps
        gain less.
    """

    mechanism: type[Mechanism]
    label: str
    color: str = "#000000"
    fit: Callable[..., Mechanism] | None = None
    help: Mapping[str, str] = dataclasses.field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    tolerance: float = 1e-3
    max_iterations: int = 1000
    proves_gap: bool = False

    @property
    def name(self) -> str:
        """The name in `fedmf.fit`, in files and on the command line."""
        return self.mechanism.family

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        """Its own options by name: kinds and defaults are those of the keywords of `fit`."""
        if self.fit is None:
            return {}
        parameters = inspect.signature(self.fit, eval_str=True).parameters.values()
        return {
            parameter.name: Option(
                name=parameter.name,
                kind=_kind(parameter.annotation),
                default=parameter.default,
                help=self.help[parameter.name],
                choices=self.choices.get(parameter.name, ()),
            )
            for parameter in parameters
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }


# Every family by its name; `register` adds to it.
FAMILIES: dict[str, Family] = {}


def register(family: Family) -> None:
    """Makes `family` known to fits, files, configurations, the command line and reports.

    Raises:
      ValueError: the name is taken.
    """
    if family.name in FAMILIES:
        raise ValueError(f"family={family.name!r} is registered already: choose another name")
    FAMILIES[family.name] = family


def fitted_families() -> dict[str, Family]:
    """The families that `fedmf.fit` makes, by name."""
    return {name: FAMILIES[name] for name in sorted(FAMILIES) if FAMILIES[name].fit is not None}


def families_with(option: str) -> tuple[str, ...]:
    """The names of the families whose fit takes `option`."""
    return tuple(name for name, family in fitted_families().items() if option in family.options)


def _kind(annotation: Any) -> type:
    """The type of an annotation such as `int` or `int | None`."""
    kinds: list[type] = [kind for kind in typing.get_args(annotation) if kind is not types.NoneType]
    return kinds[0] if kinds else typing.cast(type, annotation)
