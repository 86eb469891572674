"""Runs put together by what was run: a group is one mechanism with one configuration, over one or
more seeds.

And how groups of runs are told apart: their names, colours and line styles.
"""

import collections
import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.family import FAMILIES
from fedmf.mechanisms.noise_rows import NoisingRows
from fedmf.mechanisms.stamped import StampedMechanism
from fedmf.privacy.flat_config import families_taking
from fedmf.privacy.private_metrics import mean_over
from fedmf.privacy.statement import mechanism_digest
from fedmf.reports.drawn_noise import MAX_DRAWN_ROUNDS
from fedmf.reports.text import plain
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one configuration that differ in their seed only, at least one; with their colour and
    line style in every plot.

    The label names the mechanism, and what else tells this group from others.
    """

    label: str
    mechanism: str
    color: str
    line: Any
    runs: tuple[Run, ...]

    @property
    def private(self) -> bool:
        """Whether the plan promises a finite epsilon."""
        return self.runs[0].plan["epsilon"] is not None

    @property
    def config(self) -> TrainConfig:
        """The configuration of the first run."""
        return self.runs[0].config

    @property
    def plan(self) -> dict[str, Any]:
        """The plan of the first run; the others' is the same."""
        return self.runs[0].plan

    @property
    def mechanism_of_noise(self) -> Mechanism:
        """The mechanism of the first run; the others' is the same."""
        return self.runs[0].mechanism


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """The groups, in the order in which `runs` names them first."""
    members: dict[TrainConfig, list[Run]] = {}
    for run in runs:
        members.setdefault(dataclasses.replace(config_as_run(run), seed=0), []).append(run)
    firsts = [group[0] for group in members.values()]
    styles = group_styles([run.config.family for run in firsts])
    return [
        Group(
            label=label,
            mechanism=mechanism_label(group[0]),
            color=color,
            line=line,
            runs=tuple(group),
        )
        for label, (color, line), group in zip(
            group_labels(firsts), styles, members.values(), strict=True
        )
    ]


def runs_of(groups: Sequence[Group]) -> list[Run]:
    """The runs of the groups, group after group."""
    return [run for group in groups for run in group.runs]


def _private_kinds(groups: Sequence[Group], scale: Callable[[Group], float]) -> list[list[Group]]:
    """The private groups, those of the same N and the same `scale` together."""
    kinds: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        if group.private:
            kinds.setdefault((scale(group), *_noise_identity(group)), []).append(group)
    return list(kinds.values())


def _noise_identity(group: Group) -> tuple[Any, ...]:
    """Returns what is the same for mechanisms of the same N: N itself of a short run, and of a
    longer one the mechanism's own description.
    """
    mechanism = group.mechanism_of_noise
    if mechanism.rounds <= MAX_DRAWN_ROUNDS:
        N = mechanism.noising()
        return (N.shape, N.tobytes())
    return (mechanism_digest(mechanism),)


def distinct_mechanisms(groups: Sequence[Group]) -> list[tuple[str, list[Group]]]:
    """The private groups by noise structure: one entry for each different (sensitivity, N), with a
    label for it.
    """
    kinds = _private_kinds(groups, lambda group: group.plan["sensitivity"]["value"])
    names = [kind[0].mechanism for kind in kinds]

    def label(kind: list[Group]) -> str:
        first = kind[0]
        more = len(kind) - 1
        simulated = not more and first.config.claimed_cohort is not None
        if names.count(first.mechanism) == 1 and not simulated:
            return first.mechanism  # the structure does not depend on epsilon
        return first.label + f" and {more} more" * bool(more)

    return [(label(kind), kind) for kind in kinds]


def distinct_noise(groups: Sequence[Group]) -> list[Group]:
    """A private group for each different noise on the average update, labelled by what
    tells these apart.
    """
    kinds = [
        kind[0]
        for kind in _private_kinds(groups, lambda g: g.plan["stddev"] / g.config.cohort_size)
    ]
    if len(kinds) == sum(group.private for group in groups):
        return kinds
    tuned = {name: getattr(kinds[0].config, name) for name in TUNED}
    return group_runs(
        [
            dataclasses.replace(kind.runs[0], config=dataclasses.replace(kind.config, **tuned))
            for kind in kinds
        ]
    )


