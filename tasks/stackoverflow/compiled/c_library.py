"""Builder and cache of C libraries, which compiles them with the machine's own compiler.

They make training faster and are never required.
"""

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
    """Returns the path of the C compiler, or None if there is none or FEDMF_CC is empty.

    It is $FEDMF_CC, or else the first of cc, gcc and clang.
    """
    if COMPILER_VARIABLE in os.environ:
        compiler_name = os.environ[COMPILER_VARIABLE]
        return shutil.which(compiler_name) if compiler_name else None
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


@functools.cache
def library(source: pathlib.Path) -> ctypes.CDLL | None:
    """Returns the library of a C file for this processor, or None if it cannot be compiled.

    The headers beside the file belong to it. The library is stored in the cache folder, in a file
    of its own for each source, compiler and processor. If that folder cannot be written, it is
    compiled into a temporary one. Calls of its functions run without Python's lock.
    """
    compiler_path = compiler()
    if compiler_path is None or os.name != "posix":
        return None
    source_contents = [file.read_bytes() for file in [source, *sorted(source.parent.glob("*.h"))]]
    compiler_version = subprocess.run(
        [compiler_path, "--version"], capture_output=True, check=False
    ).stdout
    build_digest = hashlib.sha256(
        b"\0".join([*source_contents, compiler_version, " ".join(_FLAGS).encode(), _processor()])
    ).hexdigest()[:24]
    library_name = f"{source.stem}-{build_digest}.so"
    library_folder = cache_folder()
    if library_folder is not None:
        library_path = library_folder / library_name
        try:
            make_folder(library_folder)
            return _load(
                library_path
                if library_path.exists()
                else _compile(compiler_path, source, library_path)
            )
        # An OSError means that the home folder is not writable, or that code may not be loaded from
        # it.
        except OSError:
            pass
    with tempfile.TemporaryDirectory() as temporary:
        return _load(_compile(compiler_path, source, pathlib.Path(temporary) / library_name))


def _processor() -> bytes:
    """Returns an identifier of the processor, on which `-march=native` depends.

    Machines with different processors may share a home folder.
    """
    cpu_info = pathlib.Path("/proc/cpuinfo")
    cpu_lines = cpu_info.read_bytes().splitlines() if cpu_info.exists() else []
    flags_line = next((line for line in cpu_lines if line.startswith((b"flags", b"Features"))), b"")
    return b"\0".join([platform.machine().encode(), platform.processor().encode(), flags_line])


def _compile(cc: str, source: pathlib.Path, path: pathlib.Path) -> pathlib.Path | None:
    """Compiles a C file into `path`, completely or not at all. Returns None if the compiler
    fails.
    """
    has_mcpu = platform.machine() in ("aarch64", "arm64", "ppc64le")
    native_flag = "-mcpu=native" if has_mcpu else "-march=native"
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        output_path = pathlib.Path(temporary) / path.name
        for options in ([native_flag], []):
            compile_command = [cc, *_FLAGS, *options, "-o", str(output_path), str(source), "-lm"]
            if subprocess.run(compile_command, capture_output=True, check=False).returncode == 0:
                os.replace(output_path, path)
                return path
    return None


def _load(path: pathlib.Path | None) -> ctypes.CDLL | None:
    """Loads a compiled library, or returns None if `path` is None."""
    return None if path is None else ctypes.CDLL(str(path))


def pointer(array: np.ndarray, dtype: type = np.float32, *, written: bool = False) -> int:
    """Returns the address of a contiguous array, to pass to C code.

    Raises:
      TypeError, ValueError: another dtype, not contiguous, or not to be written into; C would read
        past its end.
    """
    if array.dtype != dtype:
        raise TypeError(f"the array is {array.dtype}, the compiled code takes {np.dtype(dtype)}")
    if not array.flags.c_contiguous or (written and not array.flags.writeable):
        required_layout = "C-contiguous and writeable" if written else "C-contiguous"
        raise ValueError(f"the array {array.shape} must be {required_layout} for the compiled code")
    return int(array.ctypes.data)
