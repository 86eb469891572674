"""Checks of combinations of `PlanConfig` fields, such as options that a family does not have."""

from collections.abc import Mapping
from typing import Any, Protocol

from fedmf import fields
from fedmf.mechanisms.family import FAMILIES, families_with
from fedmf.privacy.flat_config import OPTIONS_WITH_FIELDS, TARGETS, families_taking
from fedmf.privacy.sampling import takes
from fedmf.privacy.trial_count import POISSON, TRUNCATED_NEGATIVE_BINOMIAL


class PlanFields(Protocol):
    """The fields of a `PlanConfig` that the checks of this module read."""

    @property
    def rounds(self) -> int: ...  # noqa: D102
    @property
    def schema(self) -> str: ...  # noqa: D102
    @property
    def min_sep(self) -> int | None: ...  # noqa: D102
    @property
    def max_participations(self) -> int | None: ...  # noqa: D102
    @property
    def sampling(self) -> str | None: ...  # noqa: D102
    @property
    def cohort_size(self) -> int: ...  # noqa: D102
    @property
    def claimed_cohort(self) -> int | None: ...  # noqa: D102
    @property
    def clip_quantile(self) -> float | None: ...  # noqa: D102
    @property
    def private_metrics(self) -> float: ...  # noqa: D102
    @property
    def mean_trials(self) -> float | None: ...  # noqa: D102
    @property
    def trial_distribution(self) -> str: ...  # noqa: D102
    @property
    def workload(self) -> str: ...  # noqa: D102
    @property
    def family(self) -> str: ...  # noqa: D102
    @property
    def mechanism(self) -> str | None: ...  # noqa: D102
    @property
    def bands(self) -> int | None: ...  # noqa: D102
    @property
    def mechanism_options(self) -> Mapping[str, Any]: ...  # noqa: D102


def check_mechanism_fields(config: PlanFields) -> None:
    """Raises ValueError if a field of the mechanism is set that its family does not have, or one is
    missing, or there are more bands than rounds.
    """
    for name in ("bands", "decoder", "mechanism"):
        families = families_taking(name)
        needed_family = f"family={' or '.join(families)}, not family={config.family}"
        fields.require(config, name, needs=needed_family, present=config.family in families)
    if config.family == "file" and config.mechanism is None:
        raise ValueError(
            "family=file needs a file: give mechanism, a path that `fedmf fit --out` wrote"
        )
    if config.bands is not None and config.bands > config.rounds:
        raise ValueError(
            f"bands={config.bands} must be at most rounds={config.rounds}: a matrix of that size "
            "has no more diagonals"
        )
    takes_momentum = config.workload == "momentum_sgd"
    fields.require(
        config, "workload_momentum", needs="workload=momentum_sgd", present=takes_momentum
    )


def checked_mechanism_options(config: PlanFields) -> dict[str, Any]:
    """Checks the options of the mechanism family, and returns the ones that are not at their
    default. So the same mechanism always has the same configuration.

    Raises:
      ValueError: an option that the family does not have, or that has a field of its own.
    """
    family = FAMILIES.get(config.family)
    option_by_name = {} if family is None else family.options
    options = {}
    for name, value in config.mechanism_options.items():
        if name in OPTIONS_WITH_FIELDS:
            raise ValueError(f"mechanism_options has {name}={value!r}: give the field {name}")
        if name not in option_by_name:
            families = families_with(name)
            owning_family = f"family={' or '.join(families)}" if families else "no family"
            raise ValueError(
                f"{name}={value!r} belongs to {owning_family}, not to family={config.family}: "
                "leave it out, or choose another family"
            )
        option = option_by_name[name]
        if value is not None and value != option.default:
            options[name] = fields.coerce(name, value, option.kind)
    return options


def check_target_fields(config: PlanFields) -> None:
    """Raises ValueError unless the config sets exactly one privacy target or, with family=none,
    adds no noise and sets none.
    """
    target_names = [name for name in TARGETS if getattr(config, name) is not None]
    if len(target_names) > 1:
        target_phrase = " and ".join(f"{name}={getattr(config, name)}" for name in target_names[:2])
        raise ValueError(f"{target_phrase} are both given: give one, the other follows")
    if config.family == "none" and any(getattr(config, name) for name in target_names):
        raise ValueError(
            f"family=none adds no noise: leave out `{target_names[0]}`, or choose another family"
        )
    if config.family != "none" and not target_names:
        raise ValueError(
            "epsilon=None and noise_multiplier=None, but noise needs a privacy target: give "
            "`epsilon` (such as 8), `advantage` (such as 0.1) or `noise_multiplier`"
        )


def check_sampling_fields(config: PlanFields, *, default_schema: str) -> None:
    """Raises ValueError if fields of the participation contradict the sampling scheme, or if fields
    of sampling are set without a scheme.
    """
    has_sampling = config.sampling is not None
    for name in ("population", "partitions"):
        fields.require(config, name, needs="`sampling`, such as poisson", present=has_sampling)
    if config.sampling is None:
        return
    sets_separation = config.min_sep is not None and not takes(config.sampling, "min_sep")
    if sets_separation or config.max_participations is not None or config.schema != default_schema:
        raise ValueError(
            f"sampling={config.sampling} determines the separation of a client's rounds: leave out "
            f"min_sep={config.min_sep}, max_participations={config.max_participations} and "
            f"schema={config.schema}"
        )
    if config.family == "banded" and config.bands is None:
        raise ValueError(
            f"sampling={config.sampling} needs bands, on which the amplification depends: `fedmf "
            "plan bands` finds the best number"
        )


def check_fields_of_streams(config: PlanFields) -> None:
    """Raises ValueError if fields of adaptive clipping, of a simulated cohort or of private metrics
    are set without the field that they need, or contradict it.
    """
    is_clipping_adaptive = config.clip_quantile is not None
    for name in ("clip_share", "clip_every", "clip_learning_rate"):
        fields.require(config, name, needs="`clip_quantile`", present=is_clipping_adaptive)
    if config.claimed_cohort is not None and config.claimed_cohort <= config.cohort_size:
        raise ValueError(
            f"claimed_cohort={config.claimed_cohort} must be above cohort_size="
            f"{config.cohort_size}, which simulates it: leave `claimed_cohort` out to train the "
            "cohort itself"
        )
    has_metrics = config.private_metrics > 0
    fields.require(config, "largest_loss", needs="`private_metrics`", present=has_metrics)


def check_selection_fields(config: PlanFields) -> None:
    """Raises ValueError if fields of a private selection are set without a number of trials, or
    with a privacy target that it cannot have.
    """
    has_trials = config.mean_trials is not None
    fields.require(config, "trial_distribution", needs="`mean_trials`", present=has_trials)
    has_shape = has_trials and config.trial_distribution != POISSON
    needed_setting = f"`mean_trials` with trial_distribution={TRUNCATED_NEGATIVE_BINOMIAL}"
    fields.require(config, "trial_shape", needs=needed_setting, present=has_shape)
    if has_trials and config.family == "none":
        raise ValueError(
            f"mean_trials={config.mean_trials} with family=none, which adds no noise: leave it "
            "out, or choose another family"
        )
    for name in ("advantage", "true_positive_rate"):
        target = getattr(config, name)
        if has_trials and target is not None:
            raise ValueError(
                f"{name}={target} with mean_trials={config.mean_trials}, whose noise follows from "
                "an epsilon: give `epsilon` or `noise_multiplier`"
            )
