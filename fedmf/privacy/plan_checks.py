"""Checks that the attributes of a `Plan` are of their types and suit each other."""

from typing import Any

from fedmf.privacy.private_metrics import PrivateMetrics
from fedmf.privacy.quantile_clipping import QuantileClipping
from fedmf.privacy.sampling import Sampling
from fedmf.privacy.simulation import Simulation
from fedmf.privacy.trial_count import TrialCount


def check_streams(quantile_clipping: Any, private_metrics: Any, noise_multiplier: float) -> None:
    """Raises TypeError if quantile_clipping or private_metrics has a wrong type, and ValueError for
    private metrics in a plan without noise.
    """
    if not isinstance(quantile_clipping, QuantileClipping | None):
        raise TypeError(
            f"quantile_clipping={quantile_clipping!r} must be a fedmf.QuantileClipping, "
            "or None for a constant clip norm"
        )
    if not isinstance(private_metrics, PrivateMetrics | None):
        raise TypeError(
            f"private_metrics={private_metrics!r} must be a fedmf.PrivateMetrics, or None for none"
        )
    if private_metrics is not None and not noise_multiplier:
        raise ValueError(
            f"private_metrics={private_metrics.share} with noise_multiplier=0, which "
            "makes nothing private: add noise, or leave it out"
        )


def check_sizes(delta: float, scheme: Sampling | None, simulation: Any) -> None:
    """Raises ValueError if delta is too small for the sampling scheme, or if the plan claims
    another cohort size than the scheme samples.
    """
    if scheme is not None and delta < scheme.min_delta:
        raise ValueError(
            f"delta={delta} is too small for amplification by sampling, accounted to "
            f"{scheme.min_delta}: use that, or leave sampling out"
        )
    if not isinstance(simulation, Simulation | None):
        raise TypeError(f"simulation={simulation!r} must be None, or what plan.simulating sets")
    claimed_cohort = None if simulation is None else simulation.claimed
    if scheme is not None and claimed_cohort not in (None, scheme.cohort_size):
        raise ValueError(
            f"sampling has cohort_size={scheme.cohort_size} but claimed={claimed_cohort}: "
            "sample the claimed cohort"
        )


def check_selection(selection: Any, scheme: Sampling | None, *, is_shortened: bool) -> None:
    """Raises unless a plan can be that of the trials of a private selection, or has none.

    Args:
      selection: the number of trials.
      scheme: the plan's sampling scheme.
      is_shortened: whether the plan is that of the first rounds of a longer one.
    """
    if not isinstance(selection, TrialCount | None):
        raise TypeError(
            f"selection={selection!r} must be a fedmf.TrialCount, such as "
            "TrialCount(mean_trials=10), or None for a single run"
        )
    if selection is None:
        return
    if scheme is not None and scheme.simulated:
        raise ValueError(
            f"sampling={scheme.name} has an epsilon that may be simulated, which private "
            "selection cannot use: choose poisson or random-allocation, or leave sampling out"
        )
    if is_shortened:
        raise ValueError(
            "plan is that of the first rounds of a longer plan, and private selection needs "
            "trials that run to their end: pass plan.longer"
        )
