"""Conversion of values from files and command lines to config objects, with checks of their
types.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fedmf.checks import did_you_mean
from fedmf.fields import plain_text
from fedmf.privacy.flat_config import nested

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Config = TypeVar("_Config", bound="DataclassInstance")


def read_json(text: str) -> Any:
    """Parses a JSON text. Unlike `json.loads` it refuses objects with the same name twice.

    Raises:
      TypeError, ValueError: the argument is not a str, or is not such JSON.
    """
    try:
        return json.loads(plain_text("text", text), object_pairs_hook=_object_of)
    except json.JSONDecodeError as error:
        raise ValueError(f"text is no JSON ({error}): give the text of to_json") from error


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the dict of a JSON object's names and values. Raises ValueError if a name occurs
    twice.
    """
    all_names = [name for name, _ in pairs]
    repeated_names = [name for name in all_names if all_names.count(name) > 1]
    if repeated_names:
        raise ValueError(f"JSON has {repeated_names[0]!r} twice: leave one of them out")
    return dict(pairs)


def config_from_values(
    config_class: type[_Config], values: Mapping[str, Any], origin: str
) -> _Config:
    """Makes a config from a mapping of its values; missing fields get their default.

    Args:
      config_class: the dataclass of the config.
      values: as `dataclasses.asdict` or `with_flat_options` return them.
      origin: names the source of the values in errors.

    Raises:
      ValueError: unknown field, wrong type or value out of range.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{origin} holds a {type(values).__name__}: give fields and their values")
    field_names = [field.name for field in dataclasses.fields(config_class)]
    try:
        nested_values = nested(values)
    except TypeError as error:
        raise ValueError(f"{origin}: {error}") from error
    for name in nested_values:
        if name not in field_names:
            hint = did_you_mean(name, field_names, "the fields are")
            raise ValueError(f"{origin} has an unknown field {name!r}: {hint}")
    try:
        return msgspec.convert(nested_values, config_class)
    except msgspec.ValidationError as error:
        # msgspec puts the field at the end of its message: "Expected `int`, got `str` - at
        # `$.rounds`". The message that fedmf raises begins with the field and its value.
        field_match = re.search(r" - at `\$\.(\w+)`$", str(error))
        name_and_value = ""
        if field_match and field_match[1] in nested_values:
            name_and_value = f"{field_match[1]}={nested_values[field_match[1]]!r}: "
        raise ValueError(f"{origin}: {name_and_value}{error}") from error
