"""fedmf audit mechanism: of the noise that a mechanism really makes."""

import dataclasses
import math
import pathlib
import sys
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.options import (
    COUNT,
    EXISTING_FILE,
    in_one,
    json_option,
    plan_config,
    plan_options,
    quiet_option,
    show,
)

if TYPE_CHECKING:
    from fedmf.audits.noise import Finding
    from fedmf.federated.audit import MechanismAudit


@click.command(cls=Command)
@click.argument("mechanism_file", metavar="MECHANISM", type=EXISTING_FILE)
@plan_options
@in_one(
    "trial",
    click.option(
        "--coordinates",
        type=COUNT,
        help="Entries of the model, each a sample of the noise.  [default: enough]",
    ),
    click.option(
        "--trials",
        type=click.IntRange(0),
        default=20_000,
        help="Of the distinguishing game; 0 for none.",
    ),
    click.option(
        "--seed", type=click.IntRange(0), default=1, help="The same seed gives the same findings."
    ),
    click.option("--false-positive-rate", type=float, default=1e-6, help="Of the whole audit."),
)
@quiet_option
@json_option
def mechanism(
    mechanism_file: pathlib.Path,
    promise: dict[str, Any],
    trial: dict[str, Any],
    quiet: bool,
    as_json: bool,
) -> None:
    """Test that the noise that runs is what its plan claims. Exit status 1 if it is not.

    Two runs of all rounds without clients, one of them stopped and resumed, test the noise's
    covariance; a game with and without the worst client tests the guarantee. docs/audit.md says
    what is tested and what can be seen.

    \b
    Example:
      fedmf audit mechanism banded.npz --rounds 256 --min-sep 64 --epsilon 8
    """
    with arguments_checked():
        plan = plan_config(mechanism_file, promise).plan()
    from fedmf.federated.audit import audit_mechanism
    from fedmf.terminal import progress_bar

    # Not drawn at once: arguments that are refused leave no bar behind.
    bar = progress_bar.bar(desc="audit", unit="round", disable=quiet or as_json, delay=0.5)
    with arguments_checked(), bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        result = audit_mechanism(plan, progress=progress, **trial)
    if as_json:
        show(_values(result), as_json)
    else:
        click.echo(_table(result))
    if not result.verdict.consistent:
        sys.exit(1)


def _values(result: "MechanismAudit") -> dict[str, Any]:
    verdict, game = result.verdict, None
    if result.game is not None:
        game = dataclasses.asdict(result.game)
        del game["findings"]  # they are among the audit's
        if not math.isfinite(game["epsilon_claimed"]):
            game["epsilon_claimed"] = None
    return {
        "consistent": verdict.consistent,
        **{name: getattr(result, name) for name in ("rounds", "coordinates", "trials")},
        **{name: getattr(verdict, name) for name in ("false_positive_rate", "threshold")},
        "findings": [
            dataclasses.asdict(finding) | {"consistent": finding.p_value >= verdict.threshold}
            for finding in verdict.findings
        ],
        "game": game,
    }


def _table(result: "MechanismAudit") -> str:
    verdict, game = result.verdict, result.game
    lines = [f"{'test':<86} {'statistic':>9} {'p-value':>9}  verdict"]
    least: dict[str, Finding] = {}
    for finding in verdict.findings:
        # The less likely of the two runs; --json has both.
        name = finding.name.partition(": ")[2] if finding.name.startswith("run ") else finding.name
        kind = name.partition(", the ")[0]
        if kind not in least or finding.p_value < least[kind].p_value:
            least[kind] = dataclasses.replace(finding, name=name)
    for finding in least.values():
        word = (
            "ok"
            if finding.p_value >= verdict.threshold
            else click.style("CONTRADICTS THE CLAIM", fg="red")
        )
        p_value = f"{finding.p_value:9.2g}" if finding.p_value > 1e-300 else " < 1e-300"
        lines.append(f"{finding.name:<86} {finding.statistic:>9.4g} {p_value}  {word}")
    if game is not None:
        percent = f"{100 * game.confidence:g}%"
        lines += [
            "",
            f"distinguishing game, {game.present:,} trials with the client and "
            f"{game.absent:,} without",
            f"  signal-to-noise   claimed at most {game.snr_claimed:.4f}, expected of these rounds "
            f"{game.snr_expected:.4f}, "
            f"measured {game.snr:.4f} ({percent}: {game.snr_lower:.4f} to {game.snr_upper:.4f})",
            f"  epsilon           claimed {game.epsilon_claimed:.4g}, proved at {percent} to be at "
            f"least {game.epsilon_lower:.3f}; "
            f"so many trials can be expected to prove {game.epsilon_expected:.3f}",
        ]
    word = (
        "consistent with the claim"
        if verdict.consistent
        else click.style("NOT WHAT THE PLAN CLAIMS", fg="red")
    )
    rate = (
        f"false-positive rate {verdict.false_positive_rate:g}: a p-value below "
        f"{verdict.threshold:.2g} contradicts"
    )
    return "\n".join([*lines, "", f"{word} ({len(verdict.findings)} tests, {rate})"])
