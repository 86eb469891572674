"""What server optimizers reach at one epsilon: SGD with momentum, Adam on the noisy mean, and Adam
and others on scaled updates.

    python -m benchmarks.adaptive                                    the demo's task
    python -m benchmarks.adaptive --task regression --option decay=2
    python -m benchmarks.adaptive --way "clip_quantile=0.5 rates=0.4,0.8"    another way

Every way trains at each rate of a grid with each seed, all else equal: data, cohorts, initial
model, mechanism and epsilon. A row shows the mean over seeds at the best rate, its 95% interval
(Student's t over the seeds) and that of the difference from the first way, seed by seed; the
largest drift of the scales in the last run, and the means at all rates. The best rate is chosen by
the very runs that are shown.
"""

import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import click

from fedmf.intervals import student_interval

SGD = "server_optimizer=sgd"
# Rates of the server: of SGD, and of optimizers that divide by the second moment.
RATES, ADAPTIVE_RATES = (0.2, 0.4, 0.8, 1.6), (0.01, 0.03, 0.1, 0.3)
WAYS = (
    SGD,
    "server_optimizer=adam",
    "server_optimizer=scaled-adam",
    "server_optimizer=scaled-adam scale_every=16",
    "server_optimizer=scaled-adagrad",
    "server_optimizer=sgd clip_quantile=0.5",
)
REGRESSION = {
    "rounds": 128,
    "cohort_size": 20,
    "min_sep": 32,
    "client_learning_rate": 0.1,
    "server_momentum": 0.9,
}


def settings_of(task: str, options: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """Fields of `TrainConfig` that all runs share; the demo's corpus is written into the folder."""
    from fedmf.experiments import demo
    from fedmf.tasks.stackoverflow import write_synthetic_corpus

    if task == "regression":
        return REGRESSION | {
            "task": task,
            "task_options": {"clients": 640, "features": 100} | options,
        }
    corpus = folder / "corpus.sqlite"
    size: dict[str, Any] = {
        "sentences_per_client": demo.SENTENCES_PER_CLIENT,
        "vocabulary_size": demo.WORDS,
    }
    write_synthetic_corpus(corpus, clients=demo.CLIENTS, seed=0, **size)
    return demo.SETTINGS | {"task": "stackoverflow_nwp", "data": str(corpus)}


def pairs(text: str) -> dict[str, Any]:
    """The settings in `name=value name=value`, numbers as numbers."""

    def number(value: str) -> Any:
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
        return value

    return {
        name: number(value) for name, _, value in (pair.partition("=") for pair in text.split())
    }


def interval(values: Sequence[float]) -> str:
    """The mean and the 95% interval of normal values."""
    if len(values) == 1:
        return f"{values[0]:+.4f}"
    mean, low, high = student_interval(values)
    return f"{mean:+.4f} ({low:+.4f} to {high:+.4f})"


@click.command()
@click.option("--task", type=click.Choice(["demo", "regression"]), default="demo")
@click.option("--option", "options", multiple=True, help="Of the task, as NAME=VALUE.")
@click.option(
    "--way",
    "ways",
    multiple=True,
    default=WAYS,
    help="Settings that are compared, in place of the default ones.",
)
@click.option("--rates", default="", help="Server rates in place of the grid, with commas.")
@click.option(
    "--claimed-cohort",
    type=int,
    help="Clients a round that the runs stand for, with as much less noise.",
)
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    default=(0, 1, 2),
    help="A run at each rate for each.",
)
@click.option("--epsilon", default=8.0)
def main(
    task: str,
    options: tuple[str, ...],
    ways: tuple[str, ...],
    rates: str,
    seeds: tuple[int, ...],
    **more: Any,
) -> None:
    """Prints a row a way."""
    import fedmf
    from fedmf import federated, tasks

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        shared = settings_of(task, pairs(" ".join(options)), folder)
        shared |= {
            "family": "banded",
            "evaluate_every": shared["rounds"],
        } | more
        mechanism = fedmf.TrainConfig(**shared).fit()
        mechanism.save(folder / "mechanism.npz")
        runs = 0
        first: list[float] = []
        for way in ways:
            own = pairs(way)
            usual = RATES if own.get("server_optimizer", "sgd") == "sgd" else ADAPTIVE_RATES
            given = str(own.pop("rates", rates))
            grid = [float(rate) for rate in given.split(",")] if given else usual
            reached = {}
            for rate in grid:
                values = []
                for seed in seeds:
                    config = fedmf.TrainConfig(
                        **{**shared, **own, "server_learning_rate": rate, "seed": seed}
                    )
                    config = tasks.completed(config)
                    plan = config.plan(mechanism)
                    made = tasks.task_from_config(config, progress=False)
                    runs += 1
                    run = federated.train(
                        made,
                        config,
                        folder=folder / str(runs),
                        noise_seed=1000 * seed + 7,
                        plan=plan,
                        progress=False,
                    )
                    assert run.result is not None
                    values.append(run.result["test"][made.headline])
                reached[rate] = values
            lower = task == "regression"
            best = min(reached, key=lambda rate: sum(reached[rate]) * (1 if lower else -1))
            means = "  ".join(f"{rate:g}: {sum(v) / len(v):.4f}" for rate, v in reached.items())
            drift = max(run.table().get("scale_drift", [0.0]))
            first = first or reached[best]
            differences = interval(
                [value - other for value, other in zip(reached[best], first, strict=True)]
            )
            click.echo(
                f"{way:<56} {interval(reached[best])}  difference {differences}  "
                f"drift {drift:.2f}  {means}"
            )


if __name__ == "__main__":
    main()
