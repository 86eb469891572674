"""`fedmf.fit`: the mechanism of a family that is best for a workload and a participation."""

import os
import time
from typing import Any

from fedmf import checks, disk_cache
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.family import fitted_families
from fedmf.mechanisms.fitting import cache as fits
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
    """Makes the best mechanism of a family for a workload and a participation.

    Families and their options:

    - "banded": `bands` diagonals (banded paper, Problem 2; App. B without equal norms).
      bands=min_sep (which is rounds under a single participation), equal_norms=True. Best kept at
      bands <= min_sep, where with equal column norms its sensitivity is exactly
      sqrt(max_participations).
    - "dense": the optimum over all encoders, for a single participation (Denisov et al. 2022, Sec.
      3) or for (k, b)-participation (multi-epoch paper, Sec. 3). equal_norms=False.
    - "toeplitz": C[t, j] = c[t - j]. coefficients="optimized" | "sqrt" | "nu" | "inverse_sqrt" |
      "optimized_inverse", bands, objective="mean" | "max", nu. See
      `fedmf.mechanisms.toeplitz.fit.fit_toeplitz`.
    - "blt": Toeplitz with exponentials for coefficients, so that a round of noise costs `buffers`
      rows. buffers=4, objective="mean" | "max".
    - "low_rank": the dense optimum's decoder, cut to `bands` diagonals plus a matrix of rank `rank`
      below them, so that a round of noise costs bands + rank rows (Denisov et al. 2022, App. H).
      Both default to half of log2(rounds).
    - "tree": binary tree. decoder="full" | "online" (Honaker's two estimators), restarts=1 (trees
      one after the other, each over an equal part of the rounds), completion=None | "none" |
      "virtual" | "optimal" (what becomes of nodes that reach beyond the last round; None takes the
      best of the three).
    - "fft": the FFT encoder of prefix sums (multi-epoch paper, App. K), for any number of rounds
      with decoder="optimal"; or "plain", as dense matrices.
    - "identity": independent noise, DP-SGD. No options of its own.

    A fit that stops short of tolerance, or by Ctrl-C, warns (RuntimeWarning), keeps the best
    mechanism so far, and its certificate says how far it came. Identity, tree and fft have nothing
    to iterate.

    Args:
      workload: the query A that is to be accurate.
      participation: for the same number of rounds.
      family: one of the above.
      tolerance: for banded, dense and low_rank the relative optimality gap to reach, which the
        certificate proves; for toeplitz and blt the progress below which to stop. None: the
        family's default, 1e-8 to 1e-3.
      max_iterations: steps after which to stop anyway. None: the family's default, mostly 1000.
      progress: called with (iteration, loss, gap or None) after each step.
      cache: where fits that took more than a tenth of a second are stored, under a hash of
        everything that decides them, and read from the next time. True: $FEDMF_CACHE, or else fedmf
        in the user's cache folder; a path: that folder; False, or True with FEDMF_CACHE set to
        nothing: nowhere. Families registered outside fedmf are not stored.
      **options: of that family.

    Returns:
      The mechanism, with a certificate or the reason for having none.

    Raises:
      TypeError: an option that the family does not have, or an argument of the wrong kind.
      ValueError: an unknown family, an option out of range, or rounds that differ.

    >>> from fedmf.workloads import prefix_sum
    >>> participation = Participation(rounds=16, schema="min_sep", min_sep=4)
    >>> mechanism = fit(prefix_sum(16), participation, family="banded", bands=4)
    >>> mechanism.bands, mechanism.certificate.gap < 1e-3
    (4, True)
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
            "participation that it is to pay for, then take "
            "fedmf.Budget.of(mechanism, participation)"
        )
    families = fitted_families()
    record = families[checks.one_of("family", family, tuple(families))]
    assert record.fit is not None
    for name, value in options.items():
        if name not in record.options:
            known = [*record.options, "tolerance", "max_iterations", "progress"]
            hint = checks.did_you_mean(name, known, "its options are")
            raise TypeError(f"{name}={value!r} is not an option of family={family!r}: {hint}")
        if record.options[name].kind is bool and not isinstance(value, bool):
            raise TypeError(f"{name}={value!r} is a {type(value).__name__}: pass True or False")
    stopping = Stopping(
        tolerance=record.tolerance if tolerance is None else tolerance,
        max_iterations=record.max_iterations if max_iterations is None else max_iterations,
        progress=progress,
    )
    with numpy_defaults():
        folder = fits.folder(cache)
        # The hash covers the code of fedmf only
        if folder is None or not record.fit.__module__.startswith("fedmf."):
            return record.fit(workload, participation, stopping, **options)
        decides = {
            **options,
            "tolerance": stopping.tolerance,
            "max_iterations": stopping.max_iterations,
        }
        path = fits.cached_path(folder, workload, participation, family, decides)
        mechanism = fits.read(path, family=family, rounds=participation.rounds)
        if mechanism is None:
            stopped_short.set(False)
            began = time.perf_counter()
            mechanism = record.fit(workload, participation, stopping, **options)
            if time.perf_counter() - began > fits.MIN_SECONDS and not stopped_short.get():
                disk_cache.store(path, mechanism.save, "the fit")
        return mechanism
