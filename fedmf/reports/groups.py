"""Runs put together by what was run: a group is one mechanism with one configuration, over one or more seeds."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmf.reports.labels import TUNED, group_labels, group_styles, mechanism_label
from fedmf.runs.folder import Run

if TYPE_CHECKING:
    from fedmf.runs.config import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one configuration that differ in their seed only.

    Attributes:
      label: the mechanism, and what else tells this group from others.
      mechanism: the mechanism alone.
      color: its colour in every plot.
      line: its matplotlib line style in every plot.
      runs: at least one.
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


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """The groups, in the order in which `runs` names them first."""
    members: dict[TrainConfig, list[Run]] = {}
    for run in runs:
        members.setdefault(dataclasses.replace(run.config, seed=0), []).append(run)
    firsts = [group[0] for group in members.values()]
    styles = group_styles([run.config.family for run in firsts])
    return [
        Group(label=label, mechanism=mechanism_label(group[0]), color=color, line=line, runs=tuple(group))
        for label, (color, line), group in zip(group_labels(firsts), styles, members.values(), strict=True)
    ]


def distinct_mechanisms(groups: Sequence[Group]) -> list[tuple[str, list[Group]]]:
    """The private groups by noise structure: one entry for each different (sensitivity, N), with a label for it."""
    kinds: list[list[Group]] = []
    for group in groups:
        if not group.private:
            continue
        for kind in kinds:
            if group.plan["sensitivity"]["value"] == kind[0].plan["sensitivity"]["value"] and np.array_equal(
                group.runs[0].noising, kind[0].runs[0].noising
            ):
                kind.append(group)
                break
        else:
            kinds.append([group])
    names = [kind[0].mechanism for kind in kinds]
    labels = []
    for kind in kinds:
        if len(kind) == 1 and (names.count(kind[0].mechanism) > 1 or kind[0].config.claimed_cohort is not None):
            labels.append(kind[0].label)
        elif names.count(kind[0].mechanism) == 1:
            labels.append(kind[0].mechanism)  # the structure does not depend on epsilon
        else:
            labels.append(f"{kind[0].label} and {len(kind) - 1} more")
    return list(zip(labels, kinds, strict=True))


def distinct_noise(groups: Sequence[Group]) -> list[Group]:
    """A private group for each different noise on the average update, labelled by what tells these apart."""
    private = [group for group in groups if group.private]
    kinds: list[Group] = []
    for group in private:
        if not any(_same_noise(group, kind) for kind in kinds):
            kinds.append(group)
    if len(kinds) == len(private):
        return private
    tuned = {name: getattr(kinds[0].config, name) for name in TUNED}
    return group_runs(
        [dataclasses.replace(kind.runs[0], config=dataclasses.replace(kind.config, **tuned)) for kind in kinds]
    )


def _same_noise(one: Group, other: Group) -> bool:
    scales = {group.plan["stddev"] / group.config.cohort_size for group in (one, other)}
    return len(scales) == 1 and np.array_equal(one.runs[0].noising, other.runs[0].noising)


def validation_curve(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Rounds completed, and the headline metric after them, of every validation of the run."""
    metric = run.plan["task"]["headline_metric"]
    rows = [row for row in run.metrics if metric in row.get("validation", {})]
    rounds = np.array([row["round"] + 1 for row in rows], dtype=np.int64)
    return rounds, np.array([row["validation"][metric] for row in rows], dtype=np.float64)


def mean_curve(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """Rounds in which every run of the group was validated, and the metric there, (runs, rounds)."""
    curves = [validation_curve(run) for run in group.runs]
    common = curves[0][0]
    for rounds, _ in curves[1:]:
        common = np.intersect1d(common, rounds)
    return common, np.stack([values[np.isin(rounds, common)] for rounds, values in curves])


def final_metric(run: Run, split: str) -> float | None:
    """The headline metric of `split` at the end of the run; for an unfinished run its latest validation, or None."""
    metric = run.plan["task"]["headline_metric"]
    if run.result is not None:
        value = run.result[split].get(metric)
        return None if value is None else float(value)
    _, values = validation_curve(run)
    return float(values[-1]) if split == "validation" and len(values) else None


def rounds_done(run: Run) -> int:
    """Rounds of which a metrics row exists."""
    return run.metrics[-1]["round"] + 1 if run.metrics else 0


def unfinished(run: Run) -> str:
    """How far an unfinished run came; empty for a finished one."""
    if run.result is not None:
        return ""
    done = rounds_done(run)
    return f"unfinished after round {done} of {run.config.rounds}" if done else "unfinished: no round is complete yet"


def simulation_note(runs: Sequence[Run]) -> str:
    """What a table or plot that shows `runs` must say about claimed cohorts; empty if every run is what it claims."""
    pairs = {
        (run.config.cohort_size, run.config.claimed_cohort) for run in runs if run.config.claimed_cohort is not None
    }
    if not pairs:
        return ""
    simulated = sum(run.config.claimed_cohort is not None for run in runs)
    which = "" if simulated == len(runs) else f" in {simulated} of {len(runs)} runs, marked “simulates” in the tables"
    cohorts = "; ".join(
        f"{count:,} clients a round were simulated to estimate a cohort of {claimed:,} "
        f"(noise scaled by {count:,}/{claimed:,})"
        for count, claimed in sorted(pairs)
    )
    return (
        f"Simulation{which}: {cohorts}. The epsilon shown is that of the claimed cohort; "
        "the models trained here do not have it."
    )
