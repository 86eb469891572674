"""Fields of a frozen dataclass of options: a default, the text that a command's help shows, and the
check of a value.
"""

import dataclasses
import functools
import math
import os
import reprlib
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.files import expanded

# The largest number that arrays of counts, and the programs that fedmf calls, can hold.
MAX_COUNT = 2**63 - 1
# The suggestions of a field that takes any path: a shell completes the names of files.
PATHS = ("",)


def option(
    default: Any,
    help: str,
    check: Callable[[str, Any], Any],
    suggestions: Callable[[], Iterable[str]] | None = None,
) -> Any:
    """Returns a field whose `check` returns a value in the field's own type; see `check_fields`.

    Args:
      default: the field's default.
      help: what a command's help shows.
      check: (name, value) -> value.
      suggestions: returns what a shell completes. PATHS stands for any file.
    """
    metadata = {"help": help, "check": check, "suggestions": suggestions}
    return dataclasses.field(default=default, metadata=metadata)


def whole(default: int | None, help: str, *, low: int = 1, high: int | None = None) -> Any:
    """Returns a field for a count in low..high, with `low` 0 or 1, that fits into 64 bits."""
    hint = f"use a {'positive' if low else 'non-negative'} whole number"

    def check(name: str, value: Any) -> int:
        number = checks.integer(name, value, low=low, high=high, hint=hint)
        if number > MAX_COUNT:
            raise ValueError(
                f"{name}={number} does not fit into 64 bits: use a whole number of at most 18 "
                "digits"
            )
        return number

    return option(default, help, check)


def seed(default: int, help: str) -> Any:
    """Returns a field for a seed: a whole number of any length."""
    hint = "use a non-negative whole number"
    return option(default, help, lambda name, value: checks.integer(name, value, low=0, hint=hint))


def real(default: float | None, help: str, *, zero: bool = False, below: float = math.inf) -> Any:
    """A finite positive float, or 0 where `zero` allows it."""
    hint = f"use a finite {'non-negative' if zero else 'positive'} number"
    return option(
        default,
        help,
        lambda name, value: checks.positive(name, value, hint, below=below, zero=zero),
    )


def choice(default: str | None, help: str, choices: Callable[[], Iterable[str]]) -> Any:
    """Returns a field for one of some strings."""
    return option(
        default,
        help,
        lambda name, value: checks.one_of(name, value, tuple(choices())),
        suggestions=choices,
    )


def flag(default: bool, help: str) -> Any:
    """Returns a field for True or False."""
    return option(default, help, checks.boolean)


