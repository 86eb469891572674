"""The command `fedmf audit`, which checks the guarantee of a run or a log, and a run's canaries."""

import dataclasses
import math
import pathlib
import sys
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from fedmf.cli.errors import Group, arguments_checked, in_option_names
from fedmf.cli.options import grouped, json_option, plan_config, plan_options, show
from fedmf.cli.values import COUNT, PATH, RUN, FilePath, Gigabytes, OutputFile, Whole

if TYPE_CHECKING:
    from fedmf.audits.audit import Audit


class _RunByDefault(Group):
    """Command group in which `fedmf audit FOLDER` means `fedmf audit run FOLDER`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Passes the arguments to the subcommand `run` if they name no other subcommand."""
        has_subcommand = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        # While a shell completes the first word, there are no arguments. An empty list must then
        # not become the command `run`.
        if not has_subcommand and not ctx.resilient_parsing:
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
    run_audit = audit_run(loaded_run)
    if statement is not None:
        _write(statement, run_audit.statement_values())
    _show(run_audit, as_json)


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
    memory than a few rows. docs/audit_log.md says what is read and what is refused. Exit status 1
    if the run did not keep to its plan, after all is shown and written.

    \b
    Example:
      fedmf audit log log.csv banded.npz --rounds 256 --min-sep 64 --epsilon 8
      fedmf audit log log.parquet banded.npz --rounds 2052 --min-sep 400 --noise-multiplier 1.2 \\
        --clip-norm 0.5 \\
        --client-column device --round-column t --first-round 1 --statement statement.md
    """
    from fedmf.audits.guarantee import audit_log
    from fedmf.audits.log_file import LogForm
    from fedmf.privacy.describe import audit_log_command

    with arguments_checked():
        config = plan_config(config_options)
        plan = config.plan()
        log_audit = audit_log(log_file, plan, form=LogForm(**form), **reading)
    statement = statement_options["statement"]
    pretraining = statement_options["pretraining"]
    if statement is not None:
        command_options = form | {"pretraining": pretraining, "statement": statement.name}
        repeat_command = audit_log_command(
            plan,
            log_file.name,
            config_options["mechanism_file"].name,
            rounds_run=reading["rounds_run"],
            options=command_options,
            config=config,
        )
        _write(
            statement,
            log_audit.statement_values(pretraining=pretraining, commands=[repeat_command]),
        )
    _show(log_audit, as_json)


def _write(path: pathlib.Path, values: dict[str, Any]) -> None:
    """Writes the values of a privacy statement to a file, in the format of the file's suffix."""
    from fedmf.files import write_atomically
    from fedmf.privacy.statement import as_text

    statement_text = as_text(_with_options(values, "unrecorded"), path.suffix)
    write_atomically(path, statement_text, mode=0o600)


def _with_options(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the values after replacing names of arguments by command-line options in one text of
    them.
    """
    if values.get(name) is None:
        return values
    return values | {name: in_option_names(values[name])}


def _show(result: "Audit", as_json: bool) -> None:
    """Prints an audit's result, and exits with status 1 if the run contradicts its plan."""
    shown_values = _with_options(result.values(), "not_in_the_record")
    contradictions = shown_values["contradictions"]
    if not as_json:
        del shown_values["contradictions"]
        if shown_values["noncompliant_clients"] is not None:
            shown_values["noncompliant_clients"] = _client_lines(
                shown_values["noncompliant_clients"]
            )
        shown_suffixes = ["_observed", "epsilon_planned", "rho_planned"]
        if shown_values["claimed_cohort"] is None:
            shown_suffixes += ["epsilon_achieved", "rho_achieved"]
        else:
            shown_values["achieved"] = "not known: the simulated run was not observed"
        shown_values = {
            name: value
            for name, value in shown_values.items()
            if value is not None or name.endswith(tuple(shown_suffixes))
        }
        if contradictions:
            shown_values["keeps_to_the_plan"] = f"no: {'; '.join(contradictions)}"
        elif "not_in_the_record" in shown_values:
            shown_values["keeps_to_the_plan"] = "yes, as far as it is recorded"
        else:
            shown_values["keeps_to_the_plan"] = "yes"
    show(shown_values, as_json)
    if contradictions:
        sys.exit(1)


def _client_lines(clients: dict[str, Any]) -> dict[str, Any]:
    """Returns the values about non-compliant clients, with a line of text for each client."""
    from fedmf.identifiers import format_client, format_rounds

    client_lines = {}
    for position, client in enumerate(clients.pop("first"), 1):
        epsilon_text = "infinite"
        if client["epsilon"] is not None:
            epsilon_text = f"{client['epsilon']:.6g}"
        client_name = format_client(client["client"])
        rounds_text = format_rounds(client["rounds"])
        client_lines[str(position)] = f"{client_name}: epsilon {epsilon_text}, {rounds_text}"
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
        canary_audit = audit_run_canaries(run_folder, confidence=confidence)
    audit_values = dataclasses.asdict(canary_audit) | {"consistent": not canary_audit.exceeded}
    if as_json:
        for bound in audit_values["bounds"]:
            for name, value in bound.items():
                if "epsilon" in name and not math.isfinite(value):
                    bound[name] = None
        show(audit_values, as_json)
    else:
        canary_bounds = audit_values.pop("bounds")
        show(audit_values, as_json)
        click.echo(
            f"\n{'score':<14}{'assumes':<22}{'epsilon, at least':>18}{'claimed, at most':>18}"
        )
        for bound in canary_bounds:
            lower_bound = bound["epsilon_lower"]
            claimed_epsilon = bound["epsilon_claimed"]
            bound_line = f"{bound['score']:<14}{bound['assumes']:<22}"
            bound_line += f"{lower_bound:>18.4f}{claimed_epsilon:>18.4f}"
            if lower_bound > claimed_epsilon:
                bound_line += click.style("  ABOVE THE CLAIM", fg="red")
            click.echo(bound_line)
    if canary_audit.exceeded:
        sys.exit(1)
