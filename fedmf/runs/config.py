"""One frozen dataclass says everything about a training run except the secret noise seed."""

import dataclasses
import json
import pathlib
import re
import tomllib
from typing import Any

import msgspec

from fedmf import checks
from fedmf.cohorts.availability import availability_from_text
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.mechanisms import load_mechanism
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.family import FAMILIES, families_with, fitted_families
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.fitting.progress import interruptible_fits, shown
from fedmf.participation.schema import Participation
from fedmf.privacy.gaussian import check_delta, check_epsilon
from fedmf.privacy.plan import Plan, calibrate
from fedmf.privacy.sampling import SCHEMES, Sampling
from fedmf.schedule import WarmupCooldown
from fedmf.workloads import Workload, prefix_sum

_EXECUTIONS = ("fast", "tff", "tff-remote")
_LOSSES = ("published", "masked")
_DECODERS = ("online", "full")
_COLUMN_NORMS = ("equal", "free")


def families() -> tuple[str, ...]:
    """The values of `TrainConfig.family`: no noise, every family that is fitted, and a mechanism file."""
    return ("none", *fitted_families(), "file")


def families_taking(field: str) -> tuple[str, ...]:
    """The families that a field of `TrainConfig` is for."""
    if field == "bands":
        return families_with("bands")
    if field == "column_norms":
        return families_with("equal_norms")
    if field in ("mechanism", "decoder"):
        return ("file",) if field == "mechanism" else ("tree",)
    if field in ("epsilon", "noise_multiplier", "delta"):
        return families()[1:]
    return families()


