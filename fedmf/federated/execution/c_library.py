"""C code that the machine's own compiler makes into a library at first use: a speed-up where there is one, never a need."""

import contextlib
import ctypes
import functools
import hashlib
import mmap
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

import numpy as np

from fedmf.files import cache_folder, write_atomically

_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared")
COMPILER_VARIABLE = "FEDMF_CC"


def compiler() -> str | None:
    """The C compiler: $FEDMF_CC, or else the first of cc, gcc and clang that there is; None for none, or FEDMF_CC set to nothing."""
    if COMPILER_VARIABLE in os.environ:
        return shutil.which(os.environ[COMPILER_VARIABLE]) if os.environ[COMPILER_VARIABLE] else None
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


@functools.cache
def library(source: pathlib.Path) -> ctypes.CDLL | None:
    """The library of one C file and the headers beside it, for this processor, kept in the cache folder; None where that fails.

    The folder is that of fits: $FEDMF_CACHE, or else fedmf in the user's cache folder. A source, compiler or processor that changes has
    another file. Calls of its functions run without Python's lock.
    """
    found = compiler()
    if found is None or os.name != "posix":
        return None
    text = b"\0".join(path.read_bytes() for path in [source, *sorted(source.parent.glob("*.h"))])
    version = subprocess.run([found, "--version"], capture_output=True, check=False).stdout
    mark = hashlib.sha256(b"\0".join([text, version, " ".join(_FLAGS).encode(), _processor()])).hexdigest()[:24]
    folder = cache_folder()
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return _load(_make(found, source, pathlib.Path(temporary) / f"{source.stem}.so"))
    path = folder / f"{source.stem}-{mark}.so"
    return _load(path if path.exists() else _make(found, source, path))


def _processor() -> bytes:
    """What `-march=native` depends on: a home folder may be shared by machines."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith((b"flags", b"Features"))), b"")
    return b"\0".join([platform.machine().encode(), platform.processor().encode(), flags])


def _make(found: str, source: pathlib.Path, path: pathlib.Path) -> pathlib.Path | None:
    """Compiles whole or not at all: of two processes that do it at once, one file remains and either is right."""
    native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64", "ppc64le") else "-march=native"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
            made = pathlib.Path(temporary) / path.name
            for options in ([native], []):
                command = [found, *_FLAGS, *options, "-o", str(made), str(source), "-lm"]
                if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                    write_atomically(path, made.read_bytes(), mode=0o755)
                    return path
    except OSError:
        pass
    return None


def _load(path: pathlib.Path | None) -> ctypes.CDLL | None:
    try:
        return None if path is None else ctypes.CDLL(str(path))
    except OSError:
        return None


def pointer(array: np.ndarray, dtype: type = np.float32, *, written: bool = False) -> int:
    """The address of a contiguous array, for C.

    Raises:
      TypeError, ValueError: another dtype, not contiguous, or not to be written into; C would read past its end.
    """
    if array.dtype != dtype:
        raise TypeError(f"the array is {array.dtype}, the compiled code takes {np.dtype(dtype)}")
    if not array.flags.c_contiguous or (written and not array.flags.writeable):
        raise ValueError(
            f"the array {array.shape} must be C-contiguous{' and writeable' * written} for the compiled code"
        )
    return int(array.ctypes.data)


def room(floats: int) -> np.ndarray:
    """Zeros, float32 (floats,), that begin on a cache line; from 4 MiB on in huge pages, where the system has them.

    What runs through more memory than the processor has addresses at hand for is slower in pages of 4 KiB.
    """
    line, page = 64, 2**21
    if 4 * floats < 2 * page:
        held = np.zeros(floats + line // 4, np.float32)
        start = -held.ctypes.data % line // 4
        return held[start : start + floats]
    # Private: by default it would be shared, for which huge pages are a setting of its own and mostly off.
    memory = mmap.mmap(-1, 4 * floats + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    held = np.frombuffer(memory, np.float32)
    start = -held.ctypes.data % page // 4
    return held[start : start + floats]
