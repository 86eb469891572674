"""A flat config has a config's values by the names that command lines and config files use. In it,
options of families and tasks stand beside the fields and are not nested.
"""

from collections.abc import Mapping
from typing import Any

from fedmf import checks
from fedmf.files import shell_word
from fedmf.mechanisms.family import families_with, fitted_families

# Options of mechanism families that have a field of their own in `PlanConfig`.
OPTIONS_WITH_FIELDS = ("bands", "decoder")
# Names of the fields that determine the fit of a mechanism. Commands that read a mechanism from a
# file do not have these options.
FIT_FIELDS = ("family", "mechanism", "mechanism_options", *OPTIONS_WITH_FIELDS)
# Names of the fields that determine how much noise is added. A config sets exactly one of them.
TARGETS = ("epsilon", "noise_multiplier", "advantage", "true_positive_rate")
TASK_OPTION = "task_option."


def families() -> tuple[str, ...]:
    """Returns the possible values of `PlanConfig.family`, which are "none" for no noise, all
    families that can be fitted, and "file".
    """
    return ("none", *fitted_families(), "file")


def families_taking(name: str) -> tuple[str, ...]:
    """Returns the families for which a field or an option has a meaning, given its name."""
    if name == "mechanism":
        return ("file",)
    if name in (*TARGETS, "delta"):
        return families()[1:]
    return families_with(name) or families()


def named_options(name: str, value: Any) -> dict[str, Any]:
    """Returns a dict of options, after checking that the value is a mapping whose keys are strings.

    Raises:
      TypeError: it is not such a mapping.
    """
    if not isinstance(value, Mapping) or not all(isinstance(option, str) for option in value):
        raise TypeError(f"{name}={value!r} must be names of options and their values: pass a dict")
    return dict(value)


def with_flat_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens the values of a config, so that the nested options of mechanism and task become
    entries beside its fields.

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
    """Nests the flat values of a config again, so that options of mechanism and task become entries
    of the fields `mechanism_options` and `task_options`. Values that are nested already stay so.

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
        repeated_names = options.keys() & earlier_options.keys()
        if repeated_names:
            raise ValueError(
                f"{min(repeated_names)} is given twice: leave it out of `{field}`, or beside it"
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
    """Describes the differences between two flat configs in one phrase; an empty text if there are
    none.

    >>> differences({"rounds": 8, "min_sep": 2}, {"rounds": 8, "min_sep": 4})
    'min_sep=2 (was 4)'
    """
    compared_names = [name for name in {**new, **old} if name not in leave_out]
    changed_names = [name for name in compared_names if new.get(name) != old.get(name)]
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
    """Returns the command-line options for flat values, such as ["--rounds 8"]. Values at their
    default are left out.

    Args:
      values: the values by name.
      defaults: the defaults by name.
      leave_out: names that get no option.
      always: names that get an option even at their default.
    """
    option_texts = []
    hint = "give names of fields"
    leave_out = checks.strings("leave_out", leave_out, hint=hint)
    always = checks.strings("always", always, hint=hint)
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if name in leave_out or (value == defaults.get(name) and name not in always):
            continue
        if name.startswith(TASK_OPTION):
            setting = f"{name.removeprefix(TASK_OPTION)}={value}"
            option_texts.append(f"--task-option {shell_word(setting)}")
        elif isinstance(value, bool):
            if not value:
                option = f"--no-{option[2:]}"
            option_texts.append(option)
        else:
            value_text = "none" if value is None else str(value)
            option_texts.append(f"{option} {shell_word(value_text)}")
    return option_texts
