"""One frozen dataclass says everything about a training run except the secret noise seed."""

import dataclasses
import json
import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec

from fedmf import checks, fields
from fedmf.checks import meant
from fedmf.cohorts.availability import availability_from_text
from fedmf.mechanisms import load_mechanism
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.budget import Budget
from fedmf.mechanisms.family import FAMILIES, fitted_families
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.fitting.progress import interruptible_fits, shown
from fedmf.participation.schema import SCHEMAS, Participation
from fedmf.privacy.calibrate import calibrate
from fedmf.privacy.gaussian import check_delta, check_epsilon
from fedmf.privacy.plan import Plan
from fedmf.privacy.quantile_clipping import QuantileClipping
from fedmf.privacy.sampling import SCHEMES, Sampling, scheme_from, takes
from fedmf.runs.config_values import (
    LINEAR,
    OPTIMIZERS,
    SCALED,
    SERVER_OPTIMIZERS,
    belongs,
    families,
    families_taking,
    task_options,
)
from fedmf.schedule import WarmupCooldown
from fedmf.workloads import Workload, prefix_sum


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What `fedmf train` runs.

    Defaults are those of the banded paper's StackOverflow experiments, except the privacy target.

    Every field is a command-line flag of the same name and a key of the config file; those of
    `task_options` are --task-option NAME=VALUE and a table of the file.

    Raises:
      TypeError, ValueError: naming the field, its value and what to do instead.

    >>> TrainConfig(family="banded", rounds=8, min_sep=4, epsilon=8.0).participation().max_participations
    2
    """

    # The task
    task: str | None = fields.text(
        None,
        "A task of fedmf.tasks or of an installed package, or package.module:function of your own.",
    )
    data: str | None = fields.text(
        None, "Data file or folder of the task; by default the one in TFF's own cache."
    )
    task_options: Mapping[str, Any] = dataclasses.field(
        default_factory=dict,
        hash=False,
        metadata={"help": "The task's own options.", "check": task_options},
    )

    # Who takes part
    rounds: int = fields.whole(2052, "Rounds of training.")
    cohort_size: int = fields.whole(100, "Clients that train in a round.")
    claimed_cohort: int | None = fields.whole(
        None,
        "Estimate a cohort of this many clients from cohort_size simulated ones, with the noise "
        "scaled down (papers: 1000 from 100).",
    )
    schema: str = fields.choice(
        "min_sep", "single, fixed_epoch, min_sep, every_round or budget.", lambda: SCHEMAS
    )
    min_sep: int | None = fields.whole(
        None, "Least number of rounds between two participations of a client."
    )
    max_participations: int | None = fields.whole(None, "Most participations of a client.")
    sampling: str | None = fields.choice(
        None,
        "Amplify by how clients are drawn: poisson, fixed_size, shuffle, reshuffle, balls-in-bins "
        "or min-sep-poisson. Needs population.",
        lambda: SCHEMES,
    )
    population: int | None = fields.whole(None, "With sampling: the number of clients of the data.")
    availability: str = fields.text(
        "always",
        "Who checks in: always, independent:0.3, or diurnal with its options "
        "(docs/participation.md).",
    )
    dropout: float = fields.option(
        0.0, "Probability that a selected client fails to report.", checks.probability
    )

    # Privacy
    family: str = fields.choice(
        "banded", f"none (no noise), {', '.join(fitted_families())}, or file.", families
    )
    mechanism: str | None = fields.text(
        None, "With family=file: a mechanism that `fedmf fit` wrote, with any options."
    )
    bands: int | None = fields.whole(
        None, "Bands of a banded (by default min_sep), toeplitz or low_rank mechanism."
    )
    column_norms: str | None = fields.choice(
        None,
        "Of a banded (by default equal) or dense (free) encoder. The papers' multi-epoch MF is "
        "dense with equal ones.",
        lambda: ("equal", "free"),
    )
    decoder: str = fields.choice(
        "online",
        "Decoder of the tree: online or full (less noise, more arithmetic).",
        lambda: ("online", "full"),
    )
    epsilon: float | None = fields.real(None, "Privacy target; or give noise_multiplier.")
    noise_multiplier: float | None = fields.real(
        None, "Noise multiplier of the whole run; or give epsilon.", zero=True
    )
    delta: float = fields.real(1e-6, "Failure probability.")
    clip_norm: float = fields.real(1.0, "L2 bound on a client's update.")
    clip_quantile: float | None = fields.real(
        None,
        "The clip norm follows this quantile of the updates' norms, from clip_norm on; none keeps "
        "it.",
        below=1,
    )
    clip_share: float = fields.real(
        0.04, "With clip_quantile: part of the budget, rho, that following it takes.", below=1
    )
    clip_every: int = fields.whole(
        10, "With clip_quantile: rounds between changes of the clip norm."
    )
    clip_learning_rate: float = fields.real(
        1.0, "With clip_quantile: a change is by a factor of at most its exp."
    )
    zeroing_norm: float | None = fields.real(
        100.0, "Updates with a larger entry count as zero; none for no limit."
    )

    canaries: int = fields.whole(
        0,
        "Synthetic clients that `fedmf audit canaries` tells in or out of the run by what it "
        "releases.",
        low=0,
    )

    # Optimisation
    client_learning_rate: float = fields.real(1.0, "Rate of the clients' optimizer.")
    client_optimizer: str = fields.choice(
        "sgd", f"On the clients: {', '.join(OPTIMIZERS)}.", lambda: OPTIMIZERS
    )
    client_momentum: float = fields.real(0.0, "Momentum of sgd on the clients.", zero=True, below=1)
    client_epochs: int = fields.whole(
        1, "Epochs of a client over its examples in a round, each in an order of its own."
    )
    client_batches: int | None = fields.whole(
        None, "Most batches that a client trains on in a round."
    )
    proximal_strength: float = fields.real(
        0.0, "FedProx: strength that draws clients to the round's model.", zero=True
    )
    server_optimizer: str = fields.choice(
        "sgd",
        f"On the server: {', '.join(SERVER_OPTIMIZERS)}. Each follows the schedule. "
        "docs/adaptive.md: scaled.",
        lambda: SERVER_OPTIMIZERS,
    )
    scale_every: int = fields.whole(
        1, "With a scaled server optimizer: rounds between changes of the scales."
    )
    scale_moment: str = fields.choice(
        "noisy",
        f"With {' or '.join(LINEAR)}: noisy, or debiased, less the known variance of the noise.",
        lambda: ("noisy", "debiased"),
    )
    server_learning_rate: float = fields.real(1.0, "Peak of the server's schedule.")
    server_momentum: float = fields.real(
        0.95, "Momentum of sgd on the server; beta_1 of adam and yogi.", zero=True, below=1
    )
    server_epsilon: float = fields.real(
        1e-3, "What adam, adagrad and yogi on the server add to the scale they divide by."
    )
    warmup: float = fields.real(
        0.15, "Share of rounds in which the server's rate rises from 0.05 of its peak.", zero=True
    )
    cooldown: float = fields.real(
        0.25, "Share of rounds in which it falls back to 0.05 of its peak.", zero=True
    )

    # The run
    seed: int = fields.whole(
        0,
        "Of the initial model, the cohorts and the order of examples. The noise has a seed of its "
        "own.",
        low=0,
    )
    initial_model: str | None = fields.text(
        None,
        "Warm start from a FILE.keras, or from the model of a run's folder. The guarantee does "
        "not cover its data.",
    )
    evaluate_every: int = fields.whole(20, "Rounds between validations.")
    checkpoint_every: int = fields.whole(20, "Rounds between checkpoints.")
    execution: str = fields.choice(
        "fast",
        "fast: our loop; tff: TFF's own learning process.",
        lambda: ("fast", "tff"),
    )

    def __post_init__(self) -> None:
        fields.check_fields(self)
        # What the plan would refuse is refused here, before the minutes that fitting takes.
        check_delta(self.delta)
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        if self.claimed_cohort is not None and self.claimed_cohort <= self.cohort_size:
            raise ValueError(
                f"claimed_cohort={self.claimed_cohort} must be above "
                f"cohort_size={self.cohort_size}, which stands for it: "
                "leave claimed_cohort out to train the cohort itself"
            )
        if self.column_norms is not None:
            usual = self.family in FAMILIES and FAMILIES[self.family].options.get("equal_norms")
            if usual and usual.default == (self.column_norms == "equal"):
                object.__setattr__(
                    self, "column_norms", None
                )  # one mechanism has one configuration
        for name in ("bands", "column_norms", "mechanism"):
            takers = families_taking(name)
            whose = f"family={' or '.join(takers)}, not to family={self.family}"
            belongs(self, name, to=whose, there=self.family in takers)
        client, server = self.client_optimizer, self.server_optimizer
        belongs(
            self,
            "client_momentum",
            to=f"client_optimizer=sgd, not to {client}",
            there=client == "sgd",
        )
        belongs(
            self,
            "scale_every",
            to=f"a scaled server_optimizer, not to {server}",
            there=server.startswith(SCALED),
        )
        belongs(
            self,
            "scale_moment",
            to=f"{' or '.join(LINEAR)}, not to {server}",
            there=server in LINEAR,
        )
        for name in ("clip_share", "clip_every", "clip_learning_rate"):
            belongs(self, name, to="clip_quantile", there=self.clip_quantile is not None)
        if self.family == "file" and self.mechanism is None:
            raise ValueError(
                "family=file needs a file: give mechanism, a path that `fedmf fit --out` wrote"
            )
        if self.bands is not None and self.bands > self.rounds:
            raise ValueError(
                f"bands={self.bands} must be at most rounds={self.rounds}: a matrix of that size "
                "has no more diagonals"
            )
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ValueError(
                f"epsilon={self.epsilon} and noise_multiplier={self.noise_multiplier} are both "
                "given: give one, the other follows"
            )
        if self.family == "none" and (self.epsilon is not None or self.noise_multiplier):
            raise ValueError(
                "family=none adds no noise: leave out epsilon and noise_multiplier, or choose "
                "another family"
            )
        if self.family != "none" and self.epsilon is None and self.noise_multiplier is None:
            raise ValueError(
                f"family={self.family} needs a privacy target: give epsilon (such as 8) or "
                "noise_multiplier"
            )
        if self.canaries and (self.execution != "fast" or self.claimed_cohort is not None):
            wrong = f"claimed_cohort={self.claimed_cohort} claims other noise than what runs"
            if self.execution != "fast":
                wrong = f"execution={self.execution} does not hand out what it releases"
            raise ValueError(
                f"canaries={self.canaries} audit what is released, and {wrong}: leave one of them "
                "out"
            )
        availability_from_text(self.availability)
        self._check_sampling()
        self.participation()
        self.server_schedule()

    def _check_sampling(self) -> None:
        belongs(self, "population", to="sampling, such as poisson", there=self.sampling is not None)
        if self.sampling is None:
            return
        self.sampling_scheme()
        own = takes(self.sampling, "min_sep")
        if (
            (self.min_sep is not None and not own)
            or self.max_participations is not None
            or self.schema != "min_sep"
        ):
            raise ValueError(
                f"sampling={self.sampling} decides how far apart clients take part: leave out "
                f"min_sep={self.min_sep}, "
                f"max_participations={self.max_participations} and schema={self.schema}"
            )
        if self.family == "banded" and self.bands is None:
            raise ValueError(
                f"sampling={self.sampling} needs bands, on which the amplification depends: `fedmf "
                "plan bands` finds the best number"
            )

    @property
    def adds_noise(self) -> bool:
        """Whether the run needs a noise seed."""
        return self.epsilon is not None or bool(self.noise_multiplier)

    def sampling_scheme(self) -> Sampling | None:
        """How clients of the claimed run are drawn; its partitions follow from the mechanism."""
        if self.sampling is None:
            return None
        cohort_size = self.claimed_cohort or self.cohort_size
        own = {"min_sep": self.min_sep} if takes(self.sampling, "min_sep") else {}
        return scheme_from(
            self.sampling, population=self.population, cohort_size=cohort_size, **own
        )

    def participation(self) -> Participation:
        """What clients keep to and mechanisms are fitted for; of schema budget what it is of; with
        sampling that of a fixed order.
        """
        scheme = self.sampling_scheme()
        if scheme is not None:
            epoch = min(self.rounds, scheme.population // scheme.cohort_size)
            return Participation(rounds=self.rounds, schema="fixed_epoch", min_sep=epoch)
        return Participation(
            rounds=self.rounds,
            schema="min_sep" if self.schema == "budget" else self.schema,
            min_sep=self.min_sep,
            max_participations=self.max_participations,
        )

    def budget(self, mechanism: Mechanism) -> Budget | None:
        """With schema=budget what `participation` costs with this mechanism, which clients then
        keep to; else None.
        """
        return Budget.of(mechanism, self.participation()) if self.schema == "budget" else None

    def quantile_clipping(self) -> QuantileClipping | None:
        """How the clip norm adapts; None for one that stays."""
        if self.clip_quantile is None:
            return None
        rest = {name: getattr(self, f"clip_{name}") for name in ("share", "every", "learning_rate")}
        return QuantileClipping(quantile=self.clip_quantile, **rest)

    def server_schedule(self) -> WarmupCooldown:
        """The server's learning rates."""
        return WarmupCooldown(
            rounds=self.rounds,
            peak=self.server_learning_rate,
            warmup=self.warmup,
            cooldown=self.cooldown,
        )

    def workload(self) -> Workload:
        """What mechanisms are optimised for: prefix sums, the banded paper's choice for
        StackOverflow (Sec. 6).
        """
        return prefix_sum(self.rounds)

    def fit(self, *, show_progress: bool = False) -> Mechanism:
        """The mechanism, fitted (seconds to minutes at full size, or read from the cache of fits)
        or read from its file.
        """
        participation = self.participation()
        if self.mechanism is not None:
            mechanism = load_mechanism(self.mechanism)
            if mechanism.rounds != self.rounds:
                raise ValueError(
                    f"mechanism={self.mechanism} is for {mechanism.rounds} rounds but the config "
                    f"trains rounds={self.rounds}: "
                    "fit one for as many"
                )
            return mechanism
        family = "identity" if self.family == "none" else self.family
        options: dict[str, Any] = {"decoder": self.decoder} if family == "tree" else {}
        if self.bands is not None:
            options["bands"] = self.bands
        if self.column_norms is not None:
            options["equal_norms"] = self.column_norms == "equal"
        if "equal_norms" in FAMILIES[family].options:
            # The optimum for every round of an epoch order; a limit below that only lowers its
            # sensitivity.
            participation = Participation(
                rounds=self.rounds, schema=participation.schema, min_sep=participation.min_sep
            )
        if FAMILIES[family].proves_gap:
            options["tolerance"] = 1e-3
        with interruptible_fits(), shown(family, show_progress) as progress:
            return fit(self.workload(), participation, family=family, progress=progress, **options)

    def plan(self, mechanism: Mechanism | None = None) -> Plan:
        """Calibrates `mechanism`, by default the fitted one."""
        mechanism = self.fit() if mechanism is None else mechanism
        scheme, budget = self.sampling_scheme(), self.budget(mechanism)
        participation = self.participation() if budget is None else budget.participation
        if self.epsilon is not None:
            plan = calibrate(
                mechanism,
                participation,
                epsilon=self.epsilon,
                delta=self.delta,
                clip_norm=self.clip_norm,
                sampling=scheme,
            )
        else:
            plan = Plan(
                mechanism=mechanism,
                participation=participation if scheme is None else None,  # type: ignore[arg-type]
                noise_multiplier=self.noise_multiplier or 0.0,
                clip_norm=self.clip_norm,
                delta=self.delta,
                sampling=scheme,
            )
        plan = dataclasses.replace(plan, quantile_clipping=self.quantile_clipping())
        if self.claimed_cohort is not None:
            plan = plan.simulating(simulated=self.cohort_size, claimed=self.claimed_cohort)
        return plan

    def flat(self) -> dict[str, Any]:
        """Field -> value, with task_option.NAME for each option of the task, in the order of the
        fields.
        """
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields.flat({name.replace("options", "option"): each for name, each in named.items()})

    def to_json(self) -> str:
        """The fields as indented JSON, the form in which a run folder keeps them."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def config_from_mapping(values: dict[str, Any], origin: str) -> TrainConfig:
    """A config from plain values.

    Args:
      values: field name -> value; fields left out keep their default.
      origin: where they come from, named in errors.

    Raises:
      ValueError: unknown field, wrong type or value out of range.
    """
    known = [field.name for field in dataclasses.fields(TrainConfig)]
    for name in values:
        if name not in known:
            raise ValueError(
                f"{origin} has an unknown field {name!r}: {meant(name, known, 'the fields are')}"
            )
    try:
        return msgspec.convert(values, TrainConfig)
    except msgspec.ValidationError as error:
        # msgspec names the field behind the sentence: "Expected `int`, got `str` - at `$.rounds`".
        field = re.search(r" - at `\$\.(\w+)`$", str(error))
        given = f"{field[1]}={values[field[1]]!r}: " if field and field[1] in values else ""
        raise ValueError(f"{origin}: {given}{error}") from error


def read_config_file(path: str | pathlib.Path) -> dict[str, Any]:
    """The values of a .toml or .json config file.

    Names may be spelled as on the command line: cohort-size is cohort_size.

    Raises:
      FileNotFoundError, ValueError: naming the path.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        wrong = "is not a file" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"config file {path} {wrong}: name a .toml or .json file with fields of TrainConfig"
        )
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"config file {path} is not valid {'TOML' if path.suffix == '.toml' else 'JSON'}: "
            f"{error}"
        ) from error
    if not isinstance(values, dict):
        raise ValueError(
            f"config file {path} must hold fields of TrainConfig, not a {type(values).__name__}"
        )
    return _underscored(values, path)


def _underscored(values: dict[str, Any], path: pathlib.Path) -> dict[str, Any]:
    named = {name.replace("-", "_"): value for name, value in values.items()}
    for name in named:
        spelled = [spelling for spelling in values if spelling.replace("-", "_") == name]
        if len(spelled) > 1:
            raise ValueError(
                f"config file {path} has {' and '.join(spelled)}, which are one field: leave one "
                "out"
            )
    return {n: _underscored(v, path) if isinstance(v, dict) else v for n, v in named.items()}
