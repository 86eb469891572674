"""The command `fedmf audit mechanism`, which tests the noise of a plan."""

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.audit import audit
from fedmf.cli.errors import arguments_checked
from fedmf.cli.options import grouped, json_option, plan_config, plan_options, quiet_option, show
from fedmf.cli.values import COUNT, Whole

if TYPE_CHECKING:
    from fedmf.audits.finding import Finding
    from fedmf.server.audit import MechanismAudit


@audit.command()
@plan_options
@grouped(
    "trial",
    click.option(
        "--coordinates",
        type=COUNT,
        help="Entries of the model, each a sample of the noise.  [default: enough]",
    ),
    click.option(
        "--trials",
        type=Whole(0),
        default=20_000,
        help="Of the distinguishing attack; 0 for none.",
    ),
    click.option(
        "--seed", type=click.IntRange(0), default=1, help="The same seed gives the same findings."
    ),
    click.option("--false-positive-rate", type=float, default=1e-6, help="Of the whole audit."),
)
@click.option(
    "--query",
    is_flag=True,
    help="Audit the query that dp_aggregator puts into a TFF process, in place of what training "
    "and fedmf.Server run.",
)
@quiet_option
@json_option
def mechanism(
    config_options: dict[str, Any],
    trial: dict[str, Any],
    query: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Test that the noise that runs is what its plan claims. Exit status 1 if it is not.

    Two runs of all rounds without clients, one of them stopped and resumed, test the noise's
    covariance; an attack with and without the worst client tests the guarantee.
    docs/test_aggregator.md says what is tested and what can be seen.

    \b
    Example:
      fedmf audit mechanism banded.npz --rounds 256 --min-sep 64 --epsilon 8
    """
    from fedmf.server.audit import audit_mechanism
    from fedmf.terminal import progress_bar

    with arguments_checked(), progress_bar.elapsed("reading the mechanism", disable=as_json):
        plan = plan_config(config_options).plan()

    subject: Any = None
    if query:
        from fedmf.federated.tff.audit import Query as subject

    # The progress bar appears with a delay, so that it is not drawn above the error if an argument
    # is refused at once.
    audit_bar = progress_bar.bar(desc="audit", unit="round", disable=quiet or as_json, delay=0.5)
    with arguments_checked(), audit_bar, progress_bar.refreshed(audit_bar):

        def progress(done: int, total: int) -> None:
            audit_bar.total = total
            audit_bar.update(done - audit_bar.n)

        mechanism_audit = audit_mechanism(plan, progress=progress, subject=subject, **trial)
    if as_json:
        show(_values(mechanism_audit), as_json)
    else:
        click.echo(_table(mechanism_audit))
    if not mechanism_audit.verdict.consistent:
        sys.exit(1)


def _values(result: "MechanismAudit") -> dict[str, Any]:
    """Returns the result of a mechanism's audit in plain JSON types."""
    verdict = result.verdict
    attack_values = None
    if result.attack is not None:
        attack_values = dataclasses.asdict(result.attack)
        # The attack's findings are left out, because the findings of the whole audit contain them.
        del attack_values["findings"]
        if not math.isfinite(attack_values["epsilon_claimed"]):
            attack_values["epsilon_claimed"] = None
    return {
        "consistent": verdict.consistent,
        **{
            name: getattr(result, name)
            for name in ("rounds", "coordinates", "trials", "entries", "smallest_unseen_cut")
        },
        **{name: getattr(verdict, name) for name in ("false_positive_rate", "threshold")},
        "findings": [
            dataclasses.asdict(finding) | {"consistent": finding.p_value >= verdict.threshold}
            for finding in verdict.findings
        ],
        "attack": attack_values,
    }


def _least_likely_findings(findings: "Sequence[Finding]") -> "list[Finding]":
    """Returns the finding with the smallest p-value for each test. Of the two runs' findings it is
    the one with the smaller p-value.
    """
    findings_by_test: dict[str, Finding] = {}
    for finding in findings:
        finding_name = finding.name
        if finding_name.startswith("run "):
            finding_name = finding_name.partition(": ")[2]
        test_name = finding_name.partition(", the ")[0]
        previous_finding = findings_by_test.get(test_name)
        if previous_finding is None or finding.p_value < previous_finding.p_value:
            findings_by_test[test_name] = dataclasses.replace(finding, name=finding_name)
    return list(findings_by_test.values())


def _table(result: "MechanismAudit") -> str:
    """Returns the result of a mechanism's audit as a table of tests, followed by the verdict."""
    verdict = result.verdict
    attack = result.attack
    table_lines = [f"{'test':<86} {'statistic':>9} {'p-value':>9}  verdict"]
    for finding in _least_likely_findings(verdict.findings):
        outcome_text = "ok"
        if finding.p_value < verdict.threshold:
            outcome_text = click.style("CONTRADICTS THE CLAIM", fg="red")
        p_value_text = " < 1e-300"
        if finding.p_value > 1e-300:
            p_value_text = f"{finding.p_value:9.2g}"
        table_lines.append(
            f"{finding.name:<86} {finding.statistic:>9.4g} {p_value_text}  {outcome_text}"
        )
    if attack is not None:
        confidence_text = f"{100 * attack.confidence:g}%"
        table_lines += [
            "",
            f"distinguishing attack, {attack.present:,} trials with the client and "
            f"{attack.absent:,} without",
            f"  signal-to-noise   claimed at most {attack.snr_claimed:.4f}, expected of these "
            f"rounds {attack.snr_expected:.4f}, measured {attack.snr:.4f} ({confidence_text}: "
            f"{attack.snr_lower:.4f} to {attack.snr_upper:.4f})",
            f"  epsilon           claimed {attack.epsilon_claimed:.4g}, proved at "
            f"{confidence_text} to be at least {attack.epsilon_lower:.3f}; "
            f"so many trials can be expected to prove {attack.epsilon_expected:.3f}",
        ]
    verdict_text = "consistent with the claim"
    if not verdict.consistent:
        verdict_text = click.style("NOT WHAT THE PLAN CLAIMS", fg="red")
    rate_text = (
        f"false-positive rate {verdict.false_positive_rate:g}: a p-value below "
        f"{verdict.threshold:.2g} contradicts"
    )
    tail_remark = (
        f"{result.entries:,} entries of noise: an end of the noise shows up to "
        f"{result.smallest_unseen_cut:.2f} standard deviations, and none beyond"
    )
    return "\n".join(
        [
            *table_lines,
            "",
            tail_remark,
            f"{verdict_text} ({len(verdict.findings)} tests, {rate_text})",
        ]
    )
