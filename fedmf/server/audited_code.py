"""Code whose releases an audit tests, with its interface, its rounds, and the code of a server."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from fedmf import checks
from fedmf.audits.worst_case import WorstCase
from fedmf.privacy.plan import Plan, bit_stddev
from fedmf.server.clipping import UpdateSum
from fedmf.server.host_noise import HostNoise
from fedmf.server.means import MeansState, NoisyMeans, in_shapes

# The norm of the attacking client's update is this many times the clip norm, so that the audited
# code has to clip it.
_OVERSHOOT = 3.0
# Number by which the audit divides each round's sum, unless the plan simulates a larger cohort.
_DIVISOR = 10

# A function that takes a round t, and returns an array of coordinates and a number. For each
# coordinate, one client sends an update whose only nonzero entry is this number there.
Clients = Callable[[int], tuple[np.ndarray, float]]


class AuditedCode(Protocol):
    """Interface of the code that an audit runs. Each run has an object of its own.

    Attributes:
      initial_state: state before round 0.
    """

    initial_state: Any

    def release(self, state: Any, places: np.ndarray, size: float) -> tuple[Any, np.ndarray]:
        """Returns the state after the next round, and the round's release as `released_rows` yields
        it.

        Args:
          state: state before the round; numpy arrays after a resume.
          places: coordinates along each of which one client sends an update.
          size: size of the updates, for the first clip norm.
        """


# A function that makes the code under audit from a plan, a number of coordinates and a noise seed.
MakeAudited = Callable[[Plan, int, int], AuditedCode]


def worst_clients(
    plan: Plan, case: WorstCase, trials: int, seed: int
) -> tuple[Clients, np.ndarray]:
    """Returns the attack's clients as a function of the round, and for each trial whether its
    client is present, as a bool array of shape (trials,).

    Client i sends updates along coordinate i, in the rounds of `case`.
    """
    is_present = np.random.default_rng([seed, 1]).permutation(trials) < trials // 2
    present_coordinates = np.flatnonzero(is_present)
    update_entry = _OVERSHOOT * plan.clip_norm

    def clients(t: int) -> tuple[np.ndarray, float]:
        contribution = float(case.contributions[t])
        if not contribution:
            return present_coordinates[:0], 0.0
        return present_coordinates, update_entry * contribution

    return clients, is_present


def model_of(coordinates: int) -> list[tuple[int, ...]]:
    """Returns the shapes of a small model's arrays, which have `coordinates` entries in all. One of
    them is a scalar.
    """
    hint = "use some hundred or more"
    coordinates = checks.integer("coordinates", coordinates, low=8, high=checks.MAX_SIZE, hint=hint)
    quarter_size = (coordinates - 1) // 4
    return [(2, quarter_size), (), (quarter_size,), (coordinates - 1 - 3 * quarter_size,)]


def divisor_of(plan: Plan) -> int:
    """Returns the number that the audit divides each round's sum by."""
    return _DIVISOR if plan.simulation is None else plan.simulation.simulated


def released_rows(
    plan: Plan,
    coordinates: int,
    *,
    noise_seed: int,
    clients: Clients | None = None,
    resume_at: int = 0,
    subject: MakeAudited | None = None,
) -> Iterator[np.ndarray]:
    """Runs the audited code through all rounds of the plan, and yields each release as a float64
    array of shape (coordinates,).

    Where the clip norm adapts, it is in units of plan.clip_norm, and one more entry has the noise
    of the bits on the same scale. Without `clients`, two clients send zeros. Before round
    `resume_at`, unless it is 0, the audited code is made again, and resumes from its state.
    """
    make_audited = subject or ServerMeans
    audited_run = make_audited(plan, coordinates, noise_seed)
    state = audited_run.initial_state
    client_coordinates = np.zeros(2, np.int64)
    update_entry = 0.0
    for t in range(plan.mechanism.rounds):
        if t and t == resume_at:
            audited_run = make_audited(plan, coordinates, noise_seed)
        if clients is not None:
            client_coordinates, update_entry = clients(t)
        state, release = audited_run.release(state, client_coordinates, update_entry)
        yield release


class ServerMeans:
    """The sums, the noise and the means of a `Server`, which are audited by default.

    Args:
      plan: plan of the run.
      coordinates: entries of the model.
      noise_seed: noise seed of the run.
    """

    def __init__(self, plan: Plan, coordinates: int, noise_seed: int) -> None:
        self._plan = plan
        self._shapes = model_of(coordinates)
        self._means = NoisyMeans(plan=plan, size=coordinates, clients_per_round=divisor_of(plan))
        self._noise = HostNoise(plan, coordinates, noise_seed=noise_seed)
        self.initial_state = self._means.initial()
        self._sums: dict[tuple[bytes, float, float], UpdateSum] = {}

    def release(
        self, state: MeansState, places: np.ndarray, size: float
    ) -> tuple[MeansState, np.ndarray]:
        """Returns the state after the next round and its release, as `AuditedCode` describes."""
        plan = self._plan
        params = self._means.client_params(state)
        # The attacking client knows the clip norm of the round, and scales its update by it.
        size *= params.clip_norm / plan.clip_norm
        # The sum of a round depends only on the updates and the clip norm. It is cached, because
        # computing it takes most of a round's time.
        sum_key = (places.tobytes(), size, params.clip_norm)
        if sum_key not in self._sums:
            update_sum = self._means.empty_sum(len(places))
            one_hot_update = np.zeros(self._means.size, np.float32)
            for coordinate in places:
                one_hot_update[coordinate] = size
                update_sum.add(
                    in_shapes(one_hot_update, self._shapes),
                    clip_norm=params.clip_norm,
                    zeroing_norm=params.zeroing_norm,
                )
                one_hot_update[coordinate] = 0
            self._sums[sum_key] = update_sum
        update_sum = self._sums[sum_key]
        mean, state = self._means.release(state, update_sum, self._noise.row(int(state.next_round)))
        release = mean.astype(np.float64)
        if state.clip:
            bit_noise = float(state.clip.bits) - update_sum.clients / 2 + update_sum.clipped
            scaled_noise = bit_noise * (plan.stddev / divisor_of(plan) / bit_stddev(plan))
            release = np.append(release * (plan.clip_norm / params.clip_norm), scaled_noise)
        return state, release
