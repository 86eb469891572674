"""Errors of commands, as one sentence that names command-line options in place of arguments."""

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from fedmf.cli.help import Context, SectionedCommand, TaskFieldOption, say
from fedmf.terminal import interrupts, output

QUOTES = "'\""
_VALUE = r"""'[^']*'|"[^"]*"|[^\s,;:)]*[^\s,;:).]"""
# Matches the name of an argument in an error message, which is `name` in backquotes, or name=value.
# A text name=value inside a path or a run's name such as epsilon=8,seed=1 does not match.
_ARGUMENT = re.compile(
    rf"""`(?P<alone>\w+)`|(?<![\w./'",-])(?P<argument>\w+)=(?P<value>(?>{_VALUE}))(?!,\w+=)"""
)
_TASK_OPTION = re.compile(r"`task_option` (?:'(?P<alone>[\w-]+)'|(?P<argument>[\w-]+)(?==))")


class BadArgument(click.UsageError):
    """Error for arguments that cannot work, with exit status 2."""


@contextlib.contextmanager
def arguments_checked() -> Iterator[None]:
    """Turns a ValueError, TypeError or FileNotFoundError of the block into a BadArgument."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise BadArgument(one_line(error)) from error


@contextlib.contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Prints each UserWarning of the block without the line of code that it comes from."""
    with warnings.catch_warnings():
        show_warning: Callable[..., None] = warnings.showwarning

        def show_in_a_line(message: Warning | str, category: type[Warning], *location: Any) -> None:
            if category is UserWarning:
                say("warning", in_option_names(str(message)))
            else:
                show_warning(message, category, *location)

        warnings.showwarning = show_in_a_line  # type: ignore[assignment]
        yield


def one_line(error: BaseException) -> str:
    """Returns an error's message without line breaks, or the error's type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


class Command(SectionedCommand):
    """Command whose error messages name its options in place of the library's arguments.

    An error's exit status is 2 for bad arguments, else 1. Options of `grouped` reach the command's
    function as one argument.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the command line. A word such as -x is read as a path if a file has that name."""
        typed_args = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption:
            safe_args = [_with_folder(argument) for argument in typed_args]
            if safe_args == typed_args:
                raise
            return super().parse_args(ctx, safe_args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command, and turns the library's errors into errors of the command line."""
        for parameter in self.get_params(ctx):
            option_group = getattr(parameter, "group", None)
            if option_group is not None:
                group_values = ctx.params.setdefault(option_group, {})
                group_values[parameter.name] = ctx.params.pop(parameter.name)
        try:
            with output.cleared_on_error():
                return super().invoke(ctx)
        except click.ClickException as error:
            raise type(error)(in_option_names(error.message, ctx)) from error.__cause__
        except interrupts.Interrupted as stop:
            raise type(stop)(in_option_names(str(stop), ctx)) from None
        except MemoryError as error:
            raise click.ClickException(
                f"there is not enough memory ({one_line(error)}): use smaller numbers, or a larger "
                "machine"
            ) from error
        except (ValueError, TypeError, OSError, ImportError) as error:
            if output.is_lost_reader(error):
                raise
            raise click.ClickException(in_option_names(one_line(error), ctx)) from error


def _with_folder(argument: str) -> str:
    """Returns "./-x" for an argument "-x" if there is a file or folder of that name."""
    is_named_like_an_option = argument.startswith("-") and argument.strip("-")
    if is_named_like_an_option and os.path.lexists(argument):
        return f"./{argument}"
    return argument


class Group(click.Group):
    """Group of commands of the class `Command`."""

    command_class = Command
    group_class = type
    context_class = Context


def in_option_names(message: str, context: click.Context | None = None) -> str:
    """Replaces names of arguments in a message by the options of the running command.

    An option that --task-option can replace is named only if it is on the command line.
    """
    context = context or click.get_current_context()
    command_line_source = click.core.ParameterSource.COMMANDLINE
    parameters = [
        parameter
        for parameter in context.command.get_params(context)
        if not isinstance(parameter, TaskFieldOption)
        or context.get_parameter_source(parameter.name or "") is command_line_source
    ]
    return with_option_names(message, parameters)


def with_option_names(message: str, parameters: Sequence[click.Parameter]) -> str:
    """Replaces names of arguments in a message by those of the given options.

    A message writes an argument as name=value, or in backticks. Other words are English.

    >>> options = [click.Option(["--min-sep"]), click.Option(["--schema"])]
    >>> message = "min_sep=9 does not suit schema='min_sep': pass `min_sep` in 1..4"
    >>> with_option_names(message, options)
    '--min-sep 9 does not suit --schema min_sep: pass --min-sep in 1..4'
    """
    options: dict[str, tuple[str, str]] = {}
    for parameter in parameters:
        if isinstance(parameter, click.Option):
            option_name = max(parameter.opts, key=len)
            option_names = (option_name, (parameter.secondary_opts or [option_name])[0])
            # The library may know the option by the parameter's name, so both names are replaced.
            options |= {
                option_name.lstrip("-").replace("-", "_"): option_names,
                parameter.name or "": option_names,
            }

    def option_text(match: re.Match[str]) -> str:
        matched_value = match["value"]
        argument = match["alone"] or match["argument"]
        if argument not in options:
            return match[0]
        option_name, negative = options[argument]
        if matched_value in (None, "True"):
            return option_name
        if matched_value == "False":
            return negative
        if matched_value == "None":
            return f"{option_name} (not given)"
        unquoted_value = matched_value.strip(QUOTES)
        if unquoted_value and " " not in unquoted_value:
            return f"{option_name} {unquoted_value}"
        return f"{option_name} {matched_value}"

    def task_option_text(match: re.Match[str]) -> str:
        argument_name = match["alone"] or match["argument"]
        if argument_name.replace("-", "_") not in options:
            return match[0]
        if match["argument"]:
            return argument_name
        return f"`{argument_name}`"

    # Users write a file on the command line without `path=`, so messages leave out `path=`.
    message = re.sub(r"(?<![\w.])path=(?=['\"])", "", message)
    return _ARGUMENT.sub(option_text, _TASK_OPTION.sub(task_option_text, message))
