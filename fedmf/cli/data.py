"""fedmf data: make and describe StackOverflow files."""

import pathlib
from typing import Any

import click

from fedmf.cli.errors import Group, arguments_checked
from fedmf.cli.options import COUNT, PATH, json_option, quiet_option, show

_MIN_WORDS = 259  # of write_synthetic_corpus with its default topics


@click.group(cls=Group)
def data() -> None:
    """Make and describe StackOverflow data files."""


@data.command()
@click.option("--clients", required=True, type=COUNT, help="Training clients.")
@click.option("--out", required=True, type=PATH, help="SQLite file to write.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Same seed, same corpus.")
@click.option("--sentences-per-client", default=64.0, help="Mean; users differ.")
@click.option(
    "--words", "vocabulary_size", type=click.IntRange(_MIN_WORDS), default=1000, help="Different words of the language."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@quiet_option
def synth(out: pathlib.Path, quiet: bool, **language: Any) -> None:
    """Write a synthetic corpus in the format of TFF's StackOverflow file.

    \b
    Example:
      fedmf data synth --clients 4000 --out corpus.sqlite
    """
    from fedmf.tasks.stackoverflow import write_synthetic_corpus

    with arguments_checked():
        write_synthetic_corpus(out, progress=not quiet, **language)
    click.echo(str(out))


@data.command()
@click.argument("file", type=PATH, required=False)
@json_option
def info(file: pathlib.Path | None, as_json: bool) -> None:
    """Describe FILE: a synthetic or the real StackOverflow file; without FILE the one in TFF's own cache.

    \b
    Example:
      fedmf data info corpus.sqlite
    """
    from fedmf.tasks.stackoverflow import describe_file

    with arguments_checked():
        description = describe_file(file)
    show(description if as_json else _flat(description), as_json)


def _flat(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Values inside others by the names of both."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{above}{name}.") if isinstance(value, dict) else {above + name: value}
    return flat
