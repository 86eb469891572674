"""Processes of few lines: a sum of clipped updates with noise, and something beside it, before it
or behind it.
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


def at_clients(kind):
    return tff.FederatedType(kind, tff.CLIENTS)


def count_of_clients():
    return tff.federated_sum(tff.federated_value(1, tff.CLIENTS))


def in_order(first, second, *more):
    return tff.federated_zip(
        collections.OrderedDict(zip("abcd", (first, second, *more), strict=False))
    )


def output(state, result, measurements=None):
    nothing = tff.federated_value((), tff.SERVER)
    return tff.templates.MeasuredProcessOutput(
        state, result, nothing if measurements is None else measurements
    )


class Parts:
    """The query's methods as TFF computations."""

    def __init__(self, plan=PLAN):
        self.query = query = federated.MatrixFactorizationQuery(
            plan, tf.TensorSpec([3], tf.float32), noise_seed=1
        )
        computation = tff.tensorflow.computation
        self.initial = computation(query.initial_global_state)
        self.state = self.initial.type_signature.result
        self.params = computation(query.derive_sample_params, self.state)
        kind = self.params.type_signature.result
        self.clip = computation(query.preprocess_record, kind, RECORD)
        self.sample = self.clip.type_signature.result
        self.add = computation(query.merge_sample_states, self.sample, self.sample)
        self.noise = computation(query.get_noised_result, self.sample, self.state)
        self.initialize = tff.federated_computation(
            lambda: tff.federated_eval(self.initial, tff.SERVER)
        )

    def clipped(self, state, updates):
        return tff.federated_map(
            self.clip, (tff.federated_broadcast(tff.federated_map(self.params, state)), updates)
        )

    def noised(self, total, state):
        """(next state, result)."""
        result, after, _ = tff.federated_map(self.noise, (total, state))
        return after, result

    def one_round(self, state, updates):
        """(next state, result, sum)."""
        total = tff.federated_sum(self.clipped(state, updates))
        return *self.noised(total, state), total


@pytest.fixture(scope="module")
def parts():
    return Parts()


def by_hand(body, initialize, kind=tff.templates.MeasuredProcess):
    return kind(
        initialize,
        tff.federated_computation(body, initialize.type_signature.result, at_clients(RECORD)),
    )


def computed(function, *values):
    """A function of tensors, of values at one place."""
    kinds = [value.type_signature.member for value in values]
    return tff.federated_map(tff.tensorflow.computation(function, *kinds), values)


def plus(a, b):
    return computed(lambda a, b: a + tf.cast(b, a.dtype), a, b)


def minus(a, b):
    return computed(lambda a, b: a - tf.cast(b, a.dtype), a, b)


def sample_of(record, clients, clipped, zeroed):
    def sample(record, clients, clipped, zeroed):
        return QuerySample(tf.cast(record, tf.float64), clients, clipped, zeroed)

    return computed(sample, record, clients, clipped, zeroed)


def _constant_params(parts):
    query = parts.query

    def clip(update):
        return query.preprocess_record(
            query.derive_sample_params(query.initial_global_state()), update
        )

    def one_round(state, updates):
        samples = tff.federated_map(tff.tensorflow.computation(clip, RECORD), updates)
        return output(*parts.noised(tff.federated_sum(samples), state))

    return by_hand(one_round, parts.initialize)


def _model_in_the_state(parts):
    def one_round(state, updates):
        updates = minus(updates, tff.federated_broadcast(state.a))
        after, result, _ = parts.one_round(state.b, updates)
        return output(in_order(plus(state.a, result), after), result)

    return by_hand(one_round, _with_zeros(parts, tf.float32))


def _sums_part_by_part(parts):
    def one_round(state, updates):
        sample = parts.clipped(state, updates)
        sums = tuple(
            map(tff.federated_sum, (sample.record, sample.clients, sample.clipped, sample.zeroed))
        )
        return output(*parts.noised(sample_of(*sums), state))

    return by_hand(one_round, parts.initialize)


def _exact_metrics(parts):
    def one_round(state, updates):
        after, result, total = parts.one_round(state, updates)
        return output(
            after, result, in_order(count_of_clients(), tff.federated_mean(updates), total.clipped)
        )

    return by_hand(one_round, parts.initialize)


