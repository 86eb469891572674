"""Successive halving, where the worse half of the settings stops at fixed rounds (Jamieson and
Talwalkar 2016, in one bracket).

A setting is judged by its loss, because an accuracy is mostly noise after a quarter of the rounds.
In a test with four learning rates, accuracy stopped the best one and let a diverging run continue.
"""

import dataclasses
import math
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedmf.reports.groups import private_curve, validation_curve
from fedmf.reports.labels import TUNED, differing_fields, format_value
from fedmf.reports.text import metric_name
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run
from fedmf.runs.notes import smaller_is_better
from fedmf.sweeps.runs import run_folder

# Settings are compared after these fractions of a run's rounds.
_SHARES = (0.25, 0.5)
_LOSSES = ("private loss", "validation loss")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Setting:
    """The runs of one setting, one for each seed, with their results after the rounds at which
    settings are compared.

    Attributes:
      runs: names.
      score: mean over the runs of what is minimised; NaN where it is not finite in a run.
      first_loss: the mean of the loss at the first validation; NaN where it is not known.
      measure: what the score is, in words.
      validated: whether any run has a validation at the rung.
    """

    runs: Sequence[str]
    score: float
    first_loss: float
    measure: str
    validated: bool

    @property
    def may_go_on(self) -> bool:
        """Whether the setting may continue, because it has a finite score and its loss has not
        risen above its first loss.
        """
        return math.isfinite(self.score) and not self.score > self.first_loss


def rungs(config: TrainConfig) -> list[int]:
    """Returns the rounds after which settings are compared.

    Each is after a validation and before the last round.

    >>> rungs(TrainConfig(rounds=100, min_sep=10, epsilon=8.0, evaluate_every=20))
    [40, 60]
    """
    validation_interval = config.evaluate_every
    all_rungs = {
        math.ceil(share * config.rounds / validation_interval) * validation_interval
        for share in _SHARES
    }
    return sorted(rung for rung in all_rungs if rung < config.rounds)


def expected_rounds(configs: Mapping[str, TrainConfig], after: int = 0) -> int:
    """Returns the total number of rounds that successive halving will train.

    Args:
      configs: the runs that are trained.
      after: the rung at which settings were last compared; 0 before the first.
    """
    total_rounds = 0
    for _, settings in _settings(configs):
        config = configs[settings[0][0]]
        runs_of_settings = [len(runs) for runs in settings]
        previous_end = 0
        for end in (*(rung for rung in rungs(config) if rung > after), config.rounds):
            total_rounds += sum(runs_of_settings) * (end - previous_end)
            previous_end = end
            # The better half of the settings is not known yet. The first half costs about as much,
            # since most settings have the same number of seeds.
            runs_of_settings = runs_of_settings[: _half(runs_of_settings)]
    return total_rounds


def runs_going_on(out: pathlib.Path, configs: Mapping[str, TrainConfig], rung: int) -> list[str]:
    """Returns the names of the runs that continue to train after `rung` rounds.

    Of each group of compared runs, the better half of the settings of the tuned fields continues,
    rounded up.

    A setting is judged by a loss, averaged over its seeds. It is the private loss if the runs have
    one, else the loss on the validation set after that round, and without a loss the headline
    metric. A setting stops if its loss is above that of its first validation, or not finite. If all
    settings would stop, the one with the lowest loss continues, with a warning.

    Args:
      out: the sweep's folder.
      configs: the runs, by name; those that are not compared at this rung continue.
      rung: number of rounds that they have done, unless they failed.
    """
    compared_configs = {name: config for name, config in configs.items() if rung in rungs(config)}
    continuing_names = set(configs) - set(compared_configs)
    for values, settings in _settings(compared_configs):
        standings = [_standing(out, runs, rung) for runs in settings]
        # NaN cannot be sorted, so a setting without a finite score is put last.
        ordered_standings = sorted(
            standings, key=lambda s: s.score if math.isfinite(s.score) else math.inf
        )
        best_settings = [setting for setting in ordered_standings if setting.may_go_on][
            : _half(ordered_standings)
        ]
        if not best_settings:
            best_settings = ordered_standings[:1]
            _warn_that_all_rose(best_settings[0], values, rung)
        continuing_names.update(name for setting in best_settings for name in setting.runs)
    return [name for name in configs if name in continuing_names]


