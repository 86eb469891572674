"""The command `fedmf audit`, which checks the guarantee of a run or a log, and the noise of a
mechanism.
"""

import dataclasses
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from fedmf.cli.errors import Group, arguments_checked, in_option_names
from fedmf.cli.options import grouped, json_option, plan_config, plan_options, quiet_option, show
from fedmf.cli.values import COUNT, PATH, RUN, FilePath, Gigabytes, OutputFile, Whole

if TYPE_CHECKING:
    from fedmf.audits.audit import Audit
    from fedmf.audits.finding import Finding
    from fedmf.server.audit import MechanismAudit


class _RunByDefault(Group):
    """Command group in which `fedmf audit FOLDER` means `fedmf audit run FOLDER`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Passes the arguments to the subcommand `run` if they name no other subcommand."""
        names_command = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        # While a shell completes the first word, there are no arguments. They must then not become
        # the command `run`.
        if not names_command and not ctx.resilient_parsing:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the commands that begin with `incomplete`, or else asks the shell to complete
        folders.
        """
        return super().shell_complete(ctx, incomplete) or [CompletionItem(incomplete, type="dir")]


@click.group(cls=_RunByDefault)
def audit() -> None:
    """Check a guarantee after the fact, or the noise that runs.

    The guarantee is that of a run (the default), of its canaries, or of another system's log.

    \b
    Example:
      fedmf audit runs/first --statement statement.md
      fedmf audit log log.csv banded.npz --rounds 256 --min-sep 64 --epsilon 8
      fedmf audit mechanism banded.npz --rounds 256 --min-sep 64 --epsilon 8
      fedmf audit canaries runs/first
    """


_statement_option = click.option(
    "--statement",
    type=OutputFile(".md", ".json"),
    help="Also write the privacy statement, to a file that ends in .md or .json.",
)


@audit.command()
@click.argument("run_folder", metavar="RUN", type=RUN)
@_statement_option
@json_option
def run(run_folder: pathlib.Path, statement: pathlib.Path | None, as_json: bool) -> None:
    """The guarantee of a run, planned beside achieved. It follows from the participation ledger.

    Exit status 1 if the run did not keep to its plan, after all is shown and written.

    \b
    Example:
      fedmf audit runs/first
      fedmf audit runs/first --statement statement.md
    """
    from fedmf.runs.audit import audit_run
    from fedmf.runs.folder import Run
    from fedmf.terminal.progress_bar import elapsed

    with elapsed("reading the run", disable=as_json):
        loaded_run = Run.load(run_folder)
    if statement is not None and statement.resolve().parent == loaded_run.path.resolve():
        raise click.UsageError(
            f"--statement {statement} is in the folder of the run, whose own statements are part "
            "of its record: name a file elsewhere"
        )
    result = audit_run(loaded_run)
    if statement is not None:
        _write(statement, result.statement_values())
    _show(result, as_json)


@audit.command()
@click.argument("log_file", metavar="LOG", type=PATH)
@plan_options
@grouped(
    "form",
    click.option(
        "--client-column", default="client", help="Column of clients: whole numbers or texts."
    ),
    click.option("--round-column", default="round", help="Column of rounds."),
    click.option("--first-round", type=Whole(0), default=0, help="Number of the first round."),
    click.option(
        "--duplicates",
        type=click.Choice(["refuse", "once"]),
        default="refuse",
        help="Rows that are there twice.",
    ),
)
@grouped(
    "reading",
    click.option(
        "--rounds-run",
        type=COUNT,
        help="Rounds after which the run ended, if not all of the plan's.",
    ),
    click.option("--memory", type=Gigabytes(), default=1.0, help="GB that sorting may take."),
    click.option(
        "--folder",
        type=FilePath(exists=True, file_okay=False, writable=True),
        help="For temporary files, as large as the log.  [default: the system's]",
    ),
)
@grouped(
    "statement_options",
    _statement_option,
    click.option(
        "--pretraining",
        help="For the statement: what the model was trained on before, in a few words.",
    ),
)
@json_option
def log(
    log_file: pathlib.Path,
    config_options: dict[str, Any],
    form: dict[str, Any],
    reading: dict[str, Any],
    statement_options: dict[str, Any],
    as_json: bool,
) -> None:
    """The guarantee of any system's run, from its log. The log is CSV, JSON lines or Parquet.

    The plan is what the run was planned with. Of 100 million rows it takes minutes, and no more
    memory than a few rows. docs/statement.md says what is read and what is refused. Exit status 1
    if the run did not keep to its plan, after all is shown and written.

    \b
    Example:
      fedmf audit log log.csv banded.npz --rounds 256 --min-sep 64 --epsilon 8
      fedmf audit log log.parquet banded.npz --rounds 2052 --min-sep 400 --noise-multiplier 1.2 \\
        --clip-norm 0.5 \\
        --client-column device --round-column t --first-round 1 --statement statement.md
    """
    from fedmf.audits.guarantee import audit_log
    from fedmf.audits.log import LogForm
    from fedmf.privacy.describe import audit_log_command

    with arguments_checked():
        config = plan_config(config_options)
        plan = config.plan()
        result = audit_log(log_file, plan, form=LogForm(**form), **reading)
    statement = statement_options["statement"]
    pretraining = statement_options["pretraining"]
    if statement is not None:
        command_options = form | {"pretraining": pretraining, "statement": statement.name}
        command = audit_log_command(
            plan,
            log_file.name,
            config_options["mechanism_file"].name,
            rounds_run=reading["rounds_run"],
            options=command_options,
            config=config,
        )
        _write(
            statement,
            result.statement_values(pretraining=pretraining, commands=[command]),
        )
    _show(result, as_json)


def _write(path: pathlib.Path, values: dict[str, Any]) -> None:
    """Writes the values of a privacy statement to a file, in the format of the file's suffix."""
    from fedmf.files import write_atomically
    from fedmf.privacy.statement import as_text

    text = as_text(_with_options(values, "unrecorded"), path.suffix)
    write_atomically(path, text, mode=0o600)