def text(
    default: str | None, help: str, suggestions: Callable[[], Iterable[str]] | None = None
) -> Any:
    """Returns a field for a str that is not empty; a path is kept as one."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str | os.PathLike):
            raise TypeError(
                f"{name}={value!r} is a {type(value).__name__}, not a str: pass it as text"
            )
        if not os.fspath(value):
            raise ValueError(f"{name}='' is empty: give a text, or leave `{name}` out")
        return os.fspath(value)

    return option(default, help, check, suggestions)


def path(default: str | None, help: str) -> Any:
    """Returns a field for the path of a file or folder, kept as a str: with the home folder in
    place of a leading "~".
    """
    check_text = text(default, help).metadata["check"]

    def check(name: str, value: Any) -> str:
        written: str = check_text(name, value)
        return str(expanded(written)) if written.startswith("~") else written

    return option(default, help, check, lambda: PATHS)


def checked(
    check: Callable[[str, Any], Any], default: Any = dataclasses.MISSING, *, repr: bool = True
) -> Any:
    """A field that no command shows: without a help text, and without a default unless given."""
    return dataclasses.field(default=default, metadata={"check": check}, repr=repr)


def derived(check: Callable[[str, Any], Any], default: Callable[[Any], Any]) -> Any:
    """A field that is `default(the object)`, of the fields before it, where it is None."""
    return dataclasses.field(default=None, metadata={"check": check, "default": default})


def array(ndim: int, default: Any = dataclasses.MISSING) -> Any:
    """A float64 array of finite numbers, kept as a read-only copy."""
    return checked(functools.partial(checks.array, ndim=ndim), default)


def instance(kind: type) -> Callable[[str, Any], Any]:
    """Returns the check of an object of this class."""
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{name}={reprlib.repr(value)} must be a {module}{kind.__qualname__}")
        return value

    return check


def plain_text(name: str, value: Any) -> str:
    """Returns `value`, a str, which may be empty."""
    checked_text: str = of_kind(name, value, str)
    return checked_text


def check_fields(options: Any) -> None:
    """Replaces each field of a frozen dataclass by its checked value, in order; None passes where
    the field's type allows it.

    Raises:
      TypeError, ValueError: naming the field, its value and what to do instead.
    """
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value is None and "default" in field.metadata:
            value = field.metadata["default"](options)
        nothing = value is None and type(None) in typing.get_args(field.type)
        if "check" in field.metadata and not nothing:
            # A plain number, also of numpy's: options are stored as JSON.
            set_fields(options, {field.name: field.metadata["check"](field.name, value)})


def check_names(call: str, options: type, values: Mapping[str, Any]) -> None:
    """Refuses values whose names are not those of a dataclass of options, or that lack one.

    Args:
      call: the function that the values were given to.
      options: the dataclass.
      values: by name.

    Raises:
      TypeError: naming the option.
    """
    known = {field.name: field for field in dataclasses.fields(options)}
    for name in values:
        if name not in known:
            raise TypeError(f"{call} has no {name}: {checks.meant(name, known, 'it takes')}")
    for name, field in known.items():
        defaults = (field.default, field.default_factory)
        has_default = any(default is not dataclasses.MISSING for default in defaults)
        if name not in values and not has_default:
            raise TypeError(f"{call} needs `{name}`: give it by name")


class Checked:
    """The base of frozen dataclasses whose fields are checked when they are made; see
    `check_fields`.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Copies and pickles, whose arrays could be written to, have read-only ones again."""
        set_fields(self, state)


class ShortRepr:
    """The base of dataclasses whose fields hold much: `repr` is one short line.

    It leaves out fields at their default, and shows shapes for arrays and lengths for long lists.
    """

    # Properties that stand before the fields.
    _shown_first: typing.ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__repr__" not in vars(cls):  # before @dataclass makes one
            cls.__repr__ = ShortRepr.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        shown = {name: _short(getattr(self, name)) for name in self._shown_first}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            is_default = value is field.default or value is None or _is_empty(value)
            if field.repr and not is_default:
                shown[field.name] = _short(value)
        return f"{type(self).__name__}({', '.join(f'{n}={text}' for n, text in shown.items())})"


def _is_empty(value: Any) -> bool:
    return isinstance(value, str | list | tuple | Mapping) and not value


def _short(value: Any) -> str:
    """Returns a text of at most a line for a field's value."""
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {value.shape}>"
    if isinstance(value, list | tuple | Mapping) and len(value) > 4:
        return f"<{len(value)} entries>"
    return repr(value)


def flat(values: Mapping[str, Any], between: str = ".") -> dict[str, Any]:
    """The values with those inside of mappings beside the others, under the names of both.

    >>> flat({"round": 3, "validation": {"accuracy": 0.5}})
    {'round': 3, 'validation.accuracy': 0.5}
    """
    beside: dict[str, Any] = {}
    for name, value in values.items():
        inside = flat(value, between) if isinstance(value, Mapping) else {"": value}
        beside |= {f"{name}{between if key else ''}{key}": each for key, each in inside.items()}
    return beside


def set_fields(options: Any, values: Mapping[str, Any]) -> None:
    """Sets fields of a frozen dataclass in its `__post_init__`; of an array a read-only copy."""
    for name, value in values.items():
        is_array = isinstance(value, np.ndarray)
        object.__setattr__(options, name, checks.frozen(value) if is_array else value)


def belongs(options: Any, name: str, *, to: str, there: bool) -> None:
    """Refuses a field that was set although the option that it depends on was not.

    Raises:
      ValueError: naming the field and what it belongs to.
    """
    value = getattr(options, name)
    if not there and value != type(options).__dataclass_fields__[name].default:
        raise ValueError(f"{name}={value} belongs to {to}: leave it out, or give that")


def of_kind(name: str, value: Any, kind: type) -> Any:
    """Returns `value` as an int, float, str or bool.

    Raises:
      TypeError, ValueError: naming the option, its value and what to do instead.
    """
    if kind is int:
        return checks.integer(name, value, low=0, hint="pass a whole number")
    if kind is float:
        return checks.real(name, value, hint="pass a number")
    if not isinstance(value, kind):
        hint = "pass True or False" if kind is bool else "pass a text"
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: {hint}")
    return value
