"""Runs of PyTorch tasks: resume, evaluation, export, warm starts and frozen weights."""

import dataclasses
import json
import pickle
import time

import numpy as np
import pytest
import torch

import fedmf
from fedmf import pytorch
from fedmf.pytorch import evaluation
from fedmf.training.learner import Machine
from tests.pytorch import small_models


def same_weights(first, second):
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns a finished run."""
    return small_models.train(tmp_path_factory.mktemp("runs") / "run")


def test_a_resumed_run_has_the_same_bits(run, tmp_path):
    folder = tmp_path / "run"
    small_models.train(folder, callbacks=[pytorch.StopAfter(1)])
    resumed = small_models.train(folder, resume=True)
    assert same_weights(resumed.weights, run.weights)
    assert resumed.metrics == run.metrics


def test_a_run_is_not_resumed_with_another_model(tmp_path):
    folder = tmp_path / "run"
    small_models.train(folder, callbacks=[pytorch.StopAfter(1)])

    def with_tanh():
        return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))

    with pytest.raises(ValueError, match=r"module 1 is .*Tanh"):
        small_models.train(folder, small_task=small_models.task(with_tanh), resume=True)


def test_the_model_has_the_trained_weights_and_metrics(run):
    model = run.model()
    assert not model.training
    parameters = [parameter.detach().numpy() for parameter in model.parameters()]
    assert same_weights(parameters, run.weights)
    x, y = run.task.split("test")
    outputs = model(torch.tensor(x))
    accuracy = (outputs.argmax(1) == torch.tensor(y)).double().mean()
    loss = torch.nn.functional.cross_entropy(outputs, torch.tensor(y))
    values = run.evaluate("test")
    assert list(values) == ["loss", "accuracy"]
    assert values["accuracy"] == pytest.approx(accuracy.item(), abs=1e-12)
    assert values["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert run.result["test"] == values


@pytest.mark.filterwarnings("ignore:fine-tuning made")
def test_clients_are_evaluated_and_fine_tuned(run, tmp_path):
    assert run.evaluate_clients()["clients"] == len(small_models.SIZES)
    settings = small_models.config(rounds=1, min_sep=1, family="identity", noise_multiplier=0.0)
    noiseless = small_models.train(tmp_path / "run", settings)
    losses = noiseless.evaluate_fine_tuned(2, learning_rate=0.02)["metrics"]["loss"]
    assert losses["clients"] == sum(size > 1 for size in small_models.SIZES)
    assert losses["after"]["mean"] != losses["before"]["mean"]


def test_an_exported_state_is_the_start_of_another_run(run, tmp_path):
    model = run.export(tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    for origin in (tmp_path / "model.pt", run.path):
        settings = small_models.config(initial_model=str(origin))
        folder = tmp_path / origin.stem
        warm = small_models.train(folder, settings, callbacks=[pytorch.StopAfter(1)])
        assert same_weights(warm.task.initial_weights(0), run.weights)
    assert "model.pt" in (tmp_path / "model" / "statement.md").read_text()


def test_other_files_are_refused(run, tmp_path):
    with pytest.raises(ValueError, match=r"out=.*model.keras.*name a FILE.pt"):
        run.export(tmp_path / "model.keras")
    torch.save(torch.nn.Linear(4, 3).state_dict(), tmp_path / "other.pt")
    (tmp_path / "damaged.pt").write_bytes(b"damaged")
    for name, message in (
        ("other.pt", r"names are not those of the model: \['0.weight'"),
        ("damaged.pt", "PyTorch cannot load it"),
    ):
        settings = small_models.config(initial_model=str(tmp_path / name))
        with pytest.raises(ValueError, match=message):
            small_models.train(tmp_path / "run", settings)


def with_frozen_layer():
    model = small_models.perceptron()
    model[0].requires_grad_(False)
    return model


def test_frozen_parameters_are_kept_and_stated(tmp_path):
    task = small_models.task(with_frozen_layer)
    run = small_models.train(tmp_path / "run", small_task=task)
    assert [weight.shape for weight in run.weights] == [(3, 16), (3,)]
    model = run.model()
    untrained = task.build_model(3)
    assert torch.equal(model[0].weight, untrained[0].weight)
    assert not torch.equal(model[2].weight, untrained[2].weight)
    record = json.loads((run.path / "plan.json").read_text())["frozen_weights"]
    assert record["number"] == 4 * 16 + 16
    for name in ("statement.md", "final_statement.md"):
        text = " ".join((run.path / name).read_text().split())
        assert "80 further numbers of the model" in text
        assert record["digest"] in text
        assert "does not cover the data that they were trained on" in text


def test_frozen_parameters_are_part_of_the_fingerprint(tmp_path):
    folder = tmp_path / "run"
    small_models.train(
        folder, small_task=small_models.task(with_frozen_layer), callbacks=[pytorch.StopAfter(1)]
    )

    def other_frozen_values():
        model = with_frozen_layer()
        model[0].weight.add_(1e-3)
        return model

    with pytest.raises(ValueError, match="the frozen weights differ"):
        small_models.train(folder, small_task=small_models.task(other_frozen_values), resume=True)


def test_a_shared_parameter_is_sent_once(tmp_path):
    task = small_models.task(small_models.Words)
    names = [tuple(weight.shape) for weight in task.initial_weights(0)]
    assert names.count((16, 16)) == 1
    run = small_models.train(tmp_path / "run", small_task=task)
    model = run.model()
    assert model.output.weight is model.vectors.weight
    run.export(tmp_path / "model.pt")
    assert len(task.learner.load_weights(tmp_path / "model.pt")) == len(names)


def test_the_same_seed_gives_the_same_weights_and_leaves_the_generators():
    task = small_models.task()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, second = (task.learner.initial_weights(seed) for seed in (3, 3))
    assert same_weights(first, second)
    assert not same_weights(first, task.learner.initial_weights(4))
    assert torch.equal(state, torch.get_rng_state())


def test_the_learner_has_no_examples_when_it_is_pickled():
    task = small_models.task(small_models.Words, metrics={})
    task = dataclasses.replace(task, build_model=build_words)
    assert len(pickle.dumps(task.learner)) < 2000


def build_words(seed):
    torch.manual_seed(seed)
    return small_models.Words()


def test_a_device_is_one_of_this_machine(tmp_path):
    with pytest.raises(ValueError, match="device"):
        small_models.train(tmp_path / "run", device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device='cuda' needs a GPU"):
            small_models.train(tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()
    small_models.train(tmp_path / "run", device="cpu", callbacks=[pytorch.StopAfter(1)])


def test_a_run_is_clipped_and_noised(tmp_path):
    settings = small_models.config(clip_norm=1e-3, noise_multiplier=0.0, rounds=2)
    run = small_models.train(tmp_path / "run", settings)
    assert [row["clip_fraction"] for row in run.metrics] == [1.0, 1.0]
    noisy = small_models.train(
        tmp_path / "noisy", dataclasses.replace(settings, noise_multiplier=1.0)
    )
    assert not same_weights(run.weights, noisy.weights)


def test_state_arrays_leave_counters_out():
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    state = module.state_dict()
    arrays = pytorch.arrays_of_state(state)
    assert len(arrays) == len(state) - 1
    participation = fedmf.Participation(rounds=2, schema="every_round")
    mechanism = fedmf.fit(fedmf.prefix_sum(2), participation, family="identity")
    plan = fedmf.Plan(
        mechanism=mechanism, participation=participation, noise_multiplier=1.0, clip_norm=1.0,
        delta=1e-6,
    )  # fmt: skip
    server = fedmf.Server(
        plan, shapes=[array.shape for array in arrays], clients_per_round=1, noise_seed=1
    )
    server.add(arrays, client=0)
    moved = [array + 1 for array in arrays]
    new_state = pytorch.state_of_arrays(moved, state)
    assert list(new_state) == list(state)
    module.load_state_dict(new_state)
    assert same_weights(pytorch.arrays_of_state(module.state_dict()), moved)
    with pytest.raises(ValueError, match="arrays have the shapes"):
        pytorch.state_of_arrays(arrays[1:], state)
    with pytest.raises(TypeError, match="pass module.state_dict"):
        pytorch.arrays_of_state(module)


def test_a_client_with_nan_counts_as_zeroed(tmp_path):
    x, y = small_models.examples_of(small_models.perceptron, np.random.default_rng(5))

    def client_examples(client):
        rows = int(client) == small_models.OWNERS
        return np.where(client == "4", np.nan, x[rows]).astype(np.float32), y[rows]

    task = pytorch.Task(
        name="functions",
        client_ids=[str(client) for client in range(8)],
        client_examples=client_examples,
        evaluation_examples=lambda split: (x, y),
        batch_size=3,
        build_model=lambda seed: torch.nn.Linear(4, 3),
        loss=torch.nn.functional.cross_entropy,
    )
    settings = small_models.config(cohort_size=8, min_sep=1, family="identity")
    with pytest.raises(ValueError, match="other weights for the same seed"):
        small_models.train(tmp_path / "run", settings, task)
    task = dataclasses.replace(task, build_model=seeded_linear)
    with pytest.warns(UserWarning, match="client '4'.* its update is zeroed"):
        run = small_models.train(tmp_path / "run", settings, task)
    assert [row["zeroed"] for row in run.metrics] == [1, 1, 1]
    assert run.result["test"] == {"loss": pytest.approx(run.result["test"]["loss"])}


def seeded_linear(seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(4, 3)


def test_the_public_names():
    assert {"Task", "train", "arrays_of_state", "state_of_arrays"} <= set(pytorch.__all__)
    assert all(hasattr(pytorch, name) for name in pytorch.__all__)


class WithScratch(torch.nn.Module):
    """A model that keeps its hidden layer as an attribute while it computes."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        self.hidden = self.layer(x)
        time.sleep(0.001)
        return self.hidden


