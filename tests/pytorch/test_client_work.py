"""How clients train: deterministic for any number of threads, and independent of each other."""

import collections
import logging

import numpy as np
import pytest
import torch

from fedmf import pytorch
from fedmf.pytorch.client_training import client_setup
from fedmf.pytorch.client_training.one_client import ModuleClient
from fedmf.pytorch.client_training.stacked import ClientStack
from fedmf.server.messages import ClientParams
from fedmf.training.client_data import client_data
from fedmf.training.client_work import Broadcast
from fedmf.training.examples import take
from fedmf.training.learner import Machine
from tests.pytorch import small_models

PARAMS = ClientParams(clip_norm=0.05, zeroing_norm=100.0, scales=())
MODEL_NAMES = list(small_models.MODELS)


def work_of(task, settings, threads=1):
    """Returns the client work of a task and the broadcast of its initial weights."""
    work = task.learner.client_work(task.client_settings(settings), Machine(threads=threads))
    return work, Broadcast(task.initial_weights(settings.seed), PARAMS)


def sums_of(work, sent, *groups):
    """Returns all arrays of the groups' sums, with their losses, as bytes."""
    return [
        [array.tobytes() for array in group_sum.values] + [group_sum.loss_sum]
        for group_sum in work.sums(sent, groups)
    ]


def clients_of(task, settings):
    return [client_data(task, settings, 0, client) for client in range(len(task.client_ids))]


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_any_number_of_threads_gives_the_same_bits(name, kind):
    task = small_models.task(small_models.MODELS[name])
    settings = small_models.config(client_epochs=2)
    clients = clients_of(task, settings)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        work, sent = work_of(task, settings, threads)
        results.append(sums_of(work, sent, clients[:5], clients[5:]))
    torch.set_num_threads(1)
    assert results[0] == results[1] == results[2]
    assert kind.split()[0] in work.explain()


def test_the_caller_keeps_its_number_of_threads(kind):
    torch.set_num_threads(2)
    task = small_models.task()
    settings = small_models.config()
    work, sent = work_of(task, settings)
    sums_of(work, sent, clients_of(task, settings))
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_client_is_independent_of_company_and_order(name, kind):
    task = small_models.task(small_models.MODELS[name])
    settings = small_models.config(client_epochs=2)
    work, sent = work_of(task, settings)
    clients = clients_of(task, settings)
    alone = [sums_of(work, sent, [client]) for client in clients]
    assert [sums_of(work, sent, [client]) for client in clients[::-1]][::-1] == alone
    # A sum of two clients is that of either order in all bits, because two numbers are added.
    for first, second in ((0, 1), (4, 6), (3, 7)):
        pair = [clients[first], clients[second]]
        values = [np.frombuffer(array) for array in sums_of(work, sent, pair)[0][:-1]]
        expected = [
            np.frombuffer(a) + np.frombuffer(b)
            for a, b in zip(alone[first][0][:-1], alone[second][0][:-1], strict=True)
        ]
        for actual, array in zip(values, expected, strict=True):
            assert actual.tobytes() == array.tobytes()


def test_a_client_is_independent_of_a_client_with_huge_examples(kind):
    x, y = small_models.examples_of(small_models.perceptron, np.random.default_rng(5))
    x[small_models.OWNERS == 1] = 1e30
    task = small_models.task(x=x, y=y)
    settings = small_models.config()
    work, sent = work_of(task, settings)
    clients = clients_of(task, settings)
    [group_sum] = work.sums(sent, [clients[:2]])
    [expected] = work.sums(sent, [clients[:1]])
    assert (group_sum.zeroed, expected.zeroed) == (1, 0)
    for actual, array in zip(group_sum.values, expected.values, strict=True):
        assert actual.tobytes() == array.tobytes()


@pytest.mark.parametrize("index", [16, -1, 17])
def test_a_word_out_of_range_reaches_no_other_client(index, kind):
    """torch.vmap lays the embeddings of clients end to end: index 16 of a client is row 0 of the
    next one.
    """
    x, y = small_models.examples_of(small_models.Words, np.random.default_rng(5))
    x[small_models.OWNERS == 1, 0] = index
    task = small_models.task(small_models.Words, x=x, y=y)
    settings = small_models.config()
    work, sent = work_of(task, settings)
    with pytest.raises(IndexError, match="index out of range"):
        sums_of(work, sent, clients_of(task, settings))


