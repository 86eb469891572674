"""Settings of a first run: sizes, where they are measured, and that they learn."""

import dataclasses
import math
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


@pytest.fixture
def simulated_rates(monkeypatch):
    """Replaces simulated runs by a loss that is least at the server rate 0.1, and infinite above
    0.3.
    """
    tried_rates = []

    def loss_of_run(simulation, rate):
        tried_rates.append(rate)
        return math.inf if rate > 0.3 else abs(math.log10(rate) + 1)

    monkeypatch.setattr(settings_module._Simulation, "_loss_of_run", loss_of_run)
    return tried_rates


@pytest.mark.parametrize("num_clients", [20, 21, 199, 200, 1000, 5000, 342_477])
def test_sizes_suit_the_number_of_clients(num_clients):
    sizes = settings_module._sizes(num_clients)
    config = TrainConfig(epsilon=1.0, **sizes)
    assert num_clients / 2 < config.cohort_size * config.min_sep <= num_clients
    assert 3 <= config.participation().max_participations <= 8


def test_few_clients_are_refused():
    with refusal("has 19 training clients"):
        settings_module._sizes(19)


def test_rates_are_measured_on_the_validation_split_of_others(simulated_rates):
    """No training client's examples are read."""
    proposal = first_settings(with_others(task_of()), CONFIG, progress=False)
    config = proposal.config
    assert (config.server_learning_rate, config.clip_quantile) == (0.1, None)
    assert simulated_rates == [1.0, 3.0, 0.3, 0.1, 0.03]
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


def test_without_other_validation_clients_the_clip_norm_is_a_private_quantile(simulated_rates):
    proposal = first_settings(task_of(), CONFIG, progress=False)
    assert simulated_rates == []
    assert proposal.config.clip_quantile == 0.5
    assert "private quantile" in proposal.reasons["clip_quantile"]
    assert proposal.config.plan().quantile_clipping is not None


def test_public_clients_replace_the_validation_split(simulated_rates):
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


def test_settings_of_a_plan_with_which_every_run_diverges_are_refused(monkeypatch):
    monkeypatch.setattr(
        settings_module._Simulation, "_loss_of_run", lambda simulation, rate: math.inf
    )
    with refusal("simulated runs diverged with all of"):
        first_settings(with_others(task_of()), CONFIG, progress=False)


def test_the_command_makes_the_proposed_config(simulated_rates):
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


def test_proposed_settings_learn(tmp_path):
    """The slopes of the linear model are found up to the noise, in ten times its final loss."""
    task = with_others(numpy_task.linear_task(client_ids=np.arange(160) // 4))
    proposal = first_settings(task, dataclasses.replace(CONFIG, epsilon=50.0), progress=False)
    run = fedmf.training.train(
        task, proposal.config, folder=tmp_path / "run", noise_seed="os", progress=False
    )
    untrained = numpy_task.evaluate(numpy_task.initial_weights(0), task.split("validation"))
    assert run.result["validation"]["loss"] < untrained["loss"] / 4
