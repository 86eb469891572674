"""Grid of a sweep, which has a run for every combination of the varied values."""

import dataclasses
import json
import math
import pathlib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from fedmf import tasks
from fedmf.checks import did_you_mean
from fedmf.mechanisms.family import fitted_families
from fedmf.privacy.flat_config import families_taking
from fedmf.runs.config import TrainConfig
from fedmf.tasks.partitioned import PartitionOptions

_NESTED = ("task_options", "mechanism_options")
_FIELDS = {
    field.name: field for field in dataclasses.fields(TrainConfig) if field.name not in _NESTED
}
_OPTION = "task_option."
_OF_THE_TASK = {field.name for field in dataclasses.fields(PartitionOptions)}
# Number of significant digits of a float that is drawn from a range.
_DIGITS = 4
MAX_NAME_CHARACTERS = 200  # Most file systems allow 255 characters in a file name.


@dataclasses.dataclass(frozen=True)
class Range:
    """Range of numbers from `low` to `high`, which are whole numbers if both ends are an int.

    Raises:
      ValueError: it has fewer than two values, or ends that are not finite.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"range {self.low}:{self.high} must go from a number to a larger one")

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def rounded(self, number: float) -> float:
        """Rounds a number to four significant digits, and to the nearest one in the range."""
        return min(max(float(f"{number:.{_DIGITS}g}"), self.low), self.high)

    @property
    def whole(self) -> bool:
        """Whether the range consists of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


def varied_values(text: str) -> tuple[str, list[Any] | Range]:
    """Parses a text such as "server-learning-rate=0.1,0.2" into a field and its values.

    The values of a number may be a range, as in "server-learning-rate=0.1:2".

    Raises:
      ValueError: no such field, no value, one that is not of the field's type, or no range.

    Example:
      >>> varied_values("epsilon=2,8")
      ('epsilon', [2.0, 8.0])
      >>> varied_values("bands=2:64")
      ('bands', Range(low=2, high=64))
    """
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    name = f"{_OPTION}{name}" if name in _OF_THE_TASK else name
    if not equals or not values.strip():
        raise ValueError(f"vary={text!r} names no values: write it as 'epsilon=2,8'")
    if name.startswith(_OPTION):
        return name, [value.strip() for value in values.split(",")]
    if name not in _FIELDS and families_option(name) is None:
        field_hint = did_you_mean(
            name, _FIELDS, "task-option.NAME varies one of the task; the fields are"
        )
        raise ValueError(f"vary={text!r} names no option of fedmf train: {field_hint}")
    low, colon, high = values.partition(":")
    if colon and {int, float} & set(_kinds(name)):
        return name, Range(typed_value(name, low.strip()), typed_value(name, high.strip()))
    return name, [_checked_value(name, value.strip()) for value in values.split(",")]


def _checked_value(name: str, text: str) -> Any:
    """Parses the value of a field from a text, and applies the field's own check.

    Raises:
      TypeError, ValueError: the field refuses it.
    """
    parsed_value = typed_value(name, text)
    if name in _FIELDS and parsed_value is not None:
        _FIELDS[name].metadata["check"](name, parsed_value)
    return parsed_value


def _kinds(name: str) -> tuple[type, ...]:
    """Returns the types that the value of a configuration field may have."""
    option_types = None if name in _FIELDS else families_option(name)
    if option_types is not None:
        return (option_types,)
    return typing.get_args(_FIELDS[name].type) or (_FIELDS[name].type,)


def typed_value(name: str, text: str) -> Any:
    """Parses a text as the value of a configuration field, where "none" means None if the field may
    be None.

    Raises:
      ValueError: it is no number, and the field is one.
    """
    field_types = _kinds(name)
    if text == "none" and types.NoneType in field_types and name != "family":
        return None
    number_type = next(
        number_type for number_type in field_types if number_type is not types.NoneType
    )
    if number_type is bool:
        return {"true": True, "false": False}.get(text, text)
    try:
        return number_type(text)
    except ValueError:
        number_phrase = "a whole number" if number_type is int else "a number"
        option_name = name.replace("_", "-")
        raise ValueError(
            f"vary='{option_name}={text}': {text!r} is not {number_phrase}: give values such as 1,2"
        ) from None


def families_option(name: str) -> type | None:
    """Returns the type of a mechanism family's option, or None if no family has that option."""
    for record in fitted_families().values():
        if name in record.options:
            return record.options[name].kind
    return None


class SweepRun(NamedTuple):
    """One run of a grid, with its name, its values of the varied fields and its configuration."""

    name: str
    chosen: dict[str, Any]
    config: TrainConfig


