"""The free memory is the least of what the machine, the container and the process limit allow."""

import resource
import subprocess
import sys

import pytest

from fedmf import checks, memory
from tests.refusals import refusal


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Simulates a machine with 8,000 kB free, and no container."""
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    monkeypatch.setattr(memory, "_MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CONTAINERS", ())
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    return tmp_path


def test_free_memory_is_that_of_the_machine(machine):
    assert memory.available_memory() == 8000 * 1024
    (machine / "meminfo").unlink()  # Without the file, all memory of the machine counts.
    assert memory.available_memory() > 10**8


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 8000 * 1024), ("70000", 70_000 - 60_000 + 5000)]
)
def test_free_memory_of_the_container_includes_its_file_cache(
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


def test_free_memory_is_below_the_limit_of_the_process():
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30));"
        "from fedmf.memory import available_memory; print(available_memory())"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert 0 < int(process.stdout) < 2**30


def test_matrices_larger_than_the_free_memory_are_refused(monkeypatch):
    monkeypatch.setattr(checks, "available_memory", lambda: 2**30)
    checks.fits_in_memory("this", (8000, 8000))
    words = "^this would take a dense 16000 x 16000 array of 1.91 GiB, where 1 GiB are free: for so"
    with refusal(words):
        checks.fits_in_memory("this", (16_000, 16_000))
    with refusal("this would take 3 dense .* 1.43 GiB in all, where 1 GiB are free: take fewer$"):
        checks.fits_in_memory("this", (8000, 8000), copies=3, hint="take fewer")
