"""Refusals of the mathematical half: one sentence that names the argument and its value."""

import numpy as np
import pytest

import fedmf
from fedmf.checks import TooLargeForMemory
from fedmf.mechanisms import (
    BandedMechanism,
    Certificate,
    DenseMechanism,
    IdentityMechanism,
    NoiseStream,
    TreeMechanism,
    stamp,
)
from fedmf.mechanisms.error import loss, rmse
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.fit_range import fit_range
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload, identity, momentum_sgd, prefix_sum, sgd
from tests.refusals import assert_refused, named

NAN = float("nan")
SINGLE = Participation(rounds=4, schema="single")
SEPARATED = Participation(rounds=4, schema="min_sep", min_sep=2)
FEWER = Participation(rounds=4, schema="fixed_epoch", min_sep=1, max_participations=2)
ONE = IdentityMechanism(rounds=4)
LONG = 10**6


def participate(**changes):
    return Participation(**{"rounds": 12, "schema": "min_sep", "min_sep": 5, **changes})


def budget_of(sensitivity):
    return Participation(rounds=4, schema="budget", budget=sensitivity)


def budget(**changes):
    return fedmf.Budget(**{"mechanism": ONE, "participation": budget_of(2.0), "pace": 1, **changes})


def matrix(entries):
    return Workload("w", entries)


def momentum(momentum):
    return momentum_sgd(3, momentum)


def fitted(family="banded", participation=SINGLE, **options):
    return fit(prefix_sum(4), participation, family=family, **options)


def blt(**options):
    return fitted("blt", **options)


def toeplitz(**options):
    return fitted("toeplitz", **options)


def of_nu(**options):
    return toeplitz(coefficients="nu", **options)


def stream(sources=2, **factors):
    return NoiseStream(rounds=2, sources=sources, **factors)