def _half(settings: Sequence[object]) -> int:
    """Returns the number of settings that continue, half of all, rounded up."""
    return -(-len(settings) // 2)


def _settings(
    configs: Mapping[str, TrainConfig],
) -> Iterator[tuple[str, list[list[str]]]]:
    """Yields the description of each group of compared runs, and the names of the runs of each
    setting in it.
    """
    differing_names = [
        name for name in differing_fields(list(configs.values())) if name not in ("data", "seed")
    ]
    compared_names = [name for name in differing_names if name not in TUNED]
    tuned_names = [name for name in differing_names if name in TUNED]
    groups: dict[tuple[object, ...], dict[tuple[object, ...], list[str]]] = {}
    for name, config in configs.items():
        config_values = config.flat()
        settings = groups.setdefault(tuple(map(config_values.get, compared_names)), {})
        settings.setdefault(tuple(map(config_values.get, tuned_names)), []).append(name)
    for values_of_group, settings in groups.items():
        name_values = zip(compared_names, values_of_group, strict=True)
        group_description = ", ".join(
            f"{name}={format_value(value)}" for name, value in name_values
        )
        yield group_description, list(settings.values())


def _standing(out: pathlib.Path, names: Sequence[str], rung: int) -> _Setting:
    """Returns a setting with the results of its runs at the round `rung`, where settings are
    compared.
    """
    scores: list[float] = []
    first_losses: list[float] = []
    is_validated = False
    loss_name = _LOSSES[1]
    for name in names:
        by_round: dict[int, float] = {}
        loaded_run = _run(out, name)
        if loaded_run is not None:
            by_round, loss_name = _curve(loaded_run)
        is_validated = is_validated or rung in by_round
        scores.append(by_round.get(rung, math.nan))
        first_loss = math.nan
        if loss_name in _LOSSES and by_round:
            first_loss = by_round[min(by_round)]
        first_losses.append(first_loss)
    return _Setting(
        runs=names,
        score=float(np.mean(scores)) if np.isfinite(scores).all() else math.nan,
        first_loss=float(np.mean(first_losses)),
        measure=loss_name,
        validated=is_validated,
    )


def _run(out: pathlib.Path, name: str) -> Run | None:
    """Reads a run of the sweep, or returns None if the run has not begun."""
    folder_of_run = run_folder(out, name)
    return Run.load(folder_of_run) if (folder_of_run / "config.json").exists() else None


def _curve(run: Run) -> tuple[dict[int, float], str]:
    """Returns the score of a run after each validated round, where smaller is better, and the name
    of the score.
    """
    if run.config.private_metrics:
        rounds, losses, _ = private_curve(run, "loss")
        return dict(zip(rounds.tolist(), losses.tolist(), strict=True)), _LOSSES[0]
    metrics_by_round = {
        row["round"] + 1: row["validation"] for row in run.metrics if "validation" in row
    }
    if all("loss" in metrics for metrics in metrics_by_round.values()):
        # JSON may store a loss that is NaN as null.
        loss_by_round = {end: metrics["loss"] for end, metrics in metrics_by_round.items()}
        return {end: math.nan if x is None else x for end, x in loss_by_round.items()}, _LOSSES[1]
    headline_metric = run.plan["task"]["headline_metric"]
    rounds, values_there = validation_curve(run)
    score_sign = 1 if smaller_is_better(headline_metric) else -1
    score_by_round = dict(zip(rounds.tolist(), (score_sign * values_there).tolist(), strict=True))
    return score_by_round, f"validation {metric_name(headline_metric)}"


def _warn_that_all_rose(best: _Setting, values: str, rung: int) -> None:
    """Warns that the loss of every setting has risen, so that no setting learns. It does not warn
    if no run was validated because all have failed.
    """
    if not best.validated:
        return
    values_phrase = f" with {values}" if values else ""
    warnings.warn(
        f"after {rung} rounds the {best.measure} of every setting{values_phrase} is above that of "
        f"its first validation, or not finite: {best.runs[0]} continues alone, with "
        f"{best.score:.4g}; try smaller learning rates",
        stacklevel=3,
    )


def uncovered_note(runs: Sequence[Run], subject: str) -> str:
    """Returns a sentence saying that settings were chosen by validation metrics, which are not
    private.

    The sentence is empty where the guarantee covers the metrics that settings were chosen by.
    """
    private_runs = [run for run in runs if run.plan["epsilon"] is not None]
    if all(run.config.private_metrics for run in private_runs):
        return ""
    return (
        f" {subject} went by validations, which the guarantee does not cover; it would cover "
        "private metrics."
    )
