"""Fields of frozen dataclasses that check their values. Commands offer some of these fields as
options, whose help texts stand here too.
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

# Largest count that fits into the int64 arrays of fedmf and of the libraries that it calls.
MAX_COUNT = 2**63 - 1
# Value of `suggestions` for options whose value is a path, which a shell completes with file names.
PATHS = ("",)


def option(
    default: Any,
    help: str,
    check: Callable[[str, Any], Any],
    suggestions: Callable[[], Iterable[str]] | None = None,
) -> Any:
    """Returns a dataclass field that commands offer as an option. `check_fields` calls its check.

    Args:
      default: the field's default.
      help: the text in a command's help.
      check: (name, value) -> the value in the field's type; raises if the value is wrong.
      suggestions: returns the values that a shell completes; PATHS completes file names.
    """
    metadata = {"help": help, "check": check, "suggestions": suggestions}
    return dataclasses.field(default=default, metadata=metadata)


def whole_number(default: int | None, help: str, *, low: int = 1, high: int | None = None) -> Any:
    """Returns a field for a whole number in low..high, where `low` is 0 or 1. The number must fit
    into 64 bits.
    """
    sign_word = "positive" if low else "non-negative"
    hint = f"use a {sign_word} whole number"

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
    """Returns a field for a random seed, a non-negative whole number of any size."""
    hint = "use a non-negative whole number"
    return option(default, help, lambda name, value: checks.integer(name, value, low=0, hint=hint))


def positive_float(
    default: float | None, help: str, *, allow_zero: bool = False, below: float = math.inf
) -> Any:
    """Returns a field for a finite float that is positive (or 0, if `allow_zero`) and less than
    `below`.
    """
    sign_word = "non-negative" if allow_zero else "positive"
    hint = f"use a finite {sign_word} number"
    return option(
        default,
        help,
        lambda name, value: checks.positive(name, value, hint, below=below, allow_zero=allow_zero),
    )


def choice(default: str | None, help: str, choices: Callable[[], Iterable[str]]) -> Any:
    """Returns a field whose value must be one of the strings that the function `choices`
    returns.
    """
    return option(
        default,
        help,
        lambda name, value: checks.one_of(name, value, tuple(choices())),
        suggestions=choices,
    )


def flag(default: bool, help: str) -> Any:
    """Returns a field for a bool."""
    return option(default, help, checks.boolean)


def text(
    default: str | None, help: str, suggestions: Callable[[], Iterable[str]] | None = None
) -> Any:
    """Returns a field for a non-empty str; an `os.PathLike` is stored as its str."""

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
    """Returns a field for the path of a file or folder, stored as a str.

    A leading "~" is replaced by the home folder.
    """
    check_text = text(default, help).metadata["check"]

    def check(name: str, value: Any) -> str:
        path_text: str = check_text(name, value)
        if path_text.startswith("~"):
            return str(expanded(path_text))
        return path_text

    return option(default, help, check, lambda: PATHS)


def validated(
    check: Callable[[str, Any], Any], default: Any = dataclasses.MISSING, *, repr: bool = True
) -> Any:
    """Returns a field with a check that commands do not offer as an option."""
    return dataclasses.field(default=default, metadata={"check": check}, repr=repr)


def derived(check: Callable[[str, Any], Any], default: Callable[[Any], Any]) -> Any:
    """Returns a field whose default is computed from other fields. A value of None is replaced by
    `default(instance)`.

    The function `default` can read the fields above, which have been checked before.
    """
    return dataclasses.field(default=None, metadata={"check": check, "default": default})


def array(ndim: int, default: Any = dataclasses.MISSING) -> Any:
    """Returns a field for a finite float64 array, stored as a read-only copy."""
    return validated(functools.partial(checks.finite_array, ndim=ndim), default)


def instance(kind: type) -> Callable[[str, Any], Any]:
    """Returns a check function for fields, which raises TypeError unless the value is an instance
    of `kind`.
    """
    module_prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(
                f"{name}={reprlib.repr(value)} must be a {module_prefix}{kind.__qualname__}"
            )
        return value

    return check


def plain_text(name: str, value: Any) -> str:
    """Checks that the argument is a str, which may be empty, and returns it."""
    checked_text: str = coerce(name, value, str)
    return checked_text


def check_fields(options: Any) -> None:
    """Checks all fields of a frozen dataclass in order, and replaces each value by the one that its
    check returns.

    None passes without a check if the field's type allows it.

    Raises:
      TypeError, ValueError: a value is not of the field's type, or out of its range.
    """
    for field in dataclasses.fields(options):
        field_value = getattr(options, field.name)
        if field_value is None and "default" in field.metadata:
            field_value = field.metadata["default"](options)
        is_allowed_none = field_value is None and type(None) in typing.get_args(field.type)
        if "check" in field.metadata and not is_allowed_none:
            # The check also converts numpy's numbers to Python's, because options are stored as
            # JSON.
            checked_value = field.metadata["check"](field.name, field_value)
            set_fields(options, {field.name: checked_value})


def check_names(call: str, options: type, values: Mapping[str, Any]) -> None:
    """Raises TypeError if `values` has a name that is not a field of a dataclass of options, or
    lacks a required field.

    Args:
      call: name of the function that takes the options, for the error.
      options: the dataclass.
      values: the options passed, by name.
    """
    field_by_name = {field.name: field for field in dataclasses.fields(options)}
    for name in values:
        if name not in field_by_name:
            hint = checks.did_you_mean(name, field_by_name, "it takes")
            raise TypeError(f"{call} has no {name}: {hint}")
    for name, field in field_by_name.items():
        default_settings = (field.default, field.default_factory)
        has_default = any(default is not dataclasses.MISSING for default in default_settings)
        if name not in values and not has_default:
            raise TypeError(f"{call} needs `{name}`: give it by name")


class Checked:
    """Base of frozen dataclasses whose fields are checked by `check_fields` when an instance is
    made.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restores an instance from a copy or a pickle. Its arrays become read-only again, because
        numpy restores them as writable.
        """
        set_fields(self, state)


class ShortRepr:
    """Base of dataclasses with large fields, which makes their `repr` one short line.

    The `repr` omits fields at their default, and shows arrays by their shapes and long lists by
    their lengths.
    """

    # Subclasses list here properties that `repr` should show before the fields.
    _shown_first: typing.ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Without this assignment, @dataclass would generate a `repr` with all fields.
        if "__repr__" not in vars(cls):
            cls.__repr__ = ShortRepr.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        text_by_name = {name: _short_text(getattr(self, name)) for name in self._shown_first}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            field_value = getattr(self, field.name)
            is_default = (
                field_value is field.default or field_value is None or _is_empty(field_value)
            )
            if field.repr and not is_default:
                text_by_name[field.name] = _short_text(field_value)
        arguments = ", ".join(f"{name}={text}" for name, text in text_by_name.items())
        return f"{type(self).__name__}({arguments})"


def _is_empty(value: Any) -> bool:
    """Returns whether a value is an empty string, list, tuple or mapping."""
    return isinstance(value, str | list | tuple | Mapping) and not value


def _short_text(value: Any) -> str:
    """Returns the text of a field's value for `repr`; large values are replaced by their size."""
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {value.shape}>"
    if isinstance(value, list | tuple | Mapping) and len(value) > 4:
        return f"<{len(value)} entries>"
    return repr(value)


