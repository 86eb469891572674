"""All settings of a training run except the secret noise seed."""

import dataclasses
import json
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any, Self

from fedmf import checks, fields
from fedmf.cohorts.availability import availability_from_text
from fedmf.files import expanded
from fedmf.privacy.config import PlanConfig, named_options
from fedmf.runs.executions import execution_kind, execution_names
from fedmf.schedule import CustomSchedule, WarmupCooldown
from fedmf.server.following import RULES as SCALED_RULES
from fedmf.server.following import Scaling
from fedmf.server.optimizers import (
    ServerOptimizer,
    server_optimizer_named,
    server_optimizer_names,
)
from fedmf.server.update_rules import RULES

_SCALED = "scaled-"
# Fields of server optimizers that the config has with the prefix `server_`.
_SHARED = ("momentum", "epsilon")


def _server_optimizers() -> tuple[str, ...]:
    """Returns the possible values of the field `server_optimizer`."""
    return (*server_optimizer_names(), *(_SCALED + rule for rule in SCALED_RULES))


def _check_task_options(name: str, value: Any) -> dict[str, Any]:
    """Checks the options of a task, and returns them as a dict of plain values."""
    options = named_options(name, value)
    for option, setting in options.items():
        if not isinstance(setting, str | int | float | None):
            raise TypeError(
                f"{name} has {option}={setting!r}: the values of options are texts, "
                "numbers, true, false or none"
            )
    return options


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(PlanConfig):
    """Settings of `fedmf train`, which are those of a `PlanConfig` and more fields for the task,
    the devices and the training.

    Options of the task are --task-option NAME=VALUE, or a table in the config file.

    `fedmf train --help` describes all fields.

    Attributes:
      task_options: options of the task by name.

    Raises:
      TypeError: a field is not of its type.
      ValueError: a field is out of its range, or contradicts another field.

    >>> config = TrainConfig(family="banded", rounds=8, min_sep=4, epsilon=8.0)
    >>> config.participation().max_participations
    2
    """

    # Fields of the task and its data.
    task: str | None = fields.text(
        None,
        "A task of fedmf.tasks or of an installed package, or package.module:function of your own.",
    )
    data: str | None = fields.path(
        None,
        "Data file or folder of the task; by default the one in TFF's own cache. "
        "docs/full_scale.md says where to get StackOverflow and CIFAR-10.",
    )
    task_options: Mapping[str, Any] = dataclasses.field(
        default_factory=dict,
        hash=False,
        metadata={"help": "The task's own options.", "check": _check_task_options},
    )

    # Fields of the devices and their availability.
    availability: str = fields.text(
        "always",
        "Who checks in: always, independent:0.3, or diurnal with its options "
        "(docs/participation.md).",
        lambda: ("always", "independent:", "diurnal"),
    )
    dropout: float = fields.option(
        0.0, "Probability that a selected client fails to report.", checks.probability
    )

    # Fields of the clients' updates
    zeroing_norm: float | None = fields.positive_float(
        100.0, "Updates with a larger entry count as zero; none for no limit."
    )

    canaries: int = fields.whole_number(
        0,
        "Synthetic clients that `fedmf audit canaries` tells in or out of the "
        "run by what it releases.",
        low=0,
    )

    # Fields of the optimisation, such as batches, epochs and learning rates.
    client_learning_rate: float = fields.positive_float(1.0, "Rate of the clients' optimizer.")
    client_optimizer: str = fields.choice(
        "sgd", f"On the clients: {', '.join(RULES)}.", lambda: RULES
    )
    client_momentum: float = fields.positive_float(
        0.0, "Momentum of sgd on the clients.", allow_zero=True, below=1
    )
    client_epochs: int = fields.whole_number(
        1, "Epochs of a client over its examples in a round, each in an order of its own."
    )
    client_batches: int | None = fields.whole_number(
        None, "Most batches that a client trains on in a round."
    )
    proximal_strength: float = fields.positive_float(
        0.0, "FedProx: strength that draws clients to the round's model.", allow_zero=True
    )
    server_optimizer: str = fields.choice(
        "sgd",
        f"On the server: {', '.join(_server_optimizers())}. Each follows the schedule. "
        "docs/adaptive.md: scaled.",
        _server_optimizers,
    )
    scale_every: int = fields.whole_number(
        1, "With a scaled server optimizer: rounds between changes of the scales."
    )
    server_learning_rate: float = fields.positive_float(1.0, "Peak of the server's schedule.")
    server_momentum: float = fields.positive_float(
        0.95, "Momentum of sgd on the server; beta_1 of adam and yogi.", allow_zero=True, below=1
    )
    server_epsilon: float = fields.positive_float(
        1e-3, "What adam, adagrad and yogi on the server add to the scale they divide by."
    )
    warmup: float = fields.positive_float(
        0.15,
        "Share of rounds in which the server's rate rises from 0.05 of its peak.",
        allow_zero=True,
    )
    cooldown: float = fields.positive_float(
        0.25, "Share of rounds in which it falls back to 0.05 of its peak.", allow_zero=True
    )

    # Fields of the run as a whole
    seed: int = fields.seed(
        0,
        "Of the initial model, the cohorts and the order of examples. The noise "
        "has a seed of its own.",
    )
    initial_model: str | None = fields.path(
        None,
        "Warm start from a FILE.keras or FILE.pt, or from the model of a run's folder. The "
        "guarantee does not cover its data.",
    )
    stop_at_epsilon: float | None = fields.positive_float(
        None, "End before the round with which the plan's epsilon would pass this."
    )
    evaluate_every: int = fields.whole_number(20, "Rounds between validations.")
    execution: str = fields.choice(
        "fast",
        "fast: our loop; tff: TFF's own learning process.",
        execution_names,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        client_optimizer = self.client_optimizer
        server_optimizer = self.server_optimizer
        needed_setting = f"client_optimizer=sgd, not {client_optimizer}"
        fields.require(
            self, "client_momentum", needs=needed_setting, present=client_optimizer == "sgd"
        )
        needed_setting = f"a scaled `server_optimizer`, not {server_optimizer}"
        fields.require(
            self, "scale_every", needs=needed_setting, present=server_optimizer != self.server_rule
        )
        is_in_tff = execution_kind(self.execution).in_tff
        if self.canaries and (is_in_tff or self.claimed_cohort is not None):
            reason = f"claimed_cohort={self.claimed_cohort} claims other noise than is added"
            if is_in_tff:
                reason = f"execution={self.execution} does not return its releases"
            raise ValueError(
                f"canaries={self.canaries} audit the releases of a run, and {reason}: leave one "
                "of them out"
            )
        if self.canaries and self.stop_at_epsilon is not None:
            raise ValueError(
                f"stop_at_epsilon={self.stop_at_epsilon} with canaries={self.canaries}, "
                "which audit all rounds of a plan: leave one of them out"
            )
        self._check_trials()
        if is_in_tff and self.server_rule not in RULES:
            rule_names = ", ".join(RULES)
            raise ValueError(
                f"execution={self.execution} has no server_optimizer={server_optimizer}: choose "
                f"one of {rule_names}, or use execution=fast"
            )
        availability_from_text(self.availability)
        for name in ("warmup", "cooldown"):
            is_unused = self.learning_rate_schedule is None or not getattr(self, name)
            needed_setting = "a run without `learning_rate_schedule`"
            fields.require(self, name, needs=needed_setting, present=is_unused)
        self.server_schedule()

    def _check_trials(self) -> None:
        """Raises ValueError if the runs of a private selection cannot have a field's value."""
        if self.mean_trials is None:
            return
        for name, needs in (
            ("canaries", "a single run, whose canaries are told apart"),
            ("stop_at_epsilon", "a single run, because all trials run to their end"),
            ("execution", "a single run, because trials draw their noise outside TensorFlow"),
        ):
            fields.require(self, name, needs=f"{needs}, and not `mean_trials`", present=False)

    @property
    def server_rule(self) -> str:
        """The name of the server's optimizer, without the prefix for scaled updates."""
        return self.server_optimizer.removeprefix(_SCALED)

    def scaling(self) -> Scaling | None:
        """Returns the scaling of updates before they are clipped; None if they are not scaled."""
        if self.server_optimizer == self.server_rule:
            return None
        server_rule = self.server_rule
        return Scaling(rule=server_rule, epsilon=self.server_epsilon, every=self.scale_every)

    def server_steps(self) -> ServerOptimizer:
        """Returns the server's optimizer. Its learning rates are those of `server_schedule`."""
        return server_optimizer_named(
            self.server_rule, momentum=self.server_momentum, epsilon=self.server_epsilon
        )

    def with_server_optimizer(self, optimizer: ServerOptimizer) -> Self:
        """Returns this config with another server optimizer.

        Raises:
          ValueError: the config names an optimizer already, or the class of this one is not
            registered.
        """
        if self.server_optimizer not in ("sgd", optimizer.name):
            raise ValueError(
                f"server_optimizer={optimizer.record()} beside a config with "
                f"server_optimizer={self.server_optimizer}: leave one of them out"
            )
        value_by_field = optimizer.record()
        changed_fields = {
            f"server_{name}": value_by_field[name] for name in _SHARED if name in value_by_field
        }
        return dataclasses.replace(self, server_optimizer=optimizer.name, **changed_fields)

    def server_schedule(self) -> WarmupCooldown | CustomSchedule:
        """Returns the schedule of the server's learning rates."""
        return self.custom_schedule(self.server_learning_rate) or WarmupCooldown(
            rounds=self.rounds,
            peak=self.server_learning_rate,
            warmup=self.warmup,
            cooldown=self.cooldown,
        )


def read_config_file(path: str | pathlib.Path) -> dict[str, Any]:
    """Reads a .toml or .json config file, and returns its values by name.

    Names may be spelled as on the command line, such as cohort-size for cohort_size.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is invalid.
    """
    path = expanded(path)
    if not path.is_file():
        problem = "is not a file" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"config file {path} {problem}: name a .toml or .json file with fields of TrainConfig"
        )
    file_format = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        file_text = path.read_text(encoding="utf-8")
        value_by_name = tomllib.loads(file_text) if file_format == "TOML" else json.loads(file_text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"config file {path} is not valid {file_format}: {error}") from error
    if not isinstance(value_by_name, dict):
        raise ValueError(
            f"config file {path} must hold fields of TrainConfig, not a "
            f"{type(value_by_name).__name__}"
        )
    return _with_underscores(value_by_name, path)


def _with_underscores(values: dict[str, Any], path: pathlib.Path) -> dict[str, Any]:
    """Returns a dict with hyphens in names replaced by underscores, also in nested tables."""
    value_by_name: dict[str, Any] = {}
    for spelling, value in values.items():
        field_name = spelling.replace("-", "_")
        if field_name in value_by_name:
            raise ValueError(
                f"config file {path} has {field_name} and "
                f"{field_name.replace('_', '-')}, which are the same field: leave one out"
            )
        value_by_name[field_name] = (
            _with_underscores(value, path) if isinstance(value, dict) else value
        )
    return value_by_name
