"""Settings of a first run: sizes, bounds of the server rate, where the others are measured, and
that they learn.
"""

import dataclasses
import shlex

import numpy as np
import pytest

import fedmf
from fedmf import TrainConfig
from fedmf.sweeps import first_settings as settings_module
from fedmf.sweeps.first_settings import first_settings
from tests.refusals import refusal
from tests.training import numpy_task

CONFIG = TrainConfig(min_sep=1, epsilon=8.0)


def unreadable(client_id):
    raise AssertionError(f"the examples of {client_id} were read")


def task_of(**changes):
    """Returns the linear task with 200 clients, whose examples no one may read."""
    task = numpy_task.linear_task()
    attributes = {"client_ids": [f"c{i}" for i in range(200)], "client_examples": unreadable}
    return dataclasses.replace(task, **(attributes | changes))


def with_others(task):
    """Returns a task after declaring that no training client is in its validation split."""
    object.__setattr__(task, "validation_clients", "others")
    return task


@pytest.mark.parametrize("num_clients", [20, 21, 199, 200, 1000, 5000, 342_477])
def test_sizes_suit_the_number_of_clients(num_clients):
    sizes = settings_module._sizes(num_clients)
    config = TrainConfig(epsilon=1.0, **sizes)
    assert num_clients / 2 < config.cohort_size * config.min_sep <= num_clients
    assert 3 <= config.participation().max_participations <= 8


def test_few_clients_are_refused():
    with refusal("has 19 training clients"):
        settings_module._sizes(19)


def noise_in_weights(config):
    """Simulates the noise in a weight by hand, and returns its standard deviation by round."""
    plan = config.plan()
    noise_rows = plan.mechanism.noising() * plan.stddev / config.cohort_size
    momentum_row = np.zeros(config.rounds)
    weight_row = np.zeros(config.rounds)
    stddevs = []
    for t, rate in enumerate(config.server_schedule().learning_rates()):
        momentum_row = config.server_momentum * momentum_row + noise_rows[t]
        weight_row = weight_row + rate * momentum_row
        stddevs.append(np.linalg.norm(weight_row))
    return np.array(stddevs)


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 50.0])
def test_step_and_noise_are_bounded_and_one_is_at_its_bound(epsilon):
    """The server rate has two digits, the first of which may be a 1."""
    config_with_epsilon = dataclasses.replace(CONFIG, epsilon=epsilon)
    config = first_settings(task_of(), config_with_epsilon, progress=False).config
    largest_noise = noise_in_weights(config).max()
    step = config.server_learning_rate * config.clip_norm
    assert step <= 0.5
    assert largest_noise <= 0.24
    assert max(step / 0.5, largest_noise / 0.24) > 0.9


def test_clip_norm_and_client_rate_are_measured_on_the_validation_split_of_others():
    """No training client's examples are read."""
    proposal = first_settings(with_others(task_of()), CONFIG, progress=False)
    config = proposal.config
    assert "the validation split" in proposal.reasons["clip_norm"]
    # The gradient of half the mean squared error has the norm of its error, which the features
    # hardly change; the best rate of a step is then about 1, and the client rate is a tenth.
    assert config.client_learning_rate in (0.03, 0.1)
    x, y = numpy_task.linear_task().split("validation")
    slopes = numpy_task.initial_weights(config.seed)[0]
    gradients = (x @ slopes - y)[:, None] * np.hstack([x, np.ones((len(x), 1))])
    norms = np.linalg.norm(gradients, axis=1)
    assert norms.min() / 3 < config.clip_norm / config.client_learning_rate < np.median(norms)
    assert set(proposal.reasons) <= {field.name for field in dataclasses.fields(config)}


def test_without_other_validation_clients_nothing_is_read():
    task = task_of(evaluation_examples=unreadable)
    proposal = first_settings(task, CONFIG, progress=False)
    assert (proposal.config.clip_norm, proposal.config.client_learning_rate) == (0.01, 0.1)
    assert "no public data" in proposal.reasons["clip_norm"]


def test_public_clients_replace_the_validation_split():
    """With features ten times as large, gradients are up to a hundred times as large."""
    norms = []
    for factor in (1, 10):
        x = factor * numpy_task.X
        public = numpy_task.linear_task(x=x, validation=(x[:40], numpy_task.Y[:40]))
        task = with_others(task_of(evaluation_examples=unreadable))
        proposal = first_settings(task, CONFIG, public_task=public, progress=False)
        norms.append(proposal.config.clip_norm / proposal.config.client_learning_rate)
        assert "20 clients of the public data" in proposal.reasons["clip_norm"]
    assert norms[1] > 5 * norms[0]


def test_the_command_makes_the_proposed_config():
    proposal = first_settings(with_others(task_of()), CONFIG, progress=False)
    words = shlex.split(proposal.command())
    assert words[:2] == ["fedmf", "train"]
    flag_values = dict(zip(words[2::2], words[3::2], strict=True))
    assert flag_values.pop("--noise-seed") == "os"
    assert flag_values.pop("--out") == "runs/first"
    for flag, value in flag_values.items():
        field_value = getattr(proposal.config, flag[2:].replace("-", "_"))
        assert str(field_value) == value
    assert float(flag_values["--epsilon"]) == 8


@pytest.mark.parametrize("is_measured", [False, True])
def test_proposed_settings_learn(is_measured, tmp_path):
    """The slopes of the linear model are found up to the noise, in ten times its final loss."""
    task = numpy_task.linear_task(client_ids=np.arange(160) // 4)
    public_task = task if is_measured else None
    config = dataclasses.replace(CONFIG, epsilon=50.0)
    proposal = first_settings(task, config, public_task=public_task, progress=False)
    run = fedmf.training.train(
        task, proposal.config, folder=tmp_path / "run", noise_seed="os", progress=False
    )
    untrained = numpy_task.evaluate(numpy_task.initial_weights(0), task.split("validation"))
    assert run.result["validation"]["loss"] < untrained["loss"] / 4