NAMED = [
    *named(ValueError, participate, rounds=[0], schema=["cyclic"], budget=[2.0]),
    *named(ValueError, participate, min_sep=[13], max_participations=[4]),
    *named(ValueError, budget, pace=[0]),
    *named(TypeError, prefix_sum, n=[True]),
    *named(ValueError, momentum, momentum=[1.0]),
    *named(ValueError, fitted, bands=[5], tolerance=[0.0], max_iterations=[0], family=["fourier"]),
    *named(TypeError, fitted, cache=[3], equal_norms=[1], progress=[True], family=[None], band=[2]),
    *named(ValueError, blt, objective=["median"], buffers=[0]),
    *named(ValueError, toeplitz, coefficients=["cubic"], nu=[0.1]),
    *named(ValueError, of_nu, nu=[None, 1.0]),
]
# Calls, and the words of their messages.
TYPES = [
    (lambda: Workload(3, np.eye(2)), "name=3"),
    (lambda: matrix([[1.0], [1.0, 2.0]]), "matrix"),
    (lambda: matrix(np.eye(2, dtype=bool)), "matrix.* bool"),
    (lambda: prefix_sum(3) @ np.eye(3), "Workload"),
    (lambda: budget().allows([0.5]), "rounds_of_one_client=0.5"),
    (lambda: budget(participation=SINGLE), "schema='single'"),
    (lambda: budget(mechanism=np.eye(4)), "mechanism.* ndarray"),
    (lambda: sensitivity(np.eye(4), 4), "participation.* int"),
    (
        lambda: fedmf.ParticipationController(budget_of(2.0), population=4, cohort_size=1, seed=1),
        "fedmf.Budget",
    ),
    (lambda: sensitivity("C", SINGLE), "encoder"),
    (lambda: fit(np.eye(4), SINGLE), "workload.* ndarray"),
    (lambda: fit(prefix_sum(4), 4), "participation.* int"),
    (lambda: rmse(np.eye(4), prefix_sum(4), SINGLE), "mechanism.* ndarray"),
    (lambda: loss(ONE, np.eye(4), SINGLE), "workload.* ndarray"),
]
VALUES = [
    (lambda: participate(min_sep=None), "`min_sep` is required with schema='min_sep'"),
    (lambda: matrix([[NAN]]), r"matrix\[0, 0\]=nan"),
    (lambda: matrix(np.ones((0, 0))), r"matrix.*\(0, 0\)"),
    (lambda: matrix(np.ones((2, 3))), r"matrix.*\(2, 3\)"),
    (lambda: matrix([[1.0, 2.0], [0.0, 1.0]]), r"matrix\[0, 1\]=2.0"),
    (lambda: matrix([[1, 0], [1, 0]]), "matrix.* singular.*round 1's own input is 0"),
    (lambda: Workload.from_inverse("w", [[0.0]]), "inverse_diagonals.* singular"),
    (lambda: momentum_sgd(3, 0.9, [1.0]), r"learning_rates.*\(1,\).*n=3"),
    (lambda: sgd([1.0, -1.0]), r"learning_rates\[1\]=-1.0"),
    (lambda: prefix_sum(3) @ identity(4), "rounds=3.*rounds=4"),
    (
        lambda: participate(schema="single", min_sep=None, max_participations=2),
        "max_participations=2",
    ),
    (lambda: budget_of(0.0), "budget=0.0"),
    (lambda: budget_of(2.0).allows([0]), "depend on the encoder"),
    (lambda: list(budget_of(2.0).patterns()), "fedmf.Budget"),
    (lambda: fit(prefix_sum(4), budget_of(2.0)), "no schema to fit for"),
    (lambda: budget(participation=budget_of(0.9)), "budget=0.9"),
    (lambda: budget(mechanism=IdentityMechanism(rounds=5)), "rounds=4"),
    (lambda: fedmf.calibrate(ONE, budget_of(0.9), epsilon=2.0, delta=1e-6), "budget=0.9"),
    (lambda: sensitivity(np.eye(5), SINGLE), "5 columns.*rounds=4"),
    (lambda: TreeMechanism(rounds=4, decoder="best"), "decoder='best'"),
    (lambda: BandedMechanism(diagonals=np.ones((2, 3))), r"\(2, 3\)"),
    (lambda: BandedMechanism(diagonals=[[-1.0]]), r"diagonals\[0, 0\]=-1.0"),
    (lambda: BandedMechanism(diagonals=np.ones((2, 2))), r"diagonals\[0, 1\]=1.0"),
    (lambda: DenseMechanism(matrix=-np.eye(2)), r"matrix\[0, 0\]=-1.0"),
    (
        lambda: IdentityMechanism(
            rounds=2, certificate=Certificate(2.0, 1.0, 1, 0.0), certificate_reason="a"
        ),
        "certificate_reason=",
    ),
    (lambda: Certificate(1.0, 2.0, 1, 0.0), "loss=1.0"),
    (lambda: stream(recurrence=np.ones((2, 1)), contraction=np.eye(2)), "exactly one"),
    (lambda: stream(3, contraction=np.eye(2)), r"sources=3.*\(2, 2\)"),
    (lambda: fit(prefix_sum(5), SINGLE), "rounds=5.*rounds=4"),
    (lambda: stamp(ONE, 0), "times=0"),
    (lambda: fitted("tree", restarts=3), "restarts=3"),
    (lambda: fitted("low_rank", rank=0), "rank=0"),
    (lambda: fit_range([SINGLE], objective="median"), "objective='median'"),
    (lambda: fit_range([]), "participations.* empty"),
    (lambda: fit_range([SINGLE], "banded"), "family='banded'"),
    (lambda: fitted("dense", FEWER), "max_participations=2"),
    (lambda: fitted("banded", FEWER, equal_norms=False), "max_participations=2"),
    (lambda: fitted("banded", SEPARATED, bands=3, equal_norms=False), "bands=3.*min_sep=2"),
    (lambda: loss(ONE, prefix_sum(5), SINGLE), "rounds=5.*rounds=4"),
]
TOO_LARGE = [
    (lambda: prefix_sum(LONG).matrix, "GiB"),
    (lambda: IdentityMechanism(rounds=LONG).encoder(), "GiB"),
    (
        lambda: fit(
            prefix_sum(50_000), Participation(rounds=50_000, schema="single"), family="dense"
        ),
        "50000.*GiB.*toeplitz",
    ),
    (lambda: fit(prefix_sum(LONG), Participation(rounds=LONG, schema="single")), "bands=1000000"),
]
# Arguments that are valid alone but not together: the sentence has both.
PLAN = fedmf.calibrate(ONE, SEPARATED, epsilon=8.0, delta=1e-6)
CONFIG = fedmf.PlanConfig(rounds=4, min_sep=2, epsilon=8.0)
LONGER = Participation(rounds=5, schema="single")
FIVE_ROUNDS = fedmf.ParticipationLedger(cohort_size=1, cohorts=[np.array([0])] * 5)