def _with_options(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the values, in one of which the text names command-line options in place of
    arguments.
    """
    if values.get(name) is None:
        return values
    return values | {name: in_option_names(values[name])}


def _show(result: "Audit", as_json: bool) -> None:
    """Prints an audit's result, and exits with status 1 if the run contradicts its plan."""
    values = _with_options(result.values(), "not_in_the_record")
    contradictions = values["contradictions"]
    if not as_json:
        del values["contradictions"]
        if values["noncompliant_clients"] is not None:
            values["noncompliant_clients"] = _client_lines(values["noncompliant_clients"])
        shown_suffixes = ["_observed", "epsilon_planned", "rho_planned"]
        if values["claimed_cohort"] is None:
            shown_suffixes += ["epsilon_achieved", "rho_achieved"]
        else:
            values["achieved"] = "not known: the simulated run was not observed"
        values = {
            name: value
            for name, value in values.items()
            if value is not None or name.endswith(tuple(shown_suffixes))
        }
        if contradictions:
            values["keeps_to_the_plan"] = f"no: {'; '.join(contradictions)}"
        elif "not_in_the_record" in values:
            values["keeps_to_the_plan"] = "yes, as far as it is recorded"
        else:
            values["keeps_to_the_plan"] = "yes"
    show(values, as_json)
    if contradictions:
        sys.exit(1)


def _client_lines(clients: dict[str, Any]) -> dict[str, Any]:
    """Returns the values about non-compliant clients with one line of text for each client."""
    from fedmf.identifiers import format_client, format_rounds

    client_lines = {}
    for position, client in enumerate(clients.pop("first"), 1):
        epsilon = "infinite"
        if client["epsilon"] is not None:
            epsilon = f"{client['epsilon']:.6g}"
        client_name = format_client(client["client"])
        rounds_text = format_rounds(client["rounds"])
        client_lines[str(position)] = f"{client_name}: epsilon {epsilon}, {rounds_text}"
    return clients | client_lines


@audit.command()
@click.argument("run_folder", metavar="RUN", type=RUN)
@click.option(
    "--confidence", type=float, default=0.95, help="With which all the lower bounds hold together."
)
@json_option
def canaries(run_folder: pathlib.Path, confidence: float, as_json: bool) -> None:
    """Lower bounds on the epsilon of a run trained with --canaries.

    They stand beside the claimed one.

    Each canary was in the run or out of it by a secret coin. The bounds follow from how many coins
    the releases betray. docs/canaries.md says how, and what so many canaries can show.
    Exit status 1 if a bound is above the claim.

    \b
    Example:
      fedmf data synth --clients 1000 --out corpus.sqlite
      fedmf train --data corpus.sqlite --out runs/audited --canaries 100 --rounds 60 \\
        --cohort-size 50 --min-sep 20 --client-learning-rate 4 --server-learning-rate 0.5 \\
        --server-momentum 0.9 -o loss=masked -o vocabulary-size=500 -o lstm-size=32 \\
        -o embedding-size=32 -o max-sentences=16 --epsilon 8 --noise-seed os
      fedmf audit canaries runs/audited
    """
    from fedmf.runs.audit import audit_run_canaries

    with arguments_checked():
        result = audit_run_canaries(run_folder, confidence=confidence)
    values = dataclasses.asdict(result) | {"consistent": not result.exceeded}
    if as_json:
        for bound in values["bounds"]:
            for name, value in bound.items():
                if "epsilon" in name and not math.isfinite(value):
                    bound[name] = None
        show(values, as_json)
    else:
        bounds = values.pop("bounds")
        show(values, as_json)
        click.echo(
            f"\n{'score':<14}{'assumes':<22}{'epsilon, at least':>18}{'claimed, at most':>18}"
        )
        for bound in bounds:
            lower_bound = bound["epsilon_lower"]
            claimed_epsilon = bound["epsilon_claimed"]
            line = f"{bound['score']:<14}{bound['assumes']:<22}"
            line += f"{lower_bound:>18.4f}{claimed_epsilon:>18.4f}"
            if lower_bound > claimed_epsilon:
                line += click.style("  ABOVE THE CLAIM", fg="red")
            click.echo(line)
    if result.exceeded:
        sys.exit(1)


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

    # An argument may be refused at once. The bar appears with a delay, so that it is not drawn
    # above that error.
    bar = progress_bar.bar(desc="audit", unit="round", disable=quiet or as_json, delay=0.5)
    with arguments_checked(), bar, progress_bar.refreshed(bar):

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        result = audit_mechanism(plan, progress=progress, subject=subject, **trial)
    if as_json:
        show(_values(result), as_json)
    else:
        click.echo(_table(result))
    if not result.verdict.consistent:
        sys.exit(1)


def _values(result: "MechanismAudit") -> dict[str, Any]:
    """Returns the result of a mechanism's audit in plain JSON types."""
    verdict = result.verdict
    attack = None
    if result.attack is not None:
        attack = dataclasses.asdict(result.attack)
        del attack["findings"]  # The findings of the whole audit contain these findings already.
        if not math.isfinite(attack["epsilon_claimed"]):
            attack["epsilon_claimed"] = None
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
        "attack": attack,
    }


