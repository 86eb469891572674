"""Sizes of the StackOverflow experiments, which are the papers' own, and smaller ones that train
within minutes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedmf.experiments.papers import printed
from fedmf.experiments.papers.study_grid import Fields
from fedmf.participation.schema import Participation

# Noise multipliers of Denisov et al. 2022, App. I, Table 3.
DENISOV_NOISE = (0.341, 0.682, 1.364, 2.728, 5.456)
# Epsilons and server rates of the multi-epoch paper, Fig. 3. The smallest rate was tuned at epsilon
# 2 alone; Tables 4 and 5 print it for some lines at other epsilons too.
EPOCHS_EPSILONS = (2.0, 8.841, 17.648)
EPOCHS_RATES = (0.5, 1.0)
EPOCHS_RATE_AT_2 = 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """Size of the experiments. The defaults are those of the papers.

    Attributes:
      rounds, cohort, epoch: rounds of training, clients a round, and rounds between a client's
        participations.
      rounds_once: rounds of training for a single epoch, and of Honaker's trees. With 167 clients a
        round there are 2048 rounds, since for 2052 the data has 207 clients too few.
      single: clients a round of a single epoch.
      denisov: clients a round of Denisov's experiments.
      unnoised: clients a round of training without noise, for a third of an epoch, for one epoch,
        and for all epochs.
      simulated: number of clients that train in a round and simulate the whole cohort; None for
        all.
      population: number of clients of the data.
      options: options of the task.
      client_rate: client learning rate where it is fixed.
      client_rates, server_rates, momentums, noise: tuned client and server learning rates and
        momentums, and noise multipliers, of Denisov's grid.
      server_rate, momentum: server learning rate and momentum where they are fixed.
      epsilons, rates: privacy targets and server rates of the multi-epoch paper's grid.
      epsilons_banded, rates_banded: privacy targets and server rates of the banded paper's grid;
        None for the rates of its Tables 6 and 7.
      repeats, repeats_denisov: numbers of seeds.
      repeats_every_setting: whether all settings train with these seeds, and not only the best one.
        The paper has few runs of most settings.
      corpus: options of the synthetic corpus, other than its number of clients, the population.
      differs: phrase for what differs from the paper in another way than by being smaller.
    """

    rounds: int = 2052
    cohort: int = 1000
    epoch: int = 342
    rounds_once: int = 2048
    single: int = 167
    denisov: int = 100
    unnoised: tuple[int, int, int] = (50, 167, 1000)
    simulated: int | None = 100
    population: int = 342_477
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    client_rate: float = 1.0
    client_rates: tuple[float, ...] = (0.5, 1.0)
    server_rates: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    momentums: tuple[float, ...] = (0.0, 0.9, 0.95)
    noise: tuple[float, ...] = DENISOV_NOISE
    server_rate: float = 0.5
    momentum: float = 0.95
    epsilons: tuple[float, ...] = EPOCHS_EPSILONS
    rates: tuple[float, ...] = EPOCHS_RATES
    epsilons_banded: tuple[float, ...] = printed.EPSILONS
    rates_banded: tuple[float, ...] | None = None
    repeats: int = 4
    repeats_denisov: int = 10
    repeats_every_setting: bool = False
    corpus: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    differs: str = ""

    @property
    def once(self) -> Participation:
        """Participation schema of a single epoch."""
        return Participation(rounds=self.rounds_once, schema="single")

    @property
    def in_order(self) -> Participation:
        """Participation schema of all epochs, with clients in a fixed order."""
        return Participation(rounds=self.rounds, schema="fixed_epoch", min_sep=self.epoch)


_CORPUS = {"sentences_per_client": 12.0, "vocabulary_size": 300}
SIZES: dict[Any, Size] = {
    "full": Size(),
    "small": Size(
        rounds=96,
        cohort=150,
        epoch=16,
        rounds_once=96,
        single=25,
        denisov=15,
        unnoised=(3, 10, 40),
        simulated=12,
        population=2400,
        options={
            "vocabulary_size": 300,
            "embedding_size": 16,
            "lstm_size": 32,
            "max_sentences": 16,
            "loss": "masked",
            "validation_sentences": 500,
            "test_sentences": 2000,
        },
        client_rate=4.0,
        client_rates=(4.0,),
        server_rates=(0.25, 0.5, 1.0),
        momentums=(0.9,),
        momentum=0.9,
        noise=(0.341, 1.364, 5.456),
        epsilons=(2.0, 4.0, 8.0),
        rates=(0.25, 0.5, 1.0),
        epsilons_banded=(2.0, 4.0, 8.0),
        rates_banded=(0.125, 0.25, 0.5, 1.0),
        repeats=5,
        repeats_denisov=5,
        corpus=_CORPUS,
    ),
    "tiny": Size(
        rounds=4,
        cohort=4,
        epoch=2,
        rounds_once=4,
        single=3,
        denisov=2,
        unnoised=(1, 2, 4),
        simulated=2,
        population=12,
        options={
            "vocabulary_size": 40,
            "embedding_size": 4,
            "lstm_size": 4,
            "sequence_length": 4,
            "max_sentences": 4,
            "loss": "masked",
            "validation_sentences": 20,
            "test_sentences": 20,
        },
        client_rates=(1.0,),
        server_rates=(0.5,),
        momentums=(0.9,),
        momentum=0.9,
        noise=(0.341,),
        epsilons=(16.0,),
        rates=(0.5,),
        epsilons_banded=(16.0,),
        rates_banded=(0.5,),
        repeats=1,
        repeats_denisov=1,
        corpus={"sentences_per_client": 6.0, "vocabulary_size": 260},
    ),
}
# Sizes for the two papers before the banded one. At their full size, all clients of a round train.
EARLIER = SIZES | {"full": Size(simulated=None)}
# Fields that replace those of size "small" in studies that need many rounds.
_LONG: Fields = {
    "rounds": 512,
    "rounds_once": 512,
    "momentum": 0.95,
    "momentums": (0.95,),
    "population": 12800,
}
# Noise that is optimised for the last model harms the models of earlier rounds, if there are few
# rounds or the rates are large (docs/papers). So this study has many rounds. Its noise multipliers
# are the smallest, the middle and the largest of the paper's grid. Its rates and momentums give
# server rates / (1 - momentum) of 1/16 to 20, each about four times the one before, so that the
# best one can fall with the noise.
DENISOV = _LONG | {
    "simulated": 6,
    "server_rates": (0.0625, 0.25, 1.0),
    "momentums": (0.0, 0.95),
    "repeats_denisov": 6,
    "repeats_every_setting": True,
}
# In this study the noise should decide the final accuracy, and not the pace of learning. So the
# noise multiplier is twice the largest of the paper's grid, and rates are so small that the noise
# summed over all steps matters more than that of single steps (docs/papers).
SCHEDULES = _LONG | {
    "simulated": 6,
    "server_rate": 0.015625,
    "noise": (10.912,),
    "repeats_denisov": 16,
}
# The noise multiplier is the largest of the paper's grid. The rates are larger than those of Figure
# 3, at which the noise of single steps is too small to show in the body of training.
DECAYS = SCHEDULES | {"server_rate": 0.03125, "noise": (5.456,), "repeats_denisov": 32}
# A round has fewer clients than in the paper, so that the noise at the paper's epsilons matters. At
# a server rate of 8 models diverge, and have huge updates. Figures 11 and 12 compare settings of
# one line, so that all settings are repeated.
EPOCHS: Fields = {
    "cohort": 40,
    "single": 6,
    "population": 640,
    "epsilons": EPOCHS_EPSILONS,
    "rates": (0.25, 0.5, 1.0, 8.0),
    "repeats": 6,
    "repeats_every_setting": True,
    "differs": ", and a server rate of 8",
}
# Figure 10 compares the rates of Figure 3 with one another.
UNNOISED: Fields = {"rates": EPOCHS_RATES, "repeats": 6, "repeats_every_setting": True}
# The clients of the paper train on up to 16 batches. If they trained on a single batch, no update
# would be huge.
DIVERGENCE: Fields = {
    "client_rate": 3.0,
    "options": {**SIZES["small"].options, "batch_size": 2, "max_sentences": 128},
    "corpus": _CORPUS | {"sentences_per_client": 24.0},
    "differs": ", and batches of 2 sentences",
}
# Epochs are long in this study, because over many short epochs BandMF is hardly more accurate than
# the two other mechanisms. From epsilon 8 on, the best number of bands at this size is that of an
# epoch, without amplification, as at epsilon 16 in the paper, where the claim ends.
CENTRE: Fields = {
    "cohort": 40,
    "epoch": 48,
    "population": 1920,
    "epsilons_banded": (1.0, 2.0, 4.0),
    "repeats": 12,
}
# With two epochs, nu noise closes as much of the gap in error between independent noise and the
# optimum as with six long epochs (docs/papers).
NU: Fields = CENTRE | {"epsilons_banded": (2.0, 4.0, 8.0), "repeats": 8}
# In the study PHONES each run is repeated with more seeds, because the accuracies of BandMF and the
# dense optimum differ by half a point only.
PHONES: Fields = {"repeats": 12}
BLT: Fields = PHONES


def reduced(size: Size, once: bool) -> str:
    """Describes in words what is smaller than in the paper.

    `once` is true for Denisov's experiments.
    """
    cohorts_text = f"{size.rounds} rounds of {size.denisov} clients, simulated by {size.simulated}"
    if not once:
        cohorts_text = (
            f"{size.rounds} rounds of {size.cohort} clients (one epoch: {size.single}), simulated "
            f"by {size.simulated}, a participation every {size.epoch} rounds"
        )
    differences_text = size.differs
    if once and size.noise[0] > DENISOV_NOISE[0]:
        differences_text = (
            f", and a noise multiplier of {size.noise[0]} and a server rate of {size.server_rate} "
            f"in place of {DENISOV_NOISE[0]} and {Size.server_rate}"
        )
    return (
        f"a synthetic corpus of {size.population} clients for StackOverflow, {cohorts_text}, an "
        f"LSTM of {size.options['lstm_size']} units, momentum {size.momentum}, client rate "
        f"{size.client_rate:g}, {size.repeats_denisov if once else size.repeats} seeds, fewer "
        f"rates and targets{differences_text}"
    )
