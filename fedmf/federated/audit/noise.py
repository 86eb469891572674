"""Audits of what really runs: the aggregator on small models through all rounds, without clients or with the worst of them.

`fedmf.audits.noise` judges the noise and `fedmf.audits.distinguishing` the game; here it is run. Nothing is taken from the code that is
audited but what it releases: the claim is the plan's stddev and its mechanism's noising(), in float64.
"""

import dataclasses
import math
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.audits.controls import negative_controls
from fedmf.audits.distinguishing import (
    Distinguishing,
    WorstCase,
    audit_distinguishing,
    too_many_rounds,
    trials_needed,
    worst_case,
)
from fedmf.audits.noise import (
    FALSE_POSITIVE_RATE,
    Finding,
    NoiseAudit,
    audit_noise,
    causal_factor,
    check_false_positive_rate,
    whiten,
)
from fedmf.federated.audit.released import PATHS, divisor_of, model_of, released_rows
from fedmf.privacy.plan import Plan

# Entries of noise that show a scale off by 3% at one in a million false alarms, and a margin.
_ENTRIES = 60_000
_LEAST_COORDINATES = 256
_TRIALS = {"query": 20_000, "tff": 200}
# How far the worst case overshoots the clip norm, so that it is the clipping that bounds it.
_OVERSHOOT = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControlResult:
    """A known mistake and whether the audit caught it.

    Attributes:
      name: the mistake.
      caught: None where it changes nothing.
      finding: the one with the least p-value, or None.
      reason: why it changes nothing; empty if it does.
    """

    name: str
    caught: bool | None
    finding: Finding | None
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismAudit:
    """What `audit_mechanism` found.

    Attributes:
      verdict: all findings under one false-positive rate.
      game: the distinguishing audit, or None if it was left out.
      controls: known mistakes, if they were asked for.
      rounds, coordinates, trials: what was run.
    """

    verdict: NoiseAudit
    game: Distinguishing | None
    controls: tuple[ControlResult, ...]
    rounds: int
    coordinates: int
    trials: int

    @property
    def consistent(self) -> bool:
        """Whether nothing contradicts the claim, and no known mistake went unseen."""
        return self.verdict.consistent and all(control.caught is not False for control in self.controls)


