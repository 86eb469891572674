"""Refusals of plans, schemes, audits, controllers and devices: one sentence that names the
argument and its value.
"""

import re

import numpy as np
import pytest

import fedmf
from fedmf.audits.distinguishing import audit_distinguishing
from fedmf.audits.log import sorted_log
from fedmf.audits.log_file import LogForm
from fedmf.audits.noise import audit_noise
from fedmf.audits.whitening import causal_factor, whiten
from fedmf.audits.worst_case import worst_case
from fedmf.cohorts.availability import Always, Diurnal, Independent, Window, availability_from_text
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.cohorts.forecast import Size, forecast
from fedmf.mechanisms import (
    DenseMechanism,
    IdentityMechanism,
    StampedMechanism,
    TreeMechanism,
    stamp,
)
from fedmf.privacy.sampling import CyclicFixedSize, CyclicPoisson, CyclicRandomAllocation
from fedmf.privacy.statement import as_text
from tests.mechanisms.schemas import epochs, every_round, separated, single
from tests.privacy import plans
from tests.privacy.plans import banded, ledger_of
from tests.refusals import assert_refused, named

NAN = float("nan")
INF = float("inf")
ONE = IdentityMechanism(rounds=4)
TWICE = separated(4, 2)
SPACED = separated(20, 5)
FIXED = epochs(20, 5)
EVERY = every_round(40)
POISSON, FIXED_SIZE = (
    kind(population=60, cohort_size=6, partitions=5) for kind in (CyclicPoisson, CyclicFixedSize)
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


def sampled_by(scheme=POISSON, participation=None, **changes):
    participation = participation or scheme.participation(40)
    return controller(
        participation, **{"population": 60, "cohort_size": 6, "sampling": scheme, **changes}
    )


def resumed_from(*cohorts):
    controller().resume_from(ledger_of(cohorts, 4))


def appended(*cohort, **more):
    fedmf.ParticipationLedger(cohort_size=3).append(np.array(cohort), **more)


def choose_bands(**changes):
    arguments = {"population": 320, "cohort_size": 20, "epsilon": 2.0, "delta": 1e-6, **changes}
    return fedmf.choose_bands(fedmf.prefix_sum(64), **arguments)


class Answers:
    """A model of availability with fixed answers."""

    def __init__(self, answer):
        self.answer = answer

    def available(self, t, clients):
        return self.answer


def first_cohort(availability):
    return controller(availability=availability).cohort(0)


def distinguishing_attack(trials=9, **changes):
    return audit_distinguishing(
        plan(), worst_case(plan()), np.zeros(trials), np.zeros(9), **changes
    )


def log(**changes):
    settings = {"rounds": 8} | {
        name: changes.pop(name) for name in ("rounds", "memory") if name in changes
    }
    with sorted_log("absent", form=LogForm(**changes), **settings):
        pass


W = np.ones((3, 4))
BINS = fedmf.BallsInBins(population=90, bins=3)
NEGATIVE = DenseMechanism(matrix=np.array([[1.0, 0.0], [-0.5, 1.0]]))


def availability_texts(**words):
    """Yields texts of models of availability, with the words of their refusals."""
    for text, said in words.items():
        yield (lambda t=text: availability_from_text(t)), ValueError, re.escape(said)


def device(**changes):
    return {"behavior": DeviceBehavior(**changes)}


def window(**changes):
    return Window(**{"start": 22, "end": 7, "inside": 1, "outside": 0, **changes})


def poisson(**changes):
    return CyclicPoisson(**{"population": 100, "cohort_size": 30, **changes})


def random_allocation(**changes):
    return CyclicRandomAllocation(**{"population": 1000, "cohort_size": 10, **changes})


def size(**changes):
    return Size(**{"population": 2000, "cohort_size": 20, **changes})


NAMED = [
    *named(TypeError, plan, participation=[4], sampling=["poisson"], noise_multiplier=[True]),
    *named(TypeError, plan, longer=["x"], quantile_clipping=[0.5], simulation=[(1, 9)]),
    *named(ValueError, plan, noise_multiplier=[-1.0], clip_norm=[0.0, INF], delta=[1.0, 5e-16]),
    *named(TypeError, calibrate, epsilon=["8"]),
    *named(ValueError, calibrate, epsilon=[0, 5000, NAN]),
    *named(ValueError, sampled, delta=[1e-11]),
    *named(TypeError, poisson, cohort_size=[1.5]),
    *named(ValueError, choose_bands, population=[10], epsilon=[0.0]),
    *named(ValueError, poisson, partitions=[0], cohort_size=[101]),
    *named(ValueError, random_allocation, partitions=[3]),
    *named(ValueError, distinguishing_attack, confidence=[1.5]),
    *named(ValueError, choose_bands, rounds=[65], population=[10], epsilon=[0.0]),
    *named(ValueError, log, rounds=[0], first_round=[-1], duplicates=["sum"], memory=[1000]),
    *named(TypeError, controller, participation=[5], seed=[1.5], availability=[0.5, Always]),
    *named(ValueError, controller, population=[0], cohort_size=[0, 31], seed=[-1]),
    *named(TypeError, DeviceBehavior, dropout=["0.1"], timer_jitter=[0.5]),
    *named(ValueError, DeviceBehavior, dropout=[1.5], noncompliant_fraction=[NAN]),
    *named(ValueError, DeviceBehavior, timer_jitter=[-1], seed=[-1]),
    *named(TypeError, Diurnal, charging=[3]),
    *named(ValueError, window, end=[25], outside=[2]),
    *named(ValueError, size, population=[0, 5], simulated_cohort=[21]),
    *named(ValueError, sampled_by, population=[61], cohort_size=[5]),
    *availability_texts(
        nightly="availability='nightly' is unknown", independent="probability=NUMBER"
    ),
    *availability_texts(
        **{"always:0.5": "always takes no options", "independent:1.3": "probability=1.3"}
    ),
    *availability_texts(
        **{"independent:half": "'probability=half'", "diurnal:charging=3": "'charging=3'"}
    ),
    *availability_texts(**{"diurnal:seed=1.5": "'seed=1.5'", "diurnal:,": "has ''"}),
    *availability_texts(**{"diurnal:rounds_per_day=0": "rounds_per_day=0.0"}),
    (lambda: availability_from_text(0.3), TypeError, "availability=0.3"),
    (lambda: controller().cohort(0.0), TypeError, "t=0.0"),
    (lambda: controller().cohort(-1), ValueError, "t=-1"),
    (lambda: fedmf.predicted_learning_rate(0.0), ValueError, "effective_rmse=0.0"),
    (lambda: fedmf.predicted_learning_rate(0.1, grid=1.0), ValueError, "grid=1.0"),
    (lambda: as_text({}, ".txt"), ValueError, "suffix '.txt'"),
]
# Arguments that do not fit together, and the way out.
MISMATCHES = [
    (lambda: plan(mechanism=IdentityMechanism(rounds=5)), "5 rounds but participation has 4"),
    (lambda: plan(noise_multiplier=-(10**5000)), "noise_multiplier .*beyond float64"),
    (lambda: plan().simulating(simulated=0, claimed=9), "simulated=0"),
    (lambda: plan().simulating(simulated=9, claimed=9), "simulated=9.*claimed=9"),
    (
        lambda: sampled().simulating(simulated=100, claimed=1000),
        "cohort_size=100 but claimed=1000: sample the claimed cohort",
    ),
    (lambda: sampled(mechanism=TreeMechanism(rounds=4)), "family=tree"),
    (
        lambda: sampled(
            mechanism=DenseMechanism(matrix=np.tril(W[:, :3])),
            sampling=CyclicPoisson(population=9, cohort_size=1, partitions=2),
        ),
        "partitions=2.*3 bands",
    ),
    (lambda: poisson(partitions=4), "at most 25"),
    (lambda: fedmf.BallsInBins(population=10, bins=11), "bins=11"),
    (lambda: BINS.for_mechanism(TreeMechanism(rounds=4)), "family=tree"),
    (lambda: BINS.for_mechanism(NEGATIVE), "negative entry, -0.5"),
    (
        lambda: fedmf.MinSepPoisson(population=100, cohort_size=30, min_sep=4),
        "cohorts of 30.*at most 25",
    ),
    (
        lambda: fedmf.MinSepPoisson(population=90, cohort_size=3, min_sep=2).for_mechanism(
            banded(8, 1, 1, 1)
        ),
        "min_sep=2.*3 bands.*BallsInBins",
    ),
    (lambda: choose_bands(bands=[65]), "bands=65 must be in 1..64"),
    (lambda: choose_bands(delta=1e-11, bands=[4]), "delta=1e-11 is too small"),
    (lambda: UNPARTED.probability, "partitions=None"),
    (lambda: distinguishing_attack(trials=3), "present has 3 trials"),
    (lambda: worst_case(plan(noise_multiplier=0.0)), "guarantees nothing of what runs"),
    (
        lambda: worst_case(plan().simulating(simulated=1, claimed=9)),
        "guarantees nothing of what runs",
    ),
    (lambda: audit_noise([W], leaves=(1, 2)), "has 3 coordinates but the rows have 4"),
    (lambda: audit_noise([W, W[:2]], leaves=(4,)), r"\[\(3, 4\), \(2, 4\)\]"),
    (lambda: whiten(np.eye(3), W * NAN, 1.0), "not finite"),
    (lambda: whiten(np.eye(3), W[:2], 1.0), "3 rounds"),
    (lambda: whiten(np.array([[1.0, 0.0], [1e6, 1.0]]), W[:2], 1.0), "ill-conditioned"),
    (lambda: causal_factor(np.ones((3, 2))), "fewer sources than rounds"),
    (lambda: causal_factor(np.zeros((2, 3))), "linearly dependent"),
    (lambda: log(client_column="round"), "both 'round'"),
    (lambda: appended(1, 1), r"cohort=\[1, 1\] must list different"),
    (lambda: appended(-1), r"cohort=\[-1\] must list different, non-negative"),
    (lambda: appended(1, 8, selected=np.array([1, 7])), "client 8, who is not in selected"),
    (lambda: fedmf.audit_ledger(ledger_of([[1]] * 5), plan()), "has 5 rounds .* covers 4"),
    (lambda: controller().cohort(1), "round t=1 cannot be drawn: the next round is 0 of 20"),
    *(
        (
            lambda answer=answer: first_cohort(Answers(answer)),
            "availability returned .* for 30 clients",
        )
        for answer in (np.ones(31, bool), np.ones(30), True)
    ),
    (lambda: controller(**device(timer_jitter=5)), "timer_jitter=5 leaves nothing of min_sep=5"),
    # No number fits: no smaller cohort helps, and the sentence has one way out.
    (
        lambda: controller(separated(20, 1, 1), population=3, cohort_size=1),
        "fill rounds=20 with cohort_size=1: raise `max_participations` to 7",
    ),
    (
        lambda: controller(separated(20, 1, 2), population=20, cohort_size=4),
        "cohort_size=4: lower `cohort_size` to at most 2, or raise `max_participations` to 4",
    ),
    *(
        (lambda changes=changes: controller(FIXED, **device(**changes)), 'schema="fixed_epoch"')
        for changes in ({"noncompliant_fraction": 0.1}, {"timer_jitter": 1})
    ),
    (lambda: resumed_from([0], [1], [2], [3], [0]), "round 4 has client 0.*another run"),
    (lambda: resumed_from([30]), "round 0 names client 30, outside 0..29.*another run"),
    (lambda: resumed_from([0, 1, 2, 3, 4]), "round 0 has 5 clients, cohort_size=4.*another run"),
    (lambda: resumed_from(*[[]] * 21), "round 20 is beyond rounds=20.*another run"),
    (lambda: controller(cohort_size=7), "cohorts of 7 allow `min_sep` up to 4"),
    (lambda: sampled_by(UNPARTED, EVERY), "partitions=None"),
    (lambda: sampled_by(participation=EVERY), r"min_sep=5"),
    (lambda: sampled_by(**device(noncompliant_fraction=0.1)), "leaves no choice"),
    (
        lambda: sampled_by(FIXED_SIZE, availability=Independent(probability=0.5)),
        "likelier than its guarantee.*CyclicPoisson",
    ),
    (
        lambda: sampled_by(FIXED_SIZE, **device(dropout=0.5)),
        "likelier than its guarantee.*CyclicPoisson",
    ),
    # The sentence has the requested numbers and not the simulated ones.
    (
        lambda: forecast(single(4000), Size(population=10**7, cohort_size=6500)),
        "rounds=4000 is too large: 10000000 clients in cohorts of 6500 allow `rounds` up to 1538",
    ),
    (lambda: Diurnal(time_zones=((1, 0.5),)), "do not add up to 1"),
    (lambda: Diurnal(time_zones=((30, 1),)), "from -24 to 24 hours from UTC"),
]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        *NAMED,
        (lambda: StampedMechanism(part=3, times=2), TypeError, "^part is a int: pass a mechanism"),
        (lambda: stamp(3, 2), TypeError, "^mechanism is a int: pass a mechanism"),
        *((call, ValueError, words) for call, words in MISMATCHES),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(call, kind, words):
    assert_refused(call, kind, words)
