"""An execution is one class: once registered, configurations use it by name."""

import numpy as np
import pytest

from fedmf.runs import executions
from fedmf.runs.executions import ExecutionKind, register_execution
from fedmf.training.execution.choice import build_execution
from fedmf.training.execution.in_process import FastExecution
from tests.federated.small_runs import broken_off, config, train
from tests.federated.small_task import small_task
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("clients_in_turn")


PATH = f"{__name__}:Counting"


class Counting(FastExecution):
    """An execution that counts the rounds that it computes."""

    rounds = 0

    def collect_release(self, state, cohort, canaries=()):
        """See `Execution.collect_release`."""
        type(self).rounds += 1
        return super().collect_release(state, cohort, canaries)


@pytest.fixture(autouse=True)
def counting_execution():
    """Registers the execution for one test."""
    register_execution(ExecutionKind(name="counting", path=PATH))
    Counting.rounds = 0
    yield
    del executions._KIND_BY_NAME["counting"]


def test_a_registered_execution_trains_by_name_and_resumes(tmp_path):
    folder = broken_off(tmp_path / "run", 2, config("counting"))
    assert Counting.rounds == 2
    with refusal("another config: execution='fast'"):
        train(folder, config(), resume=True)
    run = train(folder, config("counting"), resume=True)
    assert (Counting.rounds, run.config.execution) == (6, "counting")
    fast_run = train(tmp_path / "fast", config())
    for run_weight, fast_weight in zip(run.weights, fast_run.weights, strict=True):
        np.testing.assert_array_equal(run_weight, fast_weight)


def test_objects_that_are_no_execution_are_refused():
    with refusal("name='counting' is that of another execution"):
        register_execution(ExecutionKind(name="counting", path=PATH))
    with refusal("must be a fedmf.runs.executions.ExecutionKind", TypeError):
        register_execution(Counting)
    for name in ("two words", None, ""):
        with refusal(f"name={name!r}"):
            ExecutionKind(name=name, path=PATH)
    for path in (Counting, None, "fedmf", "fedmf:", ":Counting"):
        with refusal("path="):
            ExecutionKind(name="mine", path=path)
    with refusal("execution='slow' is unknown: choose one of fast, tff, counting"):
        config("slow")
    executions._KIND_BY_NAME["counting"] = ExecutionKind(name="counting", path="builtins:object")
    with refusal("execution=counting is builtins:object, which is no subclass", TypeError):
        build_execution(small_task(), config().plan(), config("counting"), 9)