def test_threads_that_evaluate_share_no_attributes(monkeypatch):
    monkeypatch.setattr(evaluation, "MAX_BATCH_EXAMPLES", 1)
    monkeypatch.setattr(evaluation, "cores", lambda: 4)
    task = small_models.task(WithScratch)
    settings = task.client_settings(small_models.config())
    evaluate = task.learner.evaluator(settings, Machine())
    weights = task.initial_weights(3)
    examples = task.split("test")
    outputs = task.learner.model(weights, 3)(torch.tensor(examples[0]))
    loss = torch.nn.functional.cross_entropy(outputs, torch.tensor(examples[1]))
    assert evaluate(weights, examples).values["loss"] == pytest.approx(loss.item(), rel=1e-6)


def erasing(outputs, labels):
    """Returns an accuracy, and writes to the outputs."""
    values = small_models.accuracy(outputs, labels)
    outputs.zero_()
    return values


def test_a_metric_that_writes_to_the_outputs_changes_no_other_metric():
    metrics = {"first": erasing, "second": small_models.accuracy}
    task = small_models.task(metrics=metrics)
    settings = task.client_settings(small_models.config())
    values = task.learner.evaluator(settings, Machine())(
        task.initial_weights(3), task.split("test")
    ).values
    assert values["first"] == values["second"]


