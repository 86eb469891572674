"""Estimate of the memory that this process can still use, within the limits of the machine, of its
container and of the process.
"""

import os
import pathlib
from typing import NamedTuple


class _ContainerFiles(NamedTuple):
    """Names of the files in which a Linux control group describes the memory of a container.

    Attributes:
      folder: folder of the control group.
      limit: file with the largest number of bytes that the container may use.
      usage: file with the number of bytes that it uses.
      reclaimable: name of the line in memory.stat with the bytes of file cache that are freed if
        memory is short.
    """

    folder: str
    limit: str
    usage: str
    reclaimable: str


_MACHINE = pathlib.Path("/proc/meminfo")
_PROCESS = pathlib.Path("/proc/self/statm")
# The first entry is for version 2 of control groups, the second one for version 1.
_CONTAINERS = (
    _ContainerFiles("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    _ContainerFiles(
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def available_memory() -> int:
    """Returns the number of bytes that this process can still use.

    It is the smallest of three figures: the free memory of the machine, that of its container, and
    the rest of the process' own limit, such as that of `ulimit -v`.
    """
    machine_bytes = _free_in_machine()
    free_bytes = [machine_bytes]
    for container in _CONTAINERS:
        free_bytes.append(_free_in_container(container, otherwise=machine_bytes))
    free_bytes.append(_free_in_process(otherwise=machine_bytes))
    return max(0, min(free_bytes))


def _free_in_machine() -> int:
    """Returns the number of bytes of the machine that programs can use without swapping.

    On a machine without /proc/meminfo it is the size of the whole memory.
    """
    number_by_name = _read_numbers(_MACHINE)
    if "MemAvailable:" in number_by_name:
        return 1024 * number_by_name["MemAvailable:"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free_in_container(container: _ContainerFiles, *, otherwise: int) -> int:
    """Returns the number of bytes that a container can still use, or `otherwise` if it has no
    limit.
    """
    container_folder = pathlib.Path(container.folder)
    try:
        limit_bytes = int((container_folder / container.limit).read_text())
        used_bytes = int((container_folder / container.usage).read_text())
    # These errors mean that the process is in no container, or that the container's memory limit is
    # "max".
    except (OSError, ValueError):
        return otherwise
    reclaimable_bytes = _read_numbers(container_folder / "memory.stat").get(
        container.reclaimable, 0
    )
    return limit_bytes - used_bytes + reclaimable_bytes


def _free_in_process(*, otherwise: int) -> int:
    """Returns the number of bytes that the process' own limit (ulimit) leaves, or `otherwise` if it
    has no limit.
    """
    try:
        import resource
    # The module `resource` exists only on Unix.
    except ImportError:
        return otherwise
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes == resource.RLIM_INFINITY:
        return otherwise
    try:
        num_pages = int(_PROCESS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return limit_bytes
    return limit_bytes - num_pages * os.sysconf("SC_PAGE_SIZE")


def _read_numbers(path: pathlib.Path) -> dict[str, int]:
    """Reads a file with a name and a number on each line, and returns the numbers by name. The
    result is empty if the file cannot be read.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    number_by_name: dict[str, int] = {}
    for line in lines:
        line_words = line.split()
        if len(line_words) > 1 and line_words[1].isdigit():
            number_by_name[line_words[0]] = int(line_words[1])
    return number_by_name