def fill_rows(outputs, labels):
    """Returns a loss by an operation in which torch.vmap mixes clients."""
    filled = torch.index_fill(outputs, 1, labels, 0.0)
    return filled.square().sum()


def test_operations_by_which_vmap_mixes_clients_are_not_stacked():
    task = small_models.task(loss=fill_rows)
    work, _ = work_of(task, small_models.config())
    assert "aten.index_fill" in work.explain()
    assert work.explain().startswith("one client a thread")


class WithHook(torch.nn.Module):
    """A model with a hook on a parameter, which torch.func would not call."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.layer.weight.register_hook(lambda gradient: gradient * 2)

    def forward(self, x):
        return self.layer(x)


class ByValue(torch.nn.Module):
    """A model that decides by a value, which torch.vmap does not have."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) * (2 if x.sum() > 0 else 3)


@pytest.mark.parametrize(
    ("model", "reason"),
    [(WithHook, "a parameter has a hook"), (ByValue, "clients cannot be stacked")],
)
def test_what_vmap_cannot_run_trains_one_client_a_thread(model, reason, caplog):
    client_setup._log_once.cache_clear()
    task = small_models.task(model)
    with caplog.at_level(logging.INFO, logger="fedmf"):
        work, sent = work_of(task, small_models.config())
    assert reason in work.explain()
    assert [record.message for record in caplog.records] == [f"task 'small': {work.explain()}"]
    assert sums_of(work, sent, clients_of(task, small_models.config()))


def test_a_hook_on_a_parameter_is_called(tmp_path):
    settings = small_models.config(client_epochs=1, client_learning_rate=0.1)
    work, sent = work_of(small_models.task(WithHook), settings)
    clients = clients_of(small_models.task(), settings)[3:4]
    plain_task = small_models.task(lambda: torch.nn.Sequential(torch.nn.Linear(4, 3)))
    plain_work, _ = work_of(plain_task, settings)
    [with_hook] = work.sums(sent, [clients])
    [without] = plain_work.sums(sent, [clients])
    assert np.linalg.norm(with_hook.values[0]) != np.linalg.norm(without.values[0])


def test_settings_of_the_caller_do_not_matter(kind):
    task = small_models.task()
    settings = small_models.config()
    clients = clients_of(task, settings)
    work, sent = work_of(task, settings)
    expected = sums_of(work, sent, clients)
    for caller_settings in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu")):
        with caller_settings:
            work, _ = work_of(task, settings)
            assert sums_of(work, sent, clients) == expected


def test_products_have_full_precision_and_the_caller_keeps_his(kind, monkeypatch):
    precisions = []

    class Recorder(torch.nn.Linear):
        def forward(self, x):
            precisions.append(torch.get_float32_matmul_precision())
            return super().forward(x)

    torch.set_float32_matmul_precision("medium")
    try:
        task = small_models.task(lambda: Recorder(4, 3))
        work, sent = work_of(task, small_models.config())
        sums_of(work, sent, clients_of(task, small_models.config()))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(precisions) == {"highest"}


def test_a_run_trains_in_inference_mode(tmp_path):
    with torch.inference_mode():
        small_models.train(tmp_path / "run", callbacks=[pytorch.StopAfter(1)])


def test_a_model_may_overwrite_its_inputs_and_its_weights(kind):
    class InPlace(torch.nn.Module):
        """A model that clamps its weights and its inputs in place."""

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x):
            with torch.no_grad():
                self.layer.weight.clamp_(-0.2, 0.2)
            return self.layer(x.mul_(2))

    task = small_models.task(InPlace)
    settings = small_models.config(client_epochs=2)
    work, sent = work_of(task, settings)
    clients = clients_of(task, settings)
    weights_before = [weight.tobytes() for weight in sent.weights]
    first = sums_of(work, sent, clients)
    assert [weight.tobytes() for weight in sent.weights] == weights_before
    assert sums_of(work, sent, clients_of(task, settings)) == first


