"""Help pages of the command line, with options and commands in sections and, on terminals, bold
headings.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

# Headings of the help's sections, by the first field of TrainConfig in each section. The following
# fields, up to the next key, belong to the same section.
CONFIG_SECTIONS = {
    "rounds": "Who takes part",
    "workload": "Mechanism",
    "epsilon": "Privacy",
    "task": "Task",
    "availability": "Devices and updates",
    "client_learning_rate": "Optimisation",
    "seed": "The run",
}


def colors() -> bool | None:
    """Returns click's argument `color`, which is False if the user has set NO_COLOR, and otherwise
    None, so that only terminals get colours.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return None


def say(kind: str, message: str) -> None:
    """Prints a message to standard error, after "fedmf" and its kind, such as error or warning."""
    styled_kind = click.style(f"{kind}:", fg={"error": "red"}.get(kind, "yellow"), bold=True)
    click.echo(f"fedmf: {styled_kind} {message}", err=True, color=colors())


class _Formatter(click.HelpFormatter):
    """Formatter of help pages with bold headings."""

    def write_heading(self, heading: str) -> None:
        super().write_heading(click.style(heading, bold=True))


class Context(click.Context):
    """Click context whose help has bold headings."""

    formatter_class = _Formatter


class SectionOption(click.Option):
    """Option that the help lists in a section.

    Its `group` is the dict of `fedmf.cli.options.grouped` in which its value is passed.
    """

    group: str | None = None

    def __init__(self, *arguments: Any, section: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.section = section


class TaskFieldOption(SectionOption):
    """Option for one field of a task's options, which --task-option can set as well."""


class SectionedCommand(click.Command):
    """Command whose help lists its own options first, and then the options of each section."""

    context_class = Context

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the help of the options, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            help_record = parameter.get_help_record(ctx)
            if help_record is not None:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(
                    help_record
                )
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


class SectionedGroup(click.Group):
    """Group whose help lists its commands in sections."""

    context_class = Context

    def __init__(
        self, *arguments: Any, sections: Mapping[str, Sequence[click.Command]], **settings: Any
    ) -> None:
        super().__init__(*arguments, **settings)
        self.sections = {
            title: [command.name or "" for command in members]
            for title, members in sections.items()
        }
        for command in (command for members in sections.values() for command in members):
            self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the commands in the order of the sections."""
        return [name for names in self.sections.values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the help of the commands, section by section."""
        name_width = max(map(len, self.commands))
        for title, names in self.sections.items():
            with formatter.section(title):
                help_width = formatter.width - 6 - name_width
                formatter.write_dl(
                    [
                        (f"{n:<{name_width}}", self.commands[n].get_short_help_str(help_width))
                        for n in names
                    ]
                )
