"""Audit of code that adds noise, such as a server. It runs the code through all rounds of a plan on
a small model, first with zero updates and then with the worst-case client of an attack.

`fedmf.audits.noise` tests the noise and `fedmf.audits.distinguishing` the result of the attack.
They see only releases of the audited code. The claim is the plan's stddev and its mechanism's
noising(), in float64.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.audits import tails
from fedmf.audits.distinguishing import Distinguishing, audit_distinguishing
from fedmf.audits.noise import FALSE_POSITIVE_RATE, NoiseAudit, audit_noise
from fedmf.audits.whitening import causal_factor, whiten
from fedmf.audits.worst_case import worst_case
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.plan import Plan, update_noise_multiplier
from fedmf.server.audited_code import (
    Clients,
    MakeAudited,
    divisor_of,
    model_of,
    released_rows,
    worst_clients,
)
from fedmf.server.state import check_plan

# An audit of the default size detects noise that is cut off at this many standard deviations.
SEEN_CUT = 4.0
# Upper bound on the number of tests in an audit.
_MAX_TESTS = 64
# Least number of noise entries in a run. It lets an audit detect, with a margin, a noise scale that
# is off by 3% at a false-positive rate of 1e-6.
_MIN_ENTRIES = 60_000
_MIN_COORDINATES = 256
# An attack may have at most this many trials. More would take weeks.
_MAX_TRIALS = 10**9

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismAudit:
    """The result of `audit_mechanism`.

    Attributes:
      verdict: all findings under one false-positive rate.
      attack: the result of the distinguishing attack, or None without it.
      rounds, coordinates, trials: sizes of the runs.
      entries: number of noise entries that were tested, in both runs.
    """

    verdict: NoiseAudit
    attack: Distinguishing | None
    rounds: int
    coordinates: int
    trials: int
    entries: int

    @property
    def smallest_unseen_cut(self) -> float:
        """The smallest number of standard deviations at which noise could be cut off and still pass
        the audit.

        The noise is scaled to the claimed variance. A smaller cut fails the audit with certainty.
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
    subject: MakeAudited | None = None,
) -> MechanismAudit:
    """Runs a plan on a small model, and tests its releases against the claims of the plan.

    There are two runs with different seeds on zero updates, the second stopped and resumed in the
    middle, and then the distinguishing attack.

    Args:
      plan: plan with noise. Of a plan with sampling, the noise and guarantee without amplification
        are tested.
      seed: non-negative; the noise seeds are derived from it, and the same seed gives
        the same findings.
      coordinates: entries of the model, each an independent sample of the noise; None for enough to
        detect a scale off by 3%, and noise that is cut off at 4 standard deviations.
      trials: number of trials of the attack; 0 for no attack.
      false_positive_rate: the highest probability that an honest mechanism fails.
      progress: called with (rounds done, rounds in all) after each round.
      subject: makes the audited code; None for that of `fedmf.Server` and the training loop.

    Raises:
      TypeError: plan is not a `fedmf.Plan`, or an argument has another type.
      ValueError: plan has no noise or simulates a larger cohort, seed is negative,
        false_positive_rate is not in (0, 1), or coordinates or trials are too few or too many.

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
    plan = _audited_plan(plan)
    seed = checks.integer(
        "seed", seed, low=0, hint="choose a whole number; it is not a secret here"
    )
    checks.positive(
        "false_positive_rate", false_positive_rate, "use a small number such as 1e-6", below=1
    )
    num_rounds = plan.mechanism.rounds
    if coordinates is None:
        coordinates = _default_num_coordinates(num_rounds, false_positive_rate)
    leaf_sizes = [math.prod(shape) for shape in model_of(coordinates)]
    trials = _checked_trials(trials)
    num_runs = 3 if trials else 2
    audited_runs = _AuditedRuns(plan, subject, progress, num_runs=num_runs)
    causal_matrix = causal_factor(plan.mechanism.noising())
    release_stddev = plan.stddev / divisor_of(plan)
    first_run = audited_runs.releases(coordinates, noise_seed=16 * seed + 1)
    whitened_noises = [whiten(causal_matrix, first_run, release_stddev)]
    # The first run is deleted to free as much memory as its noise takes.
    del first_run
    resumed_run = audited_runs.releases(
        coordinates, noise_seed=16 * seed + 2, resume_at=num_rounds // 2
    )
    whitened_noises.append(whiten(causal_matrix, resumed_run, release_stddev))
    del resumed_run
    if plan.quantile_clipping is not None:
        leaf_sizes.append(1)
    findings = audit_noise(whitened_noises, leaves=leaf_sizes).findings
    attack_result = None
    if trials:
        attack_result = _attack(plan, audited_runs, trials, seed)
        findings += attack_result.findings
    return MechanismAudit(
        verdict=NoiseAudit(findings=findings, false_positive_rate=false_positive_rate),
        attack=attack_result,
        rounds=num_rounds,
        coordinates=coordinates,
        trials=trials,
        entries=sum(noise.size for noise in whitened_noises),
    )


def _audited_plan(plan: Any) -> Plan:
    """Returns the plan without its sampling, because the client of the attack takes part in known
    rounds.

    Raises:
      TypeError, ValueError: no plan, one with private metrics, or too many rounds for the memory.
    """
    check_plan(plan)
    if plan.private_metrics is not None:
        raise ValueError(
            f"private_metrics={plan.private_metrics.share} of the plan are not audited: audit a "
            "plan of its updates alone, without them and with noise_multiplier="
            f"{update_noise_multiplier(plan):.6g}"
        )
    num_rounds = plan.mechanism.rounds
    # The audit holds five matrices of shape (rounds, rounds), which are the noise matrix N, its
    # causal factor, the factor's inverse, and the squares of the last two.
    hint = "audit a plan of the same family with fewer rounds"
    checks.fits_in_memory("the audit of all rounds", (num_rounds, num_rounds), copies=5, hint=hint)
    return dataclasses.replace(plan, sampling=None)


class _AuditedRuns:
    """Runs of the audited code through all rounds of a plan.

    Args:
      plan: plan of the runs.
      subject: makes the audited code; None for that of `fedmf.Server`.
      progress: called with (rounds done, rounds in all) after each round.
      num_runs: number of runs that will be made.
    """

    def __init__(
        self, plan: Plan, subject: MakeAudited | None, progress: Progress | None, *, num_runs: int
    ) -> None:
        self._plan = plan
        self._subject = subject
        self._progress = progress
        self._total_rounds = num_runs * plan.mechanism.rounds
        self._rounds_done = 0

    def releases(
        self,
        coordinates: int,
        *,
        noise_seed: int,
        clients: Clients | None = None,
        resume_at: int = 0,
    ) -> np.ndarray:
        """Runs the audited code once, and returns its releases as a float64 array of shape (rounds,
        entries).
        """
        release_rows = []
        for release in released_rows(
            self._plan,
            coordinates,
            noise_seed=noise_seed,
            clients=clients,
            resume_at=resume_at,
            subject=self._subject,
        ):
            release_rows.append(release)
            self._rounds_done += 1
            if self._progress is not None:
                self._progress(self._rounds_done, self._total_rounds)
        return np.stack(release_rows)


def _attack(plan: Plan, runs: _AuditedRuns, trials: int, seed: int) -> Distinguishing:
    """Runs the distinguishing attack with this number of trials. Each coordinate of one run is a
    trial.
    """
    # The attack sees the releases of updates, but not those of clipping bits. With
    # quantile_clipping, the noise multiplier of updates is larger than the plan's, which covers
    # both kinds of releases.
    updates_plan = dataclasses.replace(
        plan, noise_multiplier=update_noise_multiplier(plan), quantile_clipping=None
    )
    attack_case = worst_case(updates_plan)
    clients, is_present = worst_clients(plan, attack_case, trials, seed)
    releases = runs.releases(trials, noise_seed=16 * seed + 3, clients=clients)
    release_stddev = plan.stddev / divisor_of(plan)
    attack_statistics = attack_case.projection @ releases[:, :trials] / release_stddev
    return audit_distinguishing(
        updates_plan, attack_case, attack_statistics[is_present], attack_statistics[~is_present]
    )


def _checked_trials(trials: Any) -> int:
    """Checks the number of trials of an attack, and returns it.

    Raises:
      TypeError, ValueError: too few for an attack, or too many.
    """
    hint = "use some thousand, or 0 for no attack"
    trials = checks.integer("trials", trials, low=0, high=_MAX_TRIALS, hint=hint)
    if 0 < trials < 8:
        raise ValueError(f"trials={trials} must be at least 8: {hint}")
    return trials


def _default_num_coordinates(rounds: int, false_positive_rate: float) -> int:
    """Returns the default number of model parameters for an audit with this number of rounds."""
    num_entries = tails.entries_to_see(SEEN_CUT, threshold=false_positive_rate / _MAX_TESTS)
    entries_per_run = max(_MIN_ENTRIES, -(-num_entries // 2))
    return max(_MIN_COORDINATES, -(-entries_per_run // rounds))
