"""Tables of a report, whose cells are texts that the template converts to HTML."""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence

from fedmf.participation.schema import Participation
from fedmf.privacy.rounding import down, up
from fedmf.reports.groups import (
    RunGroup,
    ended,
    final_by_seed,
    final_mean,
    final_metric,
    runs_of,
    simulation_note,
    unfinished,
)
from fedmf.reports.labels import config_as_run, decoder_of, differing_fields, format_value
from fedmf.reports.seeds import COVERAGE, LEVEL, interval_in_words, tiers
from fedmf.reports.text import (
    duration,
    join,
    metric_name,
    metric_value,
    plain,
    plural,
    significant,
)
from fedmf.runs.folder import Run


@dataclasses.dataclass(frozen=True)
class Cell:
    """Cell of a table in a report, with its text and its appearance.

    Attributes:
      text: of the cell.
      kind: "", "number" (aligned right), "strong", "muted" or "alarm".
      details: smaller lines below the text.
      color: of a mark before the text; empty for none.
      sort: number by which the page sorts rows, if it is not the first number in the text.
    """

    text: str
    kind: str = ""
    details: Sequence[str] = ()
    color: str = ""
    sort: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Table of a report, with its caption, headings and rows.

    Attributes:
      name: anchor in the page.
      caption: text above the table.
      note: simulation note of the runs in it.
      columns: headings of the columns.
      rows: cells; the first of a row is the row's heading.
    """

    name: str
    caption: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


_NO_PRIVACY = Cell("no privacy", "alarm")
_NO_VALUE = Cell("–", "muted")


def table(
    name: str, groups: Sequence[RunGroup], caption: str, columns: list[str], rows: list[list[Cell]]
) -> Table:
    """Returns a table, with a note if runs of the groups simulate a larger cohort."""
    cohort_note = simulation_note(runs_of(groups))
    return Table(name=name, caption=caption, note=cohort_note, columns=columns, rows=rows)


def accuracy_table(groups: Sequence[RunGroup]) -> Table:
    """Returns the table of results, with the planned privacy, the error and the final metric of
    each group of runs.
    """
    headline_metric = metric_name(groups[0].plan["task"]["headline_metric"])
    deltas = {group.plan["delta"] for group in groups if group.private}
    error_name = "on the workload"
    if {group.plan["workload"] for group in groups} == {"prefix_sum"}:
        error_name = "of prefix sums"
    column_names = [
        "Mechanism",
        "ε planned",
        "ρ (zCDP)",
        "Noise multiplier",
        "Sensitivity",
        f"RMSE {error_name}",
        f"Validation {headline_metric}",
        f"Test {headline_metric}",
    ]
    table_rows = []
    validation_cells = _metric_cells(groups, "validation")
    test_cells = _metric_cells(groups, "test")
    for group, validation_cell, test_cell in zip(groups, validation_cells, test_cells, strict=True):
        table_rows.append(
            [
                Cell(group.label, "strong", _unfinished_details(group), group.color),
                *_privacy_cells(group, with_delta=len(deltas) > 1),
                validation_cell,
                test_cell,
            ]
        )
    return table(
        "results",
        groups,
        _accuracy_caption(groups, headline_metric, deltas),
        column_names,
        table_rows,
    )


def _accuracy_caption(groups: Sequence[RunGroup], metric: str, deltas: set[float]) -> str:
    """Returns the caption of the table of results."""
    runs = runs_of(groups)
    delta_in_words = ""
    if len(deltas) == 1:
        delta_in_words = f" (ε at δ = {plain(min(deltas))})"
    caption = (
        f"Final {metric}, the privacy planned for it{delta_in_words}, and the error of each "
        "mechanism. RMSE is the root mean squared error over the rounds, sensitivity included, at "
        "noise multiplier 1 and clip norm 1."
    )
    if len(runs) > len(groups):
        caption += (
            f" {metric.capitalize()} is the mean over seeds, with its {LEVEL} interval and each "
            f"seed below it. {COVERAGE} A click on its heading orders only what intervals of "
            "differences, paired by seed, tell apart."
        )
    if any(map(_amplified, groups)):
        caption += (
            " An amplified ε rests on the sampling, and on nobody knowing who was drawn; ρ is not "
            "amplified, and is that of one who knows."
        )
    if any(map(unfinished, runs)):
        caption += (
            f" The {metric} of a row is that of its finished runs, or the latest validation if "
            "none is finished; the privacy is that of the whole planned run."
        )
    return caption + _adaptive_servers(groups)


def _unfinished_details(group: RunGroup) -> list[str]:
    """Returns a line on the progress of each unfinished run of a group.

    If the group has several runs, a line names the seed.
    """
    run_details = []
    for run in group.runs:
        progress_text = unfinished(run)
        if progress_text and len(group.runs) > 1:
            progress_text = f"seed {run.config.seed}: {progress_text}"
        if progress_text:
            run_details.append(progress_text)
    return run_details


def _adaptive_servers(groups: Sequence[RunGroup]) -> str:
    """Returns a note on private runs whose server uses an adaptive optimizer such as Adam.

    It is empty if there are no such runs.
    """
    optimizers = [group.config.server_optimizer for group in groups if group.private]
    adaptive_names = [name for name in dict.fromkeys(optimizers) if name != "sgd"]
    if not adaptive_names:
        return ""
    subject_word = "The" if len(set(optimizers)) == len(adaptive_names) else "Some of the"
    optimizer_names = join([name.capitalize() for name in adaptive_names])
    return (
        f" {subject_word} servers optimise with {optimizer_names}: the privacy "
        "is the same, but the mechanism was optimised for prefix sums, that is for a server that "
        "adds up the updates, and its noise is not the best possible for this one."
    )


def _privacy_cells(group: RunGroup, *, with_delta: bool) -> list[Cell]:
    """Returns the table cells for a group's planned privacy, noise, sensitivity and error."""
    group_plan = group.plan
    if not group.private:
        return [_NO_PRIVACY, _NO_VALUE, _NO_VALUE, _NO_VALUE, _NO_VALUE]
    epsilon_details = []
    rho_details = []
    if with_delta:
        epsilon_details.append(f"δ = {plain(group_plan['delta'])}")
    if _amplified(group):
        epsilon_details.append("amplified by sampling")
        rho_details.append("not amplified")
    if group.config.claimed_cohort is not None:
        epsilon_details.append("of the claimed cohort")
    rho_text = up(group_plan["rho"])
    if group.config.mean_trials is not None:
        epsilon_details.append("of the choice of the best trial too")
        rho_text = "not stated"
    sensitivity = group_plan["sensitivity"]
    exactness = "exact" if sensitivity["exact"] else "upper bound"
    return [
        Cell(up(group_plan["epsilon"]), "number", epsilon_details),
        Cell(rho_text, "number", rho_details),
        Cell(down(group_plan["noise_multiplier"]), "number"),
        Cell(up(sensitivity["value"], 6), "number", [exactness]),
        Cell(significant(group_plan["rmse"], 4), "number"),
    ]