def play(
    plan: Plan, case: WorstCase, trials: int, *, claim: Plan, seed: int, rows: Callable[..., Iterator[np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Statistics s of trials with the client present and absent: coordinate i is the trial of client i, who sends along e_i alone.

    Args:
      plan: what is run.
      case: the rounds and signs of the clients.
      trials: at least 8; half of them, at random, have their client present.
      claim: the plan whose stddev s is measured in.
      seed: of that choice.
      rows: (plan, shapes, updates=...) -> what is released.
    """
    present = np.random.default_rng([seed, 1]).permutation(trials) < trials // 2
    one_hot = _OneHots(np.flatnonzero(present), trials, _OVERSHOOT * claim.clip_norm)
    cohorts = {-1.0: one_hot.scaled(-1.0), 0.0: [], 1.0: one_hot}
    s = np.zeros(trials)
    released = rows(plan, model_of(trials), updates=lambda t: cohorts[float(case.contributions[t])])
    for weight, row in zip(case.projection, released, strict=True):
        s += weight * row
    s *= divisor_of(plan) / claim.stddev
    return s[present], s[~present]


class _OneHots(Sequence[np.ndarray]):
    """Updates along single coordinates, made when they are asked for."""

    def __init__(self, places: np.ndarray, size: int, value: float) -> None:
        self._places, self._size, self._value = places, size, value

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        update = np.zeros(self._size, np.float32)
        update[self._places[index]] = self._value
        return update

    def scaled(self, factor: float) -> "_OneHots":
        return _OneHots(self._places, self._size, factor * self._value)


def audit_mechanism(
    plan: Plan,
    *,
    seed: int,
    coordinates: int | None = None,
    trials: int | None = None,
    path: str = "query",
    strategy: str | None = None,
    controls: bool = False,
    false_positive_rate: float = FALSE_POSITIVE_RATE,
    progress: Callable[[int, int], None] | None = None,
) -> MechanismAudit:
    """Runs the aggregator of a plan and tests what it releases against what the plan claims.

    Two runs with different seeds, the second stopped and resumed in the middle, on zero updates; then the distinguishing game.

    Args:
      plan: with noise; of a sampled one the noise and the unamplified guarantee are tested.
      seed: non-negative; the noise seeds are derived from it, and the same seed gives the same findings.
      coordinates: entries of the model, each an independent sample of the noise; None for enough to see a scale off by 3%.
      trials: of the game; 0 for no game, None for 20,000 (query) or 200 (tff).
      path: "query" or "tff"; see `fedmf.federated.audit.released`.
      strategy: one of released.STRATEGIES, or None for the query's own choice.
      controls: also make known mistakes and see whether they are caught.
      false_positive_rate: chance, at most, that an honest mechanism fails.
      progress: called with (rounds done, rounds in all) after each round.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    Example:
      >>> import fedmf
      >>> once = fedmf.Participation(rounds=4, schema="single")
      >>> plan = fedmf.calibrate(fedmf.fit(fedmf.prefix_sum(4), once, family="tree"), once, epsilon=2.0, delta=1e-6)
      >>> audit = audit_mechanism(plan, seed=1, coordinates=500, trials=0)
      >>> audit.consistent, len(audit.verdict.findings) > 30
      (True, True)
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan={reprlib.repr(plan)} must be a fedmf.Plan: make one with fedmf.calibrate")
    seed = checks.integer("seed", seed, low=0, hint="choose a whole number; it is not a secret here")
    check_false_positive_rate(false_positive_rate)
    plan = (
        plan.without_amplification()
    )  # its noise is all there is to see; the game's client takes part in rounds that are known
    n = plan.mechanism.rounds
    d = max(_LEAST_COORDINATES, -(-_ENTRIES // n)) if coordinates is None else coordinates
    shapes = model_of(d)
    sizes = [math.prod(shape) for shape in shapes.values()]
    trials = _TRIALS[checks.one_of("path", path, PATHS)] if trials is None else trials
    if checks.integer("trials", trials, low=0, hint="play some thousand, or 0 for no game"):
        checks.integer("trials", trials, low=8, hint="play some thousand, or 0 for no game")
    case = worst_case(plan)  # also refuses a plan without noise, before anything runs
    broken = too_many_rounds(plan) if controls and trials else None
    total = n * (2 + (0 if not trials else 1 + (1 + (broken is not None)) * controls))
    done = 0

    def rows(plan: Plan, shapes: Any, **options: Any) -> Iterator[np.ndarray]:
        nonlocal done
        games = options.pop("noise_seed", 3)
        for row in released_rows(
            plan,
            shapes,
            noise_seed=16 * seed + games,
            path=path,
            strategy=strategy,
            **options,
        ):
            done += 1
            if progress is not None:
                progress(done, total)
            yield row

    L = causal_factor(plan.mechanism.noising())
    scale = plan.stddev / divisor_of(plan)
    one = whiten(L, np.stack(list(rows(plan, shapes, noise_seed=1))), scale)
    other = whiten(L, np.stack(list(rows(plan, shapes, noise_seed=2, resume_at=n // 2 or None))), scale)
    findings = audit_noise([one, other], leaves=sizes).findings
    game = None
    if trials:
        game = audit_distinguishing(plan, case, *play(plan, case, trials, claim=plan, seed=seed, rows=rows))
        findings += game.findings
    verdict = NoiseAudit(findings=findings, false_positive_rate=false_positive_rate)
    results: list[ControlResult] = []
    if controls:
        for control in negative_controls(L, [one, other], sizes):
            found = None if control.whitened is None else audit_noise(control.whitened, leaves=sizes).findings
            results.append(_judged(control.name, found, verdict, control.reason))
        if trials:
            results += _game_controls(plan, case, broken, trials, seed, rows, verdict)
    return MechanismAudit(verdict=verdict, game=game, controls=tuple(results), rounds=n, coordinates=d, trials=trials)


def _game_controls(
    plan: Plan,
    case: WorstCase,
    broken: tuple[int, ...] | None,
    trials: int,
    seed: int,
    rows: Callable[..., Iterator[np.ndarray]],
    verdict: NoiseAudit,
) -> Iterator[ControlResult]:
    """Games that break the claim; those that so few trials cannot show are not played."""
    less = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * 2 / 3)
    games: list[tuple[str, Plan, WorstCase | None, float]] = [("two thirds of the noise", less, case, 1.5 * case.snr)]
    wrong = None if broken is None else worst_case(plan, rounds=broken)
    name = "a client in twice as many rounds as the plan allows"
    games.append((name, plan, wrong, 0.0 if wrong is None else wrong.snr))
    for name, run, played, snr in games:
        if played is None:
            yield _judged(name, None, verdict, "the plan allows every round")
            continue
        needed = trials_needed(snr, 1 / plan.noise_multiplier, verdict.threshold)
        if not needed <= trials:
            yield _judged(name, None, verdict, f"{trials:,} trials are too few to show it: {needed:,.0f} would")
            continue
        statistics = play(run, played, trials, claim=plan, seed=seed, rows=rows)
        yield _judged(name, audit_distinguishing(plan, played, *statistics).findings[:1], verdict)


def _judged(name: str, findings: tuple[Finding, ...] | None, verdict: NoiseAudit, reason: str = "") -> ControlResult:
    if findings is None:
        return ControlResult(name=name, caught=None, finding=None, reason=reason)
    worst = min(findings, key=lambda finding: finding.p_value)
    return ControlResult(name=name, caught=worst.p_value < verdict.threshold, finding=worst)
