"""Refusals of plans, schemes, audits, controllers and devices: one sentence that names the
argument, its value, and the way out.
"""

import numpy as np
import pytest

import fedmf
from fedmf.audits.distinguishing import audit_distinguishing, worst_case
from fedmf.audits.log import LogForm, sorted_log
from fedmf.audits.noise import audit_noise, causal_factor, whiten
from fedmf.cohorts.availability import (
    Always,
    Diurnal,
    Independent,
    Window,
    availability_from_text,
)
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.cohorts.forecast import Size, forecast
from fedmf.mechanisms import DenseMechanism, IdentityMechanism, TreeMechanism
from fedmf.participation.ledger import ParticipationLedger
from fedmf.participation.schema import Participation
from fedmf.privacy.learning_rate import effective_rmse, predicted_learning_rate
from fedmf.privacy.sampling import CyclicFixedSize, CyclicPoisson, CyclicShuffle
from fedmf.privacy.statement import as_text
from tests.privacy import plans
from tests.privacy.plans import ledger_of

NAN, INF = float("nan"), float("inf")
ONE = IdentityMechanism(rounds=4)
TWICE = Participation(rounds=4, schema="min_sep", min_sep=2)
SPACED = Participation(rounds=20, schema="min_sep", min_sep=5)
FIXED = Participation(rounds=20, schema="fixed_epoch", min_sep=5)
EVERY = Participation(rounds=40, schema="every_round")
POISSON, FIXED_SIZE, SHUFFLE = (
    kind(population=60, cohort_size=6, partitions=5)
    for kind in (CyclicPoisson, CyclicFixedSize, CyclicShuffle)
)
UNPARTED = CyclicPoisson(population=60, cohort_size=6)
LARGE = CyclicPoisson(population=100_000, cohort_size=100)


def plan(**changes):
    return plans.plan(**{"participation": TWICE, "mechanism": ONE, **changes})


def sampled(**changes):
    return plan(participation=None, **{"sampling": LARGE, **changes})


def calibrate(**changes):
    return fedmf.calibrate(ONE, TWICE, **{"epsilon": 8, "delta": 0.1, **changes})


def controller(participation=SPACED, **changes):
    return fedmf.ParticipationController(
        participation, **{"population": 30, "cohort_size": 4, "seed": 3, **changes}
    )


def drawn_by(scheme=POISSON, participation=None, **changes):
    participation = participation or scheme.participation(40)
    return controller(
        participation, **{"population": 60, "cohort_size": 6, "sampling": scheme, **changes}
    )


def gone_on_from(*cohorts):
    controller().go_on_from(ledger_of(cohorts, 4))


def appended(*cohort, **more):
    ParticipationLedger(cohort_size=3).append(np.array(cohort), **more)


class Answers:
    """A model of availability that answers what it is told."""

    def __init__(self, answer):
        self.answer = answer

    def available(self, t, clients):
        return self.answer


def first_cohort(availability):
    return controller(availability=availability).cohort(0)


def game(trials=9, **changes):
    return audit_distinguishing(
        plan(), worst_case(plan()), np.zeros(trials), np.zeros(9), **changes
    )


def log(**changes):
    given = {"rounds": 8} | {
        name: changes.pop(name) for name in ("rounds", "memory") if name in changes
    }
    with sorted_log("absent", form=LogForm(**changes), **given):
        pass


