"""From a privacy target to the plan with the least noise that meets it."""

import dataclasses

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.budget import check_pays_for_each_round
from fedmf.mechanisms.leading import column_norm
from fedmf.participation.schema import Participation
from fedmf.privacy.amplification import least_noise_multiplier
from fedmf.privacy.gaussian import check_epsilon, gaussian_noise_multiplier
from fedmf.privacy.monte_carlo import MAX_ATTEMPTS
from fedmf.privacy.plan import Plan, unit_noise
from fedmf.privacy.sampling import Sampling


def calibrate(
    mechanism: Mechanism,
    participation: Participation | None,
    *,
    epsilon: float,
    delta: float,
    clip_norm: float = 1.0,
    sampling: Sampling | None = None,
) -> Plan:
    """The least noise that gives (epsilon, delta) for the whole run, never weaker than
    asked; see `Plan.epsilon`.

    Args:
      mechanism: from `fit` or `load_mechanism`.
      participation: what every client keeps to. With sampling the plan's is what the scheme keeps
        to, and this may be None.
      epsilon: target, positive and below 5000.
      delta: target, in [1e-15, 1).
      clip_norm: L2 bound on one client's update in one round.
      sampling: how clients are drawn, where that amplifies the guarantee; None for what holds
        however they are drawn.

    Returns:
      The plan, in which epsilon is at most the target.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    Example:
      >>> import fedmf
      >>> one_epoch = fedmf.Participation(rounds=8, schema="single")
      >>> mechanism = fedmf.fit(fedmf.prefix_sum(8), one_epoch, family="tree")
      >>> plan = fedmf.calibrate(mechanism, one_epoch, epsilon=2.0, delta=1e-6)
      >>> round(plan.noise_multiplier, 5), round(plan.sensitivity.value, 3), plan.epsilon <= 2.0
      (2.23048, 2.0, True)
    """
    if not isinstance(participation, Participation | None):
        raise TypeError(
            f"participation={participation!r} must be a fedmf.Participation, or None with sampling"
        )
    # The multiplier that is enough without amplification.
    plan = Plan(
        mechanism=mechanism,
        participation=participation if sampling is None else None,  # type: ignore[arg-type]
        noise_multiplier=gaussian_noise_multiplier(epsilon, delta),
        clip_norm=clip_norm,
        delta=delta,
        sampling=sampling,
    )
    scheme = plan.sampling
    if plan.participation.schema == "budget":
        check_pays_for_each_round(plan.participation, column_norm(mechanism))
    if scheme is None:
        return plan
    enough, target = unit_noise(plan), check_epsilon(epsilon)

    def epsilon_of(noise: float) -> float:
        return target / 2 if noise >= enough else scheme.expected_epsilon(mechanism, noise, delta)

    # In units of the largest column norm, in which the search knows what is little.
    unit = column_norm(mechanism)
    relative, step = (1e-4, 2e-3) if scheme.simulated else (1e-5, 1e-7)
    noise = unit * least_noise_multiplier(
        lambda sigma: epsilon_of(unit * sigma), target, relative=relative
    )
    plan = dataclasses.replace(plan, noise_multiplier=min(enough, noise) / plan.sensitivity.value)
    # The rounding of that quotient; or random numbers that the search has not seen, whose chance to
    # fail is that of all attempts together.
    for _ in range(MAX_ATTEMPTS - 1):
        if plan.epsilon <= target:
            return plan
        plan = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * (1 + step))
        step *= 2
    return dataclasses.replace(plan, noise_multiplier=gaussian_noise_multiplier(epsilon, delta))