class WithNumber(torch.nn.Linear):
    """A model with a number that it does not show."""

    def __init__(self, number):
        super().__init__(4, 3)
        self._number = number


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ({"model": lambda: WithNumber(1)}, {"model": lambda: WithNumber(2)}, "_number"),
        (
            {"loss": torch.nn.CrossEntropyLoss()},
            {"loss": torch.nn.CrossEntropyLoss(label_smoothing=0.1)},
            "loss",
        ),
    ],
)
def test_numbers_of_modules_and_losses_are_part_of_the_fingerprint(first, second, name):
    fingerprints = [
        small_models.task(**changes).learner.fingerprint(3) for changes in (first, first, second)
    ]
    assert fingerprints[0] == fingerprints[1]
    changed = [key for key in fingerprints[2] if fingerprints[2][key] != fingerprints[0][key]]
    assert [key for key in changed if name in key] == changed


def test_tensors_that_become_no_arrays_have_a_text():
    model = WithNumber(torch.eye(3).to_sparse())
    model.shape_only = torch.zeros(3, device="meta")
    names = small_models.task(lambda: model).learner.fingerprint(3)
    assert "attribute _number" in names
    assert "attribute shape_only" in names


def test_a_file_with_two_values_of_a_shared_parameter_is_refused(tmp_path):
    task = small_models.task(small_models.Words)
    state = dict(task.build_model(3).state_dict())
    state["output.weight"] = state["output.weight"] + 1
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="'vectors.weight' and 'output.weight' have different"):
        task.learner.load_weights(tmp_path / "model.pt")
