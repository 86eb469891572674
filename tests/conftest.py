"""Environment, fixtures and order of all tests."""

import dataclasses
import functools
import gc
import importlib.util
import os
import pathlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest

# Property tests try the same examples in every run, so that a red run is a change and not a draw;
# FEDMF_EXPLORE=1 draws new ones. None has a deadline: a busy machine is no failure.
hypothesis.settings.register_profile(
    "repeatable", derandomize=not os.environ.get("FEDMF_EXPLORE"), deadline=None
)
hypothesis.settings.load_profile("repeatable")

# Every test computes its own fits, and leaves nothing in the home folder. Subprocesses inherit
# this.
os.environ["FEDMF_CACHE"] = ""

# A shell starts background jobs (`make test &`, nohup) with Ctrl-C ignored, and subprocesses
# inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


# `make test-core` runs without TensorFlow, and `make test-modern` without TensorFlow Federated and
# Ray; Flower has its own environment. The ignored files import these packages when they are
# collected. Other tests that need TFF ask for the fixture `tff`, or have it as a parameter.
TFF = _installed("tensorflow_federated")
collect_ignore_glob = []
collect_ignore = []
if not TFF:
    collect_ignore_glob += ["federated/tff/*"]
if not _installed("flwr"):
    collect_ignore += ["flower"]
if not _installed("torch"):
    collect_ignore += ["pytorch"]
if not _installed("ray"):
    collect_ignore += ["federated/client_training/test_cluster.py", "sweeps/test_cluster.py"]
if not _installed("tensorflow"):
    collect_ignore_glob += ["federated/*"]
    collect_ignore += [
        "sweeps/test_cluster.py",
        "cli/test_stopped.py",
        "tasks/test_c_library.py",
        "tasks/test_export.py",
    ]


@pytest.fixture(scope="session")
def tff() -> Any:
    """Imports TensorFlow Federated."""
    from fedmf.federated.tff import tff

    return tff


# A file stays in one process, so that the last file to begin must be short. These files take more
# than 15 CPU seconds, slow tests included, and are sorted by time.
LONG = (
    "experiments/test_studies.py",
    "federated/test_pages.py",
    "federated/training/test_full_size.py",
    "test_readme.py",
    "tasks/test_tasks_doc.py",
    "experiments/test_items.py",
    "cli/test_training_examples.py",
    "benchmarks/test_training.py",
    "tasks/test_data_doc.py",
    "experiments/test_study_check.py",
    "examples/test_examples.py",
    "audits/test_aggregator.py",
    "federated/client_training/test_as_keras.py",
    "federated/client_training/test_in_process.py",
    "sweeps/test_run.py",
    "test_packaging.py",
    "federated/training/test_loop.py",
    "privacy/test_attack_risk.py",
    "federated/tff/test_tff_models.py",
    "privacy/test_amplification.py",
    "federated/client_training/test_threads.py",
    "mechanisms/fits/test_dense.py",
    "privacy/test_comparison.py",
    "cli/test_commands.py",
    "cli/test_evaluate.py",
    "federated/tff/test_audit.py",
    "privacy/test_bands.py",
    "federated/client_training/test_optimizers.py",
    "federated/client_training/test_vectorised.py",
    "federated/tff/test_check_process.py",
    "federated/client_training/test_sample_weights.py",
    "federated/training/test_model_check.py",
    "federated/tff/test_aggregator.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests, and skips those that need TFF where it is not installed.

    Long files come first, then tests that import TensorFlow, so that no process begins a long file
    when the others are done.
    """
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        named_values = [
            parameter for parameter in parameters if isinstance(parameter, str)
        ]  # Arrays do not support `in`.
        if not TFF and "tff" in [*item.fixturenames, *named_values]:
            item.add_marker(pytest.mark.skip(reason="TensorFlow Federated runs on Python 3.11"))
    order_by_path = {
        pathlib.Path(__file__).parent / name: number for number, name in enumerate(LONG)
    }
    items.sort(
        key=lambda item: (
            order_by_path.get(item.path, len(LONG)),
            item.get_closest_marker("tensorflow") is None,
        )
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Freezes imported objects, which live as long as the process.

    Repeated collection of these objects would cost 2% of the time, and early collection of graphs
    3%.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    """Ends TFF's worker, which holds pytest's output pipe: a finished test run would seem to
    hang.
    """
    yield
    import sys

    if "tensorflow_federated" in sys.modules:
        from fedmf.federated.tff.worker import end_workers

        end_workers()


def _traced_once(make: Callable[..., Any], *fields: str) -> Callable[..., Any]:
    """Returns a version of `make` that reuses its result for the same learner and values of the
    fields.
    """
    result_by_key: dict[Any, Any] = {}

    def of(learner: Any, *arguments: Any) -> Any:
        settings = next(argument for argument in reversed(arguments) if hasattr(argument, "seed"))
        key = (id(learner), *(getattr(settings, name) for name in fields))
        if key not in result_by_key:
            result_by_key[key] = (
                make(learner, *arguments),
                learner,
            )  # The learner is referenced, so that no other object gets its id.
        return result_by_key[key][0]

    return of


@functools.cache
def _traced() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Returns (module, name, replacement) of each function whose traces all tests of a task
    share.
    """
    from fedmf.federated import learner
    from fedmf.federated.client_training import client_setup
    from fedmf.training.learner import ClientSettings

    # Graphs do not depend on these fields; a learner has one spec.
    unused_fields = {"task", "cohort_size", "spec"}
    client_fields = [field.name for field in dataclasses.fields(ClientSettings)]
    client_fields = [name for name in client_fields if name not in unused_fields]
    traced_fields = [
        (client_setup, "KerasClient", client_fields),
        (learner, "check_model", ["seed", "execution", "private_metrics"]),
        (learner, "KerasEvaluator", ["seed"]),
    ]
    return [
        (module, name, _traced_once(getattr(module, name), *fields))
        for module, name, fields in traced_fields
    ]


@pytest.fixture(scope="module")
def clients_in_turn() -> Iterator[None]:
    """Trains clients of small models one after the other, with traces of earlier runs of the same
    task.

    This is for tests that do not depend on the clients' work. Tracing vectorised clients takes two
    thirds of a small run, and all tracing two thirds of the remaining time;
    tests/federated/client_training shows that both train the same model.
    """
    from fedmf.federated.client_training import client_setup
    from fedmf.training import vectorised_sizes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectorised_sizes, "SMALL_MODEL", 0)
        patch.setattr(client_setup, "cores", lambda: 1)
        for module, name, traced_once in _traced():
            patch.setattr(module, name, traced_once)
        yield


@pytest.fixture(scope="module")
def coarse_plots() -> Iterator[None]:
    """Draws plots with the same layout and fewer pixels, which take a third of the time."""
    from fedmf.reports import canvas

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canvas, "_DPI", 60)
        yield


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limits simulations of privacy losses to a second; their bounds stay valid, but are wider."""
    from fedmf.privacy import curves, monte_carlo

    for name, value in (("_SEARCH_WORK", 1e6), ("_PROOF_WORK", 1e7), ("_MIN_SIZE", 2**14)):
        monkeypatch.setattr(monte_carlo, name, value)
    for name in ("_SEARCH_WORK", "_WORK"):
        monkeypatch.setattr(curves, name, 1e6)
    for cached in (monte_carlo.simulated_epsilon, monte_carlo._search, curves.simulated_curve):
        cached.cache_clear()
    yield
    for cached in (monte_carlo.simulated_epsilon, monte_carlo._search, curves.simulated_curve):
        cached.cache_clear()
