"""Warnings of a diverging run, the learning rate that they suggest, and the warning before
training.
"""

import dataclasses

import numpy as np
import pytest

import fedmf
from fedmf.training.divergence import (
    FACTOR,
    ROUNDS_ABOVE_START,
    START_ROUNDS,
    DivergenceWatch,
    _loss_and_examples,
    rate_for_noise,
    rate_warning,
)


@pytest.fixture(scope="module")
def plan():
    return config().plan()


def config(**changes):
    """Returns the config of a run of the plan."""
    settings = {
        "rounds": 64, "min_sep": 16, "family": "identity", "noise_multiplier": 3.0,
        "clip_norm": 0.5, "cohort_size": 20,
    }  # fmt: skip
    return fedmf.TrainConfig(**settings | changes)


def rate_of(plan, **changes):
    rmse = fedmf.rmse(plan.mechanism, fedmf.prefix_sum(64), plan.participation)
    return rate_for_noise(plan, config(**changes), rmse)


def watch(plan, rate=1.0):
    return DivergenceWatch(server_learning_rate=rate, rate_for_noise=rate_of(plan))


def warnings_by_round(watch, losses, examples=100):
    """Returns the warnings by round."""
    messages = {t: watch.observe(t, float(loss), examples) for t, loss in enumerate(losses)}
    return {t: sentence for t, sentence in messages.items() if sentence}


def noisy(losses, seed=0):
    return losses * np.random.default_rng(seed).lognormal(0, 0.2, len(losses))


@pytest.mark.parametrize(
    "losses",
    [
        np.linspace(6, 2, 400),
        np.full(400, 6.0),  # This run learns nothing.
        # These losses become worse, but stay below the start.
        np.r_[np.linspace(6, 3, 100), np.linspace(3, 5, 300)],
        # Bad rounds, of which a single one below the start restarts the count.
        np.r_[np.full(START_ROUNDS, 6.0), np.tile([*np.full(ROUNDS_ABOVE_START - 1, 30), 3], 5)],
    ],
)
def test_runs_that_do_not_diverge_do_not_warn(plan, losses):
    """False positives: one run that learns nothing warns in 1 of 2500, 20 runs in 1 of 125."""
    assert [warnings_by_round(watch(plan), noisy(losses, seed)) for seed in range(20)] == [{}] * 20


def test_a_diverging_run_warns_once(plan):
    losses = np.r_[[5.7, 5.5, 4, 3, 3, 4, 5], 6 + 2.0 ** np.arange(60)]
    messages = warnings_by_round(watch(plan), losses)
    assert [*messages] == [7 + ROUNDS_ABOVE_START - 1]
    (sentence,) = messages.values()
    assert f"is {losses[26]:.3g}, and for {ROUNDS_ABOVE_START} rounds it was above 5.7" in sentence
    assert "smaller `server_learning_rate` than 1, such as" in sentence


@pytest.mark.parametrize("leap", range(1, START_ROUNDS))
def test_a_loss_that_leaps_in_the_first_rounds_warns(plan, leap):
    """The losses are of two runs: a Poisson loss of counts, and private losses at their maximum."""
    losses = np.r_[11.93, [9.0, 7.0, 6.0, 5.5][: leap - 1], np.tile([46.5, 43.8], 40)]
    messages = warnings_by_round(watch(plan), losses)
    assert [*messages] == [leap + ROUNDS_ABOVE_START - 1]
    assert "was above 11.9, that of the model that it began with" in messages[19 + leap]
    capped = np.r_[9.2, 9.2 + 0.2 * np.arange(leap - 1), [10.0] * ROUNDS_ABOVE_START]
    assert len(warnings_by_round(watch(plan), capped)) == 1


def test_a_private_loss_of_no_client_does_not_count():
    """Such a loss is the middle of its range, whatever the model."""
    row = {"train_loss": 1.0, "examples": 9, "private": {"clients": 0.7, "loss": 5.0}}
    assert _loss_and_examples(row) == (5.0, 0)
    row["private"]["clients"] = 1.2
    assert _loss_and_examples(row) == (5.0, 1)


@pytest.mark.parametrize("loss", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_warns_at_once(plan, loss):
    messages = warnings_by_round(watch(plan), [5.0, loss, loss])
    assert [*messages] == [1]
    assert f"loss of round 1 is {loss}" in messages[1]


def test_rounds_without_examples_do_not_count(plan):
    watching = watch(plan)
    losses = [5.0] * START_ROUNDS + [9.0] * (ROUNDS_ABOVE_START - 1)
    for t, loss in enumerate(losses):
        assert watching.observe(2 * t, loss, 10) is None
        assert watching.observe(2 * t + 1, 0.0, 0) is None
    assert watching.observe(2 * len(losses), 9.0, 10)


def test_the_suggested_rate_is_at_most_the_rate_of_the_run(plan):
    rate = rate_of(plan)
    assert f"such as {rate:.2g}, which" in warnings_by_round(watch(plan), [np.nan])[0]
    assert warnings_by_round(watch(plan, rate / 2), [np.nan])[0].endswith(
        f"_rate` than {rate / 2:g}"
    )


def silent(plan):
    return dataclasses.replace(plan, noise_multiplier=0.0)


def test_without_noise_there_is_no_rule(plan):
    assert rate_of(silent(plan)) is None
    assert warnings_by_round(watch(silent(plan)), [np.inf])[0].endswith(
        "server_learning_rate` than 1"
    )
    assert rate_warning(None, config(server_learning_rate=1e6)) is None


def test_the_rule_is_for_a_server_of_sgd(plan):
    assert rate_of(plan, server_optimizer="adam") is None
    # Without momentum a step counts once, and not 1 / (1 - 0.95) = 20 times.
    assert rate_of(plan, server_momentum=0.0) == pytest.approx(20 * rate_of(plan))
    # The claimed cohort divides the noise of a simulation, as the run's own cohort divides that of
    # the run.
    simulating_plan = plan.simulating(simulated=20, claimed=60)
    assert rate_of(simulating_plan, claimed_cohort=60) > 2 * rate_of(plan)


def test_a_learning_rate_far_too_large_for_the_noise_warns(plan):
    rate = rate_of(plan)
    assert rate_warning(rate, config(server_learning_rate=FACTOR * rate)) is None
    messages = rate_warning(rate, config(server_learning_rate=20 * rate))
    assert messages.startswith(
        f"server_learning_rate={20 * rate:g} is 20 times the {rate:.2g} that"
    )
