"""`check_process` on processes of a few lines: the noised sum of clipped updates, and one change.

A process passes if its state and its result depend on the clients through that sum alone.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf

from fedmf import federated
from fedmf.federated.tff import tff, tfp
from fedmf.federated.tff.query import QuerySample
from fedmf.mechanisms import IdentityMechanism
from tests.federated.plans import plan_of
from tests.refusals import refusal

PLAN = plan_of(IdentityMechanism(rounds=4))
RECORD = tff.TensorType(np.float32, [3])
EXACT = "reaches its state or result without clipping and noise"
NOT_THE_SUM = "adds its noise to something else than the federated_sum of its clipped updates"
ANOTHER_STATE = "adds noise by another state than it keeps, or of another plan"
PARAMETERS = "clips by other parameters than its query's"
HIDDEN = "the noise's key, its rows or the exact counts of an earlier round"


def at_clients(member_type):
    return tff.FederatedType(member_type, tff.CLIENTS)


def count_of_clients():
    return tff.federated_sum(tff.federated_value(1, tff.CLIENTS))


def ordered(*values):
    """Returns the values as one value with the fields a, b, c, d."""
    return tff.federated_zip(collections.OrderedDict(zip("abcd", values, strict=False)))


def output(state, result, measurements=None):
    if measurements is None:
        measurements = tff.federated_value((), tff.SERVER)
    return tff.templates.MeasuredProcessOutput(state, result, measurements)


class QueryComputations:
    """The methods of a query as TFF computations."""

    def __init__(self, plan=PLAN):
        query = federated.MatrixFactorizationQuery(
            plan, tf.TensorSpec([3], tf.float32), noise_seed=1
        )
        computation = tff.tensorflow.computation
        self.dp_query = query
        self.initial = computation(query.initial_global_state)
        self.state_type = self.initial.type_signature.result
        self.params = computation(query.derive_sample_params, self.state_type)
        self.params_type = self.params.type_signature.result
        self.clip = computation(query.preprocess_record, self.params_type, RECORD)
        self.sample_type = self.clip.type_signature.result
        self.add = computation(query.merge_sample_states, self.sample_type, self.sample_type)
        self.noise = computation(query.get_noised_result, self.sample_type, self.state_type)
        self.initialize = tff.federated_computation(
            lambda: tff.federated_eval(self.initial, tff.SERVER)
        )

    def clipped(self, state, updates):
        """Returns the clients' samples."""
        params = tff.federated_broadcast(tff.federated_map(self.params, state))
        return tff.federated_map(self.clip, (params, updates))

    def noised(self, total, state):
        """Returns the next state and the result."""
        result, next_state, _ = tff.federated_map(self.noise, (total, state))
        return next_state, result

    def round(self, state, updates):
        """Returns the next state and the result of a round that passes."""
        return self.noised(tff.federated_sum(self.clipped(state, updates)), state)

    def round_with_sum(self, state, updates):
        """Returns the next state and the result of a round, and its sum without noise."""
        total = tff.federated_sum(self.clipped(state, updates))
        return *self.noised(total, state), total


@pytest.fixture(scope="module")
def query():
    return QueryComputations()


def make_process(next_round, initialize, process_class=tff.templates.MeasuredProcess):
    state_type = initialize.type_signature.result
    next_computation = tff.federated_computation(next_round, state_type, at_clients(RECORD))
    return process_class(initialize, next_computation)


def apply_tensorflow(function, *values):
    """Returns a function of tensors, applied to values at one placement."""
    types = [value.type_signature.member for value in values]
    return tff.federated_map(tff.tensorflow.computation(function, *types), values)


def add(a, b):
    return apply_tensorflow(lambda a, b: a + tf.cast(b, a.dtype), a, b)


def subtract(a, b):
    return apply_tensorflow(lambda a, b: a - tf.cast(b, a.dtype), a, b)


def sample_of(record, clients, clipped, zeroed):
    def sample(record, clients, clipped, zeroed):
        return QuerySample(tf.cast(record, tf.float64), clients, clipped, zeroed)

    return apply_tensorflow(sample, record, clients, clipped, zeroed)


def _constant_params(query):
    dp_query = query.dp_query

    def clip(update):
        return dp_query.preprocess_record(
            dp_query.derive_sample_params(dp_query.initial_global_state()), update
        )

    def next_round(state, updates):
        samples = tff.federated_map(tff.tensorflow.computation(clip, RECORD), updates)
        return output(*query.noised(tff.federated_sum(samples), state))

    return make_process(next_round, query.initialize)


def _model_in_the_state(query):
    def next_round(state, updates):
        updates = subtract(updates, tff.federated_broadcast(state.a))
        next_state, result = query.round(state.b, updates)
        return output(ordered(add(state.a, result), next_state), result)

    return make_process(next_round, _with_zeros(query, tf.float32))


