"""The registry of mechanism families. For each family it has the name, the function that fits it,
the class that its files are loaded as, and its label and color in reports.
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
    """An option of a family's fit, as `fedmf.fit` and the command line offer it. `kind` is int,
    float, str or bool. If a str option has `choices`, its value must be one of them.
    """

    name: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """The registry's entry for one family of mechanisms, with its class, the function that fits it,
    and its label and color in reports.

    Attributes:
      mechanism: the class of the mechanisms. Its `family` is the name of the family, and its
        `from_state` rebuilds mechanisms from files.
      label: the name in reports, in which {bands} and {decoder} are filled in.
      color: color of its curves, as "#rrggbb".
      fit: a function (workload, participation, stopping, **options) -> mechanism; None for a family
        that `fedmf.fit` does not fit.
      help: a phrase that describes each option of `fit`, by option name.
      choices: the values that an option of `fit` may have, by option name.
      tolerance: the default of `fedmf.fit` for this family.
      max_iterations: the default of `fedmf.fit` for this family.
      proves_gap: whether `tolerance` bounds the certified gap; otherwise a fit stops once its steps
        lower the loss by less than that.
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
        """The name of the family in `fedmf.fit`, in files and on the command line."""
        return self.mechanism.family

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        """The options of the fit by name. Their kinds and defaults are those of the keyword
        parameters of `fit`.
        """
        if self.fit is None:
            return {}
        fit_parameters = inspect.signature(self.fit, eval_str=True).parameters.values()
        return {
            parameter.name: Option(
                name=parameter.name,
                kind=_kind(parameter.annotation),
                default=parameter.default,
                help=self.help[parameter.name],
                choices=self.choices.get(parameter.name, ()),
            )
            for parameter in fit_parameters
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }


# All families of mechanisms by name. `register` adds a family.
FAMILIES: dict[str, Family] = {}


def register(family: Family) -> None:
    """Registers a family, so that fits, mechanism files, configs, the command line and reports know
    it.

    Raises:
      ValueError: a family of this name is registered already.
    """
    if family.name in FAMILIES:
        raise ValueError(f"family={family.name!r} is registered already: choose another name")
    FAMILIES[family.name] = family


def fitted_families() -> dict[str, Family]:
    """Returns by name the families that `fedmf.fit` can fit."""
    return {name: FAMILIES[name] for name in sorted(FAMILIES) if FAMILIES[name].fit is not None}


def families_with(option: str) -> tuple[str, ...]:
    """Returns the names of the families whose fit has an option called `option`."""
    return tuple(name for name, family in fitted_families().items() if option in family.options)


def _kind(annotation: Any) -> type:
    """Returns the type that an annotation such as `int` or `int | None` contains."""
    kinds: list[type] = [kind for kind in typing.get_args(annotation) if kind is not types.NoneType]
    if kinds:
        return kinds[0]
    return typing.cast(type, annotation)
