"""Grouping of runs that differ in their seed only, with the curves and notes of groups.

The labels, colours and line styles of the groups are in `fedmf.reports.labels`.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.noising_rows import NoisingRows
from fedmf.privacy.private_metrics import mean_over
from fedmf.privacy.statement import mechanism_digest
from fedmf.reports.drawn_noise import MAX_DRAWN_ROUNDS
from fedmf.reports.labels import (
    TUNED,
    LineStyle,
    config_as_run,
    group_labels,
    group_styles,
    mechanism_label,
)
from fedmf.reports.seeds import by_seed
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunGroup:
    """One or several runs of the same configuration, which differ in their seed only.

    Attributes:
      label: the mechanism in words, with the other differences from the other groups.
      mechanism: the mechanism in words.
      color, line: colour and line style in every plot.
      runs: of the group.
    """

    label: str
    mechanism: str
    color: str
    line: LineStyle
    runs: tuple[Run, ...]

    @property
    def private(self) -> bool:
        """Whether the runs are private, with a finite planned epsilon."""
        return self.runs[0].plan["epsilon"] is not None

    @property
    def config(self) -> TrainConfig:
        """Configuration of the group's first run, which differs from that of the other runs in the
        seed only.
        """
        return self.runs[0].config

    @property
    def plan(self) -> dict[str, Any]:
        """Plan of all runs of the group, as the first run stores it."""
        return self.runs[0].plan

    @property
    def mechanism_of_noise(self) -> Mechanism:
        """Mechanism of all runs of the group, which determines their noise."""
        return self.runs[0].mechanism


def group_runs(runs: Sequence[Run]) -> list[RunGroup]:
    """Groups runs that differ in their seed only.

    The groups are in the order of their first runs.
    """
    runs_by_config: dict[TrainConfig, list[Run]] = {}
    for run in runs:
        config_without_seed = dataclasses.replace(config_as_run(run), seed=0)
        runs_by_config.setdefault(config_without_seed, []).append(run)
    first_runs = [members[0] for members in runs_by_config.values()]
    label_by_group = group_labels(first_runs)
    style_by_group = group_styles([run.config.family for run in first_runs])
    run_groups = []
    for label, style, members in zip(
        label_by_group, style_by_group, runs_by_config.values(), strict=True
    ):
        run_groups.append(
            RunGroup(
                label=label,
                mechanism=mechanism_label(members[0]),
                color=style.color,
                line=style.line,
                runs=tuple(members),
            )
        )
    return run_groups


def runs_of(groups: Sequence[RunGroup]) -> list[Run]:
    """Returns the runs of all groups, in the order of the groups."""
    return list(itertools.chain.from_iterable(group.runs for group in groups))


def _group_by_noise(
    groups: Sequence[RunGroup], scale: Callable[[RunGroup], float]
) -> list[list[RunGroup]]:
    """Returns lists of groups of private runs that have the same noise matrix N and the same noise
    scale.
    """
    groups_by_noise: dict[tuple[Any, ...], list[RunGroup]] = {}
    for group in groups:
        if group.private:
            noise_key = (scale(group), *_noise_identity(group))
            groups_by_noise.setdefault(noise_key, []).append(group)
    return list(groups_by_noise.values())


def _noise_identity(group: RunGroup) -> tuple[Any, ...]:
    """Returns a key that is the same for groups with the same noise matrix N.

    It contains N itself or, for a long run, a digest of the mechanism.
    """
    mechanism = group.mechanism_of_noise
    if mechanism.rounds <= MAX_DRAWN_ROUNDS:
        N = mechanism.noising()
        return (N.shape, N.tobytes())
    return (mechanism_digest(mechanism),)


def distinct_mechanisms(groups: Sequence[RunGroup]) -> list[tuple[str, list[RunGroup]]]:
    """Returns lists of groups of private runs with the same noise matrix and sensitivity, each with
    a label.
    """
    same_noise_groups = _group_by_noise(groups, lambda group: group.plan["sensitivity"]["value"])
    mechanism_names = [same_noise[0].mechanism for same_noise in same_noise_groups]
    labelled_groups = []
    for same_noise in same_noise_groups:
        first_group = same_noise[0]
        num_others = len(same_noise) - 1
        is_simulation = not num_others and first_group.config.claimed_cohort is not None
        if mechanism_names.count(first_group.mechanism) == 1 and not is_simulation:
            # The name of the mechanism is a sufficient label, because its matrices do not depend on
            # epsilon.
            group_label = first_group.mechanism
        elif num_others:
            group_label = f"{first_group.label} and {num_others} more"
        else:
            group_label = first_group.label
        labelled_groups.append((group_label, same_noise))
    return labelled_groups


def distinct_noise(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Returns one group of private runs for each distinct noise on the cohort's average update.

    The labels name the differences between these groups alone.
    """
    same_noise_groups = _group_by_noise(
        groups, lambda group: group.plan["stddev"] / group.config.cohort_size
    )
    first_groups = [same_noise[0] for same_noise in same_noise_groups]
    if len(first_groups) == sum(group.private for group in groups):
        return first_groups
    tuned_values = {name: getattr(first_groups[0].config, name) for name in TUNED}
    reference_runs = []
    for group in first_groups:
        untuned_config = dataclasses.replace(group.config, **tuned_values)
        reference_runs.append(dataclasses.replace(group.runs[0], config=untuned_config))
    return group_runs(reference_runs)


