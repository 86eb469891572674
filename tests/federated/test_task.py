"""Tasks whose examples are not int32 are refused before there is a run folder: casting would change features without a word."""

import dataclasses

import numpy as np
import pytest

from fedmf import federated
from tests.federated.run_small import config
from tests.federated.small_task import small_task

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
@pytest.mark.parametrize("where", ["client_examples", "evaluation_examples"])
def test_examples_of_another_dtype(tmp_path, dtype, where):
    task = small_task()
    given = getattr(task, where)
    other = dataclasses.replace(task, **{where: lambda name: tuple(part.astype(dtype) for part in given(name))})
    with pytest.raises(TypeError, match=f"task 'small': the examples of .* are {np.dtype(dtype)} .* int32 sequences"):
        federated.train(other, config(), folder=tmp_path / "run", noise_seed=1, progress=False)
    assert not (tmp_path / "run").exists()
