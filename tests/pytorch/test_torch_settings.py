"""Inside `process_settings` no caller's setting matters, and behind it the caller has them again.
The settings of a GPU exist in a build of PyTorch without one too.
"""

import contextlib

import pytest
import torch
from torch import backends

from fedmf.pytorch.torch_settings import process_settings

LIBRARIES = {
    "matmul": backends.cuda.matmul,
    "conv": backends.cudnn.conv,
    "rnn": backends.cudnn.rnn,
    "matmul on processors": backends.mkldnn.matmul,
    "conv on processors": backends.mkldnn.conv,
    "rnn on processors": backends.mkldnn.rnn,
}


def precisions():
    return {name: library.fp32_precision for name, library in LIBRARIES.items()}


def allow_tf32_by_older_functions():
    torch.set_float32_matmul_precision("medium")
    backends.cudnn.allow_tf32 = True


def allow_tf32_everywhere():
    backends.fp32_precision = "tf32"


def allow_tf32_of_matmul():
    backends.cuda.matmul.fp32_precision = "tf32"


@pytest.fixture
def _restored_precision():
    """Restores the settings of PyTorch that the test changes."""
    default_precisions = precisions()
    yield
    backends.fp32_precision = "none"
    backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("highest")
    for name, precision in default_precisions.items():
        LIBRARIES[name].fp32_precision = precision


@pytest.mark.usefixtures("_restored_precision")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "allow_tf32",
    [allow_tf32_by_older_functions, allow_tf32_everywhere, allow_tf32_of_matmul],
)
def test_tf32_of_the_caller_is_off_inside_and_on_behind(allow_tf32, device):
    allow_tf32()
    before = precisions()
    assert "tf32" in before.values()
    with process_settings(torch.device(device)):
        assert set(precisions().values()) == {"ieee"}
        # Models may call functions that read the older settings.
        assert torch.get_float32_matmul_precision() == "highest"
        assert not backends.cudnn.allow_tf32
    assert precisions() == before


def deterministic_settings():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        backends.cudnn.benchmark,
    )


def test_operations_of_a_gpu_are_deterministic_until_an_error(monkeypatch):
    monkeypatch.setattr(backends.cudnn, "benchmark", True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = deterministic_settings()
    assert before == (False, False, True)
    with contextlib.suppress(ZeroDivisionError), process_settings(torch.device("cuda")):
        inside = deterministic_settings()
        raise ZeroDivisionError
    assert inside == (True, True, False)
    assert deterministic_settings() == before
    with process_settings(torch.device("cpu")):
        assert deterministic_settings() == before
