"""Options made from dataclasses, and arguments turned into objects with exit status 2 when they do not fit."""

import contextlib
import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import click


class BadArgument(click.UsageError):
    """An argument that cannot work: one sentence, exit status 2, no usage text in front of it."""

    def show(self, file: Any = None) -> None:
        """Prints the sentence."""
        click.echo(f"fedmf: error: {self.message}", err=True, file=file)


@contextlib.contextmanager
def arguments_checked() -> Iterator[None]:
    """Errors inside are the arguments' fault."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise BadArgument(" ".join(str(error).split())) from error


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """One option for every field of TrainConfig; options left out are absent from the call's keyword arguments."""
    from fedmf.config import TrainConfig

    for field in reversed(dataclasses.fields(TrainConfig)):
        kinds = [k for k in (typing.get_args(field.type) or (field.type,)) if k is not types.NoneType]
        default = "" if field.default is None else f"  [default: {field.default}]"
        command = click.option(
            f"--{field.name.replace('_', '-')}",
            field.name,
            type=kinds[0],
            default=None,
            help=field.metadata["help"] + default,
        )(command)
    return command


def participation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--rounds, --schema, --min-sep, --max-participations."""
    options = (
        click.option("--rounds", type=int, required=True, help="Rounds of training."),
        click.option(
            "--schema", default="min_sep", show_default=True, help="single, fixed_epoch, min_sep or every_round."
        ),
        click.option("--min-sep", type=int, help="Least number of rounds between two participations of a client."),
        click.option("--max-participations", type=int, help="Most participations of a client."),
    )
    for option in reversed(options):
        command = option(command)
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def show(values: dict[str, Any], as_json: bool) -> None:
    """Prints a result: JSON, or one aligned line a value."""
    if as_json:
        click.echo(json.dumps(values, indent=2))
        return
    width = max(len(name) for name in values)
    for name, value in values.items():
        click.echo(f"{name:<{width}}  {f'{value:.6g}' if isinstance(value, float) else value}")
