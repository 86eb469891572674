"""The values that fields of `TrainConfig` take, where they are more than a number or a text."""

from collections.abc import Mapping
from typing import Any

from fedmf.mechanisms.family import families_with, fitted_families

OPTIMIZERS = ("sgd", "adam", "adagrad", "yogi")
SCALED = "scaled-"
# Whose second moment is linear in the squares, so that the noise's variance can be
# subtracted from it.
LINEAR = ("scaled-adam", "scaled-adagrad")
SERVER_OPTIMIZERS = (*OPTIMIZERS, *(SCALED + name for name in OPTIMIZERS[1:]))


def families() -> tuple[str, ...]:
    """The values of `TrainConfig.family`: no noise, every family that is fitted,
    and a mechanism file.
    """
    return ("none", *fitted_families(), "file")


def families_taking(field: str) -> tuple[str, ...]:
    """The families that a field of `TrainConfig` is for."""
    if field == "bands":
        return families_with("bands")
    if field == "column_norms":
        return families_with("equal_norms")
    if field in ("mechanism", "decoder"):
        return ("file",) if field == "mechanism" else ("tree",)
    if field in ("epsilon", "noise_multiplier", "delta"):
        return families()[1:]
    return families()


def task_options(name: str, value: Any) -> dict[str, Any]:
    """The options of a task as a dict of plain values; the check of the field of that name."""
    if not isinstance(value, Mapping) or not all(isinstance(option, str) for option in value):
        raise TypeError(f"{name}={value!r} must be names of options and their values: pass a dict")
    for option, setting in value.items():
        if not isinstance(setting, str | int | float | None):
            raise TypeError(
                f"{name} has {option}={setting!r}: the values of options are texts, "
                "numbers, true, false or none"
            )
    return dict(value)


def belongs(config: Any, name: str, *, to: str, there: bool) -> None:
    """Refuses a field that was set although the option it depends on was not."""
    value = getattr(config, name)
    if not there and value != type(config).__dataclass_fields__[name].default:
        raise ValueError(f"{name}={value} belongs to {to}: leave it out, or give that")