def _option(default: Any, help: str) -> Any:
    """A field with the text that `fedmf train --help` shows for it."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What `fedmf train` runs. Defaults are those of the banded paper's StackOverflow experiments, except the privacy target.

    Every field is a command-line flag of the same name and a key of the config file.

    Raises:
      TypeError, ValueError: naming the field, its value and what to do instead.

    >>> TrainConfig(family="banded", rounds=8, min_sep=4, epsilon=8.0).participation().max_participations
    2
    """

    # Data and model
    data: str | None = _option(None, "StackOverflow SQLite file; by default the one in TFF's own cache.")
    vocabulary_size: int = _option(10_000, "Most frequent words kept.")
    sequence_length: int = _option(20, "Words of a sentence that are predicted.")
    max_sentences: int = _option(256, "Sentences a client trains on at most.")
    batch_size: int = _option(16, "Sentences in a client's batch.")
    embedding_size: int = _option(96, "Width of the embedding and of the projection.")
    lstm_size: int = _option(670, "Units of the LSTM layer.")
    loss: str = _option("published", "published: mean over all positions, as in the papers; masked: without padding.")
    validation_sentences: int = _option(10_000, "Sentences of the validation set.")
    test_sentences: int | None = _option(None, "Limit on the sentences of the test set; by default all.")

    # Who takes part
    rounds: int = _option(2052, "Rounds of training.")
    cohort_size: int = _option(100, "Clients that train in a round.")
    claimed_cohort: int | None = _option(
        None,
        "Estimate a cohort of this many clients from cohort_size simulated ones, with the noise scaled down (papers: 1000 from 100).",
    )
    schema: str = _option("min_sep", "single, fixed_epoch, min_sep or every_round.")
    min_sep: int | None = _option(None, "Least number of rounds between two participations of a client.")
    max_participations: int | None = _option(None, "Most participations of a client.")
    sampling: str | None = _option(
        None, "Amplify by how clients are drawn: poisson, fixed_size, shuffle or reshuffle. Needs population."
    )
    population: int | None = _option(None, "With sampling: the number of clients of the data.")
    availability: str = _option(
        "always", "Who checks in: always, independent:0.3, or diurnal with its options (docs/participation.md)."
    )
    dropout: float = _option(0.0, "Probability that a selected client fails to report.")

    # Privacy
    family: str = _option("banded", f"none (no noise), {', '.join(fitted_families())}, or file.")
    mechanism: str | None = _option(None, "With family=file: a mechanism that `fedmf fit` wrote, with any options.")
    bands: int | None = _option(None, "Bands of a banded (by default min_sep), toeplitz or low_rank mechanism.")
    column_norms: str | None = _option(
        None,
        "Of a banded (by default equal) or dense (free) encoder. The papers' multi-epoch MF is dense with equal ones.",
    )
    decoder: str = _option("online", "Decoder of the tree: online or full (less noise, more arithmetic).")
    epsilon: float | None = _option(None, "Privacy target; or give noise_multiplier.")
    noise_multiplier: float | None = _option(None, "Noise multiplier of the whole run; or give epsilon.")
    delta: float = _option(1e-6, "Failure probability.")
    clip_norm: float = _option(1.0, "L2 bound on a client's update.")
    zeroing_norm: float | None = _option(100.0, "Updates with a larger entry count as zero; none for no limit.")

    # Optimisation
    client_learning_rate: float = _option(1.0, "SGD on the clients, one local epoch.")
    server_learning_rate: float = _option(1.0, "Peak of the server's schedule.")
    server_momentum: float = _option(0.95, "Momentum of the server.")
    warmup: float = _option(0.15, "Share of rounds in which the server's rate rises from 0.05 of its peak.")
    cooldown: float = _option(0.25, "Share of rounds in which it falls back to 0.05 of its peak.")

    # The run
    seed: int = _option(
        0, "Of the initial model, the cohorts and the order of examples. The noise has a seed of its own."
    )
    evaluate_every: int = _option(20, "Rounds between validations.")
    checkpoint_every: int = _option(20, "Rounds between checkpoints.")
    execution: str = _option(
        "fast", "fast: our loop on one machine; tff: TFF's own learning process; tff-remote: that on other machines."
    )

    def __post_init__(self) -> None:
        whole = (
            "vocabulary_size sequence_length max_sentences batch_size embedding_size lstm_size validation_sentences "
            "test_sentences rounds cohort_size claimed_cohort min_sep max_participations population bands evaluate_every checkpoint_every"
        )
        for name in ("data", "mechanism"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name}={value!r} is a {type(value).__name__}, not a str: pass the path as text")
        optional = {field.name for field in dataclasses.fields(self) if field.default is None}
        for name in whole.split():
            value = getattr(self, name)
            if value is not None or name not in optional:
                number = checks.integer(name, value, low=1, hint="use a positive whole number")
                object.__setattr__(self, name, number)  # a plain int, also of numpy's: the config is kept as JSON
        seed = checks.integer("seed", self.seed, low=0, hint="use a non-negative whole number")
        object.__setattr__(self, "seed", seed)
        # None is a value of its own for these: no zeroing.
        optional |= {"zeroing_norm"}
        real = (
            "epsilon noise_multiplier delta clip_norm zeroing_norm client_learning_rate server_learning_rate "
            "server_momentum warmup cooldown"
        )
        may_be_zero = {"noise_multiplier", "server_momentum", "warmup", "cooldown"}
        for name in real.split():
            value = getattr(self, name)
            if value is not None or name not in optional:
                kind = "non-negative" if name in may_be_zero else "positive"
                real_number = checks.real(name, value, hint=f"use a finite {kind} number")
                if real_number < 0 or (real_number == 0 and name not in may_be_zero):
                    raise ValueError(f"{name}={value} must be {kind}: use a finite {kind} number")
                object.__setattr__(self, name, real_number)
        # What the plan would refuse is refused here, before the minutes that fitting takes.
        check_delta(self.delta)
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        if self.server_momentum >= 1:
            raise ValueError(f"server_momentum={self.server_momentum} must be below 1: use a number such as 0.95")
        if self.claimed_cohort is not None and self.claimed_cohort <= self.cohort_size:
            raise ValueError(
                f"claimed_cohort={self.claimed_cohort} must be above cohort_size={self.cohort_size}, which stands for it: "
                "leave claimed_cohort out to train the cohort itself"
            )
        if self.column_norms is not None:
            checks.one_of("column_norms", self.column_norms, _COLUMN_NORMS)
            usual = self.family in FAMILIES and FAMILIES[self.family].options.get("equal_norms")
            if usual and usual.default == (self.column_norms == "equal"):
                object.__setattr__(self, "column_norms", None)  # one mechanism has one configuration
        for name in ("bands", "column_norms", "mechanism"):
            if getattr(self, name) is not None and self.family not in families_taking(name):
                raise ValueError(
                    f"{name}={getattr(self, name)} belongs to family={' or '.join(families_taking(name))}, not to family={self.family}: "
                    "leave it out"
                )
        if self.family == "file" and self.mechanism is None:
            raise ValueError("family=file needs a file: give mechanism, a path that `fedmf fit --out` wrote")
        if self.bands is not None and self.bands > self.rounds:
            raise ValueError(
                f"bands={self.bands} must be at most rounds={self.rounds}: a matrix of that size has no more diagonals"
            )
        for name, choices in (
            ("family", families()),
            ("execution", _EXECUTIONS),
            ("loss", _LOSSES),
            ("decoder", _DECODERS),
        ):
            checks.one_of(name, getattr(self, name), choices)
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ValueError(
                f"epsilon={self.epsilon} and noise_multiplier={self.noise_multiplier} are both given: give one, the other follows"
            )
        if self.family == "none" and (self.epsilon is not None or self.noise_multiplier):
            raise ValueError(
                "family=none adds no noise: leave out epsilon and noise_multiplier, or choose another family"
            )
        if self.family != "none" and self.epsilon is None and self.noise_multiplier is None:
            raise ValueError(
                f"family={self.family} needs a privacy target: give epsilon (such as 8) or noise_multiplier"
            )
        availability_from_text(self.availability)
        DeviceBehavior(dropout=self.dropout)
        self._check_sampling()
        self.participation()
        self.server_schedule()

    def _check_sampling(self) -> None:
        if self.sampling is None:
            if self.population is not None:
                raise ValueError(
                    f"population={self.population} belongs to sampling: leave it out, or give sampling=poisson"
                )
            return
        checks.one_of("sampling", self.sampling, tuple(SCHEMES))
        if self.population is None:
            raise ValueError(f"sampling={self.sampling} needs population, the number of clients of the data")
        if self.family == "banded" and self.bands is None:
            raise ValueError(
                f"sampling={self.sampling} needs bands, on which the amplification depends: `fedmf plan bands` finds the best number"
            )
        self.sampling_scheme()

    def sampling_scheme(self) -> Sampling | None:
        """How clients of the claimed run are drawn; its groups follow from the mechanism."""
        if self.sampling is None or self.population is None:
            return None
        scheme = SCHEMES[self.sampling](population=self.population, cohort_size=self.claimed_cohort or self.cohort_size)
        assert isinstance(scheme, Sampling)
        return scheme

    def participation(self) -> Participation:
        """The schema that the controller enforces and the plan assumes; with sampling only the unit of the noise multiplier, by default
        that of a client that takes part once in an epoch, as in the banded paper's Table 5.
        """
        scheme = self.sampling_scheme()
        if scheme is not None and self.min_sep is None and self.schema == "min_sep":
            epoch = min(self.rounds, scheme.population // scheme.cohort_size)
            return Participation(rounds=self.rounds, schema="fixed_epoch", min_sep=epoch)
        return Participation(
            rounds=self.rounds,
            schema=self.schema,
            min_sep=self.min_sep,
            max_participations=self.max_participations,
        )

    def server_schedule(self) -> WarmupCooldown:
        """The server's learning rates."""
        return WarmupCooldown(
            rounds=self.rounds, peak=self.server_learning_rate, warmup=self.warmup, cooldown=self.cooldown
        )

    def workload(self) -> Workload:
        """What mechanisms are optimised for: prefix sums, the banded paper's choice for StackOverflow (Sec. 6)."""
        return prefix_sum(self.rounds)

    def fit(self, *, show_progress: bool = False) -> Mechanism:
        """The mechanism, fitted (seconds to minutes at full size, or read from the cache of fits) or read from its file."""
        participation = self.participation()
        if self.mechanism is not None:
            mechanism = load_mechanism(self.mechanism)
            if mechanism.rounds != self.rounds:
                raise ValueError(
                    f"mechanism={self.mechanism} is for {mechanism.rounds} rounds but the config trains rounds={self.rounds}: "
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
            # The optimum for every round of an epoch order; a limit below that only lowers its sensitivity.
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
        if self.epsilon is not None:
            plan = calibrate(
                mechanism,
                self.participation(),
                epsilon=self.epsilon,
                delta=self.delta,
                clip_norm=self.clip_norm,
                sampling=self.sampling_scheme(),
            )
        else:
            plan = Plan(
                mechanism=mechanism,
                participation=self.participation(),
                noise_multiplier=self.noise_multiplier or 0.0,
                clip_norm=self.clip_norm,
                delta=self.delta,
                sampling=self.sampling_scheme(),
            )
        if self.claimed_cohort is not None:
            plan = plan.simulating(simulated=self.cohort_size, claimed=self.claimed_cohort)
        return plan

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
            raise ValueError(f"{origin} has an unknown field {name!r}: the fields are {', '.join(known)}")
    try:
        return msgspec.convert(values, TrainConfig)
    except msgspec.ValidationError as error:
        # msgspec names the field behind the sentence: "Expected `int`, got `str` - at `$.rounds`".
        field = re.search(r" - at `\$\.(\w+)`$", str(error))
        given = f"{field[1]}={values[field[1]]!r}: " if field and field[1] in values else ""
        raise ValueError(f"{origin}: {given}{error}") from error


def read_config_file(path: str | pathlib.Path) -> dict[str, Any]:
    """The values of a .toml or .json config file.

    Raises:
      FileNotFoundError, ValueError: naming the path.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        wrong = "is not a file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"config file {path} {wrong}: name a .toml or .json file with fields of TrainConfig")
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"config file {path} is not valid {'TOML' if path.suffix == '.toml' else 'JSON'}: {error}"
        ) from error
    if not isinstance(values, dict):
        raise ValueError(f"config file {path} must hold fields of TrainConfig, not a {type(values).__name__}")
    return values
