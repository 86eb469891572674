"""Draws of a private selection, all of which follow from its noise secret, and the choice of the
selected trial. They are pure functions, so that tests can repeat the whole procedure.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmf.privacy.trial_count import TrialCount
from fedmf.sweeps.grid import Range

# Number of bits of a trial's public seed.
_SEED_BITS = 62


def selection_secret(noise_seed: int, salt: int, procedure: str) -> int:
    """Returns the noise secret of one selection, of 256 bits.

    Args:
      noise_seed: the caller's secret, which may be a number that somebody could guess, or that
        another selection has too.
      salt: random bits that no other selection has.
      procedure: the settings of the selection, as text.
    """
    return _hashed("secret of a selection", str(noise_seed), str(salt), procedure)


def seed_for_purpose(noise_secret: int, purpose: str) -> int:
    """Returns a seed of 128 bits for one purpose, from which nobody learns the secret or the seed
    of another purpose.
    """
    return _hashed(str(noise_secret), purpose) >> 128


def _hashed(*parts: str) -> int:
    """Returns the SHA-256 digest of texts, as a number of 256 bits."""
    seed_input = json.dumps(["fedmf private selection", *parts])
    return int.from_bytes(hashlib.sha256(seed_input.encode()).digest(), "big")


def num_trials(noise_secret: int, trials: TrialCount) -> int:
    """Draws the number of trials."""
    return trials.draw(np.random.default_rng(seed_for_purpose(noise_secret, "number of trials")))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialSeeds:
    """Seeds of one trial. The index of the trial enters both, so that two trials of the same
    setting are independent.

    Attributes:
      noise: secret seed of the noise, and of sampled cohorts.
      public: seed of the initial model, the cohorts and the order of examples.
    """

    noise: int
    public: int

    @staticmethod
    def of(noise_secret: int, trial_index: int) -> "TrialSeeds":
        """Returns the seeds of the trial with this index."""
        public_seed = seed_for_purpose(noise_secret, f"cohorts of trial {trial_index}")
        return TrialSeeds(
            noise=seed_for_purpose(noise_secret, f"noise of trial {trial_index}"),
            public=public_seed >> (128 - _SEED_BITS),
        )


def draw_setting(
    noise_secret: int,
    trial_index: int,
    choices: Sequence[Mapping[str, Any]],
    varied: Mapping[str, Sequence[Any] | Range],
) -> dict[str, Any]:
    """Draws the setting of a trial, independently of all other trials.

    Args:
      noise_secret: the secret of the selection.
      trial_index: index of the trial.
      choices: varied field -> value, for each run of a grid that has one value of each range. One
        of them is drawn uniformly.
      varied: field -> values, or a range, from which a new value is drawn (`drawn_from`).

    Returns:
      Varied field -> value.
    """
    rng = np.random.default_rng(seed_for_purpose(noise_secret, f"setting of trial {trial_index}"))
    chosen_values = dict(choices[rng.integers(len(choices))])
    for name in chosen_values:
        values = varied[name]
        if isinstance(values, Range):
            chosen_values[name] = drawn_from(values, rng)
    return chosen_values


def drawn_from(values: Range, rng: np.random.Generator) -> int | float:
    """Draws a number from a range, log-uniformly if its low end is positive, else uniformly. Floats
    have four significant digits.
    """
    low, high = values.low, values.high
    if values.whole:
        # Each whole number has the probability of the interval of length 1 around it.
        low, high = low - 0.5, high + 0.5
    if values.low > 0:
        number = math.exp(rng.uniform(math.log(low), math.log(high)))
    else:
        number = rng.uniform(low, high)
    if values.whole:
        return min(max(round(number), int(values.low)), int(values.high))
    return values.rounded(number)


def best_of(
    scores: np.ndarray, tie_keys: np.ndarray, *, where: np.ndarray | None = None
) -> np.ndarray:
    """Returns the indices of the best trials of many selections.

    Args:
      scores: (selections, trials), of which the largest is the best. A trial that failed has NaN,
        and is worse than all others.
      tie_keys: (selections, trials), different random numbers, the largest of which breaks a tie.
      where: (selections, trials), whether a trial was drawn; None for all.

    Returns:
      (selections,), indices of trials; -1 for a selection all of whose trials failed.
    """
    is_released = np.isfinite(scores)
    if where is not None:
        is_released &= where
    finite_scores = np.where(is_released, scores, -np.inf)
    is_best = is_released & (finite_scores == finite_scores.max(axis=1, keepdims=True))
    best_indices = np.where(is_best, tie_keys, -np.inf).argmax(axis=1)
    return np.where(is_released.any(axis=1), best_indices, -1)


def selected_trial(noise_secret: int, scores: Sequence[float]) -> int | None:
    """Returns the index of the trial with the best score; None if all failed, or there is none.
    Ties are broken at random.

    Args:
      noise_secret: the secret of the selection.
      scores: of the trials, NaN for those that failed.
    """
    if not scores:
        return None
    rng = np.random.default_rng(seed_for_purpose(noise_secret, "ties"))
    tie_keys = rng.permutation(len(scores)).astype(np.float64)
    [best_index] = best_of(np.array([scores], np.float64), tie_keys[None]).tolist()
    return None if best_index < 0 else best_index
