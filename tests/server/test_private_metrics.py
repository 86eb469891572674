"""Private metrics: the contribution of a client, the joint privacy cost, their noise, and
deviations of means over rounds.
"""

import dataclasses
import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import fedmf
from fedmf.privacy.plan import (
    bit_stddev,
    metric_stddev,
    update_noise_multiplier,
)
from fedmf.server.audit import audit_mechanism
from fedmf.server.host_noise import HostNoise
from fedmf.server.metrics_stream import MetricsStream
from tests.power import FALSE_POSITIVE_RATE, missed_by_correlation, trials_that_detect
from tests.refusals import refusal

ROUNDS = 6


@functools.cache
def plan_of(share=0.02, family="banded", **options):
    """Returns a plan of six rounds, in which clients take part in every second one."""
    loss_options = {"largest_loss": 8.0} if share else {}
    config = fedmf.PlanConfig(
        rounds=ROUNDS, min_sep=2, family=family, private_metrics=share,
        **loss_options, **({"noise_multiplier": 1.0} | options),
    )  # fmt: skip
    return config.plan()


def metrics_of(plan=None, noise_seed=1):
    return MetricsStream(plan or plan_of(), noise_seed=noise_seed)


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 8.0, 1e308])


@given(loss=numbers, accuracy=numbers)
def test_contribution_has_norm_at_most_one(loss, accuracy):
    contribution = metrics_of().contribution({"loss": loss, "accuracy": accuracy})
    assert sum(Fraction(float(x)) ** 2 for x in contribution) <= 1
    assert contribution[0] > 0.57735
    assert np.isfinite(contribution).all()
    # Sums of these values are exact in any order.
    assert all((Fraction(float(x)) * 2**30).denominator == 1 for x in contribution)


@pytest.mark.parametrize("value", ["2.5", True], ids=repr)
def test_invalid_metrics_are_refused_without_showing_them(value):
    with refusal(f"`metrics` has a {type(value).__name__} for loss", TypeError) as caught:
        metrics_of().contribution({"loss": value, "accuracy": 0.5})
    assert repr(value) not in str(caught.value)


def test_values_outside_the_range_are_clipped_and_not_finite_ones_are_worst():
    metrics = metrics_of()

    def centred(loss, accuracy=0.25):
        contribution = metrics.contribution({"loss": loss, "accuracy": accuracy})
        return [*(contribution[[2, 1]] / contribution[0])]

    for loss, expected in (
        (8.0, 1), (math.inf, 1), (2.0, -0.5), (10**400, 1), (-(10**400), -1), (np.int64(4), 0),
    ):  # fmt: skip
        assert centred(loss) == pytest.approx([expected, -0.5])
    # The largest output of a model whose outputs are NaN is the first: its accuracy says nothing.
    for loss in (math.nan, -math.inf, np.float32("nan")):
        assert centred(loss) == pytest.approx([1, -1])
    for accuracy in (math.nan, math.inf, -math.inf):
        assert centred(2.0, accuracy) == pytest.approx([-0.5, -1])


def test_a_share_of_one_fiftieth_adds_one_percent_of_noise_to_updates():
    """The figures are at delta 1e-6, for independent rows and a mean of 1000 clients."""
    plan = fedmf.PlanConfig(
        rounds=1, schema="single", family="identity", epsilon=4.0, private_metrics=0.02
    ).plan()
    assert update_noise_multiplier(plan) / plan.noise_multiplier == pytest.approx(1.0102, abs=5e-5)
    z_m = plan.private_metrics.noise_multiplier(plan.noise_multiplier)
    assert z_m == pytest.approx(8.439, abs=5e-4)
    assert metric_stddev(plan) / 1000 == pytest.approx(0.0084, abs=5e-5)


