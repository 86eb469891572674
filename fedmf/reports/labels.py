"""Labels, colours and line styles that tell groups of runs apart in reports."""

import collections
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_hex, to_rgb

from fedmf.mechanisms.family import FAMILIES
from fedmf.mechanisms.stamped import StampedMechanism
from fedmf.privacy.flat_config import families_taking
from fedmf.reports.text import plain, plural
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run

LineStyle = str | tuple[int, tuple[float, ...]]

# Colours of runs without a mechanism family, which are runs without noise and mechanisms from
# files. All colours of families are easy to distinguish, also for colour-blind readers.
_COLORS = {"none": "#4a4a4a", "file": "#3c0f4b"}
# The strongest shade of a colour is mixed with this fraction of white or black. It is still legible
# as text.
_MAX_SHADE = 0.45
# Colours whose red, green and blue values have a larger sum than this are shaded with black,
# because white would make them illegible.
_LIGHT_COLOR = 1.49
_LINE_STYLES: tuple[LineStyle, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.5, 1.5)),
    (0, (6, 1.5, 1.5, 1.5)),
)

# A long value, such as a learning-rate schedule, is cut after this many characters.
_MAX_CHARACTERS = 60

# Fields of the config that are tuned for the model's accuracy and do not change the noise.
TUNED = ("client_learning_rate", "server_learning_rate", "server_momentum", "warmup", "cooldown")
# Fields that a label contains only if two groups would have the same label without them. The name
# of the mechanism shows the first three, learning rates are tuned for each mechanism, and the rest
# do not change results.
_IN_TABLE_ONLY = {
    "family", "decoder", "mechanism", "data", "seed", "client_learning_rate",
    "server_learning_rate", "server_momentum",
    "evaluate_every", "execution",
}  # fmt: skip


def tuned_fields(runs: Sequence[Run]) -> tuple[str, ...]:
    """Returns the names of the configuration fields whose best values are chosen by validation.

    The number of bands is among them if all runs sample their cohorts, since the best number then
    depends on epsilon.
    """
    return (*TUNED, "bands") if all(run.config.sampling for run in runs) else TUNED


def decoder_of(run: Run) -> str | None:
    """Returns the decoder of a run's mechanism, or None if its family has only one decoder.

    The run's config may have None, which means the default in the version of fedmf that ran.
    """
    if run.config.family not in families_taking("decoder"):
        return None
    mechanism = run.mechanism
    # A tree mechanism that restarts is a StampedMechanism, whose part has the decoder.
    if isinstance(mechanism, StampedMechanism):
        mechanism = mechanism.part
    return str(getattr(mechanism, "decoder", run.config.decoder))


def config_as_run(run: Run) -> TrainConfig:
    """Returns the config of a run, in which the decoder is None if it is the default of the
    mechanism family.

    Runs of the same mechanism then have equal configs.
    """
    shown_decoder = decoder_of(run)
    if (
        shown_decoder is not None
        and shown_decoder == FAMILIES[run.config.family].options["decoder"].default
    ):
        shown_decoder = None
    return dataclasses.replace(run.config, decoder=shown_decoder)


def mechanism_label(run: Run) -> str:
    """Returns the name of a run's mechanism as reports show it."""
    config = run.config
    if config.family == "none":
        return "No noise (not private)"
    if config.family == "file":
        return pathlib.PurePath(config.mechanism or "").stem
    bands = run.plan["bands"]
    return FAMILIES[config.family].label.format(
        bands=f"{bands} {plural('band', bands)}", decoder=decoder_of(run)
    )


def group_labels(first_runs: Sequence[Run]) -> list[str]:
    """Returns a label for each group, given its first run.

    A label names the mechanism and the config fields that the report compares.

    A field that differs anywhere in the report, such as epsilon, is in every label that it applies
    to, so that groups with other values do not look comparable.
    """
    configs = [config_as_run(run) for run in first_runs]
    mechanism_names = [mechanism_label(run) for run in first_runs]
    configs_by_mechanism: dict[str, list[TrainConfig]] = {}
    for mechanism, config in zip(mechanism_names, configs, strict=True):
        configs_by_mechanism.setdefault(mechanism, []).append(config)
    all_field_names = field_names(configs)
    compared_names = [name for name in all_field_names if _is_compared(name, configs)]
    group_label_list = []
    for mechanism, config in zip(mechanism_names, configs, strict=True):
        label_names = {name for name in compared_names if _applies(name, config)}
        label_names |= set(differing_fields(configs_by_mechanism[mechanism]))
        config_values = config.flat()
        label_details = [
            _detail(name, config_values.get(name))
            for name in all_field_names
            if name in label_names
        ]
        group_label_list.append(", ".join([mechanism, *filter(None, label_details)]))
    return group_label_list


