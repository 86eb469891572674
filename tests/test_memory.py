"""The memory that is free is the least of what machine, container and process leave."""

import resource
import subprocess
import sys

import pytest

from fedmf import checks, memory
from tests.refusals import refusal


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 8,000 kB free, and no container."""
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    monkeypatch.setattr(memory, "_MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CONTAINERS", ())
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    return tmp_path


def test_what_the_machine_has_free(machine):
    assert memory.available_memory() == 8000 * 1024
    (machine / "meminfo").unlink()  # as on a machine without one: all that it has
    assert memory.available_memory() > 10**8


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 8000 * 1024), ("70000", 70_000 - 60_000 + 5000)]
)
def test_what_the_container_leaves_with_the_files_that_it_can_give_up(
    machine, monkeypatch, limit, expected
):
    for name, text in (
        ("memory.max", limit),
        ("memory.current", "60000"),
        ("memory.stat", "anon 7\ninactive_file 5000\n"),
    ):
        (machine / name).write_text(text + "\n")
    container = memory._ContainerFiles(
        str(machine), "memory.max", "memory.current", "inactive_file"
    )
    monkeypatch.setattr(memory, "_CONTAINERS", (container,))
    assert memory.available_memory() == expected


def test_what_the_limit_of_the_process_leaves():
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30));"
        "from fedmf.memory import available_memory; print(available_memory())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert 0 < int(done.stdout) < 2**30


def test_a_matrix_that_does_not_fit_what_is_free_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(checks, "available_memory", lambda: 2**30)
    checks.fits_in_memory("this", (8000, 8000))
    words = "^this would take a dense 16000 x 16000 array of 1.91 GiB, where 1 GiB are free: for so"
    with refusal(words):
        checks.fits_in_memory("this", (16_000, 16_000))
    with refusal("this would take 3 dense .* 1.43 GiB in all, where 1 GiB are free: take fewer$"):
        checks.fits_in_memory("this", (8000, 8000), copies=3, hint="take fewer")