class NoiseLevels(NamedTuple):
    """Standard deviations of the noise on the cohort's average update, for each round.

    Attributes:
      of_rounds: (rounds,), of each round.
      of_sums: (rounds,), of the sum up to each round.
    """

    of_rounds: np.ndarray
    of_sums: np.ndarray


def noise_levels(group: RunGroup) -> NoiseLevels:
    """Computes the standard deviation of the noise on the cohort's average update.

    In a simulation the plan's stddev has the factor simulated / claimed. Divided by the simulated
    cohort size it is therefore the noise on the average of the claimed cohort.
    """
    noise_scale = group.plan["stddev"] / group.config.cohort_size
    noise_rows = NoisingRows(group.mechanism_of_noise)
    return NoiseLevels(
        of_rounds=noise_scale * noise_rows.round_deviations(),
        of_sums=noise_scale * noise_rows.sum_deviations(),
    )


def curves_by_seed(group: RunGroup, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the curves of a metric for a group, as numbers of completed rounds, and values with
    the shape (seeds, rounds).

    Rounds in which a run has no value are left out.
    """
    values_by_round = [
        {row["round"] + 1: row[name] for row in run.metrics if row.get(name) is not None}
        for run in group.runs
    ]
    common_rounds = sorted(set.intersection(*map(set, values_by_round)))
    run_values = [[values[t] for t in common_rounds] for values in values_by_round]
    return np.array(common_rounds), _by_seed(group, np.array(run_values, dtype=np.float64))


def _by_seed(group: RunGroup, run_values: np.ndarray) -> np.ndarray:
    """Returns the means over the runs of each seed, given values for each run of a group."""
    run_seeds = np.array([run.config.seed for run in group.runs])
    return np.stack(
        [run_values[run_seeds == seed].mean(axis=0) for seed in dict.fromkeys(run_seeds.tolist())]
    )


def validation_curve(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Returns the curve of a run's headline metric on the validation data.

    It consists of numbers of completed rounds, and of values of the headline metric.
    """
    headline_metric = run.plan["task"]["headline_metric"]
    validation_rows = [row for row in run.metrics if headline_metric in row.get("validation", {})]
    completed_rounds = np.array([row["round"] + 1 for row in validation_rows], dtype=np.int64)
    return completed_rounds, np.array(
        [row["validation"][headline_metric] for row in validation_rows], dtype=np.float64
    )


class PrivateCurve(NamedTuple):
    """Curve of a private metric over rounds, with the noise of its points.

    Attributes:
      rounds: (points,), numbers of completed rounds.
      means: (points,), of the metric; NaN for rounds without a client.
      stds: (points,), standard deviations of the means by the noise; NaN if they are not known.
    """

    rounds: np.ndarray
    means: np.ndarray
    stds: np.ndarray


def private_curve(run: Run, name: str) -> PrivateCurve:
    """Returns the curve of a private metric, "accuracy" or "loss".

    Each point is a mean over a window of evaluate_every rounds.

    The mean is over the clients of all rounds of a window. Correlated noise cancels in the sum over
    its rounds.
    """
    private_rows = [row["private"] for row in run.metrics if "private" in row]
    largest_loss = run.config.largest_loss
    half_range = 0.5
    if name == "loss":
        half_range = largest_loss / 2
    window_rounds = run.config.evaluate_every
    window_starts = range(0, len(private_rows), window_rounds)
    window_ends = [min(start + window_rounds, len(private_rows)) for start in window_starts]
    noise_factors = _window_factors(run, private_rows, window_starts, window_ends)
    window_means = []
    window_stds = []
    for start, end, noise_factor in zip(window_starts, window_ends, noise_factors, strict=True):
        window_mean = mean_over(private_rows[start:end], name, largest_loss=largest_loss)
        round_std = private_rows[start]["stddev"]["clients"]
        window_std = math.nan
        if round_std is not None and not math.isnan(window_mean):
            num_clients = sum(row["clients"] for row in private_rows[start:end])
            client_std = round_std * noise_factor * half_range
            window_std = client_std * math.hypot(1, window_mean / half_range - 1) / num_clients
        window_means.append(window_mean)
        window_stds.append(window_std)
    return PrivateCurve(
        rounds=np.array(window_ends, np.int64),
        means=np.array(window_means),
        stds=np.array(window_stds),
    )


def _window_factors(
    run: Run, rows: list[dict[str, Any]], starts: Sequence[int], ends: Sequence[int]
) -> np.ndarray:
    """Returns for each window of rounds the ratio of two standard deviations of noise, in the
    window's sum and in its first round, as an array (windows,).
    """
    if not any(rows[start]["stddev"]["clients"] is not None for start in starts):
        return np.full(len(starts), np.nan)
    noise_rows = NoisingRows(run.mechanism)
    first_round_stds = noise_rows.round_deviations()[list(starts)]
    return noise_rows.window_deviations(starts, ends) / first_round_stds


def validation_curves(group: RunGroup) -> tuple[np.ndarray, np.ndarray]:
    """Returns the validation curves of a group in the rounds that all its runs validated.

    The values of the metric have the shape (seeds, rounds).
    """
    run_curves = [validation_curve(run) for run in group.runs]
    common_rounds = functools.reduce(np.intersect1d, [rounds for rounds, _ in run_curves])
    run_values = [values[np.isin(rounds, common_rounds)] for rounds, values in run_curves]
    return common_rounds, _by_seed(group, np.stack(run_values))


def final_metric(run: Run, split: str) -> float | None:
    """Returns the final headline metric of a run on a split of the data, or None if there is no
    value.

    For an unfinished run it is the latest validation.
    """
    headline_metric = run.plan["task"]["headline_metric"]
    if run.result is not None:
        final_value = run.result[split].get(headline_metric)
        return None if final_value is None else float(final_value)
    _, values = validation_curve(run)
    if split == "validation" and len(values):
        return float(values[-1])
    return None


def final_by_seed(runs: Sequence[Run], split: str) -> dict[int, float]:
    """Returns the final headline metric on a split of the data by seed, of finished runs that have
    it.
    """
    metric_by_run = [
        (run.config.seed, final_metric(run, split)) for run in runs if run.result is not None
    ]
    known_metrics = [(seed, value) for seed, value in metric_by_run if value is not None]
    return by_seed(known_metrics)


def final_mean(runs: Sequence[Run], split: str) -> float | None:
    """Returns the mean of `final_by_seed`, or of the latest validations if no run is finished.

    It is None if there is no value.
    """
    values = list(final_by_seed(runs, split).values())
    if not any(run.result is not None for run in runs):
        latest_values = (final_metric(run, split) for run in runs)
        values = [value for value in latest_values if value is not None]
    return sum(values) / len(values) if values else None


def has_diverged(run: Run) -> bool:
    """Returns whether a run's last validation loss is not finite.

    The headline metric does not show that: the largest of outputs that are NaN is the first class,
    and an accuracy is then the fraction of that class.
    """
    loss = run.result["validation"].get("loss", 0.0) if run.result else 0.0
    return not math.isfinite(loss)


def unfinished(run: Run) -> str:
    """Returns a text on the progress of an unfinished run, which is empty for a finished run."""
    if run.result is not None:
        return ""
    if not run.metrics:
        return "unfinished: no round is complete yet"
    return f"unfinished after round {run.metrics[-1]['round'] + 1} of {run.config.rounds}"


def ended(run: Run) -> str:
    """Returns a text that a run ended early because it had reached an epsilon, or an empty text if
    it did not.
    """
    if not run.ended_after:
        return ""
    return f"ended after {run.ended_after} of {run.config.rounds} rounds"


def simulation_note(runs: Sequence[Run]) -> str:
    """Returns a note for a table or plot that some runs simulate a larger cohort.

    It is empty if no run simulates a larger cohort.
    """
    simulated_cohorts = [
        (run.config.cohort_size, run.config.claimed_cohort)
        for run in runs
        if run.config.claimed_cohort is not None
    ]
    if not simulated_cohorts:
        return ""
    extent_text = ""
    if len(simulated_cohorts) < len(runs):
        extent_text = (
            f" in {len(simulated_cohorts)} of {len(runs)} runs, marked “simulates” in the tables"
        )
    cohort_texts = "; ".join(
        f"{cohort_size:,} clients a round were simulated to estimate a cohort of {claimed:,} "
        f"(noise scaled by {cohort_size:,}/{claimed:,})"
        for cohort_size, claimed in sorted(set(simulated_cohorts))
    )
    return (
        f"Simulation{extent_text}: {cohort_texts}. The epsilon shown is that of the claimed "
        "cohort; the models trained here do not have it."
    )
