"""The report's tables, as text; the template turns them into HTML and escapes everything."""

import collections
import dataclasses
from collections.abc import Sequence

from fedmf.participation.schema import Participation
from fedmf.reports.groups import (
    Group,
    config_as_run,
    decoder_of,
    differing,
    ended,
    final_metric,
    runs_of,
    show,
    simulation_note,
    unfinished,
)
from fedmf.reports.text import duration, join, metric_name, metric_value, plain, significant
from fedmf.runs.folder import Run


@dataclasses.dataclass(frozen=True)
class Cell:
    """A text of kind "", "number" (aligned right), "strong", "muted" or "alarm", with smaller lines
    below and a coloured mark before it.

    Readers sort by the text's first number, or by `sort` where the text does not say it.
    """

    text: str
    kind: str = ""
    details: Sequence[str] = ()
    color: str = ""
    sort: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its anchor in the page, and the simulation note of the runs in it.

    The first cell of a row is the row's heading.
    """

    name: str
    caption: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


_NO_PRIVACY = Cell("no privacy", "alarm")
_NOTHING = Cell("–", "muted")


def _number(value: float | None, *details: str, digits: int = 4) -> Cell:
    if value is None:
        return Cell("–", "muted", details)
    return Cell(significant(value, digits), "number", details)


def _table(
    name: str, groups: Sequence[Group], caption: str, columns: list[str], rows: list[list[Cell]]
) -> Table:
    note = simulation_note(runs_of(groups))
    return Table(name=name, caption=caption, note=note, columns=columns, rows=rows)


def accuracy_table(groups: Sequence[Group]) -> Table:
    """What each mechanism promises and what it reached."""
    runs = runs_of(groups)
    name = metric_name(groups[0].plan["task"]["headline_metric"])
    deltas = {group.plan["delta"] for group in groups if group.private}
    at = f" (ε at δ = {plain(min(deltas))})" if len(deltas) == 1 else ""
    caption = (
        f"Final {name}, the privacy planned for it{at}, and the error of each mechanism. RMSE is "
        "the root mean squared "
        "error over the rounds, sensitivity included, at noise multiplier 1 and clip norm 1."
    )
    if len(runs) > len(groups):
        caption += f" {name.capitalize()} is the mean over seeds, with each seed below it."
    if any(map(_amplified, groups)):
        caption += (
            " An amplified ε rests on the sampling, and on nobody knowing who was drawn; ρ is not "
            "amplified, and is that of one who knows."
        )
    if any(map(unfinished, runs)):
        caption += (
            " Of unfinished runs it is the latest validation, and the privacy is that of "
            "the whole planned run."
        )
    error = (
        "of prefix sums"
        if {group.plan["workload"] for group in groups} == {"prefix_sum"}
        else "on the workload"
    )
    caption += _adaptive_servers(groups)
    columns = [
        "Mechanism",
        "ε planned",
        "ρ (zCDP)",
        "Noise multiplier",
        "Sensitivity",
        f"RMSE {error}",
    ]
    rows = []
    for group in groups:
        several = len(group.runs) > 1
        heading = [
            f"seed {run.config.seed}: " * several + so_far
            for run in group.runs
            if (so_far := unfinished(run))
        ]
        privacy = _privacy_cells(group, with_delta=len(deltas) > 1)
        metrics = [_metric_cell(group, split) for split in ("validation", "test")]
        rows.append([Cell(group.label, "strong", heading, group.color), *privacy, *metrics])
    return _table(
        "results", groups, caption, [*columns, f"Validation {name}", f"Test {name}"], rows
    )


def _adaptive_servers(groups: Sequence[Group]) -> str:
    """What to know of the mechanism of a private run whose server does not add up the updates;
    empty if there is none.
    """
    private = [group.config.server_optimizer for group in groups if group.private]
    names = [name for name in dict.fromkeys(private) if name != "sgd"]
    if not names:
        return ""
    some = "The" if len(set(private)) == len(names) else "Some of the"
    return (
        f" {some} servers optimise with {join([name.capitalize() for name in names])}: the privacy "
        "is the same, but the mechanism was optimised for prefix sums, that is for a server that "
        "adds up the updates, and its noise is not the best possible for this one."
    )


def _privacy_cells(group: Group, *, with_delta: bool) -> list[Cell]:
    plan = group.plan
    amplified = _amplified(group)
    if not group.private:
        return [_NO_PRIVACY, *[_NOTHING] * 4]
    details = [f"δ = {plain(plan['delta'])}"] if with_delta else []
    details += ["amplified by sampling"] * amplified
    details += ["of the claimed cohort"] * (group.config.claimed_cohort is not None)
    sensitivity = plan["sensitivity"]
    return [
        _number(plan["epsilon"], *details, digits=3),
        _number(plan["rho"], *["not amplified"] * amplified),
        _number(plan["noise_multiplier"]),
        _number(sensitivity["value"], "exact" if sensitivity["exact"] else "upper bound"),
        _number(plan["rmse"]),
    ]


def _amplified(group: Group) -> bool:
    """Whether the planned epsilon is smaller than it would be if the cohorts were known."""
    sampling = group.plan.get("sampling")
    epsilon = group.plan["epsilon"]
    if not sampling or epsilon is None:
        return False
    known = sampling["unamplified_epsilon"]
    return known is None or epsilon < known


def _metric_cell(group: Group, split: str) -> Cell:
    metric = group.plan["task"]["headline_metric"]
    values = {run.config.seed: final_metric(run, split) for run in group.runs}
    known = [value for value in values.values() if value is not None]
    if not known:
        return _NOTHING
    details = [f"seed {seed}: {metric_value(metric, value)}" for seed, value in values.items()]
    return Cell(
        metric_value(metric, sum(known) / len(known)), "number", details if len(values) > 1 else ()
    )


def participation_table(groups: Sequence[Group]) -> Table:
    """Planned and observed participation of every run, and the guarantee that follows from each."""
    rows = []
    for group in groups:
        # Seeds under one controller often look the same; one row says so better than many.
        alike: dict[str, list[Run]] = {}
        for run in group.runs:
            alike.setdefault(repr(_participation_cells(run)), []).append(run)
        for runs in alike.values():
            seeds = f"seed{'s' * (len(runs) > 1)} {join([str(run.config.seed) for run in runs])}"
            details = [seeds] * (len(group.runs) > 1) + list(
                dict.fromkeys(filter(None, map(unfinished, runs)))
            )
            details += dict.fromkeys(filter(None, map(ended, runs)))
            rows.append(
                [Cell(group.label, "strong", details, group.color), *_participation_cells(runs[0])]
            )
    kept = "it is never above the planned ε while the controller is obeyed."
    if any(map(_amplified, groups)):
        kept = (
            f"without amplification {kept} Of a run amplified by sampling it rests on the sampling "
            "that was planned; the ε "
            "for known cohorts is not amplified, and can be above the planned one."
        )
    caption = (
        "Participation as the ledger of each run shows it, with what was planned below. The "
        f"achieved ε accounts the same noise with the participation that was observed; {kept} "
        "Short rounds had fewer clients than the cohort size."
    )
    columns = [
        "Run",
        "Smallest separation",
        "Most participations",
        "Clients seen",
        "Short rounds",
        "ε achieved",
    ]
    return _table("participation", groups, caption, columns, rows)


def _participation_cells(run: Run) -> list[Cell]:
    planned = run.plan["participation"]
    b, k = Participation.from_limits(planned).describe_planned_limits()
    if run.result is None:
        unknown = [Cell("–", "muted", [limit]) for limit in (b, k)]
        return [*unknown, _NOTHING, _NOTHING, _achieved(run)]
    seen = run.result["participation"]
    separation = seen["min_separation"]
    times = seen["max_participations"]
    closer = separation is not None and separation < planned["min_sep"]
    return [
        _compared(
            "no client twice" if separation is None else f"{separation:,}",
            b,
            "less than planned" * closer,
        ),
        _compared(f"{times:,}", k, "more than planned" * (times > planned["max_participations"])),
        *(
            Cell(f"{seen[part]:,}", "number", [f"of {seen[whole]:,}"])
            for part, whole in (("clients", "population"), ("short_rounds", "rounds"))
        ),
        _achieved(run),
    ]


def _achieved(run: Run) -> Cell:
    planned = run.plan["epsilon"]
    claimed = run.config.claimed_cohort
    if planned is None:
        return _NO_PRIVACY
    promise = f"planned {significant(planned)}" + ", of the claimed cohort" * (claimed is not None)
    if run.result is None or claimed is not None:
        return Cell("–" if run.result is None else "not observed", "muted", [promise])
    achieved = run.result["achieved"]["epsilon"]
    unamplified = run.result["achieved"].get("unamplified_epsilon")
    if run.plan.get("sampling") and unamplified is not None:
        promise += f"; {significant(unamplified)} if the cohorts are known"
    weaker = achieved is None or achieved > planned * (1 + 1e-9)
    return _compared(
        "no privacy" if achieved is None else significant(achieved),
        promise,
        "weaker than planned" * weaker,
    )


def _compared(text: str, planned: str, complaint: str) -> Cell:
    if complaint:
        return Cell(text, "alarm", [planned, complaint])
    return Cell(text, "number", [planned])


def runs_table(groups: Sequence[Group]) -> Table:
    """Where each run is and what its configuration has that others' have not."""
    runs = runs_of(groups)
    fields = differing([config_as_run(run) for run in runs])
    names = folder_names(runs)
    rows = [
        [
            Cell(names[id(run)], "strong", color=group.color),
            *[Cell(_config_value(run, field)) for field in fields],
            _time(run),
        ]
        for group in groups
        for run in group.runs
    ]
    caption = "The run folders, what differs between their configurations, and the time each took."
    return _table("runs", groups, caption, ["Run folder", *fields, "Time"], rows)


