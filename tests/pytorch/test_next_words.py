"""The next-word model in PyTorch beside the Keras model, from the same weights."""

import numpy as np
import pytest
import torch

import fedmf
from fedmf import tasks
from fedmf.tasks import stackoverflow
from fedmf.tasks.stackoverflow import torch_model
from fedmf.tasks.stackoverflow.prediction import next_words as next_words_of
from fedmf.tasks.stackoverflow.preprocessing import SpecialIds
from fedmf.tasks.stackoverflow.torch_lstm import recurrence
from tests.tasks import next_words


@pytest.mark.parametrize("form", next_words.FORMS)
def test_gradient_update_movement_and_metrics_are_those_of_keras(form):
    kept = np.load(next_words.KEPT)
    distance_by_name = next_words.distances(kept, next_words.results(form, "torch"))
    assert distance_by_name[f"{form} gradient"] < 1e-6
    assert distance_by_name[f"{form} update"] < 1e-5
    assert distance_by_name[f"{form} movement"] < 1e-5
    assert distance_by_name[f"{form} metrics"] < 1e-6


@pytest.mark.parametrize("form", next_words.FORMS)
def test_stacked_gradients_are_those_of_single_clients(form):
    options = next_words.options_of(form, "torch")
    task = next_words.task_of(options)
    model = task.build_model(0)
    batches = [next_words.sentences(options, 3, np.random.default_rng(seed)) for seed in range(2)]
    x, y = (torch.tensor(np.stack(arrays)).long() for arrays in zip(*batches, strict=True))
    weights = dict(model.named_parameters())

    def loss_of(weights, x, y):
        return task.loss(torch.func.functional_call(model, weights, (x,)), y)

    stacked = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(weights, x, y)
    for client in range(2):
        gradients = torch.autograd.grad(
            loss_of(weights, x[client], y[client]), list(weights.values())
        )
        for gradient, name in zip(gradients, weights, strict=True):
            torch.testing.assert_close(stacked[name][client], gradient, atol=1e-7, rtol=1e-4)


def test_the_model_has_the_published_size():
    shapes = [tuple(p.shape) for p in torch_model.NextWord(0, form="published").parameters()]
    assert len(shapes) == 8
    assert sum(int(np.prod(shape)) for shape in shapes) == 4_050_748
    assert shapes == [
        weight.shape
        for weight in next_words.weights_of(
            next_words.options_of("published", "torch", is_full=True)
        )
    ]


def test_the_recurrence_is_that_of_pytorch_and_clients_are_stacked():
    def gradients(gates, kernel):
        return torch.func.grad(lambda *xs: recurrence(*xs).square().sum(), (0, 1))(gates, kernel)

    rng = torch.Generator().manual_seed(0)
    gates = torch.randn(3, 6, 2, 20, generator=rng)
    kernels = torch.randn(3, 5, 20, generator=rng)
    stacked = torch.func.vmap(gradients)(gates, kernels)
    for client in range(3):
        lstm = torch.nn.LSTM(20, 5, bias=False)
        with torch.no_grad():
            lstm.weight_ih_l0.copy_(torch.eye(20))
            lstm.weight_hh_l0.copy_(kernels[client].t())
        inputs = gates[client].clone().requires_grad_()
        outputs, _ = lstm(inputs)
        torch.testing.assert_close(recurrence(gates[client], kernels[client]), outputs)
        expected = torch.autograd.grad(outputs.square().sum(), (inputs, lstm.weight_hh_l0))
        torch.testing.assert_close(stacked[0][client], expected[0])
        torch.testing.assert_close(stacked[1][client], expected[1].t(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("form", "gate_stddev", "dense_stddev"), [
    ("plain", (2 / 370) ** 0.5, (2 / 220) ** 0.5), ("published", (2 / 50) ** 0.5, (2 / 220) ** 0.5),
])  # fmt: skip
def test_initial_weights_have_the_deviations_of_keras(form, gate_stddev, dense_stddev):
    model = torch_model.NextWord(1, vocabulary_size=166, embedding_size=50, lstm_size=80, form=form)
    assert model.embedding.abs().max() <= 0.05
    assert float(model.lstm_kernel.std()) == pytest.approx(gate_stddev, rel=0.04)
    assert float(model.logits_kernel.std()) == pytest.approx(dense_stddev, rel=0.04)
    product = model.lstm_recurrent_kernel @ model.lstm_recurrent_kernel.t()
    torch.testing.assert_close(product, torch.eye(80))
    assert model.lstm_bias.tolist() == [0.0] * 80 + [1.0] * 80 + [0.0] * 160


def test_accuracies_leave_out_special_words():
    ids = SpecialIds(4)
    labels = torch.tensor([[1, 2, ids.end, 0], [ids.out_of_vocabulary, 3, 3, 3]])
    logits = torch.nn.functional.one_hot(torch.tensor([[1, 3, ids.end, 0], [5, 3, 1, 3]]), 8)
    ratios = {
        name: tuple(part.sum().item() for part in metric(logits.float(), labels))
        for name, metric in torch_model.make_metrics(ids).items()
    }
    assert ratios == {
        "accuracy": (3, 5), "accuracy_no_pad_no_oov": (4, 6), "accuracy_no_pad": (5, 7),
    }  # fmt: skip


def test_the_option_trains_the_model_in_pytorch(tmp_path):
    data = stackoverflow.write_synthetic_corpus(
        tmp_path / "corpus.sqlite", clients=12, seed=7, sentences_per_client=6,
        vocabulary_size=300, progress=False,
    )  # fmt: skip
    config = fedmf.TrainConfig(
        task="stackoverflow_nwp", data=str(data), rounds=2, cohort_size=4, min_sep=2,
        family="banded", noise_multiplier=0.3,
        client_learning_rate=0.5, clip_norm=0.3,
        task_options={"framework": "torch", "vocabulary_size": "40", "lstm_size": "8"},
    )  # fmt: skip
    task = tasks.task_from_config(tasks.completed(config), progress=False)
    assert "in PyTorch" in task.description
    run = fedmf.train(task, config, folder=tmp_path / "run", noise_seed=1, progress=False)
    assert 0 <= run.result["test"]["accuracy"] <= 1
    assert run.model()(torch.zeros(1, 20, dtype=torch.int64)).shape == (1, 20, 44)
    assert len(next_words_of(fedmf.Run.load(tmp_path / "run"), "the")["words"]) == 5


def test_the_masked_loss_is_refused(tmp_path):
    options = next_words.options_of("plain", "torch")
    options = type(options)(framework="torch", loss="masked", vocabulary_size=30)
    with pytest.raises(ValueError, match="loss='masked' divides by the words of a batch"):
        next_words.task_of(options)
