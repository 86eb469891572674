"""The command line.

Commands import what they need when they run: `fedmf --help` must answer at once.
"""

import contextlib
import sys
import traceback

import click

from fedmf.cli import aggregator  # noqa: F401  (a command of audit)
from fedmf.cli.audit import audit
from fedmf.cli.calibrate import calibrate
from fedmf.cli.completion import completion
from fedmf.cli.data import data
from fedmf.cli.errors import one_line
from fedmf.cli.evaluate import evaluate, export, predict
from fedmf.cli.fit import fit
from fedmf.cli.help import SectionedGroup, colors, say
from fedmf.cli.paper import paper
from fedmf.cli.plan import plan
from fedmf.cli.run import demo, report, train
from fedmf.cli.stopped import no_half_archives
from fedmf.cli.sweep import sweep
from fedmf.terminal import interrupts, output

# What people do -> the commands for it.
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
    del debug  # read in main, which also sees errors of the parser


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script: exit status 2 for bad arguments, 1 for a failed run, 128
    and the number of a signal that ended it.

    Ctrl-C is such a signal (130), SIGTERM (143) and SIGHUP (129) are taken for it. Errors are one
    sentence on standard error; --debug adds the traceback. Where nobody reads the output any more,
    as under `| head`, it ends in silence, with the status of a tool that SIGPIPE ends (141).
    """
    with interrupts.handled(*interrupts.ENDING_SIGNALS), no_half_archives():
        status = _flushed_status(arguments)
    if status:
        sys.exit(status)


def _flushed_status(arguments: list[str] | None) -> int:
    """Runs the command, writes all of its output and returns the exit status."""
    try:
        status = _status(arguments)
        unwritten = output.flush()
    except OSError as error:  # of the sentence that says how the command ended
        status = 1
        unwritten = error
        output.flush()
    if unwritten is None or output.is_lost_reader(unwritten):
        return status if unwritten is None else output.LOST_READER
    with contextlib.suppress(OSError):
        say("error", f"the output cannot be written ({unwritten.strerror})")
    return status or 1


def _status(arguments: list[str] | None) -> int:
    """Runs the command, prints what ended it and returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    # Accepted anywhere on the line, as users try it there.
    arguments = [a for a in arguments if a != "--debug"]
    try:
        cli.main(args=arguments, prog_name="fedmf", standalone_mode=False, color=colors())
    except SystemExit as stop:
        if stop.code == 1 and output.has_lost_reader():  # Click replaces the error by this status.
            return output.LOST_READER
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except (click.Abort, KeyboardInterrupt):
        return _interrupted("interrupted", 128 + interrupts.first_received())
    except interrupts.Interrupted as stop:
        return _interrupted(str(stop), 128 + interrupts.first_received())
    except click.ClickException as error:
        if debug and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            error.show()
            return error.exit_code
        say("error", " ".join(error.format_message().split()))
        return error.exit_code
    except OSError as error:
        if output.is_lost_reader(error):
            return output.LOST_READER
        if debug:
            traceback.print_exc()
        say("error", one_line(error))
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        say("error", one_line(error) + ("" if debug else " (unexpected: --debug shows where)"))
        return 1
    return 0


def _interrupted(message: str, status: int) -> int:
    click.echo(f"fedmf: {message}", err=True)
    return status
