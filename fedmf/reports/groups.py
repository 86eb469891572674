"""Runs put together by what was run: a group is one mechanism with one configuration, over one or
more seeds.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmf.reports.labels import TUNED, group_labels, group_styles, mechanism_label
from fedmf.runs.folder import Run

if TYPE_CHECKING:
    from fedmf.runs.config import TrainConfig


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
    def config(self) -> "TrainConfig":
        """The configuration of the first run."""
        return self.runs[0].config

    @property
    def plan(self) -> dict[str, Any]:
        """The plan of the first run; the others' is the same."""
        return self.runs[0].plan

    @property
    def noising(self) -> np.ndarray:
        """N, float64 (rounds, m)."""
        return self.runs[0].noising


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """The groups, in the order in which `runs` names them first."""
    members: dict[TrainConfig, list[Run]] = {}
    for run in runs:
        members.setdefault(dataclasses.replace(run.config, seed=0), []).append(run)
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


def _private_kinds(groups: Sequence[Group], scale: Callable[[Group], float]) -> list[list[Group]]:
    """The private groups, those of the same N and the same `scale` together."""
    kinds: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        if group.private:
            kinds.setdefault(
                (scale(group), group.noising.shape, group.noising.tobytes()), []
            ).append(group)
    return list(kinds.values())


def distinct_mechanisms(groups: Sequence[Group]) -> list[tuple[str, list[Group]]]:
    """The private groups by noise structure: one entry for each different (sensitivity, N), with a
    label for it.
    """
    kinds = _private_kinds(groups, lambda group: group.plan["sensitivity"]["value"])
    names = [kind[0].mechanism for kind in kinds]

    def label(kind: list[Group]) -> str:
        first, more = kind[0], len(kind) - 1
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


def validation_curve(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Rounds completed, and the headline metric after them, of every validation of the run."""
    metric = run.plan["task"]["headline_metric"]
    rows = [row for row in run.metrics if metric in row.get("validation", {})]
    rounds = np.array([row["round"] + 1 for row in rows], dtype=np.int64)
    return rounds, np.array([row["validation"][metric] for row in rows], dtype=np.float64)


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
        (c.cohort_size, c.claimed_cohort)
        for c in (run.config for run in runs)
        if c.claimed_cohort is not None
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