def _is_compared(name: str, configs: Sequence[TrainConfig]) -> bool:
    """Returns whether the labels of runs show a field of the configuration. They do if its values
    differ between the configs.
    """
    if name in _IN_TABLE_ONLY:
        return False
    return len({config.flat().get(name) for config in configs if _applies(name, config)}) > 1


# Each of these fields has an effect only for some values of other fields, which its function
# checks. A label does not show a field without effect, because its default value would look like a
# choice.
_HAS_MEANING: dict[str, Callable[[TrainConfig], Any]] = {
    "population": lambda config: config.sampling,
    "partitions": lambda config: config.sampling,
    "workload_momentum": lambda config: config.workload == "momentum_sgd",
    "clip_share": lambda config: config.clip_quantile,
    "clip_every": lambda config: config.clip_quantile,
    "clip_learning_rate": lambda config: config.clip_quantile,
    "largest_loss": lambda config: config.private_metrics,
    "client_momentum": lambda config: config.client_optimizer == "sgd",
    "scale_every": lambda config: config.scaling(),
    "server_epsilon": lambda config: config.server_rule != "sgd",
    "warmup": lambda config: config.learning_rate_schedule is None,
    "cooldown": lambda config: config.learning_rate_schedule is None,
}
# Names of configuration fields that are not set if their value is 0.
_UNSET_AT_ZERO = ("private_metrics", "canaries", "dropout", "proximal_strength")


def _applies(name: str, config: TrainConfig) -> bool:
    """Returns whether a field has an effect in a config that the name of the mechanism does not
    show already.
    """
    if name == "bands" and config.family in FAMILIES and "{bands}" in FAMILIES[config.family].label:
        return False
    if config.family not in families_taking(name):
        return False
    has_meaning = _HAS_MEANING.get(name)
    return has_meaning is None or bool(has_meaning(config))


def _detail(name: str, value: Any) -> str:
    """Returns a text with a field's name and value, which is empty if the field is not set."""
    if value is None or (name in _UNSET_AT_ZERO and not value):
        return ""
    if name == "claimed_cohort":
        return f"simulates {value:,} clients a round"
    return f"{name.removeprefix('task_option.').replace('_', ' ')} {format_value(value)}"


class GroupStyle(NamedTuple):
    """Colour (as "#rrggbb") and matplotlib line style of a group's curves."""

    color: str
    line: LineStyle


def group_styles(families: Sequence[str]) -> list[GroupStyle]:
    """Returns a style for each group, given the families of their mechanisms.

    A family has one hue. Its groups differ in shades and dashes.
    """
    family_colors = [family_color(family) for family in families]
    groups_by_color = collections.Counter(family_colors)
    styled_by_color = collections.Counter[str]()
    group_style_list = []
    for family, hue in zip(families, family_colors, strict=True):
        group_index = styled_by_color[hue]
        styled_by_color[hue] += 1
        mix_fraction = _MAX_SHADE * group_index / max(groups_by_color[hue] - 1, 1)
        line_index = group_index + (family == "none")
        line_style = _LINE_STYLES[line_index % len(_LINE_STYLES)]
        group_style_list.append(GroupStyle(color=_shade(hue, mix_fraction), line=line_style))
    return group_style_list


def family_color(family: str) -> str:
    """Returns the colour of a mechanism family's curves, as "#rrggbb"."""
    if family in _COLORS:
        return _COLORS[family]
    if family in FAMILIES:
        return FAMILIES[family].color
    return "#000000"


def _shade(color: str, fraction: float) -> str:
    """Mixes a colour with a fraction of white, or of black if it is light."""
    color_channels = np.array(to_rgb(color))
    end_channel = 0.0 if color_channels.sum() > _LIGHT_COLOR else 1.0
    return to_hex(color_channels + (end_channel - color_channels) * fraction)


def field_names(configs: Sequence[TrainConfig]) -> list[str]:
    """Returns the names of all fields of the configurations, as in `TrainConfig.flat`."""
    return list(dict.fromkeys(itertools.chain.from_iterable(c.flat() for c in configs)))


def differing_fields(configs: Sequence[TrainConfig]) -> list[str]:
    """Returns the names of the fields that are not equal in all configurations."""
    flat_configs = [config.flat() for config in configs]
    first_config = flat_configs[0]
    return [
        name
        for name in field_names(configs)
        if any(config.get(name) != first_config.get(name) for config in flat_configs)
    ]


def format_value(value: Any) -> str:
    """Formats a value of a configuration for a table, and shortens a long one."""
    if value is None:
        return "not set"
    value_text = plain(value) if isinstance(value, float) else str(value)
    if len(value_text) <= _MAX_CHARACTERS:
        return value_text
    return f"{value_text[:_MAX_CHARACTERS]}..."
