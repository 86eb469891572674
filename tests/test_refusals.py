"""Every refusal of the mathematical half: one sentence that names the argument, its value, and the
way out.
"""

import re

import numpy as np
import pytest

from fedmf.cohorts.controller import ParticipationController
from fedmf.mechanisms import (
    BandedMechanism,
    Certificate,
    DenseMechanism,
    IdentityMechanism,
    NoiseStream,
    TreeMechanism,
    stamp,
)
from fedmf.mechanisms.budget import Budget
from fedmf.mechanisms.error import loss, per_round_error, rmse
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.schema import Participation
from fedmf.privacy.calibrate import calibrate
from fedmf.workloads import Workload, identity, momentum_buffer, momentum_sgd, prefix_sum, sgd

NAN, INF = float("nan"), float("inf")
UPPER = [[1.0, 2.0], [0.0, 1.0]]
SINGLE = Participation(rounds=4, schema="single")
SEPARATED = Participation(rounds=4, schema="min_sep", min_sep=2)


def participate(**changes):
    return Participation(**{"rounds": 12, "schema": "min_sep", "min_sep": 5, **changes})


def budget_of(sensitivity):
    return Participation(rounds=4, schema="budget", budget=sensitivity)


def fitted(family="banded", participation=SINGLE, **options):
    return fit(prefix_sum(4), participation, family=family, **options)


