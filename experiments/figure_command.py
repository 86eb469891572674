"""The command line of drivers that draw one figure and write its numbers beside it."""

import argparse
import pathlib
import sys
import time
from collections.abc import Callable
from typing import NamedTuple


class Asked(NamedTuple):
    """What a figure was asked for.

    Attributes:
      quick: a size for tests and a first look.
      out: the picture, a .png file in a folder that exists.
      progress: prints a phrase with the seconds since the start.
    """

    quick: bool
    out: pathlib.Path
    progress: Callable[[str], None]


def asked(
    module: str, description: str | None, arguments: list[str] | None, *, out: str, quick: str
) -> Asked:
    """The options of `python -m module`.

    Args:
      module, description: for the help.
      arguments: of the command line; None for the process's.
      out: the picture if none is named.
      quick: what `--quick` does, for the help.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path(out),
        help="the picture; numbers go beside it",
    )
    options = parser.parse_args(arguments)
    if options.out.suffix != ".png" or not options.out.parent.is_dir() or options.out.is_dir():
        parser.error(
            f"--out {options.out} is no .png file in a folder that exists: create the "
            "folder, or choose another"
        )
    began = time.perf_counter()

    def progress(phrase: str) -> None:
        print(f"[{time.perf_counter() - began:6.1f} s] {phrase}", file=sys.stderr, flush=True)

    return Asked(options.quick, options.out, progress)
