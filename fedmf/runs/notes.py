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
    return " ".join(sentences)


def smaller_is_better(metric: str) -> bool:
    """Returns whether the metric is an error by its name.

    >>> [smaller_is_better(name) for name in ("mean_squared_error", "perplexity", "accuracy")]
    [True, True, False]
    """
    return any(word in metric for word in ("error", "loss", "perplexity"))