def noise_levels(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations of the noise on the average update of the cohort: of each round, and of
    the sum up to it.

    In a simulation the plan's stddev carries the factor simulated / claimed. Dividing by the
    simulated cohort therefore gives the noise on the claimed cohort's average.
    """
    scale = group.plan["stddev"] / group.config.cohort_size
    rows = NoisingRows(group.mechanism_of_noise)
    return scale * rows.round_deviations(), scale * rows.sum_deviations()


def mean_over_runs(group: Group, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rounds completed and the mean of a column, of the rounds that every run of the group has."""
    columns = [
        {row["round"] + 1: row[name] for row in run.metrics if row.get(name) is not None}
        for run in group.runs
    ]
    rounds = sorted(set.intersection(*map(set, columns)))
    values = np.array([[column[t] for t in rounds] for column in columns], dtype=np.float64)
    return np.array(rounds), values.mean(axis=0)


def validation_curve(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Rounds completed, and the headline metric after them, of every validation of the run."""
    metric = run.plan["task"]["headline_metric"]
    rows = [row for row in run.metrics if metric in row.get("validation", {})]
    rounds = np.array([row["round"] + 1 for row in rows], dtype=np.int64)
    return rounds, np.array([row["validation"][metric] for row in rows], dtype=np.float64)


def private_curve(run: Run, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rounds completed; the private mean of "accuracy" or "loss" over the clients of all rounds
    since the last such point, evaluate_every at most; its standard deviation by the noise.

    Correlated noise cancels in sums over rounds. NaN where no client is seen, and for a deviation
    that is not known.
    """
    rows = [row["private"] for row in run.metrics if "private" in row]
    most = run.config.largest_loss
    half = most / 2 if name == "loss" else 0.5
    every = run.config.evaluate_every
    starts = range(0, len(rows), every)
    ends = [min(start + every, len(rows)) for start in starts]
    deviations = _window_factors(run, rows, starts, ends)
    points = []
    for start, end, factor in zip(starts, ends, deviations, strict=True):
        mean = mean_over(rows[start:end], name, largest_loss=most)
        of_one_round = rows[start]["stddev"]["clients"]
        spread = math.nan
        if of_one_round is not None and not math.isnan(mean):
            clients = sum(row["clients"] for row in rows[start:end])
            spread = of_one_round * factor * half * math.hypot(1, mean / half - 1) / clients
        points.append((end, mean, spread))
    rounds, means, spreads = zip(*points, strict=True) if points else ((), (), ())
    return np.array(rounds, np.int64), np.array(means), np.array(spreads)


def _window_factors(
    run: Run, rows: list[dict[str, Any]], starts: Sequence[int], ends: Sequence[int]
) -> np.ndarray:
    """Returns how many times the noise of its first round the noise of each window has."""
    if not any(rows[start]["stddev"]["clients"] is not None for start in starts):
        return np.full(len(starts), np.nan)
    noise_rows = NoisingRows(run.mechanism)
    of_first_rounds = noise_rows.round_deviations()[list(starts)]
    return noise_rows.window_deviations(starts, ends) / of_first_rounds


def mean_curve(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """Rounds in which all runs of the group were validated; the metric there, (runs, rounds)."""
    curves = [validation_curve(run) for run in group.runs]
    common = functools.reduce(np.intersect1d, [rounds for rounds, _ in curves])
    return common, np.stack([values[np.isin(rounds, common)] for rounds, values in curves])


def final_metric(run: Run, split: str) -> float | None:
    """The headline metric of `split` at the end of the run; for an unfinished run its latest
    validation, or None.
    """
    metric = run.plan["task"]["headline_metric"]
    if run.result is not None:
        value = run.result[split].get(metric)
        return None if value is None else float(value)
    _, values = validation_curve(run)
    return float(values[-1]) if split == "validation" and len(values) else None


def unfinished(run: Run) -> str:
    """How far an unfinished run came; empty for a finished one."""
    if run.result is not None:
        return ""
    if not run.metrics:
        return "unfinished: no round is complete yet"
    return f"unfinished after round {run.metrics[-1]['round'] + 1} of {run.config.rounds}"


def ended(run: Run) -> str:
    """How far a run came that ended at an epsilon; empty for others."""
    return f"ended after {run.ended_after} of {run.config.rounds} rounds" if run.ended_after else ""


def simulation_note(runs: Sequence[Run]) -> str:
    """What a table or plot that shows `runs` must say about claimed cohorts; empty if every run is
    what it claims.
    """
    simulated = [
        (run.config.cohort_size, run.config.claimed_cohort)
        for run in runs
        if run.config.claimed_cohort is not None
    ]
    if not simulated:
        return ""
    some = f" in {len(simulated)} of {len(runs)} runs, marked “simulates” in the tables" * (
        len(simulated) < len(runs)
    )
    cohorts = "; ".join(
        f"{count:,} clients a round were simulated to estimate a cohort of {claimed:,} (noise "
        f"scaled by {count:,}/{claimed:,})"
        for count, claimed in sorted(set(simulated))
    )
    return (
        f"Simulation{some}: {cohorts}. The epsilon shown is that of the claimed cohort; the models "
        "trained here do not have it."
    )


# Beside the families' own. Chosen, all together, for their distance from each other as readers with
# protanopia and deuteranopia see them too; the grey is drawn dashed besides.
_COLORS = {"none": "#4a4a4a", "file": "#3c0f4b"}
# Share of white or black in the last of several shades of a colour; still legible as text.
_FARTHEST = 0.45
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
    "evaluate_every", "execution",
}  # fmt: skip


def decoder_of(run: Run) -> str | None:
    """Returns the decoder that a run's mechanism has; None for a family without a choice of them.

    The config of a run says nothing of a default, which an earlier fedmf had otherwise for trees.
    """
    if run.config.family not in families_taking("decoder"):
        return None
    mechanism = run.mechanism
    if isinstance(mechanism, StampedMechanism):  # a tree with restarts
        mechanism = mechanism.part
    return str(getattr(mechanism, "decoder", run.config.decoder))


def config_as_run(run: Run) -> TrainConfig:
    """Returns the config of a run, with a decoder where it is not the default of its family: one
    mechanism has one config.
    """
    decoder = decoder_of(run)
    if decoder is not None and decoder == FAMILIES[run.config.family].options["decoder"].default:
        decoder = None
    return dataclasses.replace(run.config, decoder=decoder)


def mechanism_label(run: Run) -> str:
    """What readers call the mechanism of a run."""
    config = run.config
    if config.family == "none":
        return "No noise (not private)"
    if config.family == "file":
        return pathlib.PurePath(config.mechanism or "").stem
    bands = run.plan["bands"]
    return FAMILIES[config.family].label.format(
        bands=f"{bands} band{'s' if bands != 1 else ''}", decoder=decoder_of(run)
    )


def group_labels(firsts: Sequence[Run]) -> list[str]:
    """A label for each of these runs, the first of their groups: the mechanism, and what the report
    compares besides.

    Whatever differs somewhere in the report, such as epsilon, is in every label it applies to, so
    that none looks comparable by mistake.
    """
    configs = [config_as_run(run) for run in firsts]
    same_mechanism: dict[str, list[TrainConfig]] = {}
    for run, config in zip(firsts, configs, strict=True):
        same_mechanism.setdefault(mechanism_label(run), []).append(config)
    names = field_names(configs)
    compared = {
        name
        for name in names
        if name not in _IN_TABLE_ONLY
        and len({c.flat().get(name) for c in configs if _applies(name, c)}) > 1
    }
    labels = []
    for run, config in zip(firsts, configs, strict=True):
        mechanism = mechanism_label(run)
        here = {name for name in compared if _applies(name, config)} | set(
            differing(same_mechanism[mechanism])
        )
        details = [_detail(name, config.flat().get(name)) for name in names if name in here]
        labels.append(", ".join([mechanism, *filter(None, details)]))
    return labels


# Fields that mean something only beside another one that is set. Alone they are at their default,
# which would read as a choice.
_MEANT_BESIDE: dict[str, Callable[[TrainConfig], Any]] = {
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
# Fields whose 0 says that the run goes without.
_UNSET_AT_ZERO = ("private_metrics", "canaries", "dropout", "proximal_strength")


def _applies(name: str, config: TrainConfig) -> bool:
    """Whether the field says something, and something new, about the configuration."""
    if name == "bands" and config.family in FAMILIES and "{bands}" in FAMILIES[config.family].label:
        return False
    is_meant = _MEANT_BESIDE.get(name)
    return config.family in families_taking(name) and (is_meant is None or bool(is_meant(config)))


def _detail(name: str, value: Any) -> str:
    """The field in a label; empty if it is not set."""
    if value is None or (name in _UNSET_AT_ZERO and not value):
        return ""
    if name == "claimed_cohort":
        return f"simulates {value:,} clients a round"
    return f"{name.removeprefix('task_option.').replace('_', ' ')} {show(value)}"


def group_styles(families: Sequence[str]) -> list[tuple[str, Any]]:
    """Colour and line style for groups of these families: the hue says which family, shade and
    dashes which of its groups.
    """
    hues = [family_color(family) for family in families]
    of = collections.Counter(hues)
    seen = collections.Counter[str]()
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


def field_names(configs: Sequence[TrainConfig]) -> list[str]:
    """The names of `TrainConfig.flat` that any of them has, in order."""
    return list(dict.fromkeys(name for config in configs for name in config.flat()))


def differing(configs: Sequence[TrainConfig]) -> list[str]:
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