def _amplified(group: RunGroup) -> bool:
    """Returns whether the planned epsilon relies on privacy amplification by sampling.

    It is then smaller than the epsilon for an attacker who knows the cohorts.
    """
    sampling = group.plan.get("sampling")
    planned_epsilon = group.plan["epsilon"]
    if not sampling or planned_epsilon is None:
        return False
    unamplified_epsilon = sampling["unamplified_epsilon"]
    return unamplified_epsilon is None or planned_epsilon < unamplified_epsilon


def _metric_cells(groups: Sequence[RunGroup], split: str) -> list[Cell]:
    """Returns a table cell for the final metric of each group, with its mean, its interval and its
    value for each run.

    The page sorts the cells by tiers, so that it orders nothing that no interval tells apart.
    """
    group_values = [final_by_seed(group.runs, split) for group in groups]
    return [
        _metric_cell(group, split, values, tier)
        for group, values, tier in zip(groups, group_values, tiers(group_values), strict=True)
    ]


def _metric_cell(
    group: RunGroup, split: str, values: Mapping[int, float], tier: int | None
) -> Cell:
    """Returns the table cell for a group's final metric, given its values by seed and its tier."""
    headline_metric = group.plan["task"]["headline_metric"]
    mean_value = final_mean(group.runs, split)
    if mean_value is None:
        return _NO_VALUE
    cell_details = []
    if values:
        cell_details.append(interval_in_words(headline_metric, values))
    if len(group.runs) > 1:
        for run in group.runs:
            value_text = metric_value(headline_metric, final_metric(run, split))
            cell_details.append(f"seed {run.config.seed}: {value_text}")
    return Cell(
        metric_value(headline_metric, mean_value),
        "number",
        cell_details,
        sort=math.inf if tier is None else tier,
    )


