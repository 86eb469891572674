"""fedmf audit mechanism: the audit of the noise that a mechanism really makes."""

import contextlib
import dataclasses
import math
import pathlib
import sys
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.options import arguments_checked, json_option, plan_from, plan_options, show

if TYPE_CHECKING:
    from fedmf.audits.noise import Finding
    from fedmf.federated.audit import MechanismAudit


@click.command()
@click.argument("mechanism_file", metavar="MECHANISM", type=click.Path(path_type=pathlib.Path))
@plan_options
@click.option("--coordinates", type=int, help="Entries of the model, each a sample of the noise.  [default: enough]")
@click.option("--trials", type=int, default=20_000, show_default=True, help="Of the distinguishing game; 0 for none.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same findings.")
@click.option("--false-positive-rate", type=float, default=1e-6, show_default=True, help="Of the whole audit.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@json_option
def mechanism(mechanism_file: pathlib.Path, quiet: bool, as_json: bool, **options: Any) -> None:
    """Run the query of an aggregator and test that what it releases is what its plan claims. Exit status 1 if it is not.

    Two runs of all rounds without clients, one of them stopped and resumed, test the noise's covariance; a game with and without
    the worst client tests the guarantee. docs/audit.md says what is tested and what can be seen.

    \b
    Example:
      fedmf audit mechanism banded.npz --rounds 256 --min-sep 64 --epsilon 8
    """
    chosen = {name: options.pop(name) for name in ("coordinates", "trials", "seed", "false_positive_rate")}
    with arguments_checked():
        plan = plan_from(mechanism_file, **options)
    from fedmf.federated.audit import audit_mechanism
    from fedmf.terminal import progress_bar

    with arguments_checked(), contextlib.ExitStack() as until_done:
        bar: Any = None

        def progress(done: int, total: int) -> None:
            nonlocal bar
            if bar is None:  # refused arguments leave no bar behind
                hidden = quiet or as_json
                bar = until_done.enter_context(
                    progress_bar.bar(desc="audit", unit="round", total=total, disable=hidden)
                )
            bar.update(done - bar.n)

        result = audit_mechanism(plan, progress=progress, **chosen)
    if as_json:
        show(_as_values(result), as_json)
    else:
        click.echo(_table(result))
    if not result.verdict.consistent:
        sys.exit(1)


def _as_values(result: "MechanismAudit") -> dict[str, Any]:
    verdict, game = result.verdict, None
    if result.game is not None:
        # Its findings are among the audit's; an infinite epsilon is null.
        game = {name: value for name, value in dataclasses.asdict(result.game).items() if name != "findings"}
        game["epsilon_claimed"] = game["epsilon_claimed"] if math.isfinite(game["epsilon_claimed"]) else None
    findings = [dataclasses.asdict(f) | {"consistent": f.p_value >= verdict.threshold} for f in verdict.findings]
    return {
        "consistent": verdict.consistent,
        "rounds": result.rounds,
        "coordinates": result.coordinates,
        "trials": result.trials,
        "false_positive_rate": verdict.false_positive_rate,
        "threshold": verdict.threshold,
        "findings": findings,
        "game": game,
    }


def _table(result: "MechanismAudit") -> str:
    verdict, game = result.verdict, result.game
    lines = [f"{'test':<86} {'statistic':>9} {'p-value':>9}  verdict"]
    least: dict[str, Finding] = {}
    for finding in verdict.findings:
        # Of the two runs, the one that is less likely; --json has both.
        name = finding.name.partition(": ")[2] if finding.name.startswith("run ") else finding.name
        kind = name.partition(", the ")[0]
        if kind not in least or finding.p_value < least[kind].p_value:
            least[kind] = dataclasses.replace(finding, name=name)
    for finding in least.values():
        word = "ok" if finding.p_value >= verdict.threshold else "CONTRADICTS THE CLAIM"
        lines.append(f"{finding.name:<86} {finding.statistic:>9.4g} {finding.p_value:9.2g}  {word}")
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
    rate = f"false-positive rate {verdict.false_positive_rate:g}: a p-value below {verdict.threshold:.2g} contradicts"
    word = "consistent with the claim" if verdict.consistent else "NOT WHAT THE PLAN CLAIMS"
    lines += ["", f"{word} ({len(verdict.findings)} tests, {rate})"]
    return "\n".join(lines)
