"""When fits stop, what they show while they run, and how Ctrl-C ends them."""

import contextlib
import contextvars
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from fedmf import checks, fields
from fedmf.terminal import progress_bar

# Called with (step, loss, gap or None) after each step of a fit.
Progress = Callable[[int, float, float | None], None]

# Whether the running fit has ended above its tolerance: the cache does not store such an answer.
stopped_short: contextvars.ContextVar[bool] = contextvars.ContextVar("stopped_short", default=False)
# Whether Ctrl-C has ended a fit, whose answer is then the best so far.
interrupted_fit: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "interrupted_fit", default=False
)
# Whether Ctrl-C ends a fit with KeyboardInterrupt, in place of the answer it has reached.
_interruptible: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "interruptible", default=False
)


@contextlib.contextmanager
def interruptible_fits() -> Iterator[None]:
    """Inside, Ctrl-C ends a fit with KeyboardInterrupt: for work that must not go on with an
    unfinished fit.
    """
    token = _interruptible.set(True)
    try:
        yield
    finally:
        _interruptible.reset(token)


def raise_if_interruptible() -> None:
    """Raises the KeyboardInterrupt again inside `interruptible_fits`; elsewhere the fit returns the
    best so far.
    """
    if _interruptible.get():
        raise


def _progress(name: str, value: Any) -> Progress:
    hint = "pass a function of (iteration, loss, gap), or None"
    return checks.function(name, value, num_arguments=3, hint=hint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stopping(fields.Checked):
    """When a fit stops, and what watches it.

    Attributes:
      tolerance: positive; the fit of a family says what it bounds.
      max_iterations: steps after which to stop in any case.
      progress: called with (step, loss, gap or None) after each step, or None.
    """

    tolerance: float = fields.validated(
        functools.partial(checks.positive, hint="choose a small positive number such as 1e-3")
    )
    max_iterations: int = fields.validated(
        functools.partial(checks.integer, low=1, hint="pass a positive int such as 1000")
    )
    progress: Progress | None = fields.validated(_progress, None)

    def after(self, steps: int, *, tolerance: float | None = None) -> "Stopping":
        """For a further descent of a fit that has taken `steps` steps, counted on from there."""
        progress = self.progress
        return Stopping(
            tolerance=self.tolerance if tolerance is None else tolerance,
            max_iterations=self.max_iterations - steps,
            progress=None
            if progress is None
            else lambda step, loss, gap: progress(steps + step, loss, gap),
        )

    def warn(
        self,
        family: str,
        *,
        iterations: int,
        gap: float | None,
        interrupted: bool = False,
        stacklevel: int = 4,
    ) -> None:
        """Warns, at the caller of `fedmf.fit`, that a fit ended above its tolerance; gap is None
        where nothing certifies it.
        """
        stopped_short.set(True)
        if interrupted:
            interrupted_fit.set(True)
        hint = (
            "the answer is the best so far, and another fit starts anew"
            if interrupted
            else f"raise max_iterations={self.max_iterations} or tolerance"
        )
        reached = "before it converged to" if gap is None else f"at a gap of {gap:.2g}, above"
        warnings.warn(
            f"the {family} fit {'was interrupted' if interrupted else 'stopped'} after "
            f"{iterations} steps {reached} tolerance={self.tolerance:g}: {hint}",
            RuntimeWarning,
            stacklevel=stacklevel,
        )


@contextlib.contextmanager
def shown(label: str, enabled: bool) -> Iterator[Progress | None]:
    """Yields a `progress` for `fit` that draws a line with steps, loss and certified gap; None
    where not enabled.

    >>> with shown("banded", enabled=False) as progress:
    ...     print(progress)
    None
    """
    if not enabled:
        yield None
        return
    with progress_bar.bar(desc=f"fit {label}", unit="step", delay=2) as bar:
        latest = ""

        def progress(iteration: int, loss: float, gap: float | None) -> None:
            nonlocal latest
            latest = latest if gap is None else f", gap={gap:.1e}"
            bar.set_postfix_str(f"loss={loss:.6g}{latest}", refresh=False)
            bar.update(iteration - bar.n)

        with progress_bar.refreshed(bar):
            yield progress