def participation_table(groups: Sequence[RunGroup]) -> Table:
    """Returns the table of planned and observed participation, with the achieved guarantee."""
    table_rows = []
    for group in groups:
        # Runs with the same participation statistics share one row of the table.
        runs_by_cells: dict[str, list[Run]] = {}
        for run in group.runs:
            runs_by_cells.setdefault(repr(_participation_cells(run)), []).append(run)
        for runs in runs_by_cells.values():
            row_details = []
            if len(group.runs) > 1:
                seeds_text = join([str(run.config.seed) for run in runs])
                row_details.append(f"{plural('seed', len(runs))} {seeds_text}")
            row_details += dict.fromkeys(filter(None, map(unfinished, runs)))
            row_details += dict.fromkeys(filter(None, map(ended, runs)))
            heading = Cell(group.label, "strong", row_details, group.color)
            table_rows.append([heading, *_participation_cells(runs[0])])
    comparison_text = "it is never above the planned ε while the controller is obeyed."
    if any(map(_amplified, groups)):
        comparison_text = (
            f"without amplification {comparison_text} Of a run amplified by sampling it rests on "
            "the sampling that was planned; the ε for known cohorts is not amplified, and can be "
            "above the planned one."
        )
    caption = (
        "Participation as the ledger of each run shows it, with what was planned below. The "
        "achieved ε accounts the same noise with the participation that was observed; "
        f"{comparison_text} Short rounds had fewer clients than the cohort size."
    )
    column_names = [
        "Run",
        "Smallest separation",
        "Most participations",
        "Clients seen",
        "Short rounds",
        "ε achieved",
    ]
    return table("participation", groups, caption, column_names, table_rows)


def _participation_cells(run: Run) -> list[Cell]:
    """Returns the table cells for a run's participation and achieved guarantee."""
    planned_participation = run.plan["participation"]
    planned_separation, planned_times = Participation.from_limits(
        planned_participation
    ).describe_planned_limits()
    if run.result is None:
        return [
            Cell("–", "muted", [planned_separation]),
            Cell("–", "muted", [planned_times]),
            _NO_VALUE,
            _NO_VALUE,
            _achieved_cell(run),
        ]
    observed_participation = run.result["participation"]
    min_separation = observed_participation["min_separation"]
    separation_text = "no client twice"
    separation_complaint = ""
    if min_separation is not None:
        separation_text = f"{min_separation:,}"
        if min_separation < planned_participation["min_sep"]:
            separation_complaint = "less than planned"
    max_participations = observed_participation["max_participations"]
    times_complaint = ""
    if max_participations > planned_participation["max_participations"]:
        times_complaint = "more than planned"
    return [
        _compared_cell(separation_text, planned_separation, separation_complaint),
        _compared_cell(f"{max_participations:,}", planned_times, times_complaint),
        Cell(
            f"{observed_participation['clients']:,}",
            "number",
            [f"of {observed_participation['population']:,}"],
        ),
        Cell(
            f"{observed_participation['short_rounds']:,}",
            "number",
            [f"of {observed_participation['rounds']:,}"],
        ),
        _achieved_cell(run),
    ]


