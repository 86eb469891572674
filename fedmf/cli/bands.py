"""fedmf plan bands, fedmf plan learning-rate: decisions that follow from a privacy target, before training."""

import pathlib
import sys
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.options import arguments_checked, json_option, plan_from, plan_options, show, writable

if TYPE_CHECKING:
    from fedmf.privacy.bands import BandChoice


@click.command()
@click.option("--rounds", type=int, required=True, help="Rounds of training.")
@click.option("--population", type=int, required=True, help="Clients in all.")
@click.option("--cohort-size", type=int, required=True, help="Clients drawn in a round, on average.")
@click.option("--epsilon", type=float, required=True, help="Privacy target.")
@click.option("--delta", type=float, default=1e-6, show_default=True, help="Failure probability.")
@click.option("--bands", "listed", help="Candidates, as in 8,16,32.  [default: a search]")
@click.option("--dense", is_flag=True, help="Try the best encoder of all without amplification as well.")
@click.option(
    "--workload",
    default="prefix_sum",
    show_default=True,
    help="prefix_sum, momentum_sgd or identity: what errors count.",
)
@click.option("--momentum", type=float, help="Of the momentum_sgd workload.  [default: 0.95]")
@click.option("--out", type=click.Path(path_type=pathlib.Path), help="Draw the curve into this PNG file.")
@json_option
def bands(
    rounds: int,
    population: int,
    cohort_size: int,
    epsilon: float,
    delta: float,
    listed: str | None,
    dense: bool,
    workload: str,
    momentum: float | None,
    out: pathlib.Path | None,
    as_json: bool,
) -> None:
    """The number of bands with the least error, where the server draws clients at random.

    Few bands are amplified more by sampling, many leave less noise in the sums. Without random sampling, as with phones, there is nothing
    to choose: take as many bands as rounds that a client stays away.

    \b
    Example:
      fedmf plan bands --rounds 128 --population 2560 --cohort-size 40 --epsilon 4 --out bands.png
      fedmf plan bands --rounds 2052 --population 342000 --cohort-size 1000 --epsilon 8 --bands 32,64,342
    """
    from fedmf.cli.mechanism import workload_named
    from fedmf.privacy.bands import choose_bands

    with arguments_checked():
        writable("out", out, ".png")
        choice = choose_bands(
            workload_named(workload, momentum, 0.0, 0.0, rounds),
            population=population,
            cohort_size=cohort_size,
            epsilon=epsilon,
            delta=delta,
            bands=None if listed is None else [_number(text) for text in listed.split(",")],
            dense=dense,
            progress=_status if sys.stderr.isatty() else None,
        )
    if sys.stderr.isatty():
        _status("")
    if out is not None:
        _draw(choice, out)
    if as_json:
        show(choice.summary() | ({"picture": str(out)} if out else {}), as_json)
        return
    click.echo(_table(choice) + (f"\nPicture: {out}" if out else ""))


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"bands has {text!r} in it, which is no number: list them as in 8,16,32") from None


def _status(phrase: str) -> None:
    click.echo(f"\r\033[K{phrase}", nl=False, err=True)


def _table(choice: "BandChoice") -> str:
    best = choice.best
    close = {row.bands for row in choice.close}
    lines = [
        f"{'bands':>6}  {'q':>8}  {'events':>6}  {'noise each':>10}  {'noise':>8}  {'rmse':>9}  {'per client':>10}"
    ]
    for row in choice.rows:
        mark = "best" if row is best else "within 1%" if row.bands in close else ""
        name = "dense" if row.family == "dense" else str(row.bands)
        q = f"{row.probability:8.5f}" if row.amplified else f"{'-':>8}"
        lines.append(
            f"{name:>6}  {q}  {row.compositions:>6}  {row.per_query_noise_multiplier:10.5f}  {row.noise_multiplier:8.5f}  {row.rmse:9.4g}  "
            f"{row.effective_rmse:10.4g}  {mark}".rstrip()
        )
    p = choice.participation
    times = f"{p.max_participations} participation{'' if p.max_participations == 1 else 's'}"
    chosen = "the dense optimum" if best.family == "dense" else f"{best.bands} band{'' if best.bands == 1 else 's'}"
    lines += [
        f"epsilon {choice.epsilon:g} at delta {choice.delta:g}; {p.rounds} rounds; cohorts of {choice.cohort_size:,} out of "
        f"{choice.population:,} clients.",
        "q: chance of a client to be drawn in a round of its part (-: no sampling); events: rounds of its part. noise each: stddev",
        f"over the largest column norm; noise: over the sensitivity of {times} {p.min_sep} rounds apart. rmse: of a",
        "round's running query at clip norm 1; per client: divided by the cohort, as in the mean.",
        f"Choice: {chosen}, {'with' if best.amplified else 'without'} amplification by sampling.",
    ]
    if not best.amplified and best.family == "banded" and p.max_participations > 1:
        lines.append(
            "Without amplification the best encoder of all, for clients in a fixed order, can be better: see --dense."
        )
    return "\n".join(lines)


def _draw(choice: "BandChoice", out: pathlib.Path) -> None:
    from fedmf.files import write_atomically
    from fedmf.reports.bands import bands_picture

    write_atomically(out, bands_picture(choice.summary()))


@click.command("learning-rate")
@click.argument("mechanism_file", metavar="MECHANISM", type=click.Path(path_type=pathlib.Path))
@plan_options
@click.option("--cohort-size", type=int, required=True, help="Clients that a round's sum is divided by.")
@click.option(
    "--sampling",
    help="Amplify by how clients are drawn: poisson, fixed_size, shuffle or reshuffle. Needs --population.",
)
@click.option("--population", type=int, help="With --sampling: the number of clients.")
@json_option
def learning_rate(
    mechanism_file: pathlib.Path,
    cohort_size: int,
    sampling: str | None,
    population: int | None,
    as_json: bool,
    **target: Any,
) -> None:
    """A server learning rate for a mechanism and its noise, by the rule of the banded paper, App. I.

    The rule is a regression over tuned runs of StackOverflow next-word prediction (2052 rounds, server momentum 0.95, client rate 1). For
    another task take its slope: a mechanism of half the error wants a rate 1.9 times as high.

    \b
    Example:
      fedmf plan learning-rate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --cohort-size 100
      fedmf plan learning-rate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --cohort-size 100 --sampling poisson --population 100000
    """
    import fedmf
    from fedmf.privacy.learning_rate import effective_rmse, on_grid, predicted_learning_rate

    with arguments_checked():
        drawn = None if sampling is None and population is None else cohort_size
        planned = plan_from(mechanism_file, sampling=sampling, population=population, cohort_size=drawn, **target)
        error = effective_rmse(planned, fedmf.prefix_sum(planned.mechanism.rounds), cohort_size=cohort_size)
        rate = predicted_learning_rate(error, clip_norm=planned.clip_norm, grid=None)
    show(
        {
            "noise_multiplier": planned.noise_multiplier,
            "epsilon": planned.epsilon,
            "delta": planned.delta,
            "effective_rmse": error,
            "predicted_rate": rate,
            "learning_rate": on_grid(rate),
            "also_try": [on_grid(rate, steps=-1), on_grid(rate, steps=1)],
        },
        as_json,
    )
