"""The one progress bar: on terminals that know their size or do not, and in log files."""

import os
import sys
from collections.abc import Iterable
from typing import Any


def bar(iterable: Iterable[Any] | None = None, **options: Any) -> Any:
    """A `tqdm.tqdm` on standard error: drawn ten times a second on a terminal, a line every ten
    seconds elsewhere.

    Args:
      iterable, options: of `tqdm.tqdm`.

    Example:
      >>> with bar(total=2, disable=True) as steps:
      ...     _ = steps.update()
    """
    import tqdm

    return tqdm.tqdm(
        iterable, mininterval=0.1 if sys.stderr.isatty() else 10, **_shape(), **options
    )


def _shape() -> dict[str, Any]:
    try:
        size = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # not a terminal, or not a file at all
        return {}
    # A terminal to which nobody has given a size says 0, and tqdm would draw nothing.
    return {"dynamic_ncols": True} if all(size) else {"ncols": 100, "nrows": 24}
