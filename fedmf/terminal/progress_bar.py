"""The one progress bar: on terminals that know their size or do not, and in log files."""

import os
import sys
from collections.abc import Iterable
from typing import Any


def bar(
    iterable: Iterable[Any] | None = None,
    *,
    desc: str | None = None,
    unit: str = "it",
    total: int | None = None,
    initial: int = 0,
    delay: float | None = None,
    disable: bool = False,
) -> Any:
    """A `tqdm.tqdm` on standard error: drawn ten times a second on a terminal, a line every ten
    seconds elsewhere.

    Args:
      iterable, desc, unit, total, initial, disable: of `tqdm.tqdm`.
      delay: seconds after which it appears; it goes again when it is done.

    Example:
      >>> with bar(total=2, disable=True) as steps:
      ...     _ = steps.update()
    """
    import tqdm

    return tqdm.tqdm(
        iterable,
        desc=desc,
        unit=unit,
        total=total,
        initial=initial,
        delay=delay or 0,
        leave=delay is None,
        disable=disable,
        mininterval=0.1 if sys.stderr.isatty() else 10,
        **_shape(),
    )


def _shape() -> dict[str, Any]:
    try:
        size = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # not a terminal, or not a file at all
        return {}
    # A terminal to which nobody has given a size says 0, and tqdm would draw nothing.
    return {"dynamic_ncols": True} if all(size) else {"ncols": 100, "nrows": 24}
