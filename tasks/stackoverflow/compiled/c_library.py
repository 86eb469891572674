"""Compiles a C file with the machine's own compiler: a speed-up, never a need."""

import ctypes
import functools
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

import numpy as np

from fedmf.files import cache_folder, make_folder

_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared")
COMPILER_VARIABLE = "FEDMF_CC"


def compiler() -> str | None:
    """The C compiler: $FEDMF_CC, or else the first of cc, gcc and clang that there is; None for
    none, or FEDMF_CC set to nothing.
    """
    if COMPILER_VARIABLE in os.environ:
        return (
            shutil.which(os.environ[COMPILER_VARIABLE]) if os.environ[COMPILER_VARIABLE] else None
        )
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


@functools.cache
def library(source: pathlib.Path) -> ctypes.CDLL | None:
    """The library of one C file and the headers beside it, for this processor; None where it does
    not compile.

    It is kept in the cache folder, in a file of its own for each source, compiler and processor.
    Without a cache folder that can be written, it is compiled into a temporary one. Calls of its
    functions run without Python's lock.
    """
    cc = compiler()
    if cc is None or os.name != "posix":
        return None
    parts = [path.read_bytes() for path in [source, *sorted(source.parent.glob("*.h"))]]
    version = subprocess.run([cc, "--version"], capture_output=True, check=False).stdout
    digest = hashlib.sha256(
        b"\0".join([*parts, version, " ".join(_FLAGS).encode(), _processor()])
    ).hexdigest()[:24]
    name, folder = f"{source.stem}-{digest}.so", cache_folder()
    if folder is not None:
        try:
            make_folder(folder)
            return _load(
                folder / name if (folder / name).exists() else _compile(cc, source, folder / name)
            )
        except OSError:  # a home that is not writable, or not executable
            pass
    with tempfile.TemporaryDirectory() as temporary:
        return _load(_compile(cc, source, pathlib.Path(temporary) / name))


def _processor() -> bytes:
    """What `-march=native` depends on: machines may share a home folder."""
    cpu = pathlib.Path("/proc/cpuinfo")
    lines = cpu.read_bytes().splitlines() if cpu.exists() else []
    flags = next((line for line in lines if line.startswith((b"flags", b"Features"))), b"")
    return b"\0".join([platform.machine().encode(), platform.processor().encode(), flags])


def _compile(cc: str, source: pathlib.Path, path: pathlib.Path) -> pathlib.Path | None:
    """Writes `path` whole or not at all. None if the compiler fails."""
    native = (
        "-mcpu=native" if platform.machine() in ("aarch64", "arm64", "ppc64le") else "-march=native"
    )
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        output = pathlib.Path(temporary) / path.name
        for options in ([native], []):
            command = [cc, *_FLAGS, *options, "-o", str(output), str(source), "-lm"]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                os.replace(output, path)
                return path
    return None


def _load(path: pathlib.Path | None) -> ctypes.CDLL | None:
    return None if path is None else ctypes.CDLL(str(path))


def pointer(array: np.ndarray, dtype: type = np.float32, *, written: bool = False) -> int:
    """The address of a contiguous array, for C.

    Raises:
      TypeError, ValueError: another dtype, not contiguous, or not to be written into; C would read
        past its end.
    """
    if array.dtype != dtype:
        raise TypeError(f"the array is {array.dtype}, the compiled code takes {np.dtype(dtype)}")
    if not array.flags.c_contiguous or (written and not array.flags.writeable):
        raise ValueError(
            f"the array {array.shape} must be "
            f"C-contiguous{' and writeable' * written} for the compiled code"
        )
    return int(array.ctypes.data)