def largest_shift(plan, deviations, seed):
    """Returns the largest norm of C x / deviation, over all streams together, that hostile clients
    reach.

    Deviations are of the streams of updates, of bits with quantile_clipping, and of metrics, each
    for parts of norm 1, of 1/2 for a bit.
    """
    C = plan.mechanism.encoder()
    rng = np.random.default_rng(seed)
    patterns = [
        list(rounds)
        for size in range(1, ROUNDS + 1)
        for rounds in itertools.combinations(range(ROUNDS), size)
        if all(b - a >= 2 for a, b in itertools.pairwise(rounds))
    ]
    longest = 0.0
    for rounds in patterns:
        for is_same in (True, False):
            squared_norm = 0.0
            for deviation, norm in deviations:
                client_parts = rng.standard_normal((1 if is_same else len(rounds), 3))
                client_parts *= norm / np.linalg.norm(client_parts, axis=1, keepdims=True)
                squared_norm += (
                    np.linalg.norm(C[:, rounds] @ np.broadcast_to(client_parts, (len(rounds), 3)))
                    ** 2
                    / deviation**2
                )
            longest = max(longest, math.sqrt(squared_norm))
    return longest


@pytest.mark.parametrize("clip", [{}, {"clip_quantile": 0.5, "clip_share": 0.2}])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_all_streams_together_have_the_cost_of_the_plan(share, clip):
    plan = plan_of(share, **clip)
    streams = [(plan.stddev / plan.clip_norm, 1.0), (metric_stddev(plan), 1.0)]
    if clip:
        streams.append((bit_stddev(plan), 0.5))
    budget = 1 / plan.noise_multiplier
    largest_norm = largest_shift(plan, streams, seed=1)
    assert largest_norm <= budget * (1 + 1e-9)
    assert largest_norm == pytest.approx(budget, rel=1e-6)  # The whole budget is spent.
    # These metrics are beside updates that do not pay for them.
    plan_without_metrics = dataclasses.replace(plan, private_metrics=None)
    streams[0] = (plan_without_metrics.stddev / plan.clip_norm, 1.0)
    assert largest_shift(plan, streams, seed=1) > budget * (1 + share / 4)


def test_metric_noise_is_of_the_plan_and_independent_of_updates():
    """Decoded noise is white with deviation 1, and has no correlation of 0.2 with the updates'
    rows.

    The control is a stream of the updates' own seed.
    """
    plan = plan_of(0.25)
    size = 3
    seeds = trials_that_detect(
        lambda n: missed_by_correlation(n * ROUNDS * size, 0.2, FALSE_POSITIVE_RATE / 4)
    )
    C = plan.mechanism.encoder()
    white = []
    updates = []
    for seed in range(seeds):
        metrics = metrics_of(plan, noise_seed=seed)
        rows = np.array([metrics.release(t, metrics.empty_sum()) for t in range(ROUNDS)])
        white.append(C @ rows / metric_stddev(plan))
        host = HostNoise(plan, size, noise_seed=seed)
        updates.append(C @ np.array([host.row(t) for t in range(ROUNDS)]))
    white = np.array(white)
    updates = np.array(updates)
    n = white.size
    squares = float((white**2).sum())
    assert min(scipy.stats.chi2.cdf(squares, n), scipy.stats.chi2.sf(squares, n)) > (
        FALSE_POSITIVE_RATE / 8
    )
    limit = scipy.stats.norm.isf(FALSE_POSITIVE_RATE / 8) / math.sqrt(n)
    round_products = white[:, 1:] * white[:, :-1]
    assert abs(float(np.mean(white * updates))) < limit
    assert abs(float(round_products.sum())) / n < limit
    assert abs(float(np.mean(updates * updates))) > limit  # This is the negative control.


