"""Options of the tasks: they have help and are checked, and neither they nor the writers of
stand-ins need TensorFlow.
"""

import dataclasses
import subprocess
import sys

import pytest

from fedmf.tasks.cifar10 import Cifar10Options
from fedmf.tasks.emnist import EmnistOptions
from fedmf.tasks.regression import RegressionOptions
from tests.refusals import refusal
from tests.test_import_without_tensorflow import _PROGRAM

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
        (EmnistOptions, {"batch_size": 0}),
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


def test_they_import_without_tensorflow():
    names = sorted({options.__module__.rpartition(".")[0] for options in OPTIONS})
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *names], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