def _sums_leaf_by_leaf(query):
    def next_round(state, updates):
        sample = query.clipped(state, updates)
        sums = tuple(
            map(tff.federated_sum, (sample.record, sample.clients, sample.clipped, sample.zeroed))
        )
        return output(*query.noised(sample_of(*sums), state))

    return make_process(next_round, query.initialize)


def _exact_metrics(query):
    def next_round(state, updates):
        next_state, result, total = query.round_with_sum(state, updates)
        return output(
            next_state,
            result,
            ordered(count_of_clients(), tff.federated_mean(updates), total.clipped),
        )

    return make_process(next_round, query.initialize)


def _state_and_result(query):
    def next_round(state, updates):
        next_state, result = query.round(state, updates)
        return next_state, add(result, result)

    return make_process(next_round, query.initialize, tff.templates.IterativeProcess)


def _around(process):
    def next_round(state, updates):
        inner_output = process.next(state, updates)
        return output(inner_output.state, inner_output.result, inner_output.measurements)

    return make_process(next_round, process.initialize)


@pytest.mark.parametrize(
    "build",
    [
        _constant_params,
        _model_in_the_state,
        _sums_leaf_by_leaf,
        _exact_metrics,
        _state_and_result,
        lambda query: _around(
            federated.dp_aggregator(PLAN, clients_per_round=2, noise_seed=1).create(RECORD)
        ),
        lambda query: tff.aggregators.DifferentiallyPrivateFactory(query.dp_query).create(RECORD),
        lambda query: tff.aggregators.DifferentiallyPrivateFactory(
            tfp.NormalizedQuery(query.dp_query, 7.0)
        ).create(RECORD),
    ],
)
def test_a_process_of_one_noised_sum_passes(build, query):
    aggregations = federated.check_process(build(query))
    assert "private" in {aggregation.role for aggregation in aggregations}


REFUSED = []


def refused(match):
    """Returns a decorator that adds a `next` of a process to `REFUSED`.

    Its arguments are the query's computations, the query's state and the clients' updates.
    """

    def register(next_round):
        REFUSED.append(pytest.param(next_round, match, id=next_round.__name__))
        return next_round

    return register


@refused(EXACT)
def plain_sum(query, state, updates):
    return output(state, tff.federated_sum(query.clipped(state, updates)))


@refused(NOT_THE_SUM)
def sum_by_another_operation(query, state, updates):
    same = tff.tensorflow.computation(lambda a: a, query.sample_type)
    zero_state = tff.tensorflow.computation(lambda: query.dp_query.initial_sample_state())()
    clipped = query.clipped(state, updates)
    total = tff.federated_aggregate(clipped, zero_state, query.add, query.add, same)
    return output(*query.noised(total, state))


@refused(NOT_THE_SUM)
def forged_sample(query, state, updates):
    forge = tff.tensorflow.computation(
        lambda update: QuerySample(tf.cast(update, tf.float64), 1, 0, 0), RECORD
    )
    return output(*query.noised(tff.federated_sum(tff.federated_map(forge, updates)), state))


@refused(NOT_THE_SUM)
def times_100_in_the_graph_of_clipping(query, state, updates):
    def clip(params, update):
        sample = query.dp_query.preprocess_record(params, update)
        return sample._replace(record=100 * sample.record)

    clip = tff.tensorflow.computation(clip, query.params_type, RECORD)
    params = tff.federated_broadcast(tff.federated_map(query.params, state))
    samples = tff.federated_map(clip, (params, updates))
    return output(*query.noised(tff.federated_sum(samples), state))


@refused(NOT_THE_SUM)
def counts_exchanged(query, state, updates):
    total = tff.federated_sum(query.clipped(state, updates))
    exchanged = sample_of(total.record, total.clients, total.zeroed, total.clipped)
    return output(*query.noised(exchanged, state))


@refused(EXACT)
def sum_added_in_the_graph_of_the_noise(query, state, updates):
    def noise(total, state):
        result, next_state, _ = query.dp_query.get_noised_result(total, state)
        return next_state, result + tf.cast(total.record, tf.float32)

    noise = tff.tensorflow.computation(noise, query.sample_type, query.state_type)
    total = tff.federated_sum(query.clipped(state, updates))
    return output(*tff.federated_map(noise, (total, state)))


@refused(EXACT)
def sum_through_a_variable(query, state, updates):
    def noise(total, state):
        variable = tf.Variable(tf.zeros([3], tf.float64))
        with tf.control_dependencies([variable.assign(total.record)]):
            _, next_state, _ = query.dp_query.get_noised_result(total, state)
            return next_state, variable.read_value()

    noise = tff.tensorflow.computation(noise, query.sample_type, query.state_type)
    total = tff.federated_sum(query.clipped(state, updates))
    return output(*tff.federated_map(noise, (total, state)))


