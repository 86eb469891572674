"""What a long fit shows while it runs."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def shown(label: str, enabled: bool) -> Iterator[Callable[[int, float, float | None], None] | None]:
    """Yields a `progress` for `fit` that draws a line with steps, loss and certified gap; None where not enabled.

    >>> with shown("banded", enabled=False) as progress:
    ...     print(progress)
    None
    """
    if not enabled:
        yield None
        return
    import tqdm

    interval = 0.1 if sys.stderr.isatty() else 10
    with tqdm.tqdm(desc=f"fit {label}", unit="step", leave=False, delay=2, mininterval=interval) as bar:
        latest = ""

        def progress(iteration: int, loss: float, gap: float | None) -> None:
            nonlocal latest
            latest = latest if gap is None else f", gap={gap:.1e}"
            bar.set_postfix_str(f"loss={loss:.6g}{latest}", refresh=False)
            bar.update(iteration - bar.n)

        yield progress