def _state_and_result(parts):
    def one_round(state, updates):
        after, result, _ = parts.one_round(state, updates)
        return after, plus(result, result)

    return by_hand(one_round, parts.initialize, tff.templates.IterativeProcess)


def _around(process):
    def one_round(state, updates):
        before = process.next(state, updates)
        return output(before.state, before.result, before.measurements)

    return by_hand(one_round, process.initialize)


@pytest.mark.parametrize(
    "build",
    [
        _constant_params,
        _model_in_the_state,
        _sums_part_by_part,
        _exact_metrics,
        _state_and_result,
        lambda parts: _around(
            federated.dp_aggregator(PLAN, clients_per_round=2, noise_seed=1).create(RECORD)
        ),
        lambda parts: tff.aggregators.DifferentiallyPrivateFactory(parts.query).create(RECORD),
        lambda parts: tff.aggregators.DifferentiallyPrivateFactory(
            tfp.NormalizedQuery(parts.query, 7.0)
        ).create(RECORD),
    ],
)
def test_other_ways_to_the_one_noised_sum_pass(build, parts):
    assert "private" in {found.role for found in federated.check_process(build(parts))}


REFUSED = []


def refused(match):
    """For a function of the query's parts, the query's state and the clients' updates that returns
    what a process's next does.
    """

    def keep(one_round):
        REFUSED.append(pytest.param(one_round, match, id=one_round.__name__))
        return one_round

    return keep


@refused(EXACT)
def plain_sum(parts, state, updates):
    return output(state, tff.federated_sum(parts.clipped(state, updates)))


@refused(NOT_THE_SUM)
def sum_by_another_operation(parts, state, updates):
    same = tff.tensorflow.computation(lambda a: a, parts.sample)
    zero = tff.tensorflow.computation(lambda: parts.query.initial_sample_state())()
    clipped = parts.clipped(state, updates)
    total = tff.federated_aggregate(clipped, zero, parts.add, parts.add, same)
    return output(*parts.noised(total, state))


@refused(NOT_THE_SUM)
def forged_sample(parts, state, updates):
    forge = tff.tensorflow.computation(
        lambda update: QuerySample(tf.cast(update, tf.float64), 1, 0, 0), RECORD
    )
    return output(*parts.noised(tff.federated_sum(tff.federated_map(forge, updates)), state))


@refused(NOT_THE_SUM)
def times_100_in_the_graph_of_clipping(parts, state, updates):
    def clip(params, update):
        sample = parts.query.preprocess_record(params, update)
        return sample._replace(record=100 * sample.record)

    clip = tff.tensorflow.computation(clip, parts.params.type_signature.result, RECORD)
    params = tff.federated_broadcast(tff.federated_map(parts.params, state))
    samples = tff.federated_map(clip, (params, updates))
    return output(*parts.noised(tff.federated_sum(samples), state))


@refused(NOT_THE_SUM)
def counts_exchanged(parts, state, updates):
    total = tff.federated_sum(parts.clipped(state, updates))
    exchanged = sample_of(total.record, total.clients, total.zeroed, total.clipped)
    return output(*parts.noised(exchanged, state))


@refused(EXACT)
def sum_added_in_the_graph_of_the_noise(parts, state, updates):
    def noise(total, state):
        result, after, _ = parts.query.get_noised_result(total, state)
        return after, result + tf.cast(total.record, tf.float32)

    noise = tff.tensorflow.computation(noise, parts.sample, parts.state)
    total = tff.federated_sum(parts.clipped(state, updates))
    return output(*tff.federated_map(noise, (total, state)))


@refused(EXACT)
def sum_through_a_variable(parts, state, updates):
    def noise(total, state):
        variable = tf.Variable(tf.zeros([3], tf.float64))
        with tf.control_dependencies([variable.assign(total.record)]):
            _, after, _ = parts.query.get_noised_result(total, state)
            return after, variable.read_value()

    noise = tff.tensorflow.computation(noise, parts.sample, parts.state)
    total = tff.federated_sum(parts.clipped(state, updates))
    return output(*tff.federated_map(noise, (total, state)))


@refused(EXACT)
def count_of_the_next_state_in_the_result(parts, state, updates):
    after, result, _ = parts.one_round(state, updates)
    return output(after, in_order(result, after.clipped))