W = np.ones((3, 4))
TYPE_ERRORS = [
    (lambda: plan(mechanism=np.eye(4)), "must be a Mechanism: make one with fedmf.fit"),
    (lambda: plan(participation=4), "participation=4 .*fedmf.Participation"),
    (lambda: plan(sampling="poisson"), "sampling='poisson'.*fedmf.CyclicPoisson"),
    (lambda: plan(noise_multiplier=True), "noise_multiplier=True.*0 for no privacy"),
    (lambda: plan(longer="x"), "longer='x' must be None: .*stopped_after sets it"),
    (lambda: plan(quantile_clipping=0.5), "quantile_clipping=0.5.*fedmf.QuantileClipping"),
    (
        lambda: fedmf.calibrate(
            IdentityMechanism(rounds=9), "x", epsilon=1.0, delta=1e-6, sampling=POISSON
        ),
        "participation='x'",
    ),
    (lambda: plan(simulation=(1, 9)), "simulation=.*plan.simulating"),
    (lambda: plan().simulating(simulated=1.0, claimed=9), "simulated=1.0.*clients a round"),
    (lambda: calibrate(epsilon="8"), "epsilon='8'.*epsilon=8.0"),
    (lambda: effective_rmse(plan(), fedmf.prefix_sum(4)), "cohort_size=None is a NoneType"),
    (lambda: CyclicFixedSize(population=10, cohort_size=1.5), "cohort_size=1.5"),
    (lambda: appended(0.9), "cohort holds float64 entries"),
    (lambda: appended(True), "cohort holds bool entries"),
    (lambda: controller().cohort(0.0), "t=0.0"),
    (lambda: controller().cohort(True), "t=True"),
    (lambda: controller(5), "participation=5.*fedmf.Participation"),
    (lambda: controller(seed=1.5), "seed=1.5.*non-negative"),
    (lambda: controller(EVERY, sampling="poisson"), "scheme of fedmf.privacy.sampling"),
    (lambda: DeviceBehavior(dropout="0.1"), "dropout='0.1' is a str"),
    (lambda: DeviceBehavior(timer_jitter=0.5), "timer_jitter=0.5"),
    (lambda: Diurnal(charging=3), "charging=3 must be a fedmf.cohorts.availability.Window"),
    (lambda: availability_from_text(0.3), "availability=0.3 must be a text"),
    (lambda: controller(availability=0.5), "availability=0.5 must be None or a model of fedmf"),
    (lambda: controller(availability=Always), "availability=.* must be None or a model of fedmf"),
]
VALUE_ERRORS = [
    (
        lambda: plan(mechanism=IdentityMechanism(rounds=5)),
        "5 rounds but participation has 4: fit the mechanism",
    ),
    (lambda: plan(noise_multiplier=-1.0), "noise_multiplier=-1.0.*0 for no privacy"),
    (
        lambda: plan(noise_multiplier=-(10**5000)),
        "noise_multiplier .*beyond float64.*0 for no privacy",
    ),
    (lambda: plan(clip_norm=0.0), "clip_norm=0.0.*such as 1.0"),
    (lambda: plan(clip_norm=INF), "clip_norm=inf.*such as 1.0"),
    (lambda: plan(delta=1.0), "delta=1.0.*such as delta=1e-6"),
    (lambda: plan(delta=5e-16), "delta=5e-16 is below 1e-15.*such as delta=1e-6"),
    (
        lambda: plan(
            longer=plan(
                mechanism=IdentityMechanism(rounds=3),
                participation=Participation(rounds=3, schema="single"),
            )
        ),
        "longer has rounds=3, fewer than the rounds=4",
    ),
    (lambda: plan().simulating(simulated=0, claimed=9), "simulated=0.*clients a round"),
    (lambda: CyclicShuffle(population=10, cohort_size=1, reshuffle=False), "reshuffle=False"),
    (lambda: plan().simulating(simulated=9, claimed=9), "simulated=9.*claimed=9.*leave both"),
    (
        lambda: sampled().simulating(simulated=100, claimed=1000),
        "cohort_size=100 but claimed=1000: sample the claimed cohort",
    ),
    (lambda: sampled(delta=1e-11), "delta=1e-11.*leave sampling out"),
    (lambda: sampled(mechanism=TreeMechanism(rounds=4)), "family=tree.*leave sampling out"),
    (
        lambda: sampled(
            mechanism=DenseMechanism(matrix=np.tril(W[:, :3])),
            sampling=CyclicPoisson(population=9, cohort_size=1, partitions=2),
        ),
        "partitions=2.*3 bands",
    ),
    (lambda: calibrate(epsilon=0), "epsilon=0.*epsilon=8.0"),
    (lambda: calibrate(epsilon=5000), "epsilon=5000.*below 5000"),
    (lambda: calibrate(epsilon=NAN), "epsilon=nan"),
    (
        lambda: effective_rmse(plan(), fedmf.prefix_sum(4), cohort_size=0),
        "cohort_size=0 must be at least 1",
    ),
    (
        lambda: predicted_learning_rate(0.0),
        "effective_rmse=0.0 must be positive: the rule is for runs with noise",
    ),
    (lambda: predicted_learning_rate(0.1, clip_norm=-1.0), "clip_norm=-1.0 must be positive"),
    (lambda: predicted_learning_rate(0.1, grid=1.0), "grid=1.0 must be above 1"),
    (lambda: as_text({}, ".txt"), "suffix '.txt': name a file that ends in .md or .json"),
    (
        lambda: CyclicPoisson(population=10, cohort_size=11),
        "cohort_size=11.*population=10.*at most 10",
    ),
    (
        lambda: CyclicPoisson(population=100, cohort_size=30, partitions=4),
        "4 partitions.*at most 25.*at most 3 bands",
    ),
    (lambda: CyclicPoisson(population=10, cohort_size=1, partitions=0), "partitions=0"),
    (
        lambda: CyclicShuffle(population=1000, cohort_size=10, partitions=3),
        "partitions=3 does not divide.*100 rounds",
    ),
    (lambda: UNPARTED.probability, "partitions=None"),
    (lambda: game(trials=3), "present has 3 trials"),
    (lambda: game(confidence=1.5), "confidence=1.5"),
    (lambda: worst_case(plan(noise_multiplier=0.0)), "guarantees nothing of what runs"),
    (
        lambda: worst_case(plan().simulating(simulated=1, claimed=9)),
        "guarantees nothing of what runs",
    ),
    (
        lambda: audit_noise([W], leaves=(1, 2)),
        r"leaves=\(1, 2\) has 3 coordinates but the rows have 4",
    ),
    (lambda: audit_noise([W], leaves=(4,), false_positive_rate=1.0), "false_positive_rate=1.0"),
    (lambda: audit_noise([W, W[:2]], leaves=(4,)), r"whitened has shapes \[\(3, 4\), \(2, 4\)\]"),
    (lambda: whiten(np.eye(3), W * NAN, 1.0), "not finite"),
    (lambda: whiten(np.eye(3), W, 0.0), "scale=0"),
    (lambda: whiten(np.eye(3), W[:2], 1.0), "3 rounds"),
    (lambda: whiten(np.array([[1.0, 0.0], [1e6, 1.0]]), W[:2], 1.0), "ill-conditioned"),
    (lambda: causal_factor(np.ones((3, 2))), "fewer sources than rounds"),
    (lambda: causal_factor(np.zeros((2, 3))), "linearly dependent"),
    (lambda: log(rounds=0), "rounds=0"),
    (lambda: log(first_round=-1), "first_round=-1"),
    (lambda: log(duplicates="sum"), "duplicates='sum'"),
    (lambda: log(memory=1000), "memory=1000"),
    (lambda: log(client_column="round"), "both 'round'"),
    (lambda: appended(1, 1), r"cohort=\[1, 1\] must list different"),
    (lambda: appended(-1), r"cohort=\[-1\] must list different, non-negative"),
    (lambda: appended([1, 2]), "cohort="),
    (
        lambda: appended(1, 8, selected=np.array([1, 7])),
        "cohort of round 0 has client 8, who is not in selected",
    ),
    (
        lambda: fedmf.audit_ledger(ledger_of([[1]] * 5), plan()),
        "ledger has 5 rounds but the plan covers 4",
    ),
    (lambda: controller().cohort(-1), "t=-1"),
    (lambda: controller().cohort(1), "round t=1 cannot be drawn: the next round is 0 of 20"),
    (
        lambda: first_cohort(Answers(np.ones(31, bool))),
        "availability gave .* for 30 clients of round 0: it must give a bool for each",
    ),
    (
        lambda: first_cohort(Answers(np.ones(30))),
        "availability gave .* for 30 clients of round 0: it must give a bool for each",
    ),
    (
        lambda: first_cohort(Answers(True)),
        "availability gave .* for 30 clients of round 0: it must give a bool for each",
    ),
    (lambda: controller(population=0), "population=0.*number of clients"),
    (lambda: controller(cohort_size=0), "cohort_size=0.*clients a round"),
    (lambda: controller(cohort_size=31), "cohort_size=31.*population=30.*at most 30"),
    (
        lambda: controller(cohort_size=7),
        "cohort_size=7 .*min_sep=5 = 35 exceeds population=30: .*at most 6",
    ),
    (lambda: controller(seed=-1), "seed=-1.*non-negative"),
    (
        lambda: controller(behavior=DeviceBehavior(timer_jitter=5)),
        "timer_jitter=5 leaves nothing of min_sep=5: use at most 4",
    ),
    (
        lambda: controller(FIXED, behavior=DeviceBehavior(noncompliant_fraction=0.1)),
        'schema="fixed_epoch" leaves no choice',
    ),
    (
        lambda: controller(FIXED, behavior=DeviceBehavior(timer_jitter=1)),
        'schema="fixed_epoch" leaves no choice to devices',
    ),
    (lambda: gone_on_from([0], [1], [2], [3], [0]), "round 4 has client 0.*another run"),
    (lambda: gone_on_from([30]), "round 0 names client 30, outside 0..29.*another run"),
    (lambda: gone_on_from([0, 1, 2, 3, 4]), "round 0 has 5 clients, cohort_size=4.*another run"),
    (lambda: gone_on_from(*[[]] * 21), "round 20 is beyond rounds=20.*another run"),
    (lambda: drawn_by(population=61), "population=61 but the sampling has population=60"),
    (lambda: drawn_by(cohort_size=5), "cohort_size=5 but the sampling has cohort_size=6"),
    (lambda: drawn_by(UNPARTED, EVERY), "partitions=None.*pass partitions"),
    (lambda: drawn_by(participation=EVERY), r"min_sep=5.*use sampling\.participation\(40\)"),
    (
        lambda: drawn_by(behavior=DeviceBehavior(noncompliant_fraction=0.1)),
        "leaves no choice.*noncompliant_fraction",
    ),
    (
        lambda: drawn_by(FIXED_SIZE, availability=Independent(probability=0.5)),
        "likelier than its guarantee.*CyclicPoisson",
    ),
    (lambda: DeviceBehavior(dropout=1.5), "dropout=1.5 is not a probability"),
    (lambda: DeviceBehavior(noncompliant_fraction=NAN), "noncompliant_fraction=nan is not finite"),
    (lambda: DeviceBehavior(timer_jitter=-1), "timer_jitter=-1"),
    (lambda: DeviceBehavior(seed=-1), "seed=-1"),
    (
        lambda: Size(population=5, cohort_size=20),
        "cohort_size=20 is larger than population=5: lower cohort_size to at most 5",
    ),
    (lambda: Size(population=0, cohort_size=20), "population=0"),
    (
        lambda: Size(population=2000, cohort_size=20, simulated_cohort=21),
        r"simulated_cohort=21 must be in 1\.\.20",
    ),
    # In the numbers that were asked about, and not in the simulated ones.
    (
        lambda: forecast(
            Participation(rounds=4000, schema="single"), Size(population=10**7, cohort_size=6500)
        ),
        r"cohort_size=6500 \* rounds=4000 = 26000000 exceeds population=10000000",
    ),
    (lambda: Diurnal(time_zones=((1, 0.5),)), "do not add up to 1"),
    (
        lambda: Diurnal(time_zones=((1, 1.5), (2, -0.5))),
        "share of a time zone=1.5 is not a probability",
    ),
    (lambda: Diurnal(time_zones=((30, 1),)), "from -24 to 24 hours from UTC"),
    (lambda: Window(start=22, end=25, inside=1, outside=0), "end=25 must be from 0 to 24 hours"),
    (lambda: Window(start=22, end=7, inside=1, outside=2), "outside=2 is not a probability"),
    (
        lambda: availability_from_text("nightly"),
        "availability='nightly' is unknown: use always, independent:PROBABILITY or diurnal",
    ),
    (lambda: availability_from_text("always:0.5"), "always takes no options"),
    (
        lambda: availability_from_text("independent"),
        "independent takes probability=NUMBER and seed=NUMBER",
    ),
    (
        lambda: availability_from_text("independent:half"),
        "has 'probability=half': independent takes probability=NUMBER",
    ),
    (
        lambda: availability_from_text("independent:1.3"),
        "probability=1.3 is not a probability: use a number from 0 to 1",
    ),
    (
        lambda: availability_from_text("diurnal:rounds=3"),
        "has 'rounds=3': diurnal takes rounds_per_day=NUMBER and",
    ),
    (
        lambda: availability_from_text("diurnal:charging=3"),
        "has 'charging=3': diurnal takes rounds_per_day=NUMBER and",
    ),
    (lambda: availability_from_text("diurnal:seed=1.5"), "has 'seed=1.5'"),
    (lambda: availability_from_text("diurnal:,"), "has ''"),
    (
        lambda: availability_from_text("diurnal:rounds_per_day=0"),
        "rounds_per_day=0.0 must be positive",
    ),
    (
        lambda: availability_from_text("diurnal:phase_hours=30"),
        "phase_hours=30 must be from 0 to 24 hours",
    ),
]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (call, kind, words)
        for kind, calls in ((TypeError, TYPE_ERRORS), (ValueError, VALUE_ERRORS))
        for call, words in calls
    ],
)
def test_refused_in_one_sentence(call, kind, words):
    with pytest.raises(kind, match=words) as caught:
        call()
    assert type(caught.value) is kind
    assert ". " not in str(caught.value)
