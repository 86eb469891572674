"""Options of the tasks have help and are checked, alone and together."""

import dataclasses

import pytest

from fedmf.tasks.cifar10 import Cifar10Options
from fedmf.tasks.emnist import EmnistOptions
from fedmf.tasks.regression import RegressionOptions
from tests.refusals import refusal

OPTIONS = (EmnistOptions, Cifar10Options, RegressionOptions)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_has_help_and_a_check(options):
    for field in dataclasses.fields(options):
        assert field.metadata["help"].endswith(".")
        assert field.type in (bool, int, float, str, int | None, str | None)
        with refusal(f"{field.name}=", TypeError):
            options(**{field.name: [1]})


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (EmnistOptions, {"model": "large"}),
        (Cifar10Options, {"model": "cnn"}),
        (Cifar10Options, {"validation": "none"}),
        (Cifar10Options, {"max_clients": 0}),
        (RegressionOptions, {"kind": "ridge"}),
        (RegressionOptions, {"shift": 1.0}),
        (RegressionOptions, {"decay": -1}),
        (RegressionOptions, {"noise": 0}),
    ],
)
def test_values_are_checked(options, changes):
    ((name, value),) = changes.items()
    with refusal(f"{name}={value!r}"):
        options(**changes)


@pytest.mark.parametrize("options", [EmnistOptions, Cifar10Options])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": 4}, "clients=4 needs partition"),
        ({"partition": "shards:2"}, "partition='shards:2' needs clients"),
        ({"partition": "shards:x", "clients": 4}, "partition='shards:x'"),
    ],
)
def test_options_that_need_each_other_are_refused_alone(options, changes, words):
    with refusal(words):
        options(**changes)
