"""The names of a config's fields, as commands and files spell them: options of families and tasks
stand beside the fields.
"""

import json
from collections.abc import Mapping
from typing import Any

from fedmf import checks
from fedmf.fields import plain_text
from fedmf.files import shell_word
from fedmf.mechanisms.family import families_with, fitted_families

# Options of families that are fields of a config themselves.
OPTIONS_WITH_FIELDS = ("bands", "decoder")
# The fields that say how a mechanism is made. A command that is given its file has none of them.
FIT_FIELDS = ("family", "mechanism", "mechanism_options", *OPTIONS_WITH_FIELDS)
# The fields that say how much noise: one of them is given.
TARGETS = ("epsilon", "noise_multiplier", "advantage", "true_positive_rate")
TASK_OPTION = "task_option."


def families() -> tuple[str, ...]:
    """The values of `PlanConfig.family`: no noise, every family that is fitted, and a file."""
    return ("none", *fitted_families(), "file")


def families_taking(name: str) -> tuple[str, ...]:
    """The families that a field, or an option of a mechanism, is for."""
    if name == "mechanism":
        return ("file",)
    if name in (*TARGETS, "delta"):
        return families()[1:]
    return families_with(name) or families()


def named_options(name: str, value: Any) -> dict[str, Any]:
    """The check of options and their values, by name."""
    if not isinstance(value, Mapping) or not all(isinstance(option, str) for option in value):
        raise TypeError(f"{name}={value!r} must be names of options and their values: pass a dict")
    return dict(value)


def with_flat_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields with the options of mechanism and task as names of their own.

    >>> with_flat_options({"rounds": 8, "task_options": {"batch_size": 4}})
    {'rounds': 8, 'task_option.batch_size': 4}
    """
    made: dict[str, Any] = {}
    for name, value in values.items():
        if name == "mechanism_options":
            made |= value
        elif name == "task_options":
            made |= {TASK_OPTION + option: setting for option, setting in value.items()}
        else:
            made[name] = value
    return made


def read_json(text: str) -> Any:
    """Returns the value of a JSON text, none of whose objects has a name twice.

    Raises:
      TypeError, ValueError: no text, or no such JSON.
    """
    try:
        return json.loads(plain_text("text", text), object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"text is no JSON ({error}): give the text of to_json") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these names and values, none of which is there twice."""
    names = [name for name, _ in pairs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"JSON has {twice[0]!r} twice: leave one of them out")
    return dict(pairs)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields from `PlanConfig.flat`, also where some are nested already.

    >>> nested({"rounds": 8, "buffers": 2, "task_option.batch_size": 4})
    {'rounds': 8, 'mechanism_options': {'buffers': 2}, 'task_options': {'batch_size': 4}}
    """
    made: dict[str, Any] = {}
    for name, value in named_options("values", values).items():
        if name.startswith(TASK_OPTION):
            into = "task_options"
            options = {name.removeprefix(TASK_OPTION): value}
        elif name not in OPTIONS_WITH_FIELDS and families_with(name):
            into = "mechanism_options"
            options = {name: value}
        elif name in ("task_options", "mechanism_options"):
            into = name
            options = named_options(name, value)
        else:
            made[name] = value
            continue
        twice = set(options) & set(made.get(into, {}))
        if twice:
            raise ValueError(f"{min(twice)} is given twice: leave it out of `{into}`, or beside it")
        made[into] = made.get(into, {}) | options
    return made


def differences(
    new: Mapping[str, Any],
    old: Mapping[str, Any],
    *,
    leave_out: tuple[str, ...] = (),
    was: str = "was",
) -> str:
    """What differs between two flat configs, in one phrase; empty where nothing does.

    >>> differences({"rounds": 8, "min_sep": 2}, {"rounds": 8, "min_sep": 4})
    'min_sep=2 (was 4)'
    """
    names = [name for name in {**new, **old} if name not in leave_out]
    pairs = [(name, new.get(name), old.get(name)) for name in names]
    return ", ".join(f"{name}={a!r} ({was} {b!r})" for name, a, b in pairs if a != b)


def flags_of(
    values: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    leave_out: tuple[str, ...],
    always: tuple[str, ...],
) -> list[str]:
    """Command-line options of flat values that are not at their default, and of what is `always`
    said.
    """
    flags = []
    hint = "give names of fields"
    leave_out = checks.strings("leave_out", leave_out, hint=hint)
    always = checks.strings("always", always, hint=hint)
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if name in leave_out or (value == defaults.get(name) and name not in always):
            continue
        if name.startswith(TASK_OPTION):
            setting = f"{name.removeprefix(TASK_OPTION)}={value}"
            flags.append(f"--task-option {shell_word(setting)}")
        elif isinstance(value, bool):
            flags.append(option if value else f"--no-{option[2:]}")
        else:
            word = "none" if value is None else str(value)
            flags.append(f"{option} {shell_word(word)}")
    return flags
