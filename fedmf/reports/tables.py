"""The report's tables, as text; the template turns them into HTML and escapes everything."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from fedmf.reports.groups import Group, final_metric, simulation_note, unfinished
from fedmf.reports.labels import differing, show
from fedmf.reports.text import duration, join, metric_name, metric_value, plain, significant
from fedmf.runs.folder import Run

_NONE = "–"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a table.

    Attributes:
      text: its content.
      details: further lines, set smaller.
      color: of the marker before the text; empty for none.
      kind: "", "number" (aligned right), "strong", "muted" or "alarm".
    """

    text: str
    details: Sequence[str] = ()
    color: str = ""
    kind: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its caption; the first cell of a row is the row's heading.

    Attributes:
      name: anchor in the page.
      caption: what it shows.
      note: the simulation note of the runs in it, or empty.
      columns: headings.
      rows: as many cells as columns each.
    """

    name: str
    caption: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


_NO_PRIVACY = Cell(text="no privacy", kind="alarm")


def accuracy_table(groups: Sequence[Group]) -> Table:
    """What each mechanism promises and what it reached."""
    metric = groups[0].plan["task"]["headline_metric"]
    deltas = {group.plan["delta"] for group in groups if group.private}
    workloads = {group.plan["workload"] for group in groups}
    error = "RMSE of prefix sums" if workloads == {"prefix_sum"} else "RMSE on the workload"
    name = metric_name(metric)
    at = f" (ε at δ = {plain(min(deltas))})" if len(deltas) == 1 else ""
    rows = [
        [
            Cell(text=group.label, details=_states(group), color=group.color, kind="strong"),
            *_privacy_cells(group, with_delta=len(deltas) > 1),
            _metric_cell(group, metric, "validation"),
            _metric_cell(group, metric, "test"),
        ]
        for group in groups
    ]
    caption = (
        f"Final {name}, the privacy planned for it{at}, and the error of each mechanism. RMSE is the root mean squared "
        "error over the rounds, sensitivity included, at noise multiplier 1 and clip norm 1."
    )
    if any(len(group.runs) > 1 for group in groups):
        caption += f" {name.capitalize()} is the mean over seeds, with each seed below it."
    if any(_amplified(group) for group in groups):
        caption += (
            " An amplified ε rests on the sampling, and on nobody knowing who was drawn; ρ is not amplified, and is that "
            "of one who knows."
        )
    runs = [run for group in groups for run in group.runs]
    if any(unfinished(run) for run in runs):
        caption += " Of unfinished runs it is the latest validation, and the privacy is that of the whole planned run."
    columns = ["Mechanism", "ε planned", "ρ (zCDP)", "Noise multiplier", "Sensitivity", error]
    columns += [f"Validation {name}", f"Test {name}"]
    return Table(name="results", caption=caption, note=simulation_note(runs), columns=columns, rows=rows)


def _states(group: Group) -> list[str]:
    several = len(group.runs) > 1
    return [
        f"seed {run.config.seed}: {unfinished(run)}" if several else unfinished(run)
        for run in group.runs
        if unfinished(run)
    ]


def _privacy_cells(group: Group, *, with_delta: bool) -> list[Cell]:
    plan = group.plan
    if not group.private:
        return [_NO_PRIVACY, *[Cell(text=_NONE, kind="muted")] * 4]
    sensitivity = plan["sensitivity"]
    details = [f"δ = {plain(plan['delta'])}"] if with_delta else []
    details += ["amplified by sampling"] if _amplified(group) else []
    details += ["of the claimed cohort"] if group.config.claimed_cohort is not None else []
    rho = _number(plan["rho"], 4)
    return [
        Cell(text=significant(plan["epsilon"]), details=details, kind="number"),
        dataclasses.replace(rho, details=["not amplified"]) if _amplified(group) else rho,
        _number(plan["noise_multiplier"], 4),
        Cell(
            text=significant(sensitivity["value"], 4),
            details=["exact" if sensitivity["exact"] else "upper bound"],
            kind="number",
        ),
        _number(plan["rmse"], 4),
    ]


def _amplified(group: Group) -> bool:
    """Whether the planned epsilon is smaller than it would be if the cohorts were known."""
    sampling, epsilon = group.plan.get("sampling"), group.plan["epsilon"]
    if not sampling or epsilon is None:
        return False
    known = sampling["unamplified_epsilon"]
    return known is None or epsilon < known


def _number(value: float | None, digits: int) -> Cell:
    return Cell(text=_NONE, kind="muted") if value is None else Cell(text=significant(value, digits), kind="number")


def _metric_cell(group: Group, metric: str, split: str) -> Cell:
    values = [(run.config.seed, final_metric(run, split)) for run in group.runs]
    known = [value for _, value in values if value is not None]
    if not known:
        return Cell(text=_NONE, kind="muted")
    details = [f"seed {seed}: {metric_value(metric, value)}" for seed, value in values] if len(values) > 1 else []
    return Cell(text=metric_value(metric, sum(known) / len(known)), details=details, kind="number")


def participation_table(groups: Sequence[Group]) -> Table:
    """Planned and observed participation of every run, and the guarantee that follows from each."""
    rows = []
    for group in groups:
        # Seeds under one controller often look the same; one row says so better than many.
        alike: list[tuple[list[Run], list[Cell]]] = []
        for run in group.runs:
            cells = _participation_cells(group, run)
            same = next((members for members, others in alike if others == cells), None)
            if same is None:
                alike.append(([run], cells))
            else:
                same.append(run)
        rows += [[_participation_head(group, members), *cells] for members, cells in alike]
    runs = [run for group in groups for run in group.runs]
    amplified = any(_amplified(group) for group in groups)
    kept = "it is never above the planned ε while the controller is obeyed."
    if amplified:
        kept = (
            f"without amplification {kept} Of a run amplified by sampling it rests on the sampling that was planned; the ε "
            "for known cohorts is not amplified, and can be above the planned one."
        )
    caption = (
        "Participation as the ledger of each run shows it, with what was planned below. The achieved ε accounts the "
        f"same noise with the participation that was observed; {kept} Short rounds had fewer clients than the cohort size."
    )
    columns = ["Run", "Smallest separation", "Most participations", "Clients seen", "Short rounds", "ε achieved"]
    return Table(name="participation", caption=caption, note=simulation_note(runs), columns=columns, rows=rows)


def _participation_head(group: Group, runs: Sequence[Run]) -> Cell:
    details = []
    if len(group.runs) > 1:
        seeds = [str(run.config.seed) for run in runs]
        details.append(f"seed{'s' if len(seeds) > 1 else ''} {join(seeds)}")
    details += list(dict.fromkeys(unfinished(run) for run in runs if unfinished(run)))
    return Cell(text=group.label, details=details, color=group.color, kind="strong")


def _participation_cells(group: Group, run: Run) -> list[Cell]:
    planned, epsilon = run.plan["participation"], run.plan["epsilon"]
    separation, most = f"planned {planned['min_sep']:,}", f"planned {planned['max_participations']:,}"
    promise = f"planned {significant(epsilon)}" if epsilon is not None else ""
    if promise and run.config.claimed_cohort is not None:
        promise += ", of the claimed cohort"
    if run.result is None:
        unknown = Cell(text=_NONE, kind="muted")
        return [
            Cell(text=_NONE, details=[separation], kind="muted"),
            Cell(text=_NONE, details=[most], kind="muted"),
            unknown,
            unknown,
            Cell(text=_NONE, details=[promise], kind="muted") if promise else _NO_PRIVACY,
        ]
    seen = run.result["participation"]
    observed, times = seen["min_separation"], seen["max_participations"]
    return [
        _compared(
            "no client twice" if observed is None else f"{observed:,}",
            separation,
            "less than planned" if observed is not None and observed < planned["min_sep"] else "",
        ),
        _compared(f"{times:,}", most, "more than planned" if times > planned["max_participations"] else ""),
        Cell(text=f"{seen['clients']:,}", details=[f"of {seen['population']:,}"], kind="number"),
        Cell(text=f"{seen['short_rounds']:,}", details=[f"of {seen['rounds']:,}"], kind="number"),
        _achieved(run, promise),
    ]


def _with_sampling(run: Run, promise: str) -> str:
    """What is written below the achieved epsilon, which for a sampled run rests on nobody knowing who was drawn."""
    assert run.result is not None
    unamplified = run.result["achieved"].get("unamplified_epsilon")
    if not run.plan.get("sampling") or unamplified is None:
        return promise
    return f"{promise}; {significant(unamplified)} if the cohorts are known"


def _achieved(run: Run, promise: str) -> Cell:
    planned = run.plan["epsilon"]
    if planned is None:
        return _NO_PRIVACY
    if run.config.claimed_cohort is not None:
        return Cell(text="not observed", details=[promise], kind="muted")
    assert run.result is not None
    achieved, promise = run.result["achieved"]["epsilon"], _with_sampling(run, promise)
    if achieved is None:
        return Cell(text="no privacy", details=[promise, "weaker than planned"], kind="alarm")
    return _compared(significant(achieved), promise, "weaker than planned" if achieved > planned * (1 + 1e-9) else "")


def _compared(text: str, planned: str, complaint: str) -> Cell:
    details = [planned, complaint] if complaint else [planned]
    return Cell(text=text, details=details, kind="alarm" if complaint else "number")


def runs_table(groups: Sequence[Group]) -> Table:
    """Where each run is and what its configuration has that others' have not."""
    runs = [run for group in groups for run in group.runs]
    fields = differing([run.config for run in runs])
    names = folder_names(runs)
    rows = [
        [
            Cell(text=names[id(run)], color=group.color, kind="strong"),
            *[Cell(text=show(getattr(run.config, field))) for field in fields],
            Cell(text=unfinished(run) if run.result is None else duration(run.result["seconds"])),
        ]
        for group in groups
        for run in group.runs
    ]
    caption = "The run folders, what differs between their configurations, and the time each took."
    columns = ["Run folder", *fields, "Time"]
    return Table(name="runs", caption=caption, note=simulation_note(runs), columns=columns, rows=rows)


def folder_names(runs: Sequence[Run]) -> dict[int, str]:
    """By id of a run: the last part of its path, or the last two where that would not tell runs apart."""
    short = collections.Counter(run.path.name for run in runs)
    unique = all(count == 1 for count in short.values())
    return {id(run): run.path.name if unique else "/".join(run.path.parts[-2:]) for run in runs}


def common_config(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Fields of the configuration that all runs share, with their values."""
    different = differing([run.config for run in runs])
    names = [field.name for field in dataclasses.fields(runs[0].config) if field.name not in different]
    return [(name, show(getattr(runs[0].config, name))) for name in names]


def versions(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Packages and the versions that the runs used; more than one where they differ."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        for package, version in run.plan["versions"].items():
            if version not in found.setdefault(package, []):
                found[package].append(version)
    return [(package, ", ".join(map(str, seen))) for package, seen in found.items()]
