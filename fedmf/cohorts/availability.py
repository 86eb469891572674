"""Simulation of device availability by models that decide, as pure functions of client and round,
whether a device is available.
"""

import dataclasses
import itertools
import math
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedmf import checks, fields
from fedmf.cohorts import keyed_random

# Each kind of random number has its own constant in its key (see `keyed_random.key`), so that
# numbers of different kinds are independent.
_INDEPENDENT, _PLACE, _NIGHT, _AWAKE = 201, 202, 203, 204
# Clients are processed in blocks of this size, whose arrays fit into the processor's cache.
_BLOCK_CLIENTS = 1 << 15


@runtime_checkable
class Availability(Protocol):
    """Interface of the models that decide which clients are available in a round.

    `available` must be a pure function: equal arguments have equal results in every process.
    """

    def available(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns whether each client is available in round t.

        Args:
          t: the round.
          clients: client indices, int64 of shape (clients,).

        Returns:
          A bool array of shape (clients,).
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Always:
    """Model in which every client is available in every round."""

    def available(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns True for every client, as a bool array of shape (clients,)."""
        return np.ones(len(clients), bool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Independent(fields.Checked):
    """Model in which clients are available independently, all with the same probability.

    >>> model = Independent(probability=0.3, seed=1)
    >>> float(model.available(5, np.arange(100_000)).mean())
    0.30103
    """

    probability: float = fields.validated(checks.probability)
    seed: int = fields.seed(0, "")

    def available(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Draws independently for every client whether it is available in round t. The result is a
        bool array of shape (clients,).
        """
        round_key = keyed_random.key(self.seed, _INDEPENDENT, t + 1)
        return keyed_random.uniform(round_key, clients) < self.probability


def _check_hours(name: str, value: object) -> float:
    """Returns the value as a float, if it is a number of hours from 0 to 24; raises otherwise."""
    checked_hours = checks.finite_float(name, value, hint="use hours from 0 to 24")
    if not 0 <= checked_hours <= 24:
        raise ValueError(f"{name}={checked_hours:g} must be from 0 to 24 hours: use such a number")
    return checked_hours


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window(fields.Checked):
    """Daily window of hours in which a device usually satisfies a condition, such as charging.

    Attributes:
      start, end: local hours, 0 to 24; the window contains midnight if end < start.
      inside: probability that the condition holds throughout the window of one day.
      outside: probability that the condition holds in one round outside of the window.

    >>> Window(start=22, end=7, inside=0.8, outside=0.1).length
    9.0
    """

    start: float = fields.validated(_check_hours)
    end: float = fields.validated(_check_hours)
    inside: float = fields.validated(checks.probability)
    outside: float = fields.validated(checks.probability)

    @property
    def length(self) -> float:
        """Length of the window in hours, which is 0 if end equals start, and 24 for a window from 0
        to 24.
        """
        return 24.0 if self.end - self.start == 24 else (self.end - self.start) % 24


_check_window = fields.instance(Window)
_CHARGING = Window(start=22, end=7, inside=0.7, outside=0.35)
_IDLE = Window(start=23, end=6.5, inside=0.8, outside=0.6)
_UNMETERED = Window(start=18, end=8, inside=0.85, outside=0.55)


def _check_zones(name: str, value: Any) -> tuple[tuple[float, float], ...]:
    """Returns the time zones as pairs (hours from UTC, share of the clients), after checking that
    the shares add up to 1.
    """
    checked_zones = tuple(
        (float(offset), checks.probability("share of a time zone", share))
        for offset, share in value
    )
    if not math.isclose(sum(share for _, share in checked_zones), 1.0, abs_tol=1e-6):
        raise ValueError(f"{name}={value} have shares that do not add up to 1: make them do so")
    if any(not -24 <= offset <= 24 for offset, _ in checked_zones):
        raise ValueError(f"{name}={value} must be from -24 to 24 hours from UTC: use such offsets")
    return checked_zones


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diurnal(fields.Checked):
    """Model of devices that are available while charging, idle and on an unmetered network.

    All three conditions hold mostly at night. The local hour of a client is that of its time zone,
    shifted by a random phase of the client. Banded paper, App. K: clients must be "charged, idle
    and connected to unmetered network", and "there is a strong diurnal pattern". The paper
    gives no numbers: the default hours are our choice. The defaults reproduce the factor 4 between
    the best and the worst hour that Bonawitz et al. 2019, "Towards federated learning at scale",
    Sec. 9, observed for devices of one country.

    Attributes:
      rounds_per_day: rounds of training in 24 hours.
      time_zones: (hours from UTC, share of the clients) of each zone; shares add up to 1.
      charging, idle, unmetered: the three conditions.
      phase_hours: phases are uniform between minus and plus this number of hours.
      start_hour: UTC hour of round 0.
      seed: seed of the clients' zones, phases and conditions.

    Raises:
      TypeError, ValueError: an attribute has the wrong type or is out of range.

    >>> model = Diurnal(rounds_per_day=24, seed=1)
    >>> [int(model.available(t, np.arange(10_000)).sum()) for t in (8, 20)]
    [4856, 1134]
    """

    rounds_per_day: float = fields.positive_float(96, "")
    time_zones: tuple[tuple[float, float], ...] = fields.validated(
        _check_zones, ((-8, 0.2), (-7, 0.05), (-6, 0.3), (-5, 0.45))
    )
    charging: Window = fields.validated(_check_window, _CHARGING)
    idle: Window = fields.validated(_check_window, _IDLE)
    unmetered: Window = fields.validated(_check_window, _UNMETERED)
    phase_hours: float = fields.validated(_check_hours, 1.0)
    start_hour: float = fields.validated(_check_hours, 0.0)
    seed: int = fields.seed(0, "")

    def local_hours(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns each client's local time at round t, in hours since its midnight of day 0, as a
        float64 array of shape (clients,).
        """
        random_bits = keyed_random.bits(keyed_random.key(self.seed, _PLACE), clients)
        # The upper 32 random bits choose a client's time zone. The lower 32 bits shift its local
        # time by up to `phase_hours` in either direction.
        zone_quantiles = (random_bits >> np.uint64(32)) * 2.0**-32
        phases = (random_bits & np.uint64(0xFFFFFFFF)) * 2.0**-31
        local_time = phases * self.phase_hours
        local_time += (
            self.start_hour
            + 24.0 * t / self.rounds_per_day
            - self.phase_hours
            + self.time_zones[0][0]
        )
        cumulative_share = 0.0
        for (previous_offset, share), (offset, _) in itertools.pairwise(self.time_zones):
            cumulative_share += share
            local_time += (zone_quantiles >= cumulative_share) * (offset - previous_offset)
        return local_time

    def available(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns whether each client is available in round t, as a bool array of shape (clients,).

        Inside its window, a condition is drawn once for each client and day, so that it lasts for
        the whole window. Outside, it is drawn anew in each round.
        """
        is_available = np.zeros(len(clients), bool)
        for start in range(0, len(clients), _BLOCK_CLIENTS):
            client_block = clients[start : start + _BLOCK_CLIENTS]
            is_available[start + self._available_positions(t, client_block)] = True
        return is_available

    def _available_positions(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns the indices into `clients` at which the clients are available in round t."""
        condition_windows = (self.charging, self.idle, self.unmetered)
        local_hours = self.local_hours(t, clients)
        # Days are counted from the start of a window and not from midnight, so that a window that
        # contains midnight belongs to one day.
        day_by_condition = []
        is_inside_by_condition = []
        for window in condition_windows:
            days_since_start = (local_hours - window.start) / 24
            day = np.floor(days_since_start)
            day_by_condition.append(day)
            is_inside_by_condition.append(days_since_start - day < window.length / 24)
        # Conditions outside of their windows hold independently of each other. So one draw with the
        # product of their probabilities replaces a draw for each condition.
        probability = np.ones(len(clients))
        for is_inside_window, window in zip(is_inside_by_condition, condition_windows, strict=True):
            probability *= np.where(is_inside_window, 1.0, window.outside)
        round_key = keyed_random.key(self.seed, _AWAKE, t + 1)
        positions = np.flatnonzero(keyed_random.uniform(round_key, clients) < probability)
        for number, window in enumerate(condition_windows, start=1):
            is_inside_window = is_inside_by_condition[number - 1]
            day = day_by_condition[number - 1]
            inside_positions = positions[is_inside_window[positions]]
            uniform_draws = keyed_random.uniform(
                keyed_random.key(self.seed, _NIGHT, number),
                clients[inside_positions],
                day[inside_positions].astype(np.int64),
            )
            is_condition_met = ~is_inside_window
            is_condition_met[inside_positions] = uniform_draws < window.inside
            positions = positions[is_condition_met[positions]]
        return positions


def availability_from_text(text: str) -> Availability:
    """Returns the availability model that a text on a command line or in a config describes.

    Args:
      text: "always"; "independent:0.3" or "independent:probability=0.3,seed=1"; "diurnal" or
        "diurnal:rounds_per_day=24,phase_hours=2,start_hour=6,seed=1". Time zones and windows can be
        set in Python only.

    Raises:
      TypeError: `text` is not a str.
      ValueError: the text is wrong; the message names the wrong option.

    >>> availability_from_text("independent:0.3")
    Independent(probability=0.3, seed=0)
    """
    if not isinstance(text, str):
        raise TypeError(
            f"availability={text!r} must be a text such as 'always', 'independent:0.3' or 'diurnal'"
        )
    name, _, options = text.partition(":")
    if name not in _MODELS:
        raise ValueError(
            f"availability={text!r} is unknown: use always, independent:PROBABILITY or diurnal"
        )
    type_by_option = {
        field.name: field.type
        for field in dataclasses.fields(_MODELS[name])
        if field.type in (int, float)
    }
    if name == "independent" and "=" not in options.partition(",")[0]:
        options = f"probability={options}"
    values: dict[str, Any] = {}
    assignments = options.split(",") if options else []
    for assignment in assignments:
        option, _, value = assignment.partition("=")
        try:
            values[option] = type_by_option[option](value)
        except (KeyError, ValueError):
            accepted_options = " and ".join(f"{option}=NUMBER" for option in type_by_option)
            raise ValueError(
                f"availability={text!r} has {assignment!r}: {name} takes "
                f"{accepted_options or 'no options'}, separated by commas"
            ) from None
    try:
        return _MODELS[name](**values)
    except ValueError as error:
        raise ValueError(f"availability={text!r}: {error}") from None


# The classes of availability models by their names in texts.
_MODELS: dict[str, Any] = {"always": Always, "independent": Independent, "diurnal": Diurnal}
