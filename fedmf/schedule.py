"""Learning-rate schedules that do not look at data; the workload and the server
optimiser share them.
"""

import dataclasses
import math
import os
import re
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.files import expanded

_HINT = (
    "give a positive share of the peak for each round, or ROUND:SHARE for the rounds from one on, "
    "in order, such as 1536:0.15, or a file of these"
)
# As much of a schedule as an error shows.
_SHOWN = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmupCooldown:
    """Linear warm-up, plateau, linear cool-down (banded paper, App. I, "Learning rate warmup and
    cooldown").

    Attributes:
      rounds: length of the run.
      peak: learning rate on the plateau.
      warmup: share of rounds over which the rate rises from floor * peak; 0 for none.
        The paper: 0.15.
      cooldown: share of rounds over which it falls back to floor * peak, reached in the last round;
        0 for none. The paper: 0.25.
      floor: the paper: 0.05.

    >>> schedule = WarmupCooldown(rounds=8, peak=1.0, warmup=0.25, cooldown=0.5)
    >>> [round(float(rate), 3) for rate in schedule.learning_rates()]
    [0.05, 0.525, 1.0, 1.0, 0.762, 0.525, 0.288, 0.05]
    """

    rounds: int
    peak: float
    warmup: float = 0.15
    cooldown: float = 0.25
    floor: float = 0.05

    def __post_init__(self) -> None:
        checks.rounds("rounds", self.rounds)
        checks.positive("peak", self.peak, "pass a learning rate such as 1.0")
        if checks.positive("floor", self.floor, "pass a share such as 0.05") > 1:
            raise ValueError(f"floor={self.floor} is above 1: pass a share such as 0.05")
        for name in ("warmup", "cooldown"):
            checks.positive(
                name,
                getattr(self, name),
                "pass a share of the run such as 0.25, or 0 for none",
                allow_zero=True,
            )
        if self.warmup + self.cooldown > 1:
            raise ValueError(
                f"warmup={self.warmup} and cooldown={self.cooldown} add up to more than 1: "
                "pass shares of the run"
            )

    def learning_rates(self) -> np.ndarray:
        """The rate of every round, float64 (rounds,)."""
        rises, falls = round(self.warmup * self.rounds), round(self.cooldown * self.rounds)
        rates = np.ones(self.rounds)
        if rises:
            rates[:rises] = self.floor + (1 - self.floor) * np.arange(rises) / rises
        if falls:
            rates[-falls:] = 1 - (1 - self.floor) * np.arange(1, falls + 1) / falls
        return self.peak * rates


@dataclasses.dataclass(frozen=True, kw_only=True)
class GivenSchedule:
    """Rates in steps, or one by one: Denisov et al. 2022, Sec. 5, has 0.15 of the peak in the last
    512 of 2048 rounds.

    Attributes:
      rounds: length of the run.
      peak: learning rate of share 1.
      shares: as `schedule_text` makes them. Before the first step the share is 1.

    Raises:
      TypeError, ValueError: shares for another number of rounds, or that are no schedule.

    >>> GivenSchedule(rounds=4, peak=2.0, shares="3:0.15").learning_rates()
    array([2. , 2. , 2. , 0.3])
    >>> GivenSchedule(rounds=2, peak=2.0, shares="1 0.5").learning_rates()
    array([2., 1.])
    """

    rounds: int
    peak: float
    shares: str

    def __post_init__(self) -> None:
        checks.rounds("rounds", self.rounds)
        checks.positive("peak", self.peak, "pass a learning rate such as 1.0")
        if not isinstance(self.shares, str):
            raise TypeError(f"shares={reprlib.repr(self.shares)} is no text: {_HINT}")
        said = f"learning_rate_schedule={_short(self.shares)}"
        starts, shares = _parsed(self.shares)
        if not starts and len(shares) != self.rounds:
            raise ValueError(f"{said} has {len(shares)} shares for {self.rounds} rounds: {_HINT}")
        if starts and starts[-1] >= self.rounds:
            raise ValueError(
                f"{said} begins a step in round {starts[-1]}, and the last of {self.rounds} rounds "
                f"is {self.rounds - 1}: leave it out, or train for longer"
            )
        with np.errstate(over="ignore"):
            rates = (self.peak * np.array(shares)).astype(np.float32)
        if not (np.isfinite(rates) & (rates > 0)).all():
            raise ValueError(
                f"{said} times the rate {self.peak} is beyond float32: use shares near 1"
            )

    def learning_rates(self) -> np.ndarray:
        """The rate of every round, float64 (rounds,)."""
        starts, shares = _parsed(self.shares)
        if starts:
            lengths = np.diff([0, *starts, self.rounds])
            shares = list(np.repeat([1.0, *shares], lengths))
        return self.peak * np.array(shares)


def schedule_text(name: str, value: Any) -> str:
    """A schedule as one line of text, from such a text, a list of shares, or a file of either.

    What a file held is in the text, so that a run is the same whatever becomes of the file.

    Args:
      name: of the argument, for errors.
      value: shares of the peak, "1 1 0.5" or [1, 1, 0.5]; steps, "1024:0.5 1536:0.15", each of them
        the share from that round on; or the path of a file of them. Commas and ends of lines
        separate them as well.

    Raises:
      TypeError, ValueError: neither.

    >>> schedule_text("schedule", [1, 0.50])
    '1.0 0.5'
    >>> schedule_text("schedule", "2:5e-1, 3:.25")
    '2:0.5 3:0.25'
    """
    is_flat = not isinstance(value, np.ndarray) or value.ndim == 1
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
    elif isinstance(value, Sequence | np.ndarray) and not isinstance(value, bytes) and is_flat:
        text = " ".join(map(str, value))
    else:
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: {_HINT}")
    try:
        starts, shares = _parsed(text)
    except ValueError:
        try:
            starts, shares = _parsed(expanded(text).read_text(encoding="utf-8-sig"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{name}={_short(str(value))!r} is neither a schedule nor a file of one: {_HINT}"
            ) from error
    steps = [f"{start}:" for start in starts] or [""] * len(shares)
    return " ".join(f"{step}{share}" for step, share in zip(steps, shares, strict=True))


def _parsed(text: str) -> tuple[list[int], list[float]]:
    """The rounds in which steps begin, none for one share a round, and the shares.

    Raises:
      ValueError: neither steps nor shares.
    """
    words = [word.rpartition(":") for word in re.split(r"[\s,]+", text.strip().strip("[]"))]
    starts = [int(start) for start, colon, _ in words if colon]
    shares = [float(share) for _, _, share in words]
    follow = len(starts) in (0, len(words)) and starts == sorted({*starts})
    if not follow or min(starts, default=0) < 0 or not all(0 < s < math.inf for s in shares):
        raise ValueError(f"{_short(text)} has steps that do not follow, or shares that no rate has")
    return starts, shares


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
