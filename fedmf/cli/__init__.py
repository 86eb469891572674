"""Command line of fedmf, with the `fedmf` command, its sections of subcommands, and its exit
statuses.

Commands import what they need only when they run, since `fedmf --help` must answer at once.
"""

import contextlib
import sys
import traceback

import click

from fedmf.cli import aggregator, mechanism  # noqa: F401  (commands of audit)
from fedmf.cli.audit import audit
from fedmf.cli.calibrate import calibrate
from fedmf.cli.completion import completion
from fedmf.cli.data import data
from fedmf.cli.demo import demo
from fedmf.cli.errors import one_line
from fedmf.cli.evaluate import evaluate, export, predict
from fedmf.cli.fit import fit
from fedmf.cli.help import SectionedGroup, colors, say
from fedmf.cli.paper import paper
from fedmf.cli.plan import plan
from fedmf.cli.report import report
from fedmf.cli.stopped import no_half_archives
from fedmf.cli.sweep import sweep
from fedmf.cli.train import train
from fedmf.terminal import interrupts, output

# Sections of `fedmf --help`, with the commands in each.
SECTIONS = {
    "Run": (demo, data, train, evaluate, export, predict, report),
    "Plan": (plan, fit, calibrate),
    "Prove": (audit,),
    "Replicate": (paper, sweep),
    "Shell": (completion,),
}


@click.group(
    cls=SectionedGroup,
    sections=SECTIONS,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "show_default": True,
    },
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="fedmf")
def cli(debug: bool) -> None:
    """Federated learning with matrix-factorization differential privacy.

    \b
    Example:
      fedmf demo                      a private simulation in minutes, with a report
      fedmf train --help              one run
    """
    # The option --debug is read by `main`, because `main` also handles errors that the parser
    # raises.
    del debug


def main(arguments: list[str] | None = None) -> None:
    """Runs the console script, and exits with the status of its command.

    The status is 2 for bad arguments, 1 for a failed run, and 128 plus the number of a signal that
    ended it: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP. An error is one sentence on standard
    error; --debug adds the traceback. If nobody reads the output any more, as under `| head`, the
    script prints nothing more and exits with 141, the status of a tool that SIGPIPE ends.
    """
    with interrupts.handled(*interrupts.ENDING_SIGNALS), no_half_archives():
        exit_status = _flushed_status(arguments)
    if exit_status:
        sys.exit(exit_status)


def _flushed_status(arguments: list[str] | None) -> int:
    """Runs the command, writes all of its output and returns the exit status."""
    try:
        exit_status = _status(arguments)
        write_error = output.flush()
    except OSError as error:
        # The command's last message could not be written to standard error, so the process cannot
        # report it.
        exit_status = 1
        write_error = error
        output.flush()
    if write_error is None:
        return exit_status
    if output.is_lost_reader(write_error):
        return output.LOST_READER
    with contextlib.suppress(OSError):
        say("error", f"the output cannot be written ({write_error.strerror})")
    return exit_status or 1


def _status(arguments: list[str] | None) -> int:
    """Runs the command, prints the error that ended it, if any, and returns the exit status."""
    if arguments is None:
        arguments = sys.argv[1:]
    has_debug = "--debug" in arguments
    # --debug is accepted anywhere on the line, because users type it anywhere.
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        cli.main(args=arguments, prog_name="fedmf", standalone_mode=False, color=colors())
    except SystemExit as stop:
        # If nobody reads the output any more, click exits with status 1 and raises no error.
        if stop.code == 1 and output.has_lost_reader():
            return output.LOST_READER
        if isinstance(stop.code, int):
            return stop.code
        return int(stop.code is not None)
    except (click.Abort, KeyboardInterrupt):
        return _interrupted("interrupted", 128 + interrupts.first_received())
    except interrupts.Interrupted as stop:
        return _interrupted(str(stop), 128 + interrupts.first_received())
    except click.ClickException as error:
        if has_debug and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            error.show()
            return error.exit_code
        say("error", " ".join(error.format_message().split()))
        return error.exit_code
    except OSError as error:
        if output.is_lost_reader(error):
            return output.LOST_READER
        if has_debug:
            traceback.print_exc()
        say("error", one_line(error))
        return 1
    except Exception as error:
        if has_debug:
            traceback.print_exc()
        error_message = one_line(error)
        if not has_debug:
            error_message += " (unexpected: --debug shows where)"
        say("error", error_message)
        return 1
    return 0


def _interrupted(message: str, status: int) -> int:
    """Prints a message about the interruption, and returns the exit status."""
    click.echo(f"fedmf: {message}", err=True)
    return status