def sweep_configs(
    fixed: Mapping[str, Any], varied: Mapping[str, Sequence[Any]]
) -> dict[str, TrainConfig]:
    """Returns a mapping from run name to configuration, for every combination of the values.

    A mechanism family gets only those fields that it accepts. The family "none" accepts no epsilon,
    so with two epsilons it still has one run.

    Args:
      fixed: field of `TrainConfig`, or task_option.NAME, -> the value of every run.
      varied: the same -> its values; the last one changes fastest.

    Returns:
      Configurations in the order of the product. A name lists the varied values, as in
      "family=tree,epsilon=8", and is that of the run's folder.

    Raises:
      ValueError: nothing is varied, a field is fixed and varied, has a value twice, or belongs to
        no family of the sweep; a combination is no configuration; two runs would have one name.

    Example:
      >>> fixed = {"rounds": 8, "min_sep": 4, "cohort_size": 2}
      >>> list(sweep_configs(fixed, {"family": ["none", "tree"], "epsilon": [2.0, 8.0]}))
      ['family=none', 'family=tree,epsilon=2', 'family=tree,epsilon=8']
    """
    return {run.name: run.config for run in sweep_runs(fixed, varied)}


def sweep_runs(fixed: Mapping[str, Any], varied: Mapping[str, Sequence[Any]]) -> list[SweepRun]:
    """Returns the runs of `sweep_configs`, with their values of the varied fields."""
    if not varied:
        raise ValueError("vary is missing: name a field and its values, such as epsilon=2,8")
    for name, values in varied.items():
        if name in fixed:
            raise ValueError(
                f"{name}={fixed[name]} is given, and `vary` has values of it: leave one of them out"
            )
        if not values or len({json.dumps(value) for value in values}) < len(values):
            raise ValueError(f"vary {name}={list(values)} must be different values, at least one")
    runs: list[SweepRun] = []
    configs: dict[str, TrainConfig] = {}
    taken_fields: set[str] = set()
    seen_configs: set[TrainConfig] = set()
    for values in product(*varied.values()):
        chosen_values = dict(zip(varied, values, strict=True))
        taken_fields |= set(applying(fixed, chosen_values))
        name, config = sweep_config(fixed, chosen_values)
        if name in configs and configs[name] != config:
            raise ValueError(f"two runs would be named {name}: vary values whose names differ")
        if config not in seen_configs:
            configs[name] = config
            seen_configs.add(config)
            taken_values = applying(fixed, chosen_values)
            chosen_values = {k: v for k, v in chosen_values.items() if k in taken_values}
            runs.append(SweepRun(name, chosen_values, config))
    for name in sorted((set(fixed) | set(varied)) - taken_fields):
        raise ValueError(
            f"{name} belongs to no family of this sweep: leave it out, or add one that takes it"
        )
    return runs


def applying(fixed: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a run that its mechanism family accepts, with varied fields last."""
    family = chosen.get("family", fixed.get("family", _FIELDS["family"].default))
    return {k: v for k, v in {**fixed, **chosen}.items() if family in families_taking(k)}


def sweep_config(fixed: Mapping[str, Any], chosen: Mapping[str, Any]) -> tuple[str, TrainConfig]:
    """Returns the name and the configuration of one run of a sweep.

    Args:
      fixed: see `sweep_configs`.
      chosen: the varied fields with the run's values.

    Raises:
      ValueError: they are no configuration.
    """
    run_fields = applying(fixed, chosen)
    name_of_run = run_name({k: v for k, v in chosen.items() if k in run_fields})
    try:
        tasks.check_separation_is_given(run_fields)
        return name_of_run, tasks.completed(TrainConfig.from_mapping(run_fields, "the sweep"))
    except (ValueError, TypeError) as error:
        raise ValueError(f"run {name_of_run or run_fields.get('family')}: {error}") from error


def fields_in_name(run: str) -> set[str]:
    """Returns the fields that the name of a run lists.

    >>> sorted(fields_in_name("family=tree,epsilon=2"))
    ['epsilon', 'family']
    """
    return {entry.partition("=")[0] for entry in run.split(",")}


def is_taken_by_all(field: str, *configs: TrainConfig) -> bool:
    """Returns whether the mechanism families of all these configurations accept the field."""
    return all(config.family in families_taking(field) for config in configs)


def run_name(chosen: Mapping[str, Any]) -> str:
    """Returns the name of the run that has these values of the varied fields."""
    name_entries = []
    for name, value in chosen.items():
        value_text = str(value).lower() if value is None else str(value)
        if isinstance(value, float):
            value_text = repr(value).removesuffix(".0")
        elif name in ("mechanism", "data") and value is not None:
            value_text = pathlib.PurePath(value).stem
        name_entries.append(f"{name}={re.sub(r'[^A-Za-z0-9.+_-]+', '-', value_text)}")
    joined_entries = ",".join(name_entries)
    if len(joined_entries) > MAX_NAME_CHARACTERS:
        raise ValueError(
            "vary has so many fields that a folder would be named "
            f"{joined_entries[:60]}...: vary fewer at once"
        )
    return joined_entries