def _config_value(run: Run, field: str) -> str:
    """Returns a value of a run's configuration, of its decoder the name of the one that ran."""
    return show(decoder_of(run) if field == "decoder" else run.config.flat().get(field))


def _time(run: Run) -> Cell:
    if run.result is None:
        return Cell(unfinished(run))
    return Cell(duration(run.result["seconds"]), sort=run.result["seconds"])


def folder_names(runs: Sequence[Run]) -> dict[int, str]:
    """By id of a run: the last part of its path, or the last two where that would not
    tell runs apart.
    """
    unique = max(collections.Counter(run.path.name for run in runs).values()) == 1
    return {id(run): run.path.name if unique else "/".join(run.path.parts[-2:]) for run in runs}


def common_config(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Fields of the configuration that all runs share, with their values."""
    different = differing([config_as_run(run) for run in runs])
    same_family = "family" not in different
    names = [name for name in runs[0].config.flat() if name not in different]
    # Of several families no decoder is shared.
    return [
        (name, _config_value(runs[0], name)) for name in names if name != "decoder" or same_family
    ]


def versions(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Packages and the versions that the runs used; more than one where they differ."""
    used: dict[str, dict[str, None]] = {}
    for run in runs:
        for package, version in run.plan["versions"].items():
            used.setdefault(package, {})[str(version)] = None
    return [(package, ", ".join(numbers)) for package, numbers in used.items()]
