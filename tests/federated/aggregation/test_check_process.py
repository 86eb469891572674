"""What goes from clients to server in TFF's own processes with our aggregator."""

import numpy as np
import pytest

import fedmf
from fedmf import federated
from fedmf.federated.tff import tff
from fedmf.mechanisms import IdentityMechanism
from tests.federated.linear_regression import fed_avg, model_fn
from tests.federated.plans import plan_of

pytestmark = pytest.mark.tensorflow

SGD = tff.learning.optimizers.build_sgdm
BUILD = tff.learning.algorithms


def ours(clip=None, **options):
    plan = plan_of(IdentityMechanism(rounds=4), quantile_clipping=clip)
    return federated.dp_aggregator(plan, clients_per_round=2, noise_seed=1, **options)


@pytest.mark.parametrize(
    "process",
    [
        lambda: fed_avg(ours()),
        lambda: fed_avg(ours(secure_sum=True)),
        lambda: fed_avg(ours(noise_strategy="precomputed")),
        lambda: fed_avg(ours(clip=fedmf.QuantileClipping()).with_scaling(federated.Scaling(rule="adam"))),
        lambda: BUILD.build_unweighted_fed_prox(model_fn, 0.1, SGD(0.1), SGD(1.0), model_aggregator=ours()),
        lambda: BUILD.build_fed_sgd(
            model_fn, SGD(0.1), model_aggregator=tff.aggregators.as_weighted_aggregator(ours())
        ),
        lambda: fed_avg(tff.aggregators.clipping_factory(3.0, ours())),
    ],
    ids=["fed_avg", "secure", "precomputed", "adaptive", "fed_prox", "fed_sgd", "fixed clipping around it"],
)
def test_processes_whose_only_aggregation_is_ours_pass(process):
    roles = [aggregation.role for aggregation in federated.check_process(process())]
    assert roles.count("private") >= 1
    assert roles.count("metrics") >= 1


def test_the_list_names_what_is_summed():
    metrics, private = federated.check_process(fed_avg(ours()))
    assert (private.operation, private.role) == ("federated_sum", "private")
    assert private.type == "{<record=<float64[2,1],float64[1]>,clients=int32,clipped=int32,zeroed=int32>}@CLIENTS"
    assert (metrics.operation, metrics.role) == ("federated_sum", "metrics")
    assert "num_examples=<int64>" in metrics.type


def test_fed_sgd_says_how_to_pass_it():
    with pytest.raises(TypeError, match=r"pass tff.aggregators.as_weighted_aggregator\(dp_aggregator\(...\)\)"):
        BUILD.build_fed_sgd(model_fn, SGD(0.1), model_aggregator=ours())


def test_mime_is_refused():
    process = BUILD.build_unweighted_mime_lite(model_fn, SGD(0.1, momentum=0.9), SGD(1.0), model_aggregator=ours())
    with pytest.raises(ValueError, match=r"process has a federated_sum of \{<float32\[2,1\],float32\[1\]>\}@CLIENTS"):
        federated.check_process(process)


def test_a_norm_that_is_learned_from_clients_is_refused():
    quantile = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(0.1, 0.5, 0.2)
    with pytest.raises(ValueError, match="reaches its state or result without clipping and noise"):
        federated.check_process(fed_avg(tff.aggregators.clipping_factory(quantile, ours())))


def test_an_aggregation_beside_ours_in_a_hand_written_process_is_refused():
    aggregation = ours().create(tff.TensorType(np.float32, [3]))
    assert [found.role for found in federated.check_process(aggregation)] == ["private"]

    def beside(add):
        @tff.federated_computation(
            aggregation.initialize.type_signature.result,
            tff.FederatedType(tff.TensorType(np.float32, [3]), tff.CLIENTS),
        )
        def one_round(state, values):
            output = aggregation.next(state, values)
            result = tff.federated_zip((output.result, tff.federated_mean(values))) if add else output.result
            return tff.templates.MeasuredProcessOutput(output.state, result, output.measurements)

        return tff.templates.AggregationProcess(aggregation.initialize, one_round)

    federated.check_process(beside(add=False))
    with pytest.raises(ValueError, match=r"federated_mean of \{float32\[3\]\}@CLIENTS"):
        federated.check_process(beside(add=True))


def test_without_our_aggregator_there_is_nothing_to_check():
    with pytest.raises(ValueError, match="without clipping and noise"):
        federated.check_process(fed_avg(None))
    with pytest.raises(TypeError, match="process=3"):
        federated.check_process(3)


def test_two_releases_of_one_round_are_refused():
    """Each is clipped and noised, but both together have twice the rho that the plan states."""
    factory = ours()
    process = BUILD.build_unweighted_mime_lite(
        model_fn, SGD(0.1, momentum=0.9), SGD(1.0), model_aggregator=factory, full_gradient_aggregator=factory
    )
    with pytest.raises(ValueError, match="process releases 2 clipped and noised sums"):
        federated.check_process(process)


def test_a_count_of_clients_is_no_aggregation_of_ours():
    @tff.federated_computation(tff.FederatedType(np.int32, tff.SERVER), tff.FederatedType(np.float32, tff.CLIENTS))
    def one_round(state, values):
        count = tff.federated_sum(tff.federated_value(1, tff.CLIENTS))
        return tff.templates.MeasuredProcessOutput(state, count, tff.federated_value((), tff.SERVER))

    initialize = tff.federated_computation(lambda: tff.federated_value(0, tff.SERVER))
    with pytest.raises(ValueError, match="no aggregation of fedmf"):
        federated.check_process(tff.templates.AggregationProcess(initialize, one_round))
