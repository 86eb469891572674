"""One frozen dataclass says everything about a training run except the secret noise seed."""

import dataclasses
import json
import math
import pathlib
import re
import tomllib
import typing
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from fedmf import checks
from fedmf.cohorts.availability import availability_from_text
from fedmf.cohorts.devices import probability
from fedmf.mechanisms import load_mechanism
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.family import FAMILIES, families_with, fitted_families
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.fitting.progress import interruptible_fits, shown
from fedmf.participation.schema import SCHEMAS, Participation
from fedmf.privacy.calibrate import calibrate
from fedmf.privacy.gaussian import check_delta, check_epsilon
from fedmf.privacy.plan import Plan
from fedmf.privacy.sampling import SCHEMES, Sampling, scheme_from
from fedmf.schedule import WarmupCooldown
from fedmf.workloads import Workload, prefix_sum


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


def _option(default: Any, help: str, check: Callable[[str, Any], Any]) -> Any:
    """A field, the text that `fedmf train --help` shows for it, and the check that returns its value in the field's own type."""
    return dataclasses.field(default=default, metadata={"help": help, "check": check})


def _whole(default: int | None, help: str, *, low: int = 1) -> Any:
    hint = f"use a {'positive' if low else 'non-negative'} whole number"
    return _option(default, help, lambda name, value: checks.integer(name, value, low=low, hint=hint))


def _real(default: float | None, help: str, *, zero: bool = False, below: float = math.inf) -> Any:
    hint = f"use a finite {'non-negative' if zero else 'positive'} number"
    return _option(default, help, lambda name, value: checks.positive(name, value, hint, below=below, zero=zero))


def _choice(default: str | None, help: str, choices: Callable[[], Iterable[str]]) -> Any:
    return _option(default, help, lambda name, value: checks.one_of(name, value, tuple(choices())))