# what is called, the kind of error, the words that must appear: the argument,
# its value, the way out.
REFUSALS = {
    "workload name": (lambda: Workload(3, np.eye(2)), TypeError, ["name=3", "name the workload"]),
    "matrix of text": (lambda: Workload("w", [["a"]]), TypeError, ["matrix", "array of floats"]),
    "matrix of bools": (
        lambda: Workload("w", np.eye(2, dtype=bool)),
        TypeError,
        ["matrix", "bool", "floats"],
    ),
    "ragged matrix": (
        lambda: Workload("w", [[1.0], [1.0, 2.0]]),
        TypeError,
        ["matrix", "rectangular"],
    ),
    "matrix of one axis": (lambda: Workload("w", [1.0]), ValueError, ["matrix", "(1,)", "2-D"]),
    "matrix without entries": (
        lambda: Workload("w", np.ones((0, 0))),
        ValueError,
        ["matrix", "(0, 0)", "no empty"],
    ),
    "matrix not square": (
        lambda: Workload("w", np.ones((2, 3))),
        ValueError,
        ["matrix", "(2, 3)", "square"],
    ),
    "matrix upper": (
        lambda: Workload("w", UPPER),
        ValueError,
        ["matrix[0, 1]=2.0", "lower-triangular"],
    ),
    "matrix nan": (lambda: Workload("w", [[NAN]]), ValueError, ["matrix[0, 0]=nan", "finite"]),
    "matrix singular": (
        lambda: Workload("w", [[1, 0], [1, 0]]),
        ValueError,
        ["matrix is singular", "round 1's own input is 0", "give it another"],
    ),
    "prefix_sum bool": (lambda: prefix_sum(True), TypeError, ["n=True", "positive int"]),
    "momentum one": (lambda: momentum_sgd(3, 1.0), ValueError, ["momentum=1.0", "[0, 1)"]),
    "momentum text": (lambda: momentum_sgd(3, "0.9"), TypeError, ["momentum='0.9'", "[0, 1)"]),
    "rates of other length": (
        lambda: momentum_sgd(3, 0.9, [1.0]),
        ValueError,
        ["learning_rates", "(1,)", "n=3"],
    ),
    "rate zero": (
        lambda: momentum_sgd(2, 0.9, [1, 0]),
        ValueError,
        ["learning_rates[1]=0.0", "positive rate"],
    ),
    "rounds zero": (lambda: participate(rounds=0), ValueError, ["rounds=0", "positive int"]),
    "schema unknown": (
        lambda: participate(schema="cyclic"),
        ValueError,
        ["schema='cyclic'", "min_sep, every_round"],
    ),
    "min_sep missing": (lambda: participate(min_sep=None), ValueError, ["min_sep=None", "1..12"]),
    "min_sep too large": (lambda: participate(min_sep=13), ValueError, ["min_sep=13", "1..12"]),
    "too many": (
        lambda: participate(max_participations=4),
        ValueError,
        ["max_participations=4", "at most 3 times"],
    ),
    "single twice": (
        lambda: participate(schema="single", min_sep=None, max_participations=2),
        ValueError,
        ["max_participations=2", "max_participations=1", "leave it out"],
    ),
    "every round apart": (
        lambda: participate(schema="every_round"),
        ValueError,
        ["min_sep=5", "leave it out"],
    ),
    "budget missing": (
        lambda: Participation(rounds=4, schema="budget"),
        ValueError,
        ["budget=None", "fedmf.Budget.of(mechanism, participation)"],
    ),
    "budget of min_sep": (
        lambda: participate(budget=2.0),
        ValueError,
        ["budget=2.0", "schema='min_sep'", "leave it out"],
    ),
    "budget zero": (lambda: budget_of(0.0), ValueError, ["budget=0.0", "pass a sensitivity"]),
    "budget and min_sep": (
        lambda: Participation(rounds=4, schema="budget", budget=2.0, min_sep=2),
        ValueError,
        ["min_sep=2 contradicts schema='budget'"],
    ),
    "budget asked without encoder": (
        lambda: budget_of(2.0).allows([0]),
        ValueError,
        ["depend on the encoder"],
    ),
    "budget's patterns": (
        lambda: list(budget_of(2.0).patterns()),
        ValueError,
        ["ask a fedmf.Budget"],
    ),
    "fit for a budget": (
        lambda: fit(prefix_sum(4), budget_of(2.0)),
        ValueError,
        ["no schema to fit for", "min_sep"],
    ),
    "controller without encoder": (
        lambda: ParticipationController(budget_of(2.0), population=4, cohort_size=1, seed=1),
        TypeError,
        ["with which encoder", "fedmf.Budget"],
    ),
    "budget below one round": (
        lambda: Budget(mechanism=IdentityMechanism(rounds=4), participation=budget_of(0.9), pace=1),
        ValueError,
        ["budget=0.9", "nobody could take part", "raise it"],
    ),
    "budget whose square is no float": (
        lambda: budget_of(1e200),
        ValueError,
        ["budget=1e+200", "below 1e+150"],
    ),
    "rounds within a budget": (
        lambda: Budget(
            mechanism=IdentityMechanism(rounds=4), participation=budget_of(2.0), pace=1
        ).allows([0.5]),
        TypeError,
        ["rounds_of_one_client=0.5", "round indices"],
    ),
    "noise for a budget below one round": (
        lambda: calibrate(IdentityMechanism(rounds=4), budget_of(0.9), epsilon=2.0, delta=1e-6),
        ValueError,
        ["budget=0.9", "nobody could take part", "raise it"],
    ),
    "budget of other rounds": (
        lambda: Budget(mechanism=IdentityMechanism(rounds=5), participation=budget_of(2.0), pace=1),
        ValueError,
        ["rounds=4", "same number"],
    ),
    "budget of min_sep itself": (
        lambda: Budget(mechanism=IdentityMechanism(rounds=4), participation=SINGLE, pace=1),
        TypeError,
        ["schema='single'", 'schema="budget"'],
    ),
    "budget without mechanism": (
        lambda: Budget(mechanism=np.eye(4), participation=budget_of(2.0), pace=1),
        TypeError,
        ["mechanism is of type ndarray", "fedmf.fit"],
    ),
    "pace zero": (
        lambda: Budget(mechanism=IdentityMechanism(rounds=4), participation=budget_of(2.0), pace=0),
        ValueError,
        ["pace=0", "to keep nothing"],
    ),
    "allows text": (
        lambda: SINGLE.allows(["0"]),
        TypeError,
        ["rounds_of_one_client='0'", "round indices"],
    ),
    "sensitivity of text": (
        lambda: sensitivity("C", SINGLE),
        TypeError,
        ["encoder", "array of floats"],
    ),
    "sensitivity without participation": (
        lambda: sensitivity(np.eye(4), 4),
        TypeError,
        ["participation is of type int", "pass a"],
    ),
    "sensitivity of other rounds": (
        lambda: sensitivity(np.eye(5), SINGLE),
        ValueError,
        ["5 columns", "rounds=4"],
    ),
    "tree decoder": (
        lambda: TreeMechanism(rounds=4, decoder="best"),
        ValueError,
        ["decoder='best'", "online, full"],
    ),
    "banded shape": (
        lambda: BandedMechanism(diagonals=np.ones((2, 3))),
        ValueError,
        ["(2, 3)", "drop the others"],
    ),
    "banded sign": (
        lambda: BandedMechanism(diagonals=[[-1.0]]),
        ValueError,
        ["diagonals[0, 0]=-1.0", "positive"],
    ),
    "banded outside": (
        lambda: BandedMechanism(diagonals=np.ones((2, 2))),
        ValueError,
        ["diagonals[0, 1]=1.0", "to 0"],
    ),
    "dense sign": (
        lambda: DenseMechanism(matrix=-np.eye(2)),
        ValueError,
        ["matrix[0, 0]=-1.0", "positive diagonal"],
    ),
    "certificate and reason": (
        lambda: IdentityMechanism(
            rounds=2, certificate=Certificate(2.0, 1.0, 1, 0.0), certificate_reason="a"
        ),
        ValueError,
        ["certificate_reason=", "pass a certificate, or else"],
    ),
    "certificate above loss": (
        lambda: Certificate(1.0, 2.0, 1, 0.0),
        ValueError,
        ["loss=1.0", "fit the mechanism"],
    ),
    "stream of nothing": (
        lambda: NoiseStream(rounds=2, sources=2),
        ValueError,
        ["recurrence", "exactly one"],
    ),
    "stream of both": (
        lambda: NoiseStream(rounds=2, sources=2, recurrence=np.ones((2, 1)), contraction=np.eye(2)),
        ValueError,
        ["contraction", "exactly one"],
    ),
    "stream of other shape": (
        lambda: NoiseStream(rounds=2, sources=3, contraction=np.eye(2)),
        ValueError,
        ["sources=3", "(2, 2)", "(rounds, sources)"],
    ),
    "fit without workload": (
        lambda: fit(np.eye(4), SINGLE),
        TypeError,
        ["workload is of type ndarray", "fedmf.Workload"],
    ),
    "fit without participation": (
        lambda: fit(prefix_sum(4), 4),
        TypeError,
        ["participation is of type int", "fedmf.Participation"],
    ),
    "fit of other rounds": (
        lambda: fit(prefix_sum(5), SINGLE),
        ValueError,
        ["rounds=5", "rounds=4", "same number"],
    ),
    "family unknown": (
        lambda: fitted("fourier"),
        ValueError,
        ["family='fourier'", "banded, blt, dense, fft, identity"],
    ),
    "family not a word": (
        lambda: fitted(None),
        TypeError,
        ["family=None", "banded, blt, dense, fft, identity"],
    ),
    "option unknown": (
        lambda: fitted("banded", band=2),
        TypeError,
        ["band=2 ", "did you mean `bands`?"],
    ),
    "option of another family": (
        lambda: fitted("tree", bands=2),
        TypeError,
        ["bands=2 ", "`decoder`, `restarts`"],
    ),
    "bands too many": (lambda: fitted(bands=5), ValueError, ["bands=5", "1..4"]),
    "norms": (lambda: fitted(equal_norms=1), TypeError, ["equal_norms=1", "True or False"]),
    "restarts": (
        lambda: fitted("tree", restarts=3),
        ValueError,
        ["restarts=3", "4 rounds", "choose a divisor"],
    ),
    "stamps": (lambda: stamp(IdentityMechanism(rounds=2), 0), ValueError, ["times=0"]),
    "stamp of a matrix": (lambda: stamp(np.eye(2), 2), TypeError, ["ndarray"]),
    "stamp decoder": (
        lambda: stamp(IdentityMechanism(rounds=2), 2, decoder="best"),
        ValueError,
        ["decoder='best'"],
    ),
    "objective": (
        lambda: fitted("blt", objective="median"),
        ValueError,
        ["objective='median'", "mean, max"],
    ),
    "buffers zero": (lambda: fitted("blt", buffers=0), ValueError, ["buffers=0"]),
    "coefficients": (
        lambda: fitted("toeplitz", coefficients="cubic"),
        ValueError,
        ["coefficients='cubic'", "sqrt"],
    ),
    "nu missing": (lambda: fitted("toeplitz", coefficients="nu"), ValueError, ["nu=None"]),
    "nu of others": (
        lambda: fitted("toeplitz", coefficients="sqrt", nu=0.1),
        ValueError,
        ["nu=0.1"],
    ),
    "nu one": (lambda: fitted("toeplitz", coefficients="nu", nu=1.0), ValueError, ["nu=1.0"]),
    "rank zero": (lambda: fitted("low_rank", rank=0), ValueError, ["rank=0"]),
    "unequal norms need bands <= min_sep": (
        lambda: fitted("banded", SEPARATED, bands=3, equal_norms=False),
        ValueError,
        ["bands=3", "min_sep=2", "equal_norms=True"],
    ),
    "dense of huge runs": (
        lambda: fit(
            prefix_sum(50_000), Participation(rounds=50_000, schema="single"), family="dense"
        ),
        ValueError,
        ["GiB", "50000", "toeplitz", "blt", "banded"],
    ),
    "encoder of huge runs": (
        lambda: IdentityMechanism(rounds=10**6).encoder(),
        ValueError,
        ["GiB", "1000000"],
    ),
    "matrix of huge runs": (lambda: prefix_sum(10**6).matrix, ValueError, ["GiB", "prefix_sum"]),
    "workloads of other rounds": (
        lambda: prefix_sum(3) @ identity(4),
        ValueError,
        ["rounds=3", "rounds=4"],
    ),
    "workload times a matrix": (lambda: prefix_sum(3) @ np.eye(3), TypeError, ["Workload"]),
    "buffer momentum": (lambda: momentum_buffer(3, -0.1), ValueError, ["momentum=-0.1", "[0, 1)"]),
    "sgd rate": (lambda: sgd([1.0, -1.0]), ValueError, ["learning_rates[1]=-1.0", "positive rate"]),
    "inverse singular": (
        lambda: Workload.from_inverse("w", [[0.0]]),
        ValueError,
        ["inverse_diagonals is singular"],
    ),
    "tolerance zero": (
        lambda: fitted(tolerance=0.0),
        ValueError,
        ["tolerance=0.0", "small positive"],
    ),
    "no iterations": (
        lambda: fitted(max_iterations=0),
        ValueError,
        ["max_iterations=0", "positive int"],
    ),
    "progress": (
        lambda: fitted("identity", progress=True),
        TypeError,
        ["progress=True", "(iteration, loss, gap)"],
    ),
    "dense under fewer": (
        lambda: fitted(
            "dense", Participation(rounds=4, schema="min_sep", min_sep=1, max_participations=2)
        ),
        ValueError,
        ["max_participations=2", "leave `max_participations` out", "family='banded'"],
    ),
}


@pytest.mark.parametrize(("call", "kind", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refused_in_one_sentence(call, kind, words):
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is kind
    assert "\n" not in message
    assert not re.search(r"(?<!Prop)\. [A-Z]", message)
    for word in words:
        assert word in message


@pytest.mark.parametrize("measure", [loss, rmse, per_round_error])
def test_errors_of_mismatched_parts(measure):
    identity = IdentityMechanism(rounds=4)
    with pytest.raises(
        ValueError,
        match="workload 'prefix_sum' has rounds=5 but the mechanism has rounds=4: make both",
    ):
        measure(identity, prefix_sum(5), SINGLE)
    with pytest.raises(
        ValueError, match="encoder has 4 columns but participation has rounds=6: make both"
    ):
        measure(identity, prefix_sum(4), Participation(rounds=6, schema="single"))
    with pytest.raises(TypeError, match="pass a fedmf"):
        measure(identity, np.eye(4), SINGLE)
