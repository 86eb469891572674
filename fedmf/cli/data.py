"""fedmf data: make and describe StackOverflow files."""

import pathlib
from typing import Any

import click

from fedmf.cli.options import arguments_checked, json_option, show

_FEWEST_WORDS = 259  # of write_synthetic_corpus with its default topics


@click.group()
def data() -> None:
    """Make and describe StackOverflow data files."""


@data.command()
@click.option("--clients", required=True, type=int, help="Training clients.")
@click.option("--out", required=True, type=click.Path(path_type=pathlib.Path), help="SQLite file to write.")
@click.option("--seed", default=0, show_default=True, help="Same seed, same corpus.")
@click.option("--sentences-per-client", default=64.0, show_default=True, help="Mean; users differ.")
@click.option("--words", default=1000, show_default=True, help="Different words of the language.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def synth(
    clients: int, out: pathlib.Path, seed: int, sentences_per_client: float, words: int, overwrite: bool, quiet: bool
) -> None:
    """Write a synthetic corpus in the format of TFF's StackOverflow file.

    \b
    Example:
      fedmf data synth --clients 4000 --out corpus.sqlite
    """
    from fedmf.tasks.stackoverflow import write_synthetic_corpus

    with arguments_checked():
        if words < _FEWEST_WORDS:
            raise ValueError(f"words={words} are too few for the language's topics: use {_FEWEST_WORDS} or more")
        write_synthetic_corpus(
            out,
            clients=clients,
            seed=seed,
            sentences_per_client=sentences_per_client,
            vocabulary_size=words,
            overwrite=overwrite,
            progress=not quiet,
        )
    click.echo(str(out))


@data.command()
@click.argument("file", type=click.Path(path_type=pathlib.Path), required=False)
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
    if as_json:
        show(description, as_json)
        return
    show(_flat(description), as_json)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """A line for each value, those inside others by the names of both."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": part for inner, part in _flat(value).items()}
        else:
            flat[name] = value
    return flat
