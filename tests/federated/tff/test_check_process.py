"""`check_process` on TFF's own processes: aggregations beside `dp_aggregator` are refused."""

import numpy as np
import pytest

import fedmf
from fedmf import federated
from fedmf.federated.tff import tff
from fedmf.mechanisms import IdentityMechanism
from tests.federated.linear_regression import fed_avg, model_fn
from tests.federated.plans import plan_of
from tests.refusals import refusal

SGD = tff.learning.optimizers.build_sgdm
BUILD = tff.learning.algorithms
EXACT = "reaches its state or result without clipping and noise"


def our_aggregator(clip=None, **options):
    plan = plan_of(IdentityMechanism(rounds=4), quantile_clipping=clip)
    return federated.dp_aggregator(plan, clients_per_round=2, noise_seed=1, **options)


@pytest.mark.parametrize(
    "process",
    [
        lambda: fed_avg(our_aggregator(secure_sum=True)),
        *(
            pytest.param(process, marks=pytest.mark.slow)
            for process in (
                lambda: fed_avg(
                    our_aggregator(clip=fedmf.QuantileClipping()).with_scaling(
                        federated.Scaling(rule="adam")
                    )
                ),
                lambda: BUILD.build_fed_sgd(
                    model_fn,
                    SGD(0.1),
                    model_aggregator=tff.aggregators.as_weighted_aggregator(our_aggregator()),
                ),
                lambda: fed_avg(tff.aggregators.clipping_factory(3.0, our_aggregator())),
            )
        ),
    ],
)
def test_processes_that_only_aggregate_by_dp_aggregator_pass(process):
    roles = {aggregation.role for aggregation in federated.check_process(process())}
    assert roles >= {"private", "metrics"}


def test_weighted_processes_name_the_way_out():
    with refusal(r"as_weighted_aggregator\(dp_aggregator\(...\)\)", TypeError):
        BUILD.build_weighted_fed_avg(
            model_fn, SGD(0.1), SGD(1.0), model_aggregator=our_aggregator()
        )


@pytest.mark.parametrize(
    ("gradients", "match"),
    [
        (None, r"a federated_sum of \{<float32\[2,1\],float32\[1\]>\}@CLIENTS"),
        # Each sum is clipped and noised, but both together have twice the rho of the plan.
        pytest.param(
            our_aggregator(), "releases 2 clipped and noised sums", marks=pytest.mark.slow
        ),
    ],
)
def test_mime_is_refused(gradients, match):
    process = BUILD.build_unweighted_mime_lite(
        model_fn,
        SGD(0.1, momentum=0.9),
        SGD(1.0),
        model_aggregator=gradients or our_aggregator(),
        full_gradient_aggregator=gradients,
    )
    with refusal(match):
        federated.check_process(process)


QUANTILE = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(0.1, 0.5, 0.2)


@pytest.mark.parametrize(
    "factory",
    [
        lambda: tff.aggregators.clipping_factory(QUANTILE, our_aggregator()),
        lambda: tff.aggregators.UnweightedMeanFactory(value_sum_factory=our_aggregator()),
        lambda: tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 2.0, 1.0),
    ],
    ids=["clip norm of the clients", "mean over who came", "noise"],
)
def test_factories_around_or_in_place_of_dp_aggregator_are_refused(factory):
    with refusal(EXACT):
        federated.check_process(factory().create(tff.TensorType(np.float32, [3])))


def test_a_process_without_dp_aggregator_is_refused():
    with refusal("process=3", TypeError):
        federated.check_process(3)
    local = tff.templates.IterativeProcess(
        tff.tensorflow.computation(lambda: 0),
        tff.tensorflow.computation(lambda s, x: (s, x), np.int32, np.float32),
    )
    with refusal("no aggregation of fedmf"):
        federated.check_process(local)
