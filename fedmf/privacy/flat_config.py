"""Flat configs: the fields of a config under the names of commands and files, where the options of
families and tasks are fields too.
"""

from collections.abc import Mapping
from typing import Any

from fedmf import checks
from fedmf.files import shell_word
from fedmf.mechanisms.family import families_with, fitted_families

# Options of families that are fields of a config themselves.
OPTIONS_WITH_FIELDS = ("bands", "decoder")
# Fields of the fit of a mechanism. A command that takes a mechanism's file has none of them.
FIT_FIELDS = ("family", "mechanism", "mechanism_options", *OPTIONS_WITH_FIELDS)
# Fields that determine the noise, of which a config sets one.
TARGETS = ("epsilon", "noise_multiplier", "advantage", "true_positive_rate")
TASK_OPTION = "task_option."


def families() -> tuple[str, ...]:
    """Returns the values of `PlanConfig.family`: no noise, every fitted family, and a file."""
    return ("none", *fitted_families(), "file")


def families_taking(name: str) -> tuple[str, ...]:
    """Returns the families that use a field or an option of a mechanism."""
    if name == "mechanism":
        return ("file",)
    if name in (*TARGETS, "delta"):
        return families()[1:]
    return families_with(name) or families()


def named_options(name: str, value: Any) -> dict[str, Any]:
    """Returns options by their names.

    Raises:
      TypeError: no mapping of names.
    """
    if not isinstance(value, Mapping) or not all(isinstance(option, str) for option in value):
        raise TypeError(f"{name}={value!r} must be names of options and their values: pass a dict")
    return dict(value)


def with_flat_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields with the options of mechanism and task as names of their own.

    >>> with_flat_options({"rounds": 8, "task_options": {"batch_size": 4}})
    {'rounds': 8, 'task_option.batch_size': 4}
    """
    flat_values: dict[str, Any] = {}
    for name, value in values.items():
        if name == "mechanism_options":
            flat_values |= value
        elif name == "task_options":
            for option, setting in value.items():
                flat_values[TASK_OPTION + option] = setting
        else:
            flat_values[name] = value
    return flat_values


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields from `PlanConfig.flat`, some of which may be nested already.

    >>> nested({"rounds": 8, "buffers": 2, "task_option.batch_size": 4})
    {'rounds': 8, 'mechanism_options': {'buffers': 2}, 'task_options': {'batch_size': 4}}
    """
    nested_values: dict[str, Any] = {}
    for name, value in named_options("values", values).items():
        if name.startswith(TASK_OPTION):
            field = "task_options"
            options = {name.removeprefix(TASK_OPTION): value}
        elif name not in OPTIONS_WITH_FIELDS and families_with(name):
            field = "mechanism_options"
            options = {name: value}
        elif name in ("task_options", "mechanism_options"):
            field = name
            options = named_options(name, value)
        else:
            nested_values[name] = value
            continue
        earlier_options = nested_values.get(field, {})
        repeated = options.keys() & earlier_options.keys()
        if repeated:
            raise ValueError(
                f"{min(repeated)} is given twice: leave it out of `{field}`, or beside it"
            )
        nested_values[field] = earlier_options | options
    return nested_values


def differences(
    new: Mapping[str, Any],
    old: Mapping[str, Any],
    *,
    leave_out: tuple[str, ...] = (),
    was: str = "was",
) -> str:
    """Returns the differences between two flat configs, in one phrase; empty if there are none.

    >>> differences({"rounds": 8, "min_sep": 2}, {"rounds": 8, "min_sep": 4})
    'min_sep=2 (was 4)'
    """
    names = [name for name in {**new, **old} if name not in leave_out]
    changed_names = [name for name in names if new.get(name) != old.get(name)]
    return ", ".join(
        f"{name}={new.get(name)!r} ({was} {old.get(name)!r})" for name in changed_names
    )


def flags_of(
    values: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    leave_out: tuple[str, ...],
    always: tuple[str, ...],
) -> list[str]:
    """Returns command-line options of flat values that are not at their default.

    Args:
      values: by name.
      defaults: by name.
      leave_out: names without an option.
      always: names with an option even at their default.
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
            if not value:
                option = f"--no-{option[2:]}"
            flags.append(option)
        else:
            word = "none" if value is None else str(value)
            flags.append(f"{option} {shell_word(word)}")
    return flags