@pytest.mark.parametrize(
    "family", ["banded", *(pytest.param(f, marks=pytest.mark.slow) for f in ("identity", "tree"))]
)
def test_means_over_rounds_have_the_stated_deviation(family):
    """By chi-square over seeds, at a false-positive rate of 1e-6. The controls state a deviation of
    rounds whose noise were independent, which correlated noise stays below, and one without the
    noise of the count, which is as large as that of the sum where the mean is the end of its range.
    """
    plan = plan_of(0.25, family)
    window = range(2, 5)
    clients = 2000
    seeds = 400
    stated_ratios = []
    independent_ratios = []
    losses = []
    for seed in range(seeds):
        metrics = metrics_of(plan, noise_seed=seed)
        round_values = metrics.contribution({"loss": 8.0, "accuracy": 0.5})
        releases = [metrics.release(t, clients * round_values).astype(float) for t in window]
        window_values = metrics.values(window, sum(releases))
        count_error = window_values["clients"] - clients * len(window)
        stated_ratios.append(count_error / window_values["stddev"]["clients"])
        singles = [
            metrics.values(range(t, t + 1), release)
            for t, release in zip(window, releases, strict=True)
        ]
        independent_ratios.append(
            count_error
            / math.hypot(*(round_values["stddev"]["clients"] for round_values in singles))
        )
        losses.append((window_values["loss"] - 8.0) / window_values["stddev"]["loss"])
        assert abs(window_values["accuracy"] - 0.5) < 7 * window_values["stddev"]["accuracy"]

    def fit(values):
        squares = float(np.sum(np.square(values)))
        p_value = 2 * min(scipy.stats.chi2.cdf(squares, seeds), scipy.stats.chi2.sf(squares, seeds))
        return p_value > FALSE_POSITIVE_RATE

    assert fit(stated_ratios)
    assert fit(losses)
    assert not fit(np.sqrt(2) * np.array(losses))
    assert fit(independent_ratios) == (family == "identity")


def test_means_without_clients_are_mid_range():
    metrics = metrics_of()
    mid_values = metrics.values(range(1), np.array([0.1, 5.0, -3.0]))
    assert (mid_values["loss"], mid_values["accuracy"]) == (4.0, 0.5)


def test_plans_refuse_private_metrics_that_cannot_be_released():
    with refusal("share=1.0"):
        fedmf.PrivateMetrics(share=1.0)
    with refusal("largest_loss=0"):
        fedmf.PrivateMetrics(share=0.1, largest_loss=0)
    with refusal("with noise_multiplier=0"):
        dataclasses.replace(plan_of(0.5), noise_multiplier=0.0)
    with refusal("private_metrics=0.5 must be a fedmf.PrivateMetrics", TypeError):
        dataclasses.replace(plan_of(0.5), private_metrics=0.5)
    with refusal(r"metrics=\['loss'\]: give numbers for accuracy and loss"):
        metrics_of().contribution({"loss": 1.0})
    with refusal("`metrics` is a list", TypeError):
        metrics_of().contribution([1.0, 2.0])
    with refusal(r"private_metrics=0\.5 of the plan are not audited"):
        audit_mechanism(plan_of(0.5), seed=1, trials=0)


def server_of(plan=None, **options):
    options = {"shapes": [(2,)], "clients_per_round": 3, "noise_seed": 1} | options
    return fedmf.Server(plan or plan_of(0.25), **options)


CLIENTS = {"ann": {"loss": 2.0, "accuracy": 0.5}, "bo": {"loss": math.inf, "accuracy": 0.0}}


def test_server_releases_metrics_with_each_round_and_after_open(tmp_path):
    folder = tmp_path / "server"
    server = server_of(folder=folder)
    metrics = metrics_of(plan_of(0.25))
    assert server.metrics is None
    for client, values in CLIENTS.items():
        server.add([np.ones(2)], client=client, metrics=values)
    server.add([np.ones(2)], client="cy")  # This client has no metrics.
    server.release()
    total = sum(metrics.contribution(values) for values in CLIENTS.values())
    expected = metrics.values(range(1), metrics.release(0, total))
    assert server.metrics == expected
    assert "Metrics of each round are released" in " ".join(server.statement().split())
    server.close()
    with fedmf.Server.open(folder) as reopened_server:
        assert reopened_server.metrics == expected
        reopened_server.release()  # These are metrics of no client.
        assert reopened_server.metrics == metrics.values(
            range(1, 2), metrics.release(1, metrics.empty_sum())
        )


def test_server_refuses_metrics_that_it_would_not_release():
    plain_server = server_of(plan_of(0.0))
    server = server_of()
    with refusal("the plan pays for none"):
        plain_server.add([np.ones(2)], client="ann", metrics={"loss": 1.0})
    with refusal("give numbers for"):
        server.add([np.ones(2)], client="ann", metrics={"loss": 1.0})
    for ready_server in (plain_server, server):  # No refused call counted the client.
        ready_server.add([np.ones(2)], client="ann")
    with refusal("add updates one by one"):
        server.add_sum([np.ones(2)], clients=["bo"])
