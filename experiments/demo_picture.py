"""The README's picture: the accuracy of the demo's mechanisms at one epsilon (`make picture`)."""

import pathlib
from collections.abc import Sequence

import click
from matplotlib.axes import Axes

from fedmf.experiments.demo import FAMILIES
from fedmf.experiments.sweep_results import validation_of
from fedmf.files import make_folder, write_atomically
from fedmf.reports.canvas import INK, canvas
from fedmf.reports.groups import Group, group_runs
from fedmf.runs.folder import Run


def demo_picture(runs: Sequence[Run]) -> bytes:
    """A PNG with a bar for each mechanism, the mean over its runs, and a point for each run."""
    groups = sorted(
        group_runs(list(runs)), key=lambda group: FAMILIES.index(group.config.family), reverse=True
    )
    config = groups[0].config
    with canvas(2.3, "") as (figure, png):
        ax = figure.subplots()
        for row, group in enumerate(groups):
            _draw(ax, row, group)
        ax.set_yticks(range(len(groups)), [group.label for group in groups])
        ax.grid(axis="y", visible=False)
        ax.set(xlabel="validation accuracy in percent (bar: mean, points: seeds)", xlim=(0, None))
        ax.set_title(
            f"Next-word prediction, epsilon {config.epsilon:g}: {config.rounds} rounds of "
            f"{config.cohort_size} clients"
        )
    return png.getvalue()


def _draw(ax: Axes, row: int, group: Group) -> None:
    values = [100 * validation_of(run) for run in group.runs]
    mean = sum(values) / len(values)
    ax.barh(row, mean, height=0.6, color=group.color)
    ax.plot(values, [row] * len(values), "o", color=INK, markersize=4, markeredgecolor="white")
    ax.annotate(
        f"{mean:.1f}", (max(values), row), xytext=(7, -3.5), textcoords="offset points", fontsize=9
    )


@click.command()
@click.argument("demo", type=click.Path(exists=True, path_type=pathlib.Path))
@click.argument("out", type=click.Path(path_type=pathlib.Path))
def main(demo: pathlib.Path, out: pathlib.Path) -> None:
    """Draw the runs of the folder DEMO, which `fedmf demo` wrote, into the PNG file OUT."""
    runs = [Run.load(folder) for folder in sorted((demo / "runs").iterdir())]
    make_folder(out.parent)
    write_atomically(out, demo_picture(runs), mode=0o600)


if __name__ == "__main__":
    main()