@refused(EXACT)
def count_of_the_next_state_in_the_result(query, state, updates):
    next_state, result = query.round(state, updates)
    return output(next_state, ordered(result, next_state.clipped))


@refused(HIDDEN)
def count_of_the_round_before_in_the_result(query, state, updates):
    next_state, result = query.round(state, updates)
    return output(next_state, ordered(result, state.clipped))


@refused(EXACT)
def secure_sum_beside_the_noise(query, state, updates):
    next_state, result = query.round(state, updates)
    exact_sum = tff.federated_secure_sum_bitwidth(query.clipped(state, updates).clipped, 1)
    return output(next_state, ordered(result, exact_sum))


@refused("measures its clipped updates, or their sum, without noise")
def sum_in_the_measurements(query, state, updates):
    next_state, result, total = query.round_with_sum(state, updates)
    return output(next_state, result, total)


@refused("the noise's key or rows in its metrics")
def state_in_the_measurements(query, state, updates):
    next_state, result = query.round(state, updates)
    return output(next_state, result, next_state)


@refused(HIDDEN)
def key_in_the_result(query, state, updates):
    next_state, result = query.round(state, updates)
    return output(next_state, ordered(result, state.noise.key))


@refused("sends its clients more of the noise's state")
def key_to_the_clients(query, state, updates):
    key = tff.federated_broadcast(state.noise.key)
    sent_updates = apply_tensorflow(lambda key, x: x + tf.cast(key[0], tf.float32), key, updates)
    return output(*query.round(state, sent_updates))


@refused("clips updates that depend on a federated_mean")
def mean_subtracted_before_clipping(query, state, updates):
    mean = tff.federated_broadcast(tff.federated_mean(updates))
    return output(*query.round(state, subtract(updates, mean)))


@refused(PARAMETERS)
def twice_the_clip_norm(query, state, updates):
    params = tff.federated_map(query.params, state)
    double = tff.tensorflow.computation(
        lambda params_value: params_value._replace(clip_norm=2 * params_value.clip_norm),
        params.type_signature.member,
    )
    params = tff.federated_broadcast(tff.federated_map(double, params))
    samples = tff.federated_map(query.clip, (params, updates))
    return output(*query.noised(tff.federated_sum(samples), state))


@refused(ANOTHER_STATE)
def clipping_of_another_plan(query, state, updates):
    other_query = QueryComputations(plan_of(IdentityMechanism(rounds=4), clip_norm=5.0))
    samples = other_query.clipped(tff.federated_eval(other_query.initial, tff.SERVER), updates)
    return output(*query.noised(tff.federated_sum(samples), state))


@refused(ANOTHER_STATE)
def new_state_in_every_round(query, state, updates):
    _, result = query.round(tff.federated_eval(query.initial, tff.SERVER), updates)
    return output(state, result)


@refused(HIDDEN)
def old_state_kept(query, state, updates):
    _, result = query.round(state, updates)
    return output(state, result)


@refused("no aggregation of fedmf")
def result_not_used(query, state, updates):
    query.round(state, updates)
    return output(state, tff.federated_value(0, tff.SERVER))


@pytest.mark.parametrize(("next_round", "match"), REFUSED)
def test_a_process_with_an_uncovered_value_is_refused(next_round, match, query):
    process = make_process(
        lambda state, updates: next_round(query, state, updates), query.initialize
    )
    with refusal(match):
        federated.check_process(process)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (
            lambda next_state, result, updates: (
                next_state,
                {"metrics": tff.federated_mean(updates)},
            ),
            EXACT,
        ),
        (lambda *values: values, "returns values of single clients"),
    ],
    ids=["metrics by name", "the clients' values"],
)
def test_a_process_without_metrics_may_not_return_exact_values(body, match, query):
    def next_round(state, updates):
        return body(*query.round(state, updates), updates)

    process = make_process(next_round, query.initialize, tff.templates.IterativeProcess)
    with refusal(match):
        federated.check_process(process)


def _with_zeros(query, dtype):
    """Returns the `initialize` of a process that has an array beside the query's state."""

    @tff.federated_computation
    def initialize():
        zeros = tff.tensorflow.computation(lambda: tf.zeros([3], dtype))
        return ordered(tff.federated_eval(zeros, tff.SERVER), query.initialize())

    return initialize


def test_a_plain_sum_in_the_state_is_refused(query):
    def next_round(state, updates):
        next_state, result, total = query.round_with_sum(state.b, updates)
        return output(ordered(total.record, next_state), result)

    with refusal(EXACT):
        federated.check_process(make_process(next_round, _with_zeros(query, tf.float64)))
