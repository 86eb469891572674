"""Models and losses for which the guarantee would not hold, or that cannot be trained."""

import copy
import functools
import re

import numpy as np
import pytest
import torch
from torch import nn

from tests.pytorch import small_models


class WithBuffer(nn.Module):
    """A model that counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


HIDDEN = [0.0]


class WithHiddenState(nn.Module):
    """A model that multiplies with the mean of the batch before, which is no attribute of it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        outputs = self.layer(x) * (1 + HIDDEN[0])
        HIDDEN[0] = x.mean().detach()
        return outputs


class RemembersEvaluations(WithHiddenState):
    """A model with a state in evaluation alone."""

    def forward(self, x):
        if self.training:
            return self.layer(x)
        return super().forward(x)


class WithNoise(nn.Module):
    """A model that draws random numbers in training."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x + torch.randn_like(x)) if self.training else self.layer(x)


class WithOwnParameter(nn.Module):
    """A model with one more parameter."""

    def __init__(self, parameter):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.extra = parameter

    def forward(self, x):
        return self.layer(x)


class MeanOfBatch(nn.Module):
    """A model with one output for all examples."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x).mean(0)


def layers(*more):
    return lambda: nn.Sequential(nn.Linear(4, 3), *copy.deepcopy(more))


def other_weights():
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(np.random.default_rng().normal(size=(3, 4))))
    return model


def with_parameter(parameter):
    return lambda: WithOwnParameter(parameter)


def tied_by_data():
    """Returns a model with two parameters in the same memory."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight.data = model[0].weight.data
    return model


def with_gradient_hook():
    """Returns a model with a hook that only `backward` calls."""
    model = nn.Linear(4, 3)
    model.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return model


class NormOfBatch(nn.Module):
    """A model that normalises by statistics of a batch without a layer for it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return nn.functional.batch_norm(self.layer(x), None, None, training=self.training)


class NormInList(nn.Module):
    """A model with a layer of batch normalisation that PyTorch does not see."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)]
        self.output = nn.Linear(3, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


class SeededDropout(nn.Module):
    """A model with dropout that is the same at each call, by the default generator."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.layer(nn.functional.dropout(x, 0.5, self.training))


class DecoratedAutocast(nn.Module):
    """A model that computes in half precision, with a cache that all threads share."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x):
        return self.layer(x)


def with_weight_norm():
    """Returns a model that cannot be copied."""
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)))


def with_alias():
    """Returns a model with an attribute in the memory of a parameter."""
    model = nn.Linear(4, 3)
    model.alias = model.weight.data
    return model


def with_hook_on_itself():
    """Returns a model with a hook that writes to the model that was built, and not to its copy."""
    model = nn.Linear(4, 3)
    model.calls = 0

    def count(*_):
        model.calls += 1

    model.register_forward_hook(count)
    return model


class WithoutCopy(nn.Linear):
    """A layer that is its own copy."""

    def __deepcopy__(self, memo):
        return self


SHARED = nn.Linear(4, 3)
SHARED_PART = nn.Linear(4, 4).requires_grad_(False)


REFUSED = {
    "batch normalisation": (layers(nn.BatchNorm1d(3)), r"layer '1' \(BatchNorm1d\).*GroupNorm"),
    "running statistics": (
        layers(
            nn.Unflatten(1, (1, 3)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten()
        ),
        "changes .*running_mean",
    ),
    "a buffer that changes": (WithBuffer, "changes calls, which would carry a client's data"),
    "a state between calls": (WithHiddenState, "another update after another client"),
    "a state in evaluation": (RemembersEvaluations, "different metrics for the same examples"),
    "dropout": (layers(nn.Dropout(0.5)), r"layer '1' \(Dropout\).*leave out dropout"),
    "random numbers": (WithNoise, "draws random numbers"),
    "whole numbers": (
        with_parameter(nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)),
        "parameter 'extra'.* is torch.int64",
    ),
    "complex numbers": (
        with_parameter(nn.Parameter(torch.zeros(2, dtype=torch.complex64))),
        "parameter 'extra'.* is torch.complex64",
    ),
    "half precision": (
        with_parameter(nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))),
        "is torch.bfloat16.*train in float32",
    ),
    "a lazy layer": (lambda: nn.LazyLinear(3), "is lazy and has no shape yet"),
    "no module": (lambda: torch.zeros(3), "returns a Tensor: return a torch.nn.Module"),
    "nothing to train": (
        lambda: nn.Linear(4, 3).requires_grad_(False),
        "no parameter that requires a gradient",
    ),
    "two parameters in one memory": (
        tied_by_data,
        r"'0.weight' and '1.weight' of task .* share memory.*assign the same Parameter",
    ),
    "an expanded parameter": (
        with_parameter(nn.Parameter(torch.zeros(1).expand(3))),
        "entries of parameter 'extra'.*share memory.*clone",
    ),
    "a hook after accumulation": (with_gradient_hook, "hook after the accumulation.*register_hook"),
    "the same module": (lambda: SHARED, "returns 'the same module' a second time.*copy.deepcopy"),
    "a shared layer": (
        lambda: nn.Sequential(SHARED_PART, nn.Linear(4, 3)), "returns '0' a second time"
    ),
    "functional batch normalisation": (NormOfBatch, "computes with statistics of a batch"),
    "batch normalisation in a list": (NormInList, "computes with statistics of a batch"),
    "dropout with a seed": (SeededDropout, r"draws random numbers \(aten.*leave out dropout"),
    "an autocast that caches": (DecoratedAutocast, "autocast that caches casts of weights"),
    "an alias of a parameter": (with_alias, "'weight' and '.alias 0' of task .* share memory"),
    "a hook on the module": (with_hook_on_itself, "writes to the module that `model` returned"),
    "a layer without copies": (
        lambda: nn.Sequential(WithoutCopy(4, 3)), "is not copied by copy.deepcopy"
    ),
    "a compiled model": (lambda: torch.compile(nn.Linear(4, 3)), "leave out torch.compile"),
    "no copies": (with_weight_norm, "cannot be copied.*parametrizations"),
    "random weights": (other_weights, "other weights for the same seed"),
    "one output for all": (MeanOfBatch, "first axis counts examples"),
    "inputs of other shape": (lambda: nn.Linear(5, 3), "fails on its validation split"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_is_refused(case, tmp_path):
    model, message = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=message) as refusal:
        small_models.train(tmp_path / "run", small_task=small_models.task(model))
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def keep_evaluating(module, mode=True):
    """Sets a module's mode, and keeps its batch normalisation in evaluation mode."""
    nn.Module.train(module, mode)
    module[1].eval()
    return module