def _achieved_cell(run: Run) -> Cell:
    """Returns the table cell for a run's achieved epsilon, with the planned epsilon below it."""
    planned_epsilon = run.plan["epsilon"]
    if planned_epsilon is None:
        return _NO_PRIVACY
    planned_in_words = f"planned {up(planned_epsilon)}"
    is_simulation = run.config.claimed_cohort is not None
    if is_simulation:
        planned_in_words += ", of the claimed cohort"
    if run.result is None:
        return Cell("–", "muted", [planned_in_words])
    if is_simulation:
        return Cell("not observed", "muted", [planned_in_words])
    achieved_epsilon = run.result["achieved"]["epsilon"]
    unamplified_value = run.result["achieved"].get("unamplified_epsilon")
    if run.plan.get("sampling") and unamplified_value is not None:
        planned_in_words += f"; {up(unamplified_value)} if the cohorts are known"
    complaint_text = ""
    if achieved_epsilon is None or achieved_epsilon > planned_epsilon * (1 + 1e-9):
        complaint_text = "weaker than planned"
    achieved_text = "no privacy" if achieved_epsilon is None else up(achieved_epsilon)
    return _compared_cell(achieved_text, planned_in_words, complaint_text)


def _compared_cell(text: str, planned: str, complaint: str) -> Cell:
    """Returns a table cell with an observed value and the planned value below it.

    A complaint is added, and makes the cell stand out as an alarm.
    """
    if complaint:
        return Cell(text, "alarm", [planned, complaint])
    return Cell(text, "number", [planned])


def runs_table(groups: Sequence[RunGroup]) -> Table:
    """Returns the table of run folders, with the config fields in which the runs differ."""
    all_runs = runs_of(groups)
    differing_names = differing_fields([config_as_run(run) for run in all_runs])
    folder_by_run = folder_names(all_runs)
    table_rows = []
    for group in groups:
        for run in group.runs:
            heading = Cell(folder_by_run[id(run)], "strong", color=group.color)
            setting_cells = [Cell(_config_value(run, field)) for field in differing_names]
            table_rows.append([heading, *setting_cells, _time_cell(run)])
    caption = "The run folders, what differs between their configurations, and the time each took."
    return table("runs", groups, caption, ["Run folder", *differing_names, "Time"], table_rows)


def _config_value(run: Run, field: str) -> str:
    """Formats the value of a config field, where the decoder is that of the run's mechanism."""
    if field == "decoder":
        return format_value(decoder_of(run))
    return format_value(run.config.flat().get(field))


def _time_cell(run: Run) -> Cell:
    """Returns the table cell for a run's duration, or for its progress if it is unfinished."""
    if run.result is None:
        return Cell(unfinished(run))
    seconds = run.result.get("seconds")
    if seconds is None:
        return _NO_VALUE  # A private selection tells no durations.
    return Cell(duration(seconds), sort=seconds)


def folder_names(runs: Sequence[Run]) -> dict[int, str]:
    """Returns the name of each run's folder, by the id() of the run.

    If names are not unique, they include the parent folder.
    """
    is_unique = max(collections.Counter(run.path.name for run in runs).values()) == 1
    if is_unique:
        return {id(run): run.path.name for run in runs}
    return {id(run): "/".join(run.path.parts[-2:]) for run in runs}


def common_config(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Returns the names and values of the config fields that are equal in all runs."""
    excluded_names = set(differing_fields([config_as_run(run) for run in runs]))
    if "family" in excluded_names:
        # Runs with mechanisms of different families have no decoder in common.
        excluded_names.add("decoder")
    equal_names = [name for name in runs[0].config.flat() if name not in excluded_names]
    return [(name, _config_value(runs[0], name)) for name in equal_names]


def package_versions(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Returns the names of packages, each with all versions that the runs used."""
    versions_by_package: dict[str, dict[str, None]] = {}
    for run in runs:
        for package, version in run.plan["versions"].items():
            versions_by_package.setdefault(package, {})[str(version)] = None
    return [(package, ", ".join(versions)) for package, versions in versions_by_package.items()]
