"""Driver of `fedmf demo`, which trains four mechanisms on one synthetic corpus and writes a report
that compares them. All private runs have the same epsilon and the same cohorts.

Corpus, initial model, cohorts and order of examples are the same in every run of a seed. The
server's learning rate falls with a mechanism's error by one rule for all, because a rate that suits
one mechanism is unfair to another.
"""

import dataclasses
import itertools
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import click
from matplotlib.axes import Axes

from fedmf import tasks
from fedmf.files import make_folder, write_atomically
from fedmf.intervals import mean_interval
from fedmf.mechanisms.error import rmse
from fedmf.privacy.learning_rate import SLOPE
from fedmf.reports import write_report
from fedmf.reports.canvas import INK, canvas
from fedmf.reports.groups import RunGroup, group_runs
from fedmf.reports.seeds import LEVEL, ONE_SEED
from fedmf.reports.text import aligned
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run
from fedmf.runs.notes import figures_note
from fedmf.sweeps.results import validation_of

# The mechanism families of the demo, in the order of their noise, from none to the most.
FAMILIES = ("none", "banded", "tree", "identity")

# The sizes are chosen so that runs train in minutes and still learn. With this client learning rate
# every update is clipped, so that the clip norm is used in full.
CLIENTS = 1280
SENTENCES_PER_CLIENT = 24.0
WORDS = 300
TASK_OPTIONS: dict[str, Any] = {
    "vocabulary_size": WORDS,
    "embedding_size": 24,
    "lstm_size": 48,
    "max_sentences": 16,
    "loss": "masked",
    "validation_sentences": 1500,
    "test_sentences": 1500,
}
SETTINGS: dict[str, Any] = {
    "task_options": TASK_OPTIONS,
    "rounds": 128,
    "cohort_size": 40,
    "min_sep": 32,
    "delta": 1e-6,
    "client_learning_rate": 4.0,
    # The papers use a server momentum of 0.95, which would average over too many of the demo's 128
    # rounds.
    "server_momentum": 0.9,
    "evaluate_every": 8,
}


# The best server rate is proportional to the mechanism's error to the power of SLOPE (banded paper,
# App. I). The paper's offset is for its own model and cohort, so the factor was chosen on seed 0
# for the banded mechanism.
RATE_FACTOR = 3.2
RATE_WITHOUT_NOISE = 1.2


def server_rate(config: TrainConfig) -> float:
    """Returns the server learning rate for a configuration, from the error of its mechanism."""
    if config.family == "none":
        return RATE_WITHOUT_NOISE
    mechanism_rmse = rmse(config.fit(), config.fit_workload(), config.participation())
    return round(RATE_FACTOR * mechanism_rmse**SLOPE, 3)


def check_demo(*, seeds: Sequence[int], epsilon: float) -> None:
    """Raises a ValueError for seeds or an epsilon that the demo's runs cannot have."""
    for seed in seeds:
        TrainConfig(seed=seed, family="identity", epsilon=epsilon, **SETTINGS)


def demo_configs(corpus: pathlib.Path, *, seed: int, epsilon: float) -> list[TrainConfig]:
    """Returns the configuration of a demo run for each mechanism family. They differ in the server
    rate too.
    """
    base_config = tasks.completed(
        TrainConfig(data=str(corpus), seed=seed, family="none", **SETTINGS)
    )
    mechanism_configs = [base_config]
    for family in FAMILIES[1:]:
        mechanism_configs.append(dataclasses.replace(base_config, family=family, epsilon=epsilon))
    return [
        dataclasses.replace(config, server_learning_rate=server_rate(config))
        for config in mechanism_configs
    ]


def noise_seed(seed: int, config: TrainConfig) -> int:
    """Returns a fixed noise seed for a run, so that the demo is repeatable.

    Real runs use --noise-seed os.
    """
    return 1000 * seed + FAMILIES.index(config.family)


def run_demo(out: pathlib.Path, *, seeds: Sequence[int], epsilon: float) -> dict[str, Any]:
    """Writes the corpus, trains all runs, and writes out/report/report.html and accuracy.png.

    Finished runs of an earlier call are used again, and unfinished ones are resumed.

    Args:
      out: folder; made if needed.
      seeds: seeds of the sets of runs.
      epsilon: target of the private mechanisms.

    Returns:
      {"report": path, "seconds": total, "accuracy": {family: [one for each seed]}}.
    """
    from fedmf.tasks.stackoverflow import write_synthetic_corpus

    # A seed that is given twice is one seed, and no interval.
    seeds = tuple(dict.fromkeys(seeds))
    start_time = time.perf_counter()
    try:
        make_folder(out)
    except OSError as error:
        raise ValueError(
            f"cannot write to folder {out} ({error.strerror}): name a folder you may write to"
        ) from error
    corpus_path = out / "corpus.sqlite"
    if not corpus_path.exists():
        click.echo(f"Writing a synthetic corpus of {CLIENTS} clients to {corpus_path}", err=True)
        write_synthetic_corpus(
            corpus_path,
            clients=CLIENTS,
            seed=0,
            sentences_per_client=SENTENCES_PER_CLIENT,
            vocabulary_size=WORDS,
        )
    runs: dict[str, list[Run]] = {}
    for seed in seeds:
        for config in demo_configs(corpus_path, seed=seed, epsilon=epsilon):
            run_folder = out / "runs" / f"{config.family}-seed{seed}"
            finished_run = _run(config, run_folder, noise_seed(seed, config))
            runs.setdefault(config.family, []).append(finished_run)
    runs_by_seed = list(itertools.chain.from_iterable(zip(*runs.values(), strict=True)))
    report_path = write_report(
        runs_by_seed, out / "report", title="fedmf demo: private next-word prediction"
    )
    write_atomically(out / "accuracy.png", demo_picture(runs_by_seed), mode=0o600)
    accuracies_by_family = {
        family: [validation_of(finished_run) for finished_run in members]
        for family, members in runs.items()
    }
    elapsed_seconds = time.perf_counter() - start_time
    output_lines = [
        *_table(runs, accuracies_by_family),
        figures_note(runs_by_seed),
        f"{elapsed_seconds:.0f} s; open {report_path}",
    ]
    click.echo("\n".join(output_lines), err=True)
    return {
        "report": str(report_path),
        "seconds": round(elapsed_seconds, 1),
        "accuracy": accuracies_by_family,
    }