def planned(**changes):
    values = {"mechanism": ONE, "participation": SEPARATED, "noise_multiplier": 1.0}
    return fedmf.Plan(**{**values, "clip_norm": 1.0, "delta": 1e-6, **changes})


def controlled(**changes):
    values = {"population": 8, "cohort_size": 2, "seed": 1, **changes}
    return fedmf.ParticipationController(SEPARATED, **values)


def bands(**changes):
    values = {"population": 8, "cohort_size": 2, "epsilon": 8.0, "delta": 1e-3, **changes}
    return fedmf.choose_bands(prefix_sum(4), **values)


def server():
    return fedmf.Server(PLAN, shapes=[(2,)], clients_per_round=2, noise_seed="os")


TOGETHER = [
    (lambda: participate(max_participations=4), "max_participations=4.*rounds=12 and min_sep=5"),
    (lambda: controlled(population=3), "min_sep=2.*3 clients in cohorts of 2"),
    (lambda: controlled(cohort_size=9), "8 clients.*cohort_size=9|cohort_size=9.*8"),
    (lambda: bands(rounds=5), "rounds=5.*rounds=4"),
    (lambda: bands(cohort_size=9), "cohort_size=9.*population=8"),
    (lambda: planned(participation=LONGER), "mechanism has 4 rounds.*participation has 5"),
    (lambda: planned(private_metrics=fedmf.PrivateMetrics(share=0.1), noise_multiplier=0.0),
     "private_metrics=0.1.*noise_multiplier=0"),
    (lambda: CONFIG.plan(IdentityMechanism(rounds=5)), "mechanism has 5 rounds but rounds=4"),
    (lambda: server().add([np.ones(3)], client="a"), r"update.*\(3,\).*\(2,\)"),
    (lambda: server().add_sum([np.ones(3)], clients=["a"]), r"total.*\(3,\).*\(2,\)"),
    (lambda: server().add_sum([np.ones(2)], clients=["a"]), "total has norm 1.41.* 1 clients"),
    (lambda: fedmf.audit_ledger(FIVE_ROUNDS, PLAN), "ledger has 5 rounds.*plan covers 4"),
    (lambda: fedmf.partition.shards([0, 1], 2, 2, 0), "clients=2.*per_client=2.* 2 examples"),
    (lambda: fedmf.partition.dirichlet([0, 1], 3, 1.0, 0), "clients=3.* 2 examples"),
    (lambda: fedmf.WarmupCooldown(rounds=4, peak=1.0, warmup=0.6, cooldown=0.5),
     "warmup=0.6 and cooldown=0.5"),
    (lambda: fedmf.QuantileClipping.with_bit_noise(1.0, noise_multiplier=2.0),
     "bit_noise=1.0.*noise_multiplier=2.0"),
    (lambda: stamp(ONE, 10**8), "times=100000000 parts of 4 rounds"),
    (lambda: fedmf.PlanConfig(rounds=4, min_sep=2, epsilon=8.0, noise_multiplier=1.0),
     "epsilon=8.0 and noise_multiplier=1.0"),
    (lambda: rmse(ONE, prefix_sum(4), LONGER), "4 columns.*rounds=5"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        *NAMED,
        *((call, TypeError, words) for call, words in TYPES),
        *((call, ValueError, words) for call, words in VALUES),
        *((call, TooLargeForMemory, words) for call, words in TOO_LARGE),
        *((call, ValueError, words) for call, words in TOGETHER),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(call, kind, words):
    assert_refused(call, kind, words)
