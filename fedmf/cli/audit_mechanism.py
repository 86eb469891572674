"""fedmf audit mechanism: of the noise that a mechanism really makes."""

import contextlib
import dataclasses
import math
import pathlib
import sys
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.options import arguments_checked, json_option, plan_from, plan_options, show

if TYPE_CHECKING:
    from fedmf.audits.distinguishing import Distinguishing
    from fedmf.audits.noise import Finding
    from fedmf.federated.audit.noise import MechanismAudit


@click.command()
@click.argument("mechanism_file", metavar="MECHANISM", type=click.Path(path_type=pathlib.Path))
@plan_options
@click.option("--coordinates", type=int, help="Entries of the model, each a sample of the noise.  [default: enough]")
@click.option("--trials", type=int, help="Of the distinguishing game; 0 for none.  [default: 20000; 200 with tff]")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same findings.")
@click.option(
    "--path",
    default="query",
    show_default=True,
    help="What runs: query, the DPQuery; or tff, TFF's own process (slow).",
)
@click.option(
    "--strategy",
    help="How noise is made: carried or redrawn in the graph, host (chosen), host_recurrent, host_regenerated or host_spilled.",
)
@click.option("--false-positive-rate", type=float, default=1e-6, show_default=True, help="Of the whole audit.")
@click.option("--controls", is_flag=True, help="Also make known mistakes, and see whether they are caught.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@json_option
def mechanism(
    mechanism_file: pathlib.Path,
    coordinates: int | None,
    trials: int | None,
    seed: int,
    path: str,
    strategy: str | None,
    false_positive_rate: float,
    controls: bool,
    quiet: bool,
    as_json: bool,
    **target: Any,
) -> None:
    """Run the aggregator and test that what it releases is what its plan claims. Exit status 1 if it is not.

    Two runs of all rounds without clients, one of them stopped and resumed, test the noise's covariance; a game with and without
    the worst client tests the guarantee. docs/audit.md says what is tested and what can be seen.

    \b
    Example:
      fedmf audit mechanism banded.npz --rounds 256 --min-sep 64 --epsilon 8
      fedmf audit mechanism banded.npz --rounds 256 --min-sep 64 --epsilon 8 --controls --strategy host
    """
    with arguments_checked():
        plan = plan_from(mechanism_file, **target)
    from fedmf.federated.audit.noise import audit_mechanism
    from fedmf.terminal import progress_bar

    with arguments_checked(), contextlib.ExitStack() as until_done:
        bar: Any = None

        def progress(done: int, total: int) -> None:
            nonlocal bar
            if bar is None:  # made no earlier: arguments that are refused leave no bar behind
                bar = until_done.enter_context(
                    progress_bar.bar(desc="audit", unit="round", total=total, disable=quiet or as_json)
                )
            bar.total = total
            bar.update(done - bar.n)

        result = audit_mechanism(
            plan,
            seed=seed,
            coordinates=coordinates,
            trials=trials,
            path=path,
            strategy=strategy,
            controls=controls,
            false_positive_rate=false_positive_rate,
            progress=progress,
        )
    if as_json:
        show(_as_values(result), as_json)
    else:
        click.echo(_table(result))
    if not result.consistent:
        sys.exit(1)


def _as_values(result: "MechanismAudit") -> dict[str, Any]:
    verdict, game = result.verdict, result.game
    findings = [dataclasses.asdict(f) | {"consistent": f.p_value >= verdict.threshold} for f in verdict.findings]
    return {
        "consistent": result.consistent,
        "rounds": result.rounds,
        "coordinates": result.coordinates,
        "trials": result.trials,
        "false_positive_rate": verdict.false_positive_rate,
        "threshold": verdict.threshold,
        "findings": findings,
        "game": None if game is None else _game_values(game),
        "controls": [dataclasses.asdict(control) for control in result.controls],
    }


def _game_values(game: "Distinguishing") -> dict[str, Any]:
    """Without the findings, which are among the audit's; an infinite epsilon is null."""
    values = {name: value for name, value in dataclasses.asdict(game).items() if name != "findings"}
    return values | {"epsilon_claimed": game.epsilon_claimed if math.isfinite(game.epsilon_claimed) else None}


def _p(p_value: float) -> str:
    return f"{p_value:9.2g}" if p_value > 1e-300 else "  < 1e-300"


def _table(result: "MechanismAudit") -> str:
    verdict, game = result.verdict, result.game
    lines = [f"{'test':<86} {'statistic':>9} {'p-value':>9}  verdict"]
    shown: dict[str, Finding] = {}
    for found in verdict.findings:
        # Of the runs, the one that is less likely; --json has all.
        name = found.name.partition(": ")[2] if found.name.startswith("run ") else found.name
        kind = name.partition(", the ")[0]
        if kind not in shown or found.p_value < shown[kind].p_value:
            shown[kind] = dataclasses.replace(found, name=name)
    for found in shown.values():
        word = "ok" if found.p_value >= verdict.threshold else "CONTRADICTS THE CLAIM"
        lines.append(f"{found.name:<86} {found.statistic:>9.4g} {_p(found.p_value)}  {word}")
    if game is not None:
        percent = f"{100 * game.confidence:g}%"
        lines += [
            "",
            f"distinguishing game, {game.present:,} trials with the client and {game.absent:,} without",
            f"  signal-to-noise   claimed at most {game.snr_claimed:.4f}, expected of these rounds {game.snr_expected:.4f}, "
            f"measured {game.snr:.4f} ({percent}: {game.snr_lower:.4f} to {game.snr_upper:.4f})",
            f"  epsilon           claimed {game.epsilon_claimed:.4g}, proved at {percent} to be at least {game.epsilon_lower:.3f}; "
            f"so many trials can be expected to prove {game.epsilon_expected:.3f}",
        ]
    if result.controls:
        lines += ["", f"{'known mistake':<60} {'p-value':>9}  caught"]
        for control in result.controls:
            if control.finding is None:
                lines.append(f"{control.name:<60} {'-':>9}  not made: {control.reason}")
                continue
            caught = f"by {control.finding.name}" if control.caught else "NOT CAUGHT: raise --coordinates or --trials"
            lines.append(f"{control.name:<60} {_p(control.finding.p_value)}  {caught}")
    rate = f"false-positive rate {verdict.false_positive_rate:g}: a p-value below {verdict.threshold:.2g} contradicts"
    word = "consistent with the claim" if verdict.consistent else "NOT WHAT THE PLAN CLAIMS"
    if any(control.caught is False for control in result.controls):
        word += ", but A KNOWN MISTAKE WAS NOT CAUGHT"
    lines += ["", f"{word} ({len(verdict.findings)} tests, {rate})"]
    return "\n".join(lines)
