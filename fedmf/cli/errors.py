"""What a command says when it cannot work: one sentence in the words of the command line."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import click

from fedmf.cli.help import Context, SectionedCommand
from fedmf.terminal import interrupts

QUOTES = "'\""


class BadArgument(click.UsageError):
    """Arguments that cannot work: exit status 2."""


@contextlib.contextmanager
def arguments_checked() -> Iterator[None]:
    """Errors inside are the arguments' fault."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise BadArgument(one_line(error)) from error


def one_line(error: BaseException) -> str:
    """The error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


class Command(SectionedCommand):
    """A command whose errors name its options where the library names its arguments: exit status 2
    or 1.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            raise type(error)(
                with_option_names(error.message, self.get_params(ctx))
            ) from error.__cause__
        except interrupts.Interrupted as stop:
            raise type(stop)(with_option_names(str(stop), self.get_params(ctx))) from None
        except (ValueError, TypeError, OSError, ImportError) as error:
            raise click.ClickException(
                with_option_names(one_line(error), self.get_params(ctx))
            ) from error


class Group(click.Group):
    """A group of such commands."""

    command_class = Command
    group_class = type
    context_class = Context


def in_option_names(message: str) -> str:
    """`message` with the options of the command that runs for the arguments of the same name."""
    context = click.get_current_context()
    return with_option_names(message, context.command.get_params(context))


def with_option_names(message: str, parameters: Sequence[click.Parameter]) -> str:
    """`message` with the options among these parameters for the arguments of the same name.

    >>> options = [click.Option(["--min-sep"]), click.Option(["--schema"])]
    >>> with_option_names("min_sep=9 does not suit schema='min_sep': pass min_sep in 1..4", options)
    '--min-sep 9 does not suit --schema min_sep: pass --min-sep in 1..4'
    """
    options: dict[str, tuple[str, str]] = {}
    for parameter in parameters:
        if isinstance(parameter, click.Option):
            name = max(parameter.opts, key=len)
            names = (name, (parameter.secondary_opts or [name])[0])
            # A parameter has the library's name where the option has another.
            options |= {name.lstrip("-").replace("-", "_"): names, parameter.name or "": names}
    arguments = "|".join(sorted(options, key=len, reverse=True))

    def option(match: re.Match[str]) -> str:
        (name, negative), value = options[match[1]], match[2]
        # A word of English, unless it has an underscore or is in a list of options
        if value is None:
            return name if "_" in match[1] or match.start() > listed else match[1]
        if value in ("True", "False"):
            return name if value == "True" else negative
        if value == "None":
            return f"{name} (not given)"
        return f"{name} {value if ' ' in value else value.strip(QUOTES)}"

    value = r"""'[^']*'|"[^"]*"|[^\s,;:)]*[^\s,;:).]"""
    argument = rf"""(?<![\w./'"-])({arguments})(?:=({value})|(?![\w/'"=-]))"""
    # Names in a list of choices are values: min_sep is also a schema.
    sentence, of, choices = message.partition(" one of ")
    of_options = re.search("(options|fields) are ", sentence)
    listed = of_options.start() if of_options else len(sentence)
    # A file that was named on the command line stands for itself.
    return re.sub(
        r"(?<![\w.])path=(?=['\"])", "", re.sub(argument, option, sentence) + of + choices
    )
