"""The stopping rule of a fit, its progress reports, and its reaction to Ctrl-C."""

import contextlib
import contextvars
import dataclasses
import functools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from fedmf import checks, fields
from fedmf.terminal import progress_bar

# A function that is called with (step, loss, gap or None) after each step of a fit.
Progress = Callable[[int, float, float | None], None]

# Whether the current fit has stopped above its tolerance. The cache does not store such a fit.
stopped_short: contextvars.ContextVar[bool] = contextvars.ContextVar("stopped_short", default=False)
# Whether Ctrl-C has interrupted a fit, which then returns the best mechanism so far.
interrupted_fit: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "interrupted_fit", default=False
)
# Whether Ctrl-C raises KeyboardInterrupt out of a fit, which then returns nothing.
_interruptible: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "interruptible", default=False
)


@contextlib.contextmanager
def interruptible_fits() -> Iterator[None]:
    """Makes Ctrl-C raise KeyboardInterrupt out of the fits inside the block. It is for work that
    must not continue with an unfinished fit.
    """
    reset_token = _interruptible.set(True)
    try:
        yield
    finally:
        _interruptible.reset(reset_token)


def raise_if_interruptible() -> None:
    """Raises the KeyboardInterrupt that is being handled again, if the caller runs inside
    `interruptible_fits`. Elsewhere it does nothing, and the fit returns the best mechanism so far.
    """
    if _interruptible.get():
        raise


def _check_progress(name: str, value: Any) -> Progress:
    """Returns `value` if it is a function of three arguments, and raises TypeError otherwise."""
    progress_hint = "pass a function of (iteration, loss, gap), or None"
    return checks.function(name, value, num_arguments=3, hint=progress_hint)


def _counted_from(steps: int, progress: Progress) -> Progress:
    """Returns a function that adds `steps` to its step number and then calls `progress`."""

    def report(step: int, loss: float, gap: float | None) -> None:
        progress(steps + step, loss, gap)

    return report


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stopping(fields.Checked):
    """The stopping rule of a fit, with the function that is called after each of its steps.

    Attributes:
      tolerance: positive; each family defines what it bounds.
      max_iterations: the number of steps after which to stop in any case.
      progress: a function that is called with (step, loss, gap or None) after each step, or None.
    """

    tolerance: float = fields.validated(
        functools.partial(checks.positive, hint="choose a small positive number such as 1e-3")
    )
    max_iterations: int = fields.validated(
        functools.partial(checks.integer, low=1, hint="pass a positive int such as 1000")
    )
    progress: Progress | None = fields.validated(_check_progress, None)

    def after(self, steps: int, *, tolerance: float | None = None) -> "Stopping":
        """Returns the stopping rule for the next descent of a fit that has taken `steps` steps
        already. The step numbers in its progress continue from there.
        """
        progress = self.progress
        if progress is not None:
            progress = _counted_from(steps, progress)
        if tolerance is None:
            tolerance = self.tolerance
        return Stopping(
            tolerance=tolerance,
            max_iterations=self.max_iterations - steps,
            progress=progress,
        )

    def warn(
        self, family: str, *, iterations: int, gap: float | None, interrupted: bool = False
    ) -> None:
        """Warns that a fit stopped above its tolerance. The warning points to the line that called
        `fedmf.fit`. `gap` is None for a family without a certified gap.
        """
        stopped_short.set(True)
        stop_event = "stopped"
        warning_hint = f"raise max_iterations={self.max_iterations} or tolerance"
        if interrupted:
            interrupted_fit.set(True)
            stop_event = "was interrupted"
            warning_hint = "the answer is the best so far, and another fit starts anew"
        stop_phrase = "before it converged to"
        if gap is not None:
            stop_phrase = f"at a gap of {gap:.2g}, above"
        warnings.warn(
            f"the {family} fit {stop_event} after {iterations} steps {stop_phrase} "
            f"tolerance={self.tolerance:g}: {warning_hint}",
            RuntimeWarning,
            stacklevel=_caller_stacklevel(),
        )


def _caller_stacklevel() -> int:
    """Returns the `stacklevel` for a warning of the calling function that points to the code
    outside fedmf.mechanisms that started the fit.
    """
    frame: types.FrameType | None = sys._getframe(1)
    frame_level = 1
    caller_level = 1
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("fedmf.mechanisms."):
            caller_level = frame_level + 1
        frame = frame.f_back
        frame_level += 1
    return caller_level


@contextlib.contextmanager
def progress_line(label: str, enabled: bool) -> Iterator[Progress | None]:
    """Yields a `progress` function for `fedmf.fit` that prints steps, loss and certified gap in one
    line, or None if it is not enabled.

    >>> with progress_line("banded", enabled=False) as progress:
    ...     print(progress)
    None
    """
    if not enabled:
        yield None
        return
    with progress_bar.bar(desc=f"fit {label}", unit="step", delay=2) as bar:
        gap_text = ""

        def show_step(iteration: int, loss: float, gap: float | None) -> None:
            nonlocal gap_text
            if gap is not None:
                gap_text = f", gap={gap:.1e}"
            bar.set_postfix_str(f"loss={loss:.6g}{gap_text}", refresh=False)
            bar.update(iteration - bar.n)

        with progress_bar.refreshed(bar):
            yield show_step
