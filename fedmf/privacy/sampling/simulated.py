"""The base class of sampling schemes whose epsilon is an upper bound by simulation. The bound is
close to the exact epsilon if the encoder has no negative entry.
"""

import abc
import math
from typing import ClassVar

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.leading import column_norm
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.privacy.curves import epsilons_of_curve, simulated_curve
from fedmf.privacy.gaussian import (
    MIN_DELTA,
    exact_gaussian_epsilon,
    gaussian_epsilon,
)
from fedmf.privacy.losses import Losses
from fedmf.privacy.monte_carlo import (
    FAILURE,
    FAILURE_OF_CALIBRATION,
    MAX_ATTEMPTS,
    SimulatedEpsilon,
    expected_epsilon,
    simulated_epsilon,
)
from fedmf.privacy.rounding import down, up
from fedmf.privacy.sampling.base import Sampling
from fedmf.privacy.sampling.description import Description

# The privacy statement says how many samples a tight bound on epsilon needs, if that number is more
# than _NOTABLE_SHORTAGE times the number of samples that were drawn.
_NOTABLE_SHORTAGE = 1.5


class Simulated(Sampling):
    """Base of the schemes that compute epsilon by simulation of privacy losses. They sample clients
    independently of each other.
    """

    independent: ClassVar[bool] = True
    simulated: ClassVar[bool] = True
    min_delta: ClassVar[float] = MIN_DELTA

    @abc.abstractmethod
    def losses(self, mechanism: Mechanism, noise: float) -> Losses:
        """Returns the distribution of one client's privacy losses, for a standard deviation `noise`
        of the noise at clip norm 1.
        """

    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Computes an upper bound on epsilon by simulation. It is never larger than the epsilon
        without amplification.

        It is wrong with probability `FAILURE` at most, over the randomness of the simulation.
        """
        if noise > 0:
            epsilon = self._simulate(mechanism, noise, delta).epsilon
            if math.isfinite(epsilon):
                return epsilon
        return gaussian_epsilon(self._unamplified_multiplier(mechanism, noise), delta)

    def expected_epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Estimates `epsilon` in seconds, with random numbers that are independent of the ones that
        `epsilon` uses.
        """
        if noise == 0:
            return math.inf
        unamplified_value = exact_gaussian_epsilon(
            self._unamplified_multiplier(mechanism, noise), delta
        )
        estimate = expected_epsilon(self.losses(mechanism, noise), delta, unamplified_value)
        return min(unamplified_value, estimate)

    def curve(
        self, mechanism: Mechanism, noise: float, *, search: bool = False
    ) -> tuple[tuple[float, float], ...]:
        """Computes the privacy curve by simulation."""
        epsilons = tuple(epsilons_of_curve(self._unamplified_multiplier(mechanism, noise)))
        return simulated_curve(self.losses(mechanism, noise), epsilons, search=search)

    def curve_failure(self, mechanism: Mechanism) -> float:
        """Returns the probability that any point of the curve is too small, in any of the attempts
        of a calibration.
        """
        return FAILURE_OF_CALIBRATION

    def evidence(self, mechanism: Mechanism, noise: float, delta: float) -> str:
        """Returns sentences for the privacy statement about the simulation, with the number of
        samples, the bound, the estimate, and the probability that the bound is wrong.
        """
        if noise == 0:
            return ""
        simulation = self._simulate(mechanism, noise, delta)
        remove_samples, add_samples = simulation.samples
        if simulation.epsilon == 0 and not remove_samples:
            return f"No simulation was needed: delta = {delta} is reached at epsilon = 0."
        if not math.isfinite(simulation.epsilon):
            return (
                f"The simulation shows nothing at delta = {delta}, and the Gaussian mechanism "
                f"without amplification is what is stated.{_shortage(simulation)}"
            )
        estimate = simulation.estimate if math.isfinite(simulation.estimate) else None
        return (
            f"It is a Monte-Carlo bound from {remove_samples} samples for removing and "
            f"{add_samples} for adding a client. The bound at delta = {delta} is epsilon = "
            f"{up(simulation.epsilon)}, and the point estimate is {up(estimate)}. The bound is "
            "wrong "
            f"with probability at most {FAILURE:g}, over the randomness of the simulation and not "
            f"of the run; after calibration, which may try {MAX_ATTEMPTS} times, so many times "
            f"that; after a choice among several calibrations, the sum of theirs."
            f"{_shortage(simulation)}"
        )

    def _simulate(self, mechanism: Mechanism, noise: float, delta: float) -> SimulatedEpsilon:
        """Returns the result of the simulation of epsilon, from the cache if it is there."""
        unamplified_value = exact_gaussian_epsilon(
            self._unamplified_multiplier(mechanism, noise), delta
        )
        return simulated_epsilon(self.losses(mechanism, noise), delta, unamplified_value)

    def _unamplified_multiplier(self, mechanism: Mechanism, noise: float) -> float:
        """Returns the noise multiplier of the whole run as one Gaussian release, whose epsilon has
        no amplification.
        """
        return noise / sensitivity(mechanism, self.participation(mechanism.rounds)).value

    def _simulated_description(
        self, selection: str, pair: str, mechanism: Mechanism, noise: float
    ) -> Description:
        """Returns clauses for the privacy statement about a scheme with a simulated epsilon.

        Args:
          selection: as in `Description`.
          pair: the pair of distributions whose privacy losses are simulated.
          mechanism, noise: as in `epsilon`.
        """
        return Description(
            selection=selection,
            accountant="simulated privacy losses",
            accounted=f"{pair} (Choquette-Choo et al. 2024, arXiv:2410.06266, Lemma 3.2) with "
            f"noise multiplier {down(noise / column_norm(mechanism))} for the largest column: by "
            "importance sampling with bounded weights and an empirical Bernstein inequality for "
            "removing a client, and by Ehrhard's inequality for adding one",
        )


def _shortage(result: SimulatedEpsilon) -> str:
    """Returns a sentence about the number of samples that a tighter bound would need, with a blank
    in front of it. The text is empty if the simulation drew about as many samples.
    """
    is_bounded = math.isfinite(result.epsilon)
    num_removal_samples = result.samples[0]
    if not result.needed_samples > _NOTABLE_SHORTAGE * num_removal_samples:
        return ""
    if not (is_bounded or num_removal_samples):
        return ""
    tighter_result = "margin of a few percent of delta" if is_bounded else "bound"
    return (
        f" A {tighter_result} would take {result.needed_samples:.2g} samples for removing, "
        f"{result.needed_samples / max(1, num_removal_samples):.2g} times the minutes of these."
    )