def test_weights_of_examples_scale_their_losses(kind):
    settings = small_models.config()
    weights = np.random.default_rng(0).uniform(0, 2, len(small_models.OWNERS))
    task = small_models.task(sample_weight=weights)
    work, sent = work_of(task, settings)
    client = client_data(task, settings, 0, 0)
    [group_sum] = work.sums(sent._replace(params=PARAMS._replace(clip_norm=1e6)), [[client]])
    model = task.build_model(settings.seed)
    loss_sum = 0.0
    for x, y in task.client_settings(settings).batches(client.epochs):
        losses = torch.nn.functional.cross_entropy(
            model(torch.tensor(x)), torch.tensor(y.labels), reduction="none"
        )
        loss = (losses * torch.tensor(y.weights)).sum() / len(y.weights)
        model.zero_grad()
        loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        loss_sum += loss.item() * len(y.weights)
    assert group_sum.loss_sum == pytest.approx(loss_sum, rel=1e-6)
    for array, parameter, before in zip(
        group_sum.values, model.parameters(), sent.weights, strict=True
    ):
        np.testing.assert_allclose(before - array, parameter.detach().numpy(), atol=1e-6)


def test_no_step_of_fine_tuning_is_longer_than_its_bound():
    task = small_models.task()
    settings = small_models.config()
    client_settings = task.client_settings(settings, max_step_norm=1e-3)
    device = torch.device("cpu")
    sent = Broadcast(task.initial_weights(3), PARAMS._replace(clip_norm=1e6))
    client = client_data(task, settings, 0, 0)
    stack_sum = ClientStack(task.learner, client_settings, 16, device)(sent, [client.epochs])
    single = ModuleClient(task.learner, client_settings, device)
    one_step, _ = single.train(sent.weights, [take(client.epochs[0], slice(0, 3))])
    assert sum(leaf.double().square().sum() for leaf in one_step).sqrt() == pytest.approx(
        1e-3, 1e-5
    )
    for stacked, leaf in zip(stack_sum.values, single(sent, [client.epochs]).values, strict=True):
        np.testing.assert_allclose(stacked, leaf, atol=1e-8)


def test_clients_of_one_example_of_a_larger_model_share_the_weights(monkeypatch):
    settings = small_models.config()
    task = small_models.task(small_models.Convolutions, batch_size=1)
    single_client = ModuleClient(task.learner, task.client_settings(settings), torch.device("cpu"))
    monkeypatch.setattr(client_setup, "SMALL_MODEL", 0)
    work, sent = work_of(task, settings)
    assert work.explain().endswith("clients have one example each")
    clients = clients_of(task, settings)
    assert [len(client.epochs[0][1]) for client in clients[3:5]] == [1, 8]
    for client in clients[3:5]:
        [group_sum] = work.sums(sent, [[client]])
        expected = single_client(sent, [client.epochs])
        assert group_sum.loss_sum == pytest.approx(expected.loss_sum, rel=1e-6)
        for actual, array in zip(group_sum.values, expected.values, strict=True):
            np.testing.assert_allclose(actual, array, atol=1e-7)
    [both] = sums_of(work, sent, clients[3:5])
    [reverse] = sums_of(work, sent, clients[4:2:-1])
    assert both == reverse


class WithMemory(torch.nn.Module):
    """A model that keeps what a client's first batch or its number of batches set in it."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.shift = None
        self.calls = 0
        self.seen = collections.deque()

    def forward(self, x):
        self.calls += 1
        self.seen.append(float(self.calls))
        if self.shift is None:
            self.shift = x.detach().mean(0)
        return self.layer(x - self.shift) * (1.0 if self.calls < 3 else 0.5) + len(self.seen)


class Meter:
    """An object with a number."""

    def __init__(self):
        self.total = 0


class WithMeter(torch.nn.Module):
    """A model that counts its calls in an object."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.meter = Meter()

    def forward(self, x):
        self.meter.total += 1
        return self.layer(x) * self.meter.total


class WithMarks(torch.nn.Module):
    """A model that counts its calls on a parameter and in its gradient."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        calls = getattr(self.layer.weight, "calls", 0) + (self.layer.bias.grad is not None)
        self.layer.weight.calls = calls + 1
        self.layer.bias.grad = torch.ones(3)
        return self.layer(x) * (1 + calls)


class Decaying(torch.nn.Module):
    """A model that shrinks its weights at each call."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        with torch.no_grad():
            self.layer.weight.mul_(0.9)
        return self.layer(x)