def flat(values: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """Flattens nested mappings into one dict, whose names are joined by `separator`.

    >>> flat({"round": 3, "validation": {"accuracy": 0.5}})
    {'round': 3, 'validation.accuracy': 0.5}
    """
    flat_values: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            for inner_name, inner_value in flat(value, separator).items():
                flat_values[f"{name}{separator}{inner_name}"] = inner_value
        else:
            flat_values[name] = value
    return flat_values


def set_fields(options: Any, values: Mapping[str, Any]) -> None:
    """Sets fields of a frozen dataclass, for use in its `__post_init__`. Arrays are stored as
    read-only copies.
    """
    for name, value in values.items():
        stored_value = value
        if isinstance(value, np.ndarray):
            stored_value = checks.frozen_copy(value)
        object.__setattr__(options, name, stored_value)


def require(options: Any, name: str, *, needs: str, present: bool) -> None:
    """Raises ValueError if a field is set without another option that it needs.

    Args:
      options: the dataclass.
      name: the field.
      needs: the option that the field needs, for the error.
      present: whether that option was set.
    """
    field_value = getattr(options, name)
    if not present and field_value != type(options).__dataclass_fields__[name].default:
        raise ValueError(f"{name}={field_value} needs {needs}: leave `{name}` out, or use that")


def coerce(name: str, value: Any, kind: type) -> Any:
    """Checks that the argument is of the class `kind`, which is int, float, str or bool, and
    returns it as an instance of that class.

    Raises:
      TypeError, ValueError: `value` is not of that class; the message says what to do instead.
    """
    if kind is int:
        return checks.integer(name, value, low=0, hint="pass a whole number")
    if kind is float:
        return checks.finite_float(name, value, hint="pass a number")
    if not isinstance(value, kind):
        hint = "pass True or False" if kind is bool else "pass a text"
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: {hint}")
    return value