def _least_likely_findings(findings: "Sequence[Finding]") -> "list[Finding]":
    """Returns one finding for each test. Of the two runs' findings it is the one with the smaller
    p-value.
    """
    findings_by_test: dict[str, Finding] = {}
    for finding in findings:
        name = finding.name
        if name.startswith("run "):
            name = name.partition(": ")[2]
        test_name = name.partition(", the ")[0]
        previous_finding = findings_by_test.get(test_name)
        if previous_finding is None or finding.p_value < previous_finding.p_value:
            findings_by_test[test_name] = dataclasses.replace(finding, name=name)
    return list(findings_by_test.values())


def _table(result: "MechanismAudit") -> str:
    """Returns the result of a mechanism's audit as a table of tests, followed by the verdict."""
    verdict = result.verdict
    attack = result.attack
    lines = [f"{'test':<86} {'statistic':>9} {'p-value':>9}  verdict"]
    for finding in _least_likely_findings(verdict.findings):
        outcome_text = "ok"
        if finding.p_value < verdict.threshold:
            outcome_text = click.style("CONTRADICTS THE CLAIM", fg="red")
        p_value = " < 1e-300"
        if finding.p_value > 1e-300:
            p_value = f"{finding.p_value:9.2g}"
        lines.append(f"{finding.name:<86} {finding.statistic:>9.4g} {p_value}  {outcome_text}")
    if attack is not None:
        percent = f"{100 * attack.confidence:g}%"
        lines += [
            "",
            f"distinguishing attack, {attack.present:,} trials with the client and "
            f"{attack.absent:,} without",
            f"  signal-to-noise   claimed at most {attack.snr_claimed:.4f}, expected of these "
            f"rounds {attack.snr_expected:.4f}, measured {attack.snr:.4f} ({percent}: "
            f"{attack.snr_lower:.4f} to {attack.snr_upper:.4f})",
            f"  epsilon           claimed {attack.epsilon_claimed:.4g}, proved at {percent} to be "
            f"at least {attack.epsilon_lower:.3f}; "
            f"so many trials can be expected to prove {attack.epsilon_expected:.3f}",
        ]
    conclusion = "consistent with the claim"
    if not verdict.consistent:
        conclusion = click.style("NOT WHAT THE PLAN CLAIMS", fg="red")
    rate = (
        f"false-positive rate {verdict.false_positive_rate:g}: a p-value below "
        f"{verdict.threshold:.2g} contradicts"
    )
    tail_remark = (
        f"{result.entries:,} entries of noise: an end of the noise shows up to "
        f"{result.smallest_unseen_cut:.2f} standard deviations, and none beyond"
    )
    return "\n".join(
        [*lines, "", tail_remark, f"{conclusion} ({len(verdict.findings)} tests, {rate})"]
    )
