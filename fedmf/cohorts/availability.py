"""Models of when devices check in, without memory for any client."""

import dataclasses
import itertools
import math
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedmf import checks, fields
from fedmf.cohorts import keyed_random

_INDEPENDENT, _PLACE, _NIGHT, _AWAKE = 201, 202, 203, 204
# The arrays of so many clients stay in the processor's cache.
_BLOCK_CLIENTS = 1 << 15


@runtime_checkable
class Availability(Protocol):
    """A model of who checks in.

    It must be pure: the same answer whenever and wherever it is asked.
    """

    def available(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Which of the clients, int64 (clients,), check in in round t: bool (clients,)."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Always:
    """Every client, in every round."""

    def available(self, t: int, clients: np.ndarray) -> np.ndarray:
        """All True."""
        return np.ones(len(clients), bool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Independent(fields.Checked):
    """Every client with one probability, independently of all other clients and rounds.

    >>> model = Independent(probability=0.3, seed=1)
    >>> float(model.available(5, np.arange(100_000)).mean())
    0.30103
    """

    probability: float = fields.validated(checks.probability)
    seed: int = fields.seed(0, "")

    def available(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Bool (clients,): a coin for every (client, round)."""
        return (
            keyed_random.uniform(keyed_random.key(self.seed, _INDEPENDENT, t + 1), clients)
            < self.probability
        )


def _hours(name: str, value: object) -> float:
    hours = checks.finite_float(name, value, hint="use hours from 0 to 24")
    if not 0 <= hours <= 24:
        raise ValueError(f"{name}={hours:g} must be from 0 to 24 hours: use such a number")
    return hours


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window(fields.Checked):
    """A condition that depends on the local hour, such as charging.

    Attributes:
      start, end: local hours, 0 to 24; the window goes past midnight where end < start.
      inside: probability that the condition holds throughout the window of a day.
      outside: probability that it holds in one round outside of the window.

    >>> Window(start=22, end=7, inside=0.8, outside=0.1).length
    9.0
    """

    start: float = fields.validated(_hours)
    end: float = fields.validated(_hours)
    inside: float = fields.validated(checks.probability)
    outside: float = fields.validated(checks.probability)

    @property
    def length(self) -> float:
        """Hours; a window whose end is its start has none, and 0 to 24 is the whole day."""
        return 24.0 if self.end - self.start == 24 else (self.end - self.start) % 24


_window = fields.instance(Window)
_CHARGING = Window(start=22, end=7, inside=0.7, outside=0.35)
_IDLE = Window(start=23, end=6.5, inside=0.8, outside=0.6)
_UNMETERED = Window(start=18, end=8, inside=0.85, outside=0.55)


def _zones(name: str, value: Any) -> tuple[tuple[float, float], ...]:
    zones = tuple(
        (float(offset), checks.probability("share of a time zone", share))
        for offset, share in value
    )
    if not math.isclose(sum(share for _, share in zones), 1.0, abs_tol=1e-6):
        raise ValueError(f"{name}={value} have shares that do not add up to 1: make them do so")
    if any(not -24 <= offset <= 24 for offset, _ in zones):
        raise ValueError(f"{name}={value} must be from -24 to 24 hours from UTC: use such offsets")
    return zones


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diurnal(fields.Checked):
    """Devices that charge, lie idle and have an unmetered network, mostly at night where they are.

    A client checks in while all three conditions hold. Its local hour is that of its time zone,
    shifted by a phase of its own. Banded paper, App. K: clients must be "charged, idle and
    connected to unmetered network", and "there is a strong diurnal pattern". The defaults are ours;
    they were chosen to give the factor 4 between the best and the worst hour that Bonawitz et al.
    2019, "Towards federated learning at scale", Sec. 9, observed for devices of one country.

    Attributes:
      rounds_per_day: rounds of training in 24 hours.
      time_zones: (hours from UTC, share of the clients) of each zone; shares add up to 1.
      charging, idle, unmetered: the three conditions.
      phase_hours: clients' phases are uniform between minus and plus so many hours.
      start_hour: UTC hour of round 0.
      seed: of the clients' zones, phases, and coins.

    Raises:
      TypeError, ValueError: an attribute of the wrong kind or out of range.

    >>> model = Diurnal(rounds_per_day=24, seed=1)
    >>> [int(model.available(t, np.arange(10_000)).sum()) for t in (8, 20)]
    [4856, 1134]
    """

    rounds_per_day: float = fields.positive_float(96, "")
    time_zones: tuple[tuple[float, float], ...] = fields.validated(
        _zones, ((-8, 0.2), (-7, 0.05), (-6, 0.3), (-5, 0.45))
    )
    charging: Window = fields.validated(_window, _CHARGING)
    idle: Window = fields.validated(_window, _IDLE)
    unmetered: Window = fields.validated(_window, _UNMETERED)
    phase_hours: float = fields.validated(_hours, 1.0)
    start_hour: float = fields.validated(_hours, 0.0)
    seed: int = fields.seed(0, "")

    def local_hours(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Hours since midnight of day 0 at the clients' places, float64 (clients,)."""
        place = keyed_random.bits(keyed_random.key(self.seed, _PLACE), clients)
        # The upper half says the zone, the lower half the phase.
        zones = (place >> np.uint64(32)) * 2.0**-32
        phases = (place & np.uint64(0xFFFFFFFF)) * 2.0**-31
        hours = phases * self.phase_hours
        hours += (
            self.start_hour
            + 24.0 * t / self.rounds_per_day
            - self.phase_hours
            + self.time_zones[0][0]
        )
        share = 0.0
        for (before, of_before), (offset, _) in itertools.pairwise(self.time_zones):
            share += of_before
            hours += (zones >= share) * (offset - before)
        return hours

    def available(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Bool (clients,): a coin a day for each window, and one a round outside of them."""
        result = np.zeros(len(clients), bool)
        for start in range(0, len(clients), _BLOCK_CLIENTS):
            part = clients[start : start + _BLOCK_CLIENTS]
            result[start + self._those_available(t, part)] = True
        return result

    def _those_available(self, t: int, clients: np.ndarray) -> np.ndarray:
        windows = (self.charging, self.idle, self.unmetered)
        # The day of a window begins with it, so that a night is one night.
        local = self.local_hours(t, clients)
        since = [(local - window.start) / 24 for window in windows]
        days = [np.floor(hours) for hours in since]
        inside = [
            hours - day < window.length / 24
            for hours, day, window in zip(since, days, windows, strict=True)
        ]
        # Outside of windows the coins of a round are independent, so that one coin with the product
        # of their probabilities will do.
        chance = np.ones(len(clients))
        for within, window in zip(inside, windows, strict=True):
            chance *= np.where(within, 1.0, window.outside)
        left = np.flatnonzero(
            keyed_random.uniform(keyed_random.key(self.seed, _AWAKE, t + 1), clients) < chance
        )
        for number, (within, day, window) in enumerate(
            zip(inside, days, windows, strict=True), start=1
        ):
            nightly = left[within[left]]
            night = keyed_random.key(self.seed, _NIGHT, number)
            coins = keyed_random.uniform(night, clients[nightly], day[nightly].astype(np.int64))
            holds = ~within
            holds[nightly] = coins < window.inside
            left = left[holds[left]]
        return left


def availability_from_text(text: str) -> Availability:
    """The model that a command line or a config names.

    Args:
      text: "always"; "independent:0.3" or "independent:probability=0.3,seed=1"; "diurnal" or
        "diurnal:rounds_per_day=24,phase_hours=2,start_hour=6,seed=1". Other time zones and windows
        are set in Python.

    Raises:
      TypeError: not a text.
      ValueError: naming the part that cannot be understood.

    >>> availability_from_text("independent:0.3")
    Independent(probability=0.3, seed=0)
    """
    if not isinstance(text, str):
        raise TypeError(
            f"availability={text!r} must be a text such as 'always', 'independent:0.3' or 'diurnal'"
        )
    name, _, rest = text.partition(":")
    if name not in _MODELS:
        raise ValueError(
            f"availability={text!r} is unknown: use always, independent:PROBABILITY or diurnal"
        )
    kinds = {
        field.name: field.type
        for field in dataclasses.fields(_MODELS[name])
        if field.type in (int, float)
    }
    if name == "independent" and "=" not in rest.partition(",")[0]:
        rest = f"probability={rest}"
    values: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        option, _, value = part.partition("=")
        try:
            values[option] = kinds[option](value)
        except (KeyError, ValueError):
            takes = " and ".join(f"{known}=NUMBER" for known in kinds) or "no options"
            raise ValueError(
                f"availability={text!r} has {part!r}: {name} takes {takes}, separated by commas"
            ) from None
    try:
        return _MODELS[name](**values)
    except ValueError as error:
        raise ValueError(f"availability={text!r}: {error}") from None


# Models that a text can name, and their numbers.
_MODELS: dict[str, Any] = {"always": Always, "independent": Independent, "diurnal": Diurnal}
