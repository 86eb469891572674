"""Notes that explain the figures of runs, and are printed wherever the figures are."""

import collections
import dataclasses
from collections.abc import Sequence

from fedmf.privacy.rounding import up
from fedmf.privacy.trial_count import POISSON
from fedmf.runs.folder import Run


def figures_note(runs: Sequence[Run]) -> str:
    """Returns sentences that explain figures of runs, with a note on the headline metric, the
    number of seeds, and runs that several programs computed.

    Args:
      runs: runs of the same task, at least one.
    """
    task_record = runs[0].plan["task"]
    headline_metric = task_record["headline_metric"].replace("_", " ")
    sentences = []
    if task_record.get("metric_note"):
        sentences.append(
            f"{headline_metric[0].upper()}{headline_metric[1:]} {task_record['metric_note']}."
        )
    sentences += [note for note in map(selection_note, runs) if note]
    configs_without_seed = [
        dataclasses.replace(config, seed=0) for config in {run.config for run in runs}
    ]
    numbers_of_seeds = set(collections.Counter(configs_without_seed).values())
    if numbers_of_seeds == {1}:
        sentences.append("Figures are of one seed: they have no interval and are not ranked.")
    elif 1 in numbers_of_seeds:
        sentences.append("Some figures are of one seed: these have no interval and are not ranked.")
    for run in runs:
        programs_text = programs_phrase(run.plan.get("programs", ()), run.config.rounds)
        if programs_text:
            sentences.append(f"Of run {run.path.name}, {programs_text}.")
    return " ".join(sentences)


def selection_note(run: Run) -> str:
    """Returns a sentence on the guarantee of a run that a private selection chose; empty for other
    runs.
    """
    trials = run.config.selection()
    if trials is None:
        return ""
    shape_text = "" if trials.distribution == POISSON else f" of shape {trials.shape:g}"
    epsilon = run.plan["epsilon"]
    epsilon_text = "infinite" if epsilon is None else up(epsilon)
    return (
        f"Epsilon {epsilon_text} at delta {run.plan['delta']:g} is that of private selection: run "
        f"{run.path.name} is the best one of a random number of trials ({trials.distribution}"
        f"{shape_text}, mean {trials.mean_trials:g})."
    )


def programs_phrase(first_rounds: Sequence[int], rounds: int) -> str:
    """Returns a phrase on the rounds that different programs computed; empty if one program
    computed all rounds.

    Args:
      first_rounds: first round of each program, from plan.json.
      rounds: number of rounds of the run.

    >>> programs_phrase([0, 100], 200)
    'rounds 0-99 and 100-199 were computed by different programs'
    """
    if len(first_rounds) < 2:
        return ""
    end_rounds = [*first_rounds[1:], rounds]
    round_spans = [
        f"{first}-{end - 1}" for first, end in zip(first_rounds, end_rounds, strict=True)
    ]
    earlier_spans = ", ".join(round_spans[:-1])
    return f"rounds {earlier_spans} and {round_spans[-1]} were computed by different programs"


def smaller_is_better(metric: str) -> bool:
    """Returns whether smaller values of a metric are better, by the metric's name.

    >>> [smaller_is_better(name) for name in ("mean_squared_error", "perplexity", "accuracy")]
    [True, True, False]
    """
    return any(word in metric for word in ("error", "loss", "perplexity"))