def _table(runs: dict[str, list[Run]], accuracy: dict[str, list[float]]) -> list[str]:
    """Returns the lines of the table that is printed, with one line for each family."""
    table_rows = [
        [
            "mechanism",
            "epsilon",
            "rmse",
            "rate",
            "validation accuracy",
            f"{LEVEL} interval",
            "by seed",
        ]
    ]
    for family, family_runs in runs.items():
        first_run = family_runs[0]
        row_texts = [family, "-", "-", str(first_run.config.server_learning_rate)]
        if family != "none":
            row_texts[1] = f"{first_run.plan['epsilon']:.2f}"
            row_texts[2] = f"{first_run.plan['rmse']:.2f}"
        accuracies = accuracy[family]
        row_texts.append(f"{sum(accuracies) / len(accuracies):.4f}")
        interval = mean_interval(accuracies)
        row_texts.append("-" if interval is None else f"{interval.low:.4f} to {interval.high:.4f}")
        row_texts.append("  ".join(f"{value:.4f}" for value in accuracies))
        table_rows.append(row_texts)
    return aligned(table_rows)


def _run(config: TrainConfig, folder: pathlib.Path, seed: int) -> Run:
    """Trains or resumes a run, or loads it if it is finished."""
    from fedmf import federated

    has_begun = (folder / "config.json").exists()
    if has_begun:
        run = Run.load(folder)
        if dataclasses.replace(run.config, data=config.data) == config and run.result is not None:
            return run
    task = tasks.task_from_config(config)
    first_seed = None if has_begun else seed
    try:
        return federated.train(task, config, folder=folder, noise_seed=first_seed, resume=has_begun)
    except federated.InterruptedRun as stop:
        rounds_done = str(stop).rpartition(":")[0]
        raise federated.InterruptedRun(
            f"{rounds_done}: give the same command again to resume"
        ) from None


def demo_picture(runs: Sequence[Run]) -> bytes:
    """Draws a PNG with a bar for each mechanism's mean accuracy, and a point for each run."""
    ordered_groups = sorted(
        group_runs(list(runs)), key=lambda group: FAMILIES.index(group.config.family), reverse=True
    )
    first_config = ordered_groups[0].config
    with canvas(2.3, "") as (figure, png):
        ax = figure.subplots()
        for row, group in enumerate(ordered_groups):
            _draw_bar(ax, row, group)
        ax.set_yticks(range(len(ordered_groups)), [group.label for group in ordered_groups])
        ax.grid(axis="y", visible=False)
        seeds_text = ONE_SEED
        if len(ordered_groups[0].runs) > 1:
            seeds_text = f"bar: mean, line: its {LEVEL} interval, points: seeds"
        ax.set(xlabel=f"validation accuracy in percent ({seeds_text})", xlim=(0, None))
        ax.set_title(
            f"Next-word prediction, epsilon {first_config.epsilon:g}: {first_config.rounds} rounds "
            f"of {first_config.cohort_size} clients"
        )
    return png.getvalue()


def _draw_bar(ax: Axes, row: int, group: RunGroup) -> None:
    """Draws the bar of one mechanism, the interval of its mean and the points of its runs."""
    accuracies = [100 * validation_of(run) for run in group.runs]
    mean_accuracy = sum(accuracies) / len(accuracies)
    ax.barh(row, mean_accuracy, height=0.6, color=group.color)
    ax.plot(
        accuracies, [row] * len(accuracies), "o", color=INK, markersize=4, markeredgecolor="white"
    )
    label_position = max(accuracies)
    interval = mean_interval(accuracies)
    if interval is not None:
        ax.hlines(row, interval.low, interval.high, color=INK, linewidth=1.2)
        label_position = max(label_position, interval.high)
    ax.annotate(
        f"{mean_accuracy:.1f}",
        (label_position, row),
        xytext=(7, -3.5),
        textcoords="offset points",
        fontsize=9,
    )