class LossWithMemory:
    """A loss that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, labels):
        self.calls += 1
        return torch.nn.functional.cross_entropy(outputs, labels) * (1 + self.calls)


class WithoutResult(torch.nn.Linear):
    """A model whose `train` returns nothing."""

    def train(self, mode=True):
        super().train(mode)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": WithMemory},
        {"model": WithMeter},
        {"model": WithMarks},
        {"model": Decaying},
        {"loss": LossWithMemory()},
        {"model": lambda: WithoutResult(4, 3)},
    ],
)
def test_no_state_of_module_or_loss_reaches_another_client(changes, kind):
    task = small_models.task(**changes)
    settings = small_models.config(client_epochs=2)
    task.learner.check(task, settings)
    clients = clients_of(task, settings)
    # Client 3 has one example and client 4 has eight.
    for group in (clients[3:5], clients[4:2:-1]):
        work, sent = work_of(task, settings)
        first, second = (sums_of(work, sent, [client])[0] for client in clients[3:5])
        [both] = sums_of(work, sent, group)
        for actual, one, another in zip(both[:-1], first[:-1], second[:-1], strict=True):
            assert actual == (np.frombuffer(one) + np.frombuffer(another)).tobytes()


def test_arrays_may_be_reversed_or_of_another_byte_order(kind):
    x, y = small_models.examples_of(small_models.perceptron, np.random.default_rng(5))
    settings = small_models.config()
    sums = []
    reversed_arrays = (x[::-1].copy()[::-1], y[::-1].copy()[::-1])
    swapped_arrays = (x.astype(">f4"), y.astype(">i8"))
    for arrays in ((x, y), reversed_arrays, swapped_arrays):
        task = small_models.task(x=arrays[0], y=arrays[1], validation=arrays, test=arrays)
        work, sent = work_of(task, settings)
        sums.append(sums_of(work, sent, clients_of(task, settings)))
        task.learner.check(task, settings)
    assert sums[0] == sums[1] == sums[2]


def cast_by_hand(x, weight, bias):
    """Returns the outputs of a layer in half precision."""
    return torch.nn.functional.linear(x.bfloat16(), weight.bfloat16(), bias.bfloat16()).float()


class InHalfPrecision(torch.nn.Linear):
    """A model in half precision, by autocast or by hand."""

    def __init__(self, by_hand):
        super().__init__(4, 3)
        self.by_hand = by_hand

    def forward(self, x):
        if self.by_hand:
            return cast_by_hand(x, self.weight, self.bias)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


def test_an_autocast_of_the_model_casts_the_weights_of_each_step(kind):
    settings = small_models.config(client_epochs=3, client_learning_rate=1.0)
    sums = []
    for by_hand in (True, False):
        task = small_models.task(lambda by_hand=by_hand: InHalfPrecision(by_hand))
        work, sent = work_of(task, settings)
        sums.append(list(work.sums(sent, [clients_of(task, settings)])))
    for expected, actual in zip(sums[0][0].values, sums[1][0].values, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-3)


class WithReferences(torch.nn.Module):
    """A model whose attributes refer to its layers, its weights, itself and functions."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.others = [self.layer, {"weight": self.layer.weight}]
        self.itself = [self]
        self.activation = torch.tanh

    def forward(self, x):
        return self.activation(self.others[0](x))


def test_a_model_may_refer_to_its_parts_in_lists():
    task = small_models.task(WithReferences)
    task.learner.check(task, small_models.config())
    work, _ = work_of(task, small_models.config())
    assert work.explain().startswith("stacked")


def loss_by_embedding(outputs, labels):
    """Returns a loss that looks up an output by an embedding."""
    logits = torch.nn.functional.log_softmax(outputs, 1)
    return -torch.nn.functional.embedding(labels, logits.t()).mean()


class WordsByOperation(small_models.Words):
    """Words whose vectors an operation looks up that no mode of Python functions sees."""

    def forward(self, x):
        hidden, _ = self.lstm(torch.ops.aten.embedding(self.vectors.weight, x))
        return self.output(hidden).transpose(1, 2)


def test_embeddings_whose_indices_are_not_checked_are_not_stacked():
    x, y = small_models.examples_of(small_models.Words, np.random.default_rng(5))
    for task in (
        small_models.task(loss=loss_by_embedding),
        small_models.task(WordsByOperation, x=x, y=y, validation=(x, y), test=(x, y)),
    ):
        work, _ = work_of(task, small_models.config())
        assert "aten.embedding" in work.explain()
