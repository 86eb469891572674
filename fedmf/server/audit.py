"""Audit of what really runs: a server's sums, noise and releases, or what is given in their place,
on a small model through all rounds, without clients or with the worst of them.

`fedmf.audits.noise` judges the noise and `fedmf.audits.distinguishing` the game; here it is run.
The audited code gives nothing but what it releases. The claim is the plan's stddev and its
mechanism's noising(), in float64.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from fedmf import checks
from fedmf.audits import tails
from fedmf.audits.distinguishing import Distinguishing, WorstCase, audit_distinguishing, worst_case
from fedmf.audits.noise import FALSE_POSITIVE_RATE, NoiseAudit, audit_noise, causal_factor, whiten
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.plan import Plan, bit_stddev, update_noise_multiplier
from fedmf.server.means import MeansState, NoisyMeans, in_shapes
from fedmf.server.rows import HostNoise
from fedmf.server.state import check_plan

# Where noise may end, in standard deviations, so that the default size shows it.
SEEN_CUT = 4.0
# At least as many tests as an audit makes.
_MAX_TESTS = 64
# Entries of a run that show a scale off by 3% at one in a million false alarms, and a margin.
_MIN_ENTRIES = 60_000
_MIN_COORDINATES = 256
# Games beyond would take weeks.
_MAX_TRIALS = 10**9
# How far the worst case overshoots the clip norm, so that it is the clipping that bounds it.
_OVERSHOOT = 3.0
# The fixed divisor of plans that simulate no cohort.
_DIVISOR = 10

Progress = Callable[[int, int], None]
# Round -> (coordinates along each of which one client sends an update, the updates' size).
Clients = Callable[[int], tuple[np.ndarray, float]]


class Subject(Protocol):
    """What is audited, made for one run."""

    initial_state: Any

    def release(self, state: Any, places: np.ndarray, size: float) -> tuple[Any, np.ndarray]:
        """The state after the next round, and its release, as `released_rows` yields it.

        Args:
          state: before; numpy arrays after a resume.
          places: coordinates along each of which one client sends an update.
          size: of the updates, for the first clip norm.
        """


# (plan, coordinates, noise seed) -> the subject.
Subjects = Callable[[Plan, int, int], Subject]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismAudit:
    """What `audit_mechanism` found.

    Attributes:
      verdict: all findings under one false-positive rate.
      game: the distinguishing audit, or None if it was left out.
      rounds, coordinates, trials: what was run.
      entries: of noise that were tested, of both runs.
    """

    verdict: NoiseAudit
    game: Distinguishing | None
    rounds: int
    coordinates: int
    trials: int
    entries: int

    @property
    def smallest_unseen_cut(self) -> float:
        """The least number of standard deviations at which noise could end and pass.

        The noise is scaled to the claimed variance. What ends below is seen with certainty.
        """
        return tails.smallest_unseen_cut(self.entries, threshold=self.verdict.threshold)


@with_numpy_defaults
def audit_mechanism(
    plan: Plan,
    *,
    seed: int,
    coordinates: int | None = None,
    trials: int = 20_000,
    false_positive_rate: float = FALSE_POSITIVE_RATE,
    progress: Progress | None = None,
    subject: "Subjects | None" = None,
) -> MechanismAudit:
    """Runs a plan and tests what is released against what the plan claims.

    Two runs with different seeds, the second stopped and resumed in the middle, on zero updates;
    then the distinguishing game.

    Args:
      plan: with noise; of a sampled one the noise and the guarantee without
        amplification are tested.
      seed: non-negative; the noise seeds are derived from it, and the same seed gives
        the same findings.
      coordinates: entries of the model, each an independent sample of the noise; None for enough to
        see a scale off by 3%, and that noise ends at 4 standard deviations.
      trials: of the game; 0 for no game.
      false_positive_rate: chance, at most, that an honest mechanism fails.
      progress: called with (rounds done, rounds in all) after each round.
      subject: what runs it; None for what `fedmf.Server` and the training loop run.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    Example:
      >>> import fedmf
      >>> once = fedmf.Participation(rounds=4, schema="single")
      >>> plan = fedmf.calibrate(
      ...     fedmf.fit(fedmf.prefix_sum(4), once, family="tree"), once, epsilon=2.0, delta=1e-6
      ... )
      >>> audit = audit_mechanism(plan, seed=1, coordinates=500, trials=0)
      >>> audit.verdict.consistent, len(audit.verdict.findings) > 30
      (True, True)
    """
    check_plan(plan)
    if plan.private_metrics is not None:
        raise ValueError(
            f"private_metrics={plan.private_metrics.share} of the plan are not played: audit a "
            "plan of its updates alone, without them and with noise_multiplier="
            f"{update_noise_multiplier(plan):.6g}"
        )
    seed = checks.integer(
        "seed", seed, low=0, hint="choose a whole number; it is not a secret here"
    )
    checks.positive(
        "false_positive_rate", false_positive_rate, "use a small number such as 1e-6", below=1
    )
    n = plan.mechanism.rounds
    # N, its causal factor, the factor's inverse, and squares of the last two.
    hint = "audit a plan of the same family with fewer rounds"
    checks.fits_in_memory("the audit of all rounds", (n, n), copies=5, hint=hint)
    d = _default_coordinates(n, false_positive_rate) if coordinates is None else coordinates
    leaves = [math.prod(shape) for shape in model_of(d)]
    hint = "play some thousand, or 0 for no game"
    trials = checks.integer("trials", trials, low=0, high=_MAX_TRIALS, hint=hint)
    if 0 < trials < 8:
        raise ValueError(f"trials={trials} must be at least 8: {hint}")
    # The game's client takes part in rounds that are known.
    plan = dataclasses.replace(plan, sampling=None)
    # The game is of the updates' stream, which with quantile_clipping has more noise than the plan
    # claims of both.
    updates = dataclasses.replace(
        plan,
        noise_multiplier=update_noise_multiplier(plan),
        quantile_clipping=None,
    )
    case = worst_case(updates)
    total, done = n * (3 if trials else 2), 0

    def shown(rows: Iterator[np.ndarray]) -> np.ndarray:
        nonlocal done
        released = []
        for row in rows:
            released.append(row)
            done += 1
            if progress is not None:
                progress(done, total)
        return np.stack(released)

    L, scale = causal_factor(plan.mechanism.noising()), plan.stddev / divisor_of(plan)
    one = whiten(L, shown(released_rows(plan, d, noise_seed=16 * seed + 1, subject=subject)), scale)
    rows = released_rows(plan, d, noise_seed=16 * seed + 2, resume_at=n // 2, subject=subject)
    other = whiten(L, shown(rows), scale)
    leaves += [1] * (plan.quantile_clipping is not None)
    findings = audit_noise([one, other], leaves=leaves).findings
    game = None
    if trials:
        clients, present = worst_clients(plan, case, trials, seed)
        rows = released_rows(
            plan, trials, noise_seed=16 * seed + 3, clients=clients, subject=subject
        )
        s = case.projection @ shown(rows)[:, :trials] / scale
        game = audit_distinguishing(updates, case, s[present], s[~present])
        findings += game.findings
    verdict = NoiseAudit(findings=findings, false_positive_rate=false_positive_rate)
    return MechanismAudit(
        verdict=verdict,
        game=game,
        rounds=n,
        coordinates=d,
        trials=trials,
        entries=one.size + other.size,
    )


def _default_coordinates(rounds: int, false_positive_rate: float) -> int:
    """Returns the size of a model that two runs of so many rounds are audited with."""
    seen = tails.entries_to_see(SEEN_CUT, threshold=false_positive_rate / _MAX_TESTS)
    entries_per_run = max(_MIN_ENTRIES, -(-seen // 2))
    return max(_MIN_COORDINATES, -(-entries_per_run // rounds))


def worst_clients(
    plan: Plan, case: WorstCase, trials: int, seed: int
) -> tuple[Clients, np.ndarray]:
    """The clients of a game, and in which trials they are present.

    Client i sends along coordinate i, in the rounds of `case`.
    """
    present = np.random.default_rng([seed, 1]).permutation(trials) < trials // 2
    places, size = np.flatnonzero(present), _OVERSHOOT * plan.clip_norm
    return lambda t: (
        places if case.contributions[t] else places[:0],
        size * float(case.contributions[t]),
    ), present


def model_of(coordinates: int) -> list[tuple[int, ...]]:
    """Shapes of a small model's leaves, one of them a scalar, with so many entries in all."""
    hint = "use some hundred or more"
    coordinates = checks.integer("coordinates", coordinates, low=8, high=checks.MAX_SIZE, hint=hint)
    quarter = (coordinates - 1) // 4
    return [(2, quarter), (), (quarter,), (coordinates - 1 - 3 * quarter,)]


