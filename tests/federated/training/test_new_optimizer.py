"""A server optimizer is one class: once registered, configurations and records use its name."""

import dataclasses
import json

import numpy as np
import pytest

from fedmf.server import optimizers
from tests.federated.small_runs import broken_off, config, train
from tests.refusals import refusal

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("clients_in_turn")]

NO_NOISE = {"family": "none", "epsilon": None}


@pytest.fixture(scope="module", autouse=True)
def heavy_ball():
    """Registers the class of an optimizer that remembers the last step."""

    @optimizers.register_server_optimizer
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class HeavyBall(optimizers.ServerOptimizer):
        """SGD with momentum, written for these tests."""

        name = "heavy_ball"
        friction: float = 0.5

        def init(self, weights):
            return [np.zeros_like(weight) for weight in weights]

        def step(self, state, weights, update, learning_rate):
            momentum = np.float32(1 - self.friction)
            state = [
                momentum * velocity + step_update
                for velocity, step_update in zip(state, update, strict=True)
            ]
            rate = np.float32(learning_rate)
            return state, [
                weight - rate * velocity for weight, velocity in zip(weights, state, strict=True)
            ]

    yield HeavyBall
    del optimizers._CLASS_BY_NAME["heavy_ball"]


def weights_of(run):
    return np.concatenate([weight.ravel() for weight in run.weights])


def test_a_registered_optimizer_trains_by_name_and_as_an_object(heavy_ball, tmp_path):
    by_name = train(tmp_path / "named", config(server_optimizer="heavy_ball"))
    default = train(tmp_path / "object", config(), server_optimizer=heavy_ball())
    smooth = train(tmp_path / "smooth", config(), server_optimizer=heavy_ball(friction=0.05))
    # The same rule as sgd, whose momentum is 1 - friction.
    sgd = train(tmp_path / "sgd", config(server_momentum=0.5))
    np.testing.assert_array_equal(weights_of(by_name), weights_of(sgd))
    np.testing.assert_array_equal(weights_of(by_name), weights_of(default))
    assert not np.allclose(weights_of(by_name), weights_of(smooth), rtol=1e-3)
    recorded = json.loads((smooth.path / "plan.json").read_text())["server_optimizer"]
    assert recorded == {"name": "heavy_ball", "friction": 0.05}
    assert smooth.config.server_optimizer == "heavy_ball"


def test_a_resume_with_another_optimizer_is_refused(heavy_ball, tmp_path):
    ball = heavy_ball(friction=0.05)
    whole_run = train(tmp_path / "whole", config(), server_optimizer=ball)
    folder = broken_off(tmp_path / "run", 2, config(), server_optimizer=ball)
    for other_optimizer in (None, heavy_ball(), heavy_ball(friction=0.06)):
        settings = config(server_optimizer="heavy_ball")
        with refusal(
            r"cannot resume .* with server_optimizer=\{.*heavy_ball.*: the run has \{.* 0\.05\}"
        ):
            train(folder, settings, resume=True, server_optimizer=other_optimizer)
    resumed_run = train(folder, config(), resume=True, server_optimizer=heavy_ball(friction=0.05))
    np.testing.assert_array_equal(weights_of(resumed_run), weights_of(whole_run))


def test_an_optimizer_object_of_fedmf_sets_the_config_fields(tmp_path):
    adam = optimizers.Adam(momentum=0.7, epsilon=0.1)
    run = train(tmp_path / "run", config(rounds=2, min_sep=2), server_optimizer=adam)
    assert run.config.server_optimizer == "adam"
    assert (run.config.server_momentum, run.config.server_epsilon) == (0.7, 0.1)
    assert run.config.server_steps() == adam


def test_weights_of_another_shape_are_refused(heavy_ball, tmp_path, monkeypatch):
    monkeypatch.setattr(
        heavy_ball, "step", lambda self, state, weights, update, rate: (state, weights[:1])
    )
    with refusal("server_optimizer=heavy_ball returned weights of shapes .* array for each weight"):
        train(tmp_path / "run", config(), server_optimizer=heavy_ball())


def test_invalid_optimizers_are_refused_before_round_0(heavy_ball, tmp_path):
    with refusal("execution=tff has no server_optimizer=heavy_ball: .* use execution=fast"):
        config("tff", server_optimizer="heavy_ball")
    with refusal("beside a config with server_optimizer=yogi"):
        settings = config(server_optimizer="yogi")
        train(tmp_path / "run", settings, server_optimizer=heavy_ball())
    with refusal("server_optimizer='sgd' must be a ", TypeError):
        train(tmp_path / "run", config(), server_optimizer="sgd")
    with refusal("has friction=.*numbers, texts", TypeError):
        heavy_ball(friction=np.ones(3)).record()
    with refusal("server_optimizer='lion' is unknown: .* heavy_ball"):
        config(server_optimizer="lion")
    undecorated = type("Undecorated", (heavy_ball,), {"name": "undecorated"})
    for invalid in (object, heavy_ball(), undecorated):
        with refusal("register a frozen dataclass", TypeError):
            optimizers.register_server_optimizer(invalid)
    for name in ("heavy_ball", "sgd", "two words", None):
        same_name = dataclasses.make_dataclass(
            "Again", [], bases=(heavy_ball,), frozen=True, kw_only=True, namespace={"name": name}
        )
        with refusal("name="):
            optimizers.register_server_optimizer(same_name)
