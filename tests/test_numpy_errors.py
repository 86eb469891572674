"""Public calls do not raise if the caller has set np.seterr(all="raise").

Terms in the tails of sums underflow here, in SciPy and in dp_accounting.
"""

import numpy as np
import pytest

import fedmf
from fedmf import partition
from fedmf.audits.tails import power
from fedmf.mechanisms import FFTMechanism
from fedmf.server.audit import audit_mechanism
from tests.mechanisms.registry import every_mechanism
from tests.mechanisms.schemas import single

ROUNDS = 12
LABELS = np.arange(400) % 10


@pytest.fixture(autouse=True)
def _raising():
    with np.errstate(all="raise"):
        yield


def make_plan(**options):
    values = {"rounds": ROUNDS, "min_sep": 3, "noise_multiplier": 1.0, "delta": 1e-6}
    return fedmf.PlanConfig(**values | options).plan()


def test_numpy_raises_in_these_tests():
    with pytest.raises(FloatingPointError, match="underflow"):
        np.exp(np.array([-1000.0]))


@every_mechanism
def test_mechanisms_and_plans_do_not_raise(build, tmp_path):
    mechanism = build(ROUNDS)
    workload = fedmf.prefix_sum(ROUNDS)
    participation = single(ROUNDS)
    assert fedmf.sensitivity(mechanism, participation).value > 0
    assert fedmf.max_error(mechanism, workload, participation) > 0
    assert fedmf.rmse(mechanism, workload, participation) > 0
    mechanism.save(tmp_path / "mechanism.npz")
    fedmf.load_mechanism(tmp_path / "mechanism.npz")
    assert mechanism.encoder().size
    assert mechanism.noising().size
    assert mechanism.stream().rounds == ROUNDS
    plan = fedmf.calibrate(mechanism, participation, epsilon=8.0, delta=1e-6)
    assert fedmf.attack_risk(plan).true_positive_rate(1e-9) > 0
    assert "delta" in fedmf.statement(plan)


@pytest.mark.parametrize(
    ("family", "rounds", "options"),
    [
        ("dense", 120, {}),
        ("low_rank", 120, {"bands": 2, "rank": 2}),
        ("toeplitz", 500, {}),
        ("blt", 500, {}),
        ("banded", 120, {"bands": 8}),
    ],
)
def test_fits_do_not_raise(family, rounds, options):
    participation = single(rounds)
    workload = fedmf.momentum_sgd(rounds)
    mechanism = fedmf.fit(
        workload, participation, family=family, cache=False, tolerance=1e-2, **options
    )
    assert fedmf.rmse(mechanism, workload, participation) > 0


def test_streams_of_many_rounds_do_not_raise():
    assert FFTMechanism(rounds=3000).stream().width > 0


@pytest.mark.parametrize(
    "options",
    [{"family": "blt"}, {"private_metrics": 0.1}, {"clip_quantile": 0.5}],
    ids=["blt", "private metrics", "quantile clipping"],
)
def test_servers_do_not_raise(options, tmp_path):
    plan = make_plan(**options)
    folder = tmp_path / "server"
    server = fedmf.Server(plan, shapes=[(3,)], clients_per_round=3, noise_seed="os", folder=folder)
    metrics = {"loss": 1e-320, "accuracy": 0.5} if plan.private_metrics else None
    for _ in range(ROUNDS):
        # Nine clients in cohorts of three take part every third round, as often as the plan allows.
        for client in server.cohort(available=range(9)):
            size = (1e-300, 1e-30, 1e30, 1e300)[client % 4]
            server.add([np.array([1.0, 0.5, -1.0]) * size], client=client, metrics=metrics)
        assert np.isfinite(server.release()[0]).all()
    assert server.audit().epsilon == plan.epsilon
    assert server.statement()
    server.close()
    fedmf.Server.open(folder).close()


@pytest.mark.parametrize("sampling", ["poisson", "fixed_size", "random-allocation"])
def test_sampling_schemes_do_not_raise(sampling):
    options = {"rounds": 8, "bands": 2, "sampling": sampling, "population": 400}
    plan = make_plan(**options, cohort_size=10, min_sep=None, delta=1e-4)
    assert 0 < plan.epsilon < np.inf


def test_the_choice_of_bands_does_not_raise():
    workload = fedmf.prefix_sum(16)
    target = {"population": 400, "cohort_size": 10, "epsilon": 8.0, "delta": 1e-6}
    assert fedmf.choose_bands(workload, rounds=16, bands=[2], **target)


def test_audits_do_not_raise(tmp_path):
    plan = make_plan()
    log = tmp_path / "log.csv"
    log.write_text("client,round\nann,1\nbo,2\nann,5\n")
    assert fedmf.audit_log(log, plan).epsilon <= plan.epsilon
    assert audit_mechanism(plan, seed=1, coordinates=300, trials=200).verdict
    assert power(3.0, 300_000, threshold=1e-8) > 0.9


def test_partitions_do_not_raise():
    for alpha in (1e-9, 0.3, 1e9):
        assert partition.dirichlet(LABELS, 20, alpha, 0).size == LABELS.size
    assert partition.quantity_skew(400, 20, 1000.0, 0).size == LABELS.size
    assert partition.shards(LABELS, 20, 2, 0).size == LABELS.size