def divisor_of(plan: Plan) -> int:
    """What the sums of `released_rows` are divided by."""
    return _DIVISOR if plan.simulation is None else plan.simulation.simulated


def released_rows(
    plan: Plan,
    coordinates: int,
    *,
    noise_seed: int,
    clients: Clients | None = None,
    resume_at: int = 0,
    subject: Subjects | None = None,
) -> Iterator[np.ndarray]:
    """Yields what is released in each round of the plan, flat: float64 (coordinates,).

    Where the clip norm adapts, in units of plan.clip_norm, and behind it one entry: the noise of
    the bits on the same scale. Without `clients` two of them send zeros. Before round `resume_at`,
    unless it is 0, all is made anew but the state as numpy arrays.
    """
    nobody = np.zeros(2, np.int64), 0.0
    made = subject or ServerMeans
    runs = made(plan, coordinates, noise_seed)
    state = runs.initial_state
    for t in range(plan.mechanism.rounds):
        if t and t == resume_at:
            runs = made(plan, coordinates, noise_seed)
        state, row = runs.release(state, *(clients(t) if clients else nobody))
        yield row


class ServerMeans:
    """The sums, the noise and the means of a server."""

    def __init__(self, plan: Plan, coordinates: int, noise_seed: int) -> None:
        self._plan = plan
        self._shapes = model_of(coordinates)
        self._means = NoisyMeans(plan=plan, size=coordinates, clients_per_round=divisor_of(plan))
        self._noise = HostNoise(plan, coordinates, noise_seed=noise_seed)
        self.initial_state = self._means.initial()
        self._sums: dict[Any, Any] = {}

    def release(
        self, state: MeansState, places: np.ndarray, size: float
    ) -> tuple[MeansState, np.ndarray]:
        """See `Subject`."""
        plan, sent = self._plan, self._means.client_params(state)
        # A client knows the clip norm of the round
        size *= sent.clip_norm / plan.clip_norm
        # The same updates under the same clip have the same sum: a pure function, and the cost of
        # a round.
        key = places.tobytes(), size, sent.clip_norm
        if key not in self._sums:
            total = self._means.empty_sum(len(places))
            update = np.zeros(self._means.size, np.float32)
            for place in places:
                update[place] = size
                total.add(
                    in_shapes(update, self._shapes),
                    clip_norm=sent.clip_norm,
                    zeroing_norm=sent.zeroing_norm,
                )
                update[place] = 0
            self._sums[key] = total
        total = self._sums[key]
        mean, state = self._means.release(state, total, self._noise.row(int(state.next_round)))
        row = mean.astype(np.float64)
        if state.clip:
            noise = float(state.clip.bits) - total.clients / 2 + total.clipped
            bits = noise * (plan.stddev / divisor_of(plan) / bit_stddev(plan))
            row = np.append(row * (plan.clip_norm / sent.clip_norm), bits)
        return state, row
