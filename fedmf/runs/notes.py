"""What readers of a run's figures must know, wherever they are printed."""

import collections
import dataclasses
from collections.abc import Sequence

from fedmf.runs.folder import Run


def figures_note(runs: Sequence[Run]) -> str:
    """Sentences on the headline metric of runs of one task, at least one: what it leaves out, and
    how many seeds it is of.
    """
    task = runs[0].plan["task"]
    note, metric = task.get("metric_note"), task["headline_metric"].replace("_", " ")
    sentences = [f"{metric[0].upper()}{metric[1:]} {note}."] if note else []
    seeds = set(
        collections.Counter(dataclasses.replace(run.config, seed=0) for run in runs).values()
    )
    if 1 in seeds:
        sentences.append(f"{'Figures' if seeds == {1} else 'Some figures'} are of one seed.")
    for run in runs:
        phrase = programs_phrase(run.plan.get("programs", ()), run.config.rounds)
        if phrase:
            sentences.append(f"Of run {run.path.name}, {phrase}.")
    return " ".join(sentences)


def programs_phrase(first_rounds: Sequence[int], rounds: int) -> str:
    """Returns which rounds of a run were computed by different programs; empty where one program
    computed all.

    Args:
      first_rounds: of each program, as plan.json has them.
      rounds: of the run.

    >>> programs_phrase([0, 100], 200)
    'rounds 0-99 and 100-199 were computed by different programs'
    """
    if len(first_rounds) < 2:
        return ""
    ends = [*first_rounds[1:], rounds]
    spans = [f"{first}-{end - 1}" for first, end in zip(first_rounds, ends, strict=True)]
    return f"rounds {', '.join(spans[:-1])} and {spans[-1]} were computed by different programs"


def smaller_is_better(metric: str) -> bool:
    """Returns whether the metric is an error by its name.

    >>> [smaller_is_better(name) for name in ("mean_squared_error", "perplexity", "accuracy")]
    [True, True, False]
    """
    return any(word in metric for word in ("error", "loss", "perplexity"))