def _text(default: str | None, help: str) -> Any:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(f"{name}={value!r} is a {type(value).__name__}, not a str: pass it as text")
        return value

    return _option(default, help, check)


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
    task: str = _text("stackoverflow_nwp", "A task of fedmf.tasks.")
    data: str | None = _text(None, "StackOverflow SQLite file; by default the one in TFF's own cache.")
    vocabulary_size: int = _whole(10_000, "Most frequent words kept.")
    sequence_length: int = _whole(20, "Words of a sentence that are predicted.")
    max_sentences: int = _whole(256, "Sentences a client trains on at most.")
    batch_size: int = _whole(16, "Sentences in a client's batch.")
    embedding_size: int = _whole(96, "Width of the embedding and of the projection.")
    lstm_size: int = _whole(670, "Units of the LSTM layer.")
    loss: str = _choice(
        "published",
        "published: mean over all positions, as in the papers; masked: without padding.",
        lambda: ("published", "masked"),
    )
    validation_sentences: int = _whole(10_000, "Sentences of the validation set.")
    test_sentences: int | None = _whole(None, "Limit on the sentences of the test set; by default all.")

    # Who takes part
    rounds: int = _whole(2052, "Rounds of training.")
    cohort_size: int = _whole(100, "Clients that train in a round.")
    claimed_cohort: int | None = _whole(
        None,
        "Estimate a cohort of this many clients from cohort_size simulated ones, with the noise scaled down (papers: 1000 from 100).",
    )
    schema: str = _choice("min_sep", "single, fixed_epoch, min_sep or every_round.", lambda: SCHEMAS)
    min_sep: int | None = _whole(None, "Least number of rounds between two participations of a client.")
    max_participations: int | None = _whole(None, "Most participations of a client.")
    sampling: str | None = _choice(
        None,
        "Amplify by how clients are drawn: poisson, fixed_size, shuffle or reshuffle. Needs population.",
        lambda: SCHEMES,
    )
    population: int | None = _whole(None, "With sampling: the number of clients of the data.")
    availability: str = _text(
        "always", "Who checks in: always, independent:0.3, or diurnal with its options (docs/participation.md)."
    )
    dropout: float = _option(0.0, "Probability that a selected client fails to report.", probability)

    # Privacy
    family: str = _choice("banded", f"none (no noise), {', '.join(fitted_families())}, or file.", families)
    mechanism: str | None = _text(None, "With family=file: a mechanism that `fedmf fit` wrote, with any options.")
    bands: int | None = _whole(None, "Bands of a banded (by default min_sep), toeplitz or low_rank mechanism.")
    column_norms: str | None = _choice(
        None,
        "Of a banded (by default equal) or dense (free) encoder. The papers' multi-epoch MF is dense with equal ones.",
        lambda: ("equal", "free"),
    )
    decoder: str = _choice(
        "online", "Decoder of the tree: online or full (less noise, more arithmetic).", lambda: ("online", "full")
    )
    epsilon: float | None = _real(None, "Privacy target; or give noise_multiplier.")
    noise_multiplier: float | None = _real(None, "Noise multiplier of the whole run; or give epsilon.", zero=True)
    delta: float = _real(1e-6, "Failure probability.")
    clip_norm: float = _real(1.0, "L2 bound on a client's update.")
    zeroing_norm: float | None = _real(100.0, "Updates with a larger entry count as zero; none for no limit.")

    # Optimisation
    client_learning_rate: float = _real(1.0, "SGD on the clients, one local epoch.")
    server_learning_rate: float = _real(1.0, "Peak of the server's schedule.")
    server_momentum: float = _real(0.95, "Momentum of the server.", zero=True, below=1)
    warmup: float = _real(0.15, "Share of rounds in which the server's rate rises from 0.05 of its peak.", zero=True)
    cooldown: float = _real(0.25, "Share of rounds in which it falls back to 0.05 of its peak.", zero=True)

    # The run
    seed: int = _whole(
        0, "Of the initial model, the cohorts and the order of examples. The noise has a seed of its own.", low=0
    )
    evaluate_every: int = _whole(20, "Rounds between validations.")
    checkpoint_every: int = _whole(20, "Rounds between checkpoints.")
    execution: str = _choice(
        "fast",
        "fast: our loop on one machine; tff: TFF's own learning process; tff-remote: that on other machines.",
        lambda: ("fast", "tff", "tff-remote"),
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, check = getattr(self, field.name), field.metadata["check"]
            if value is not None or type(None) not in typing.get_args(field.type):
                # A plain number, also of numpy's: the config is stored as JSON.
                object.__setattr__(self, field.name, check(field.name, value))
        # What the plan would refuse is refused here, before the minutes that fitting takes.
        check_delta(self.delta)
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        if self.claimed_cohort is not None and self.claimed_cohort <= self.cohort_size:
            raise ValueError(
                f"claimed_cohort={self.claimed_cohort} must be above cohort_size={self.cohort_size}, which stands for it: "
                "leave claimed_cohort out to train the cohort itself"
            )
        if self.column_norms is not None:
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
        self.sampling_scheme()
        if self.min_sep is not None or self.max_participations is not None or self.schema != "min_sep":
            raise ValueError(
                f"sampling={self.sampling} decides how far apart clients take part: leave out min_sep={self.min_sep}, "
                f"max_participations={self.max_participations} and schema={self.schema}"
            )
        if self.family == "banded" and self.bands is None:
            raise ValueError(
                f"sampling={self.sampling} needs bands, on which the amplification depends: `fedmf plan bands` finds the best number"
            )

    def sampling_scheme(self) -> Sampling | None:
        """How clients of the claimed run are drawn; its partitions follow from the mechanism."""
        if self.sampling is None:
            return None
        cohort_size = self.claimed_cohort or self.cohort_size
        return scheme_from(self.sampling, population=self.population, cohort_size=cohort_size)

    def participation(self) -> Participation:
        """What clients keep to and the mechanism is fitted for; with sampling, where the plan has the scheme's, that of a fixed order."""
        scheme = self.sampling_scheme()
        if scheme is not None:
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
        scheme = self.sampling_scheme()
        if self.epsilon is not None:
            plan = calibrate(
                mechanism,
                self.participation(),
                epsilon=self.epsilon,
                delta=self.delta,
                clip_norm=self.clip_norm,
                sampling=scheme,
            )
        else:
            plan = Plan(
                mechanism=mechanism,
                participation=self.participation() if scheme is None else None,  # type: ignore[arg-type]
                noise_multiplier=self.noise_multiplier or 0.0,
                clip_norm=self.clip_norm,
                delta=self.delta,
                sampling=scheme,
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
