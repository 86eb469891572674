"""What server optimizers reach at one epsilon: SGD with momentum, Adam on the noisy mean, and Adam and others on scaled updates.

    python -m benchmarks.adaptive                                    the demo's task
    python -m benchmarks.adaptive --task regression --option decay=2
    python -m benchmarks.adaptive --way "clip_quantile=0.5"          another way beside SGD

Every way trains at each rate of a grid with each seed, all else equal: data, cohorts, initial model, mechanism and epsilon. A row shows the
mean over seeds at the best rate, the range of the seeds, the largest drift of the scales in the last run, and the means at all rates.
"""

import pathlib
import tempfile
from typing import Any

import click

# Settings of a way -> server rates, about a factor of two apart.
WAYS: dict[str, tuple[float, ...]] = {
    "server_optimizer=sgd": (0.1, 0.2, 0.4, 0.8, 1.6),
    "server_optimizer=adam": (0.01, 0.02, 0.05, 0.1, 0.2),
    "server_optimizer=scaled-adam": (0.01, 0.02, 0.05, 0.1, 0.2),
    "server_optimizer=scaled-adam scale_every=16": (0.01, 0.02, 0.05, 0.1, 0.2),
    "server_optimizer=scaled-yogi": (0.01, 0.02, 0.05, 0.1, 0.2),
    "server_optimizer=scaled-adagrad": (0.02, 0.05, 0.1, 0.2, 0.4),
}
REGRESSION = {"rounds": 128, "cohort_size": 20, "min_sep": 32, "client_learning_rate": 0.1, "server_momentum": 0.9}


def settings_of(task: str, options: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """Fields of `TrainConfig` that all runs share; the demo's corpus is written into the folder."""
    from fedmf.experiments import demo
    from fedmf.tasks.stackoverflow import write_synthetic_corpus

    if task == "regression":
        return REGRESSION | {"task": task, "task_options": {"clients": 640, "features": 100} | options}
    corpus = folder / "corpus.sqlite"
    size: dict[str, Any] = {"sentences_per_client": demo.SENTENCES_PER_CLIENT, "vocabulary_size": demo.WORDS}
    write_synthetic_corpus(corpus, clients=demo.CLIENTS, seed=0, **size)
    return demo.SETTINGS | {"task": "stackoverflow", "data": str(corpus)}


def pairs(text: str) -> dict[str, Any]:
    """The settings in `name=value name=value`, numbers as numbers."""

    def number(value: str) -> Any:
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
        return value

    return {name: number(value) for name, _, value in (pair.partition("=") for pair in text.split())}


@click.command()
@click.option("--task", type=click.Choice(["demo", "regression"]), default="demo")
@click.option("--option", "options", multiple=True, help="Of the task, as NAME=VALUE.")
@click.option("--way", "ways", multiple=True, help="Settings in place of those compared by default, beside SGD.")
@click.option("--rates", default="", help="Server rates in place of the grid, with commas.")
@click.option("--seeds", default=2, help="Runs at each rate.")
@click.option("--epsilon", default=8.0)
def main(task: str, options: tuple[str, ...], ways: tuple[str, ...], rates: str, seeds: int, epsilon: float) -> None:
    """Prints a row a way."""
    import fedmf
    from fedmf import federated, tasks

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        shared = settings_of(task, pairs(" ".join(options)), folder)
        shared |= {"family": "banded", "epsilon": epsilon, "evaluate_every": shared["rounds"], "checkpoint_every": 999}
        mechanism = fedmf.TrainConfig(**shared).fit()
        mechanism.save(folder / "mechanism.npz")
        runs = 0
        for way in ["server_optimizer=sgd", *ways] if ways else WAYS:
            own = pairs(way)
            grid = [float(rate) for rate in rates.split(",")] if rates else WAYS.get(way, WAYS["server_optimizer=sgd"])
            reached = {}
            for rate in grid:
                values = []
                for seed in range(seeds):
                    config = fedmf.TrainConfig(**{**shared, **own, "server_learning_rate": rate, "seed": seed})
                    config = tasks.completed(config)
                    plan = config.plan(mechanism)
                    made = tasks.task_from_config(config, progress=False)
                    runs += 1
                    run = federated.train(
                        made, config, folder=folder / str(runs), noise_seed=1000 * seed + 7, plan=plan, progress=False
                    )
                    assert run.result is not None
                    values.append(run.result["test"][made.headline])
                reached[rate] = values
            lower = task == "regression"
            best = min(reached, key=lambda rate: sum(reached[rate]) * (1 if lower else -1))
            means = "  ".join(f"{rate:g}: {sum(v) / len(v):.4f}" for rate, v in reached.items())
            low, high = min(reached[best]), max(reached[best])
            drift = max(run.table().get("scale_drift", [0.0]))
            click.echo(
                f"{way:<46} {sum(reached[best]) / seeds:.4f} ({low:.4f} to {high:.4f})  drift {drift:.2f}  {means}"
            )


if __name__ == "__main__":
    main()
