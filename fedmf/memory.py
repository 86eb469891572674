"""How much memory this process can still take."""

import os
import pathlib

_MACHINE = pathlib.Path("/proc/meminfo")
_PROCESS = pathlib.Path("/proc/self/statm")
# A container's limit, what it uses, and which line of memory.stat counts files that are given up
# where memory is short: of version 2 and of version 1.
_CONTAINERS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def available_memory() -> int:
    """Returns the bytes that are free: of the machine, of its container, and of the process' own
    limit, such as that of `ulimit -v`, the fewest.
    """
    free = [_free_of_machine()]
    for container in _CONTAINERS:
        free.append(_free_of_container(*container, otherwise=free[0]))
    free.append(_free_of_process(otherwise=free[0]))
    return max(0, min(free))


def _free_of_machine() -> int:
    """Returns what programs can take without swapping; all of a machine that does not tell."""
    numbers = _numbers(_MACHINE)
    if "MemAvailable:" in numbers:
        return 1024 * numbers["MemAvailable:"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free_of_container(folder: str, limit: str, usage: str, files: str, *, otherwise: int) -> int:
    path = pathlib.Path(folder)
    try:
        most = int((path / limit).read_text())
        used = int((path / usage).read_text())
    except (OSError, ValueError):  # there is none, or "max"
        return otherwise
    return most - used + _numbers(path / "memory.stat").get(files, 0)


def _free_of_process(*, otherwise: int) -> int:
    try:
        import resource
    except ImportError:  # no Unix
        return otherwise
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return otherwise
    try:
        pages = int(_PROCESS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return most
    return most - pages * os.sysconf("SC_PAGE_SIZE")


def _numbers(path: pathlib.Path) -> dict[str, int]:
    """Returns the whole number that follows the name in each line of a file."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}
