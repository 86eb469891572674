"""How groups of runs are told apart: their names, colours and line styles."""

import collections
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb

from fedmf.mechanisms.family import FAMILIES
from fedmf.privacy.flat_config import families_taking
from fedmf.reports.text import plain
from fedmf.runs.folder import Run

if TYPE_CHECKING:
    from fedmf.runs.config import TrainConfig

# Beside the families' own. Chosen, all together, for their distance from each other as readers with
# protanopia and deuteranopia see them too; the grey is drawn dashed besides.
_COLORS = {"none": "#4a4a4a", "file": "#3c0f4b"}
_FARTHEST = (
    0.45  # share of white or black in the last of several shades of a colour; still legible as text
)
_LIGHT = 1.49  # sum of the channels from which a colour would be illegible with white in it
_LINE_STYLES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))

# Characters of a value, such as a schedule with a rate for every round.
_MOST_CHARACTERS = 60

# Fields that are tuned to how well a model learns; they change nothing about its noise.
TUNED = ("client_learning_rate", "server_learning_rate", "server_momentum", "warmup", "cooldown")
# The name of the mechanism says these. Learning rates are tuned to each mechanism, and the rest
# changes no result or is a path: the table of run folders lists them, and labels only where two
# groups would have the same name without.
_IN_TABLE_ONLY = {
    "family", "decoder", "mechanism", "data", "seed", "client_learning_rate",
    "server_learning_rate", "server_momentum",
    "evaluate_every", "checkpoint_every", "execution",
}  # fmt: skip


def mechanism_label(run: Run) -> str:
    """What readers call the mechanism of a run."""
    config = run.config
    if config.family == "none":
        return "No noise (not private)"
    if config.family == "file":
        return pathlib.PurePath(config.mechanism or "").stem
    bands = run.plan["bands"]
    return FAMILIES[config.family].label.format(
        bands=f"{bands} band{'s' if bands != 1 else ''}", decoder=config.decoder
    )


def group_labels(firsts: Sequence[Run]) -> list[str]:
    """A label for each of these runs, the first of their groups: the mechanism, and what the report
    compares besides.

    Whatever differs somewhere in the report, such as epsilon, is in every label it applies to, so
    that none looks comparable by mistake.
    """
    configs = [run.config for run in firsts]
    same_mechanism: dict[str, list[TrainConfig]] = {}
    for run in firsts:
        same_mechanism.setdefault(mechanism_label(run), []).append(run.config)
    names = field_names(configs)
    compared = {name for name in names if name not in _IN_TABLE_ONLY and _differs(name, configs)}
    labels = []
    for run in firsts:
        mechanism, config = mechanism_label(run), run.config
        here = {name for name in compared if _applies(name, config)} | set(
            differing(same_mechanism[mechanism])
        )
        details = [_detail(name, config.flat().get(name)) for name in names if name in here]
        labels.append(", ".join([mechanism, *filter(None, details)]))
    return labels


def _applies(name: str, config: "TrainConfig") -> bool:
    """Whether the field says something, and something new, about the configuration."""
    if name == "bands" and config.family in FAMILIES and "{bands}" in FAMILIES[config.family].label:
        return False
    return config.family in families_taking(name) and (
        name != "population" or config.sampling is not None
    )


def _differs(name: str, configs: "Sequence[TrainConfig]") -> bool:
    return len({config.flat().get(name) for config in configs if _applies(name, config)}) > 1


def _detail(name: str, value: Any) -> str:
    """The field in a label; empty if it is not set."""
    if value is None:
        return ""
    if name == "claimed_cohort":
        return f"simulates {value:,} clients a round"
    return f"{name.removeprefix('task_option.').replace('_', ' ')} {show(value)}"


def group_styles(families: Sequence[str]) -> list[tuple[str, Any]]:
    """Colour and line style for groups of these families: the hue says which family, shade and
    dashes which of its groups.
    """
    hues = [family_color(family) for family in families]
    of, seen = collections.Counter(hues), collections.Counter[str]()
    styles = []
    for family, hue in zip(families, hues, strict=True):
        place = seen[hue]
        seen[hue] += 1
        line = _LINE_STYLES[(place + (family == "none")) % len(_LINE_STYLES)]
        styles.append((_shade(hue, _FARTHEST * place / max(of[hue] - 1, 1)), line))
    return styles


def family_color(family: str) -> str:
    """The colour of a family's curves, "#rrggbb"."""
    return _COLORS.get(family) or (FAMILIES[family].color if family in FAMILIES else "#000000")


def _shade(color: str, share: float) -> str:
    """`color` with this share of white in it, or of black where it is light."""
    channels = np.array(to_rgb(color))
    end = 0.0 if channels.sum() > _LIGHT else 1.0
    return to_hex(channels + (end - channels) * share)


def field_names(configs: "Sequence[TrainConfig]") -> list[str]:
    """The names of `TrainConfig.flat` that any of them has, in order."""
    return list(dict.fromkeys(name for config in configs for name in config.flat()))


def differing(configs: "Sequence[TrainConfig]") -> list[str]:
    """Names of the fields that are not the same in all of them."""
    values = [config.flat() for config in configs]
    return [
        name
        for name in field_names(configs)
        if any(v.get(name) != values[0].get(name) for v in values)
    ]


def show(value: Any) -> str:
    """A configuration value for people."""
    if value is None:
        return "not set"
    text = plain(value) if isinstance(value, float) else str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
