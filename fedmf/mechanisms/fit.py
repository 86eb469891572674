"""The function `fedmf.fit`, which optimises a mechanism for a workload and a participation."""

import os
import time
from typing import Any

from fedmf import checks, disk_cache
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.family import Family, fitted_families
from fedmf.mechanisms.fitting import cache as fit_cache
from fedmf.mechanisms.fitting.progress import Progress, Stopping, stopped_short
from fedmf.numpy_errors import numpy_defaults
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload, check_workload


def fit(
    workload: Workload,
    participation: Participation,
    family: str = "banded",
    *,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    progress: Progress | None = None,
    cache: bool | str | os.PathLike[str] = True,
    **options: Any,
) -> Mechanism:
    """Fits the best mechanism of a family to a workload and a participation.

    Families and their options:

    - "banded": an encoder of `bands` diagonals (banded paper, Problem 2; App. B without equal
      norms). bands=min_sep (which is rounds under a single participation), equal_norms=True. With
      bands <= min_sep and equal column norms its sensitivity is exactly sqrt(max_participations),
      so that more bands are rarely worth it.
    - "dense": the optimum over all encoders, for a single participation (Denisov et al. 2022, Sec.
      3) or for (k, b)-participation (multi-epoch paper, Sec. 3). equal_norms=False.
    - "toeplitz": C[t, j] = c[t - j]. coefficients="optimized" | "sqrt" | "nu" | "inverse_sqrt" |
      "optimized_inverse", bands, objective="mean" | "max", nu. See
      `fedmf.mechanisms.toeplitz.fit.fit_toeplitz`.
    - "blt": a Toeplitz encoder whose coefficients are a sum of `buffers` exponentials, so that a
      noise vector is computed from as many running sums. buffers=4, objective="mean" | "max".
    - "low_rank": the decoder of the dense optimum, approximated by `bands` diagonals and a matrix
      of rank `rank` below them, so that a noise vector is computed from bands + rank vectors
      (Denisov et al. 2022, App. H). Both default to half of log2(rounds).
    - "tree": binary tree aggregation. decoder="full" | "online" (Honaker's two estimators),
      restarts=1 (number of trees, each over an equal share of the rounds), completion=None |
      "none" | "virtual" | "optimal" (treatment of nodes that reach beyond the last round; None
      takes the best of the three).
    - "fft": the FFT encoder of prefix sums (multi-epoch paper, App. K). decoder="optimal" scales to
      any number of rounds; decoder="plain" forms dense matrices.
    - "identity": independent noise in every round, as in DP-SGD. It has no options.

    A fit that stops above its tolerance, or at Ctrl-C, warns (RuntimeWarning) and returns the best
    mechanism so far, whose certificate states the gap that it reached. Identity, tree and fft need
    no iterations.

    Args:
      workload: the query A whose error is minimised.
      participation: the participation schema, for the same number of rounds.
      family: the name of a family, as above.
      tolerance: the relative optimality gap to reach, proved by the certificate, for banded, dense
        and low_rank; the decrease of the loss below which to stop, for toeplitz and blt. None means
        the default of the family, 1e-8 to 1e-3.
      max_iterations: the number of steps after which to stop in any case. None means the default
        of the family, mostly 1000.
      progress: a function that is called with (iteration, loss, gap or None) after each step.
      cache: the folder that stores fits of more than a tenth of a second, each under a hash of
        everything that determines the result, for later calls. True means $FEDMF_CACHE, or else
        fedmf in the user's cache folder; False, or True with an empty FEDMF_CACHE, stores nothing.
        Families registered outside fedmf are not stored.
      **options: options of the family.

    Returns:
      The mechanism, with a certificate or the reason why it has none.

    Raises:
      TypeError: an option does not belong to the family, or an argument is of the wrong kind.
      ValueError: the family is unknown, an option is out of range, or the numbers of rounds differ.

    >>> from fedmf.workloads import prefix_sum
    >>> participation = Participation(rounds=16, schema="min_sep", min_sep=4)
    >>> mechanism = fit(prefix_sum(16), participation, family="banded", bands=4)
    >>> mechanism.bands, mechanism.certificate.gap < 1e-3
    (4, True)
    """
    _check_inputs(workload, participation)
    family_by_name = fitted_families()
    family_record = family_by_name[checks.one_of("family", family, tuple(family_by_name))]
    _check_options(family_record, options)
    if tolerance is None:
        tolerance = family_record.tolerance
    if max_iterations is None:
        max_iterations = family_record.max_iterations
    stopping = Stopping(tolerance=tolerance, max_iterations=max_iterations, progress=progress)
    fit_family = family_record.fit
    assert fit_family is not None
    with numpy_defaults():
        cache_folder = fit_cache.resolve_folder(cache)
        # The name of a cached fit is a hash that covers the code of fedmf only. A family from
        # another package could change its code under the same hash, so its fits are not cached.
        if cache_folder is None or not fit_family.__module__.startswith("fedmf."):
            return fit_family(workload, participation, stopping, **options)
        hashed_options = {
            **options,
            "tolerance": stopping.tolerance,
            "max_iterations": stopping.max_iterations,
        }
        cache_path = fit_cache.cached_path(
            cache_folder, workload, participation, family, hashed_options
        )
        cached_mechanism = fit_cache.load_fit(
            cache_path, family=family, rounds=participation.rounds
        )
        if cached_mechanism is not None:
            return cached_mechanism
        stopped_short.set(False)
        start_time = time.perf_counter()
        mechanism = fit_family(workload, participation, stopping, **options)
        duration = time.perf_counter() - start_time
        if duration > fit_cache.MIN_SECONDS and not stopped_short.get():
            disk_cache.store(cache_path, mechanism.save, "the fit")
        return mechanism


def _check_inputs(workload: Workload, participation: Participation) -> None:
    """Raises TypeError or ValueError unless a mechanism can be fitted to this workload under this
    participation.
    """
    check_workload(workload)
    if not isinstance(participation, Participation):
        raise TypeError(
            f"participation is of type {type(participation).__name__}: pass a fedmf.Participation"
        )
    if workload.rounds != participation.rounds:
        raise ValueError(
            f"workload {workload.name!r} has rounds={workload.rounds} but participation has "
            f"rounds={participation.rounds}: make both for the same number of rounds"
        )
    if participation.needs_encoder:
        raise ValueError(
            f'schema="{participation.schema}" is no schema to fit for: fit for the `min_sep` '
            "participation whose privacy budget it spends, then take "
            "fedmf.Budget.of(mechanism, participation)"
        )


def _check_options(family: Family, options: dict[str, Any]) -> None:
    """Raises TypeError for an option that the family does not have, and for a boolean option whose
    value is not True or False.
    """
    for option_name, value in options.items():
        if option_name not in family.options:
            known_options = [*family.options, "tolerance", "max_iterations", "progress"]
            option_hint = checks.did_you_mean(option_name, known_options, "its options are")
            raise TypeError(
                f"{option_name}={value!r} is not an option of family={family.name!r}: {option_hint}"
            )
        if family.options[option_name].kind is bool and not isinstance(value, bool):
            raise TypeError(
                f"{option_name}={value!r} is a {type(value).__name__}: pass True or False"
            )