class FrozenNorm(nn.Sequential):
    """A network in which batch normalisation does not train."""

    def train(self, mode=True):
        return keep_evaluating(self, mode)


@pytest.mark.parametrize(
    "model",
    [
        layers(nn.Dropout(0.0)),
        lambda: FrozenNorm(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        lambda: nn.Linear(4, 3, dtype=torch.float32).requires_grad_(True),
    ],
)
def test_a_model_without_state_is_not_refused(model, tmp_path):
    settings = small_models.config(rounds=1, min_sep=1, family="identity")
    small_models.train(tmp_path / "run", settings, small_models.task(model))


def vector_loss(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels, reduction="none").repeat(2)


def loss_with_item(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels) * (1 if labels.item() else 2)


class LossWithCentre(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(3))

    def forward(self, outputs, labels):
        return nn.functional.cross_entropy(outputs - self.centre, labels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": vector_loss}, r"loss of one example has the shape \(2,\)"),
        ({"loss": loss_with_item}, "vmap"),
        ({"loss": nn.CrossEntropyLoss}, r"class CrossEntropyLoss.*or an object of the class"),
        ({"loss": nn.CrossEntropyLoss(weight=torch.ones(3))}, "give the task a class_weight"),
        (
            {"loss": functools.partial(nn.functional.cross_entropy, weight=torch.ones(3))},
            "give the task a class_weight",
        ),
        ({"loss": LossWithCentre()}, "loss of task 'small' has parameters that require"),
        ({"model": nn.Linear(4, 3)}, "model is the module Linear.*lambda: Net()"),
        ({"metrics": [small_models.accuracy]}, "metrics of task 'small' is a list: give a dict"),
        ({"metrics": {"accuracy": lambda outputs: 0.0}}, "metric 'accuracy'.* 2 arguments"),
        ({"metrics": {"accuracy": lambda outputs, labels: outputs}}, "metric 'accuracy' returns"),
    ],
)
def test_a_loss_or_metric_is_refused(changes, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message) as refusal:
        small_models.train(tmp_path / "run", small_task=small_models.task(**changes))
    assert not re.search(r"Traceback", str(refusal.value))


def test_labels_without_an_output_name_the_client(tmp_path):
    x, y = small_models.examples_of(small_models.perceptron, np.random.default_rng(5))
    y[-1] = 3
    task = small_models.task(y=y, validation=(x[:9], y[:9]))
    settings = small_models.config(cohort_size=8, min_sep=1, family="identity")
    with pytest.raises(ValueError, match="cannot train client '7'.*make the model's outputs"):
        small_models.train(tmp_path / "run", settings, task)


class Later(nn.Module):
    """A model that writes for inputs that the validation split does not have."""

    def __init__(self, target):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.target = target
        self.register_buffer("calls", torch.zeros(1))
        self.bank = nn.Parameter(torch.zeros(5000), requires_grad=False)

    def forward(self, x):
        if self.training and bool((x > 100).any()):
            written = {"calls": self.calls, "data": self.calls.data, "bank": self.bank.data}
            written[self.target].add_(1)
        return self.layer(x)


@pytest.mark.parametrize(("target", "name"), [("calls", "calls"), ("data", "calls"), ("bank",) * 2])
def test_a_client_that_changes_a_buffer_later_is_refused(target, name, tmp_path):
    x, y = small_models.examples_of(small_models.perceptron, np.random.default_rng(5))
    x[-1] = 1000
    examples = (x[:9], y[:9])
    task = small_models.task(lambda: Later(target), x=x, validation=examples, test=examples)
    settings = small_models.config(cohort_size=8, min_sep=1, family="identity")
    with pytest.raises(ValueError, match=f"changes {name}, which would carry a client's data"):
        small_models.train(tmp_path / "run", settings, task)