@refused(HIDDEN)
def count_of_the_round_before_in_the_result(parts, state, updates):
    after, result, _ = parts.one_round(state, updates)
    return output(after, in_order(result, state.clipped))


@refused(EXACT)
def secure_sum_beside_the_noise(parts, state, updates):
    after, result, _ = parts.one_round(state, updates)
    exact = tff.federated_secure_sum_bitwidth(parts.clipped(state, updates).clipped, 1)
    return output(after, in_order(result, exact))


@refused("measures its clipped updates, or their sum, without noise")
def sum_in_the_measurements(parts, state, updates):
    after, result, total = parts.one_round(state, updates)
    return output(after, result, total)


@refused("the noise's key or rows in its metrics")
def state_in_the_measurements(parts, state, updates):
    after, result, _ = parts.one_round(state, updates)
    return output(after, result, after)


@refused(HIDDEN)
def key_in_the_result(parts, state, updates):
    after, result, _ = parts.one_round(state, updates)
    return output(after, in_order(result, state.noise.key))


@refused("sends its clients more of the noise's state")
def key_to_the_clients(parts, state, updates):
    key = tff.federated_broadcast(state.noise.key)
    sent = computed(lambda key, x: x + tf.cast(key[0], tf.float32), key, updates)
    return output(*parts.one_round(state, sent)[:2])


@refused("clips updates that depend on a federated_mean")
def mean_subtracted_before_clipping(parts, state, updates):
    mean = tff.federated_broadcast(tff.federated_mean(updates))
    return output(*parts.one_round(state, minus(updates, mean))[:2])


@refused(PARAMETERS)
def twice_the_clip_norm(parts, state, updates):
    params = tff.federated_map(parts.params, state)
    double = tff.tensorflow.computation(
        lambda p: p._replace(clip_norm=2 * p.clip_norm), params.type_signature.member
    )
    params = tff.federated_broadcast(tff.federated_map(double, params))
    samples = tff.federated_map(parts.clip, (params, updates))
    return output(*parts.noised(tff.federated_sum(samples), state))


@refused(ANOTHER_STATE)
def clipping_of_another_plan(parts, state, updates):
    other = Parts(plan_of(IdentityMechanism(rounds=4), clip_norm=5.0))
    samples = other.clipped(tff.federated_eval(other.initial, tff.SERVER), updates)
    return output(*parts.noised(tff.federated_sum(samples), state))


@refused(ANOTHER_STATE)
def new_state_in_every_round(parts, state, updates):
    _, result, _ = parts.one_round(tff.federated_eval(parts.initial, tff.SERVER), updates)
    return output(state, result)


@refused(HIDDEN)
def old_state_kept(parts, state, updates):
    _, result, _ = parts.one_round(state, updates)
    return output(state, result)


@refused("no aggregation of fedmf")
def result_not_used(parts, state, updates):
    parts.one_round(state, updates)
    return output(state, tff.federated_value(0, tff.SERVER))


@pytest.mark.parametrize(("one_round", "match"), REFUSED)
def test_it_is_refused(one_round, match, parts):
    process = by_hand(lambda state, updates: one_round(parts, state, updates), parts.initialize)
    with refusal(match):
        federated.check_process(process)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (lambda after, result, updates: (after, {"metrics": tff.federated_mean(updates)}), EXACT),
        (lambda *values: values, "returns values of single clients"),
    ],
    ids=["metrics by name", "the clients' values"],
)
def test_a_process_without_a_place_for_metrics_has_none(body, match, parts):
    def one_round(state, updates):
        return body(*parts.one_round(state, updates)[:2], updates)

    process = by_hand(one_round, parts.initialize, tff.templates.IterativeProcess)
    with refusal(match):
        federated.check_process(process)


def _with_zeros(parts, dtype):
    """The state of a process that keeps an array beside the query's state."""

    @tff.federated_computation
    def initialize():
        zeros = tff.tensorflow.computation(lambda: tf.zeros([3], dtype))
        return in_order(tff.federated_eval(zeros, tff.SERVER), parts.initialize())

    return initialize


def test_a_plain_sum_in_the_state_is_refused(parts):
    def one_round(state, updates):
        after, result, total = parts.one_round(state.b, updates)
        return output(in_order(total.record, after), result)

    with refusal(EXACT):
        federated.check_process(by_hand(one_round, _with_zeros(parts, tf.float64)))
