"""Learning-rate schedules of the server that are fixed before training and do not depend on data.
They are for workloads and server optimizers.
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
# Largest number of characters of a schedule that an error quotes.
_MAX_QUOTED = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmupCooldown:
    """A schedule with a linear warm-up, a plateau and a linear decay of the learning rate.

    It is the schedule of the banded paper, App. I, "Learning rate warmup and cooldown". The
    defaults of warmup, cooldown and floor are the paper's.

    Attributes:
      rounds: length of the run.
      peak: learning rate on the plateau.
      warmup: share of the rounds in which the rate rises from floor * peak; 0 for none.
      cooldown: share of the rounds in which the rate falls back to floor * peak, its value in the
        last round; 0 for none.
      floor: smallest rate, as a share of the peak.

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
        """Returns the learning rate of every round, float64 of shape (rounds,)."""
        num_rising = round(self.warmup * self.rounds)
        num_falling = round(self.cooldown * self.rounds)
        shares = np.ones(self.rounds)
        if num_rising:
            shares[:num_rising] = self.floor + (1 - self.floor) * np.arange(num_rising) / num_rising
        if num_falling:
            falling_rounds = np.arange(1, num_falling + 1)
            shares[-num_falling:] = 1 - (1 - self.floor) * falling_rounds / num_falling
        return self.peak * shares


@dataclasses.dataclass(frozen=True, kw_only=True)
class CustomSchedule:
    """A schedule that a user writes, either as steps, such as 0.15 of the peak rate from round 1536
    on, or as one learning rate for each round.

    For example, Denisov et al. 2022, Sec. 5, use 0.15 of the peak in the last 512 of 2048 rounds.

    Attributes:
      rounds: length of the run.
      peak: learning rate that a share of 1 stands for.
      shares: shares of the peak as a text, as `schedule_text` returns it. Before the first step the
        share is 1.

    Raises:
      TypeError, ValueError: the shares are for another number of rounds, or not a schedule.

    >>> CustomSchedule(rounds=4, peak=2.0, shares="3:0.15").learning_rates()
    array([2. , 2. , 2. , 0.3])
    >>> CustomSchedule(rounds=2, peak=2.0, shares="1 0.5").learning_rates()
    array([2., 1.])
    """

    rounds: int
    peak: float
    shares: str

    def __post_init__(self) -> None:
        checks.rounds("rounds", self.rounds)
        checks.positive("peak", self.peak, "pass a learning rate such as 1.0")
        if not isinstance(self.shares, str):
            raise TypeError(f"shares={reprlib.repr(self.shares)} is not a str: {_HINT}")
        argument = f"learning_rate_schedule={_truncated(self.shares)}"
        starts, shares = _parse(self.shares)
        if not starts and len(shares) != self.rounds:
            raise ValueError(
                f"{argument} has {len(shares)} shares for {self.rounds} rounds: {_HINT}"
            )
        if starts and starts[-1] >= self.rounds:
            raise ValueError(
                f"{argument} begins a step in round {starts[-1]}, and the last of {self.rounds} "
                f"rounds is {self.rounds - 1}: leave it out, or train for longer"
            )
        with np.errstate(over="ignore"):
            rates = (self.peak * np.array(shares)).astype(np.float32)
        if not (np.isfinite(rates) & (rates > 0)).all():
            raise ValueError(
                f"{argument} times the rate {self.peak} is beyond float32: use shares near 1"
            )

    def learning_rates(self) -> np.ndarray:
        """Returns the learning rate of every round, float64 of shape (rounds,)."""
        starts, shares = _parse(self.shares)
        if starts:
            step_lengths = np.diff([0, *starts, self.rounds])
            shares = list(np.repeat([1.0, *shares], step_lengths))
        return self.peak * np.array(shares)


def schedule_text(name: str, value: Any) -> str:
    """Converts a schedule to one line of text. The schedule may be a text already, a list of
    shares, or a file.

    If it is a file, the result has the schedule that the file contains, so that a resumed run does
    not depend on the file.

    Args:
      name: name of the argument in errors.
      value: shares of the peak, "1 1 0.5" or [1, 1, 0.5]; steps, "1024:0.5 1536:0.15", each with
        the share from that round on; or the path of a file of these. Commas and line ends separate
        entries as well.

    Raises:
      TypeError, ValueError: the value is not a schedule.

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
        starts, shares = _parse(text)
    except ValueError:
        try:
            starts, shares = _parse(expanded(text).read_text(encoding="utf-8-sig"))
        except (OSError, ValueError) as error:
            quoted_value = repr(_truncated(str(value)))
            raise ValueError(
                f"{name}={quoted_value} is neither a schedule nor a file of one: {_HINT}"
            ) from error
    if not starts:
        return " ".join(str(share) for share in shares)
    return " ".join(f"{start}:{share}" for start, share in zip(starts, shares, strict=True))


def _parse(text: str) -> tuple[list[int], list[float]]:
    """Parses the text of a schedule.

    Returns:
      The rounds in which the steps begin, and the shares of the steps. If the text has one share
      for each round, the first list is empty.

    Raises:
      ValueError: the rounds of the steps do not increase, or a share is not positive.
    """
    schedule_entries = re.split(r"[\s,]+", text.strip().strip("[]"))
    starts: list[int] = []
    shares: list[float] = []
    for word in schedule_entries:
        start, colon, share = word.rpartition(":")
        if colon:
            starts.append(int(start))
        shares.append(float(share))
    has_all_or_no_starts = len(starts) in (0, len(schedule_entries))
    is_increasing = starts == sorted({*starts}) and min(starts, default=0) >= 0
    are_shares_valid = all(0 < share < math.inf for share in shares)
    if not (has_all_or_no_starts and is_increasing and are_shares_valid):
        raise ValueError(
            f"{_truncated(text)} has steps that do not follow, or shares that no rate has"
        )
    return starts, shares


def _truncated(text: str) -> str:
    """Returns a text for an error, truncated if it is long."""
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}..."
