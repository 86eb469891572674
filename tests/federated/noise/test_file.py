"""The file that noise passes through: what is written is read, whatever the sizes and with or without the page cache."""

import errno
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.federated.noise import file as file_module
from fedmf.federated.noise.file import TileFile
from fedmf.noise.strategies import TILE


@pytest.fixture(params=["as it is", "without O_DIRECT"])
def opened(request, monkeypatch):
    """The flags that files were opened with."""
    flags = []
    real = os.open

    def opening(path, flag, *rest, **options):
        if request.param != "as it is" and flag & getattr(os, "O_DIRECT", 0):
            raise OSError(errno.EINVAL, "not on this file system")
        flags.append(flag)
        return real(path, flag, *rest, **options)

    monkeypatch.setattr(file_module.os, "open", opening)
    return flags


@pytest.mark.parametrize("size", [1, 1024, TILE, TILE + 1, 2 * TILE + 4097])
@pytest.mark.parametrize("places", [1, 5])
def test_what_is_written_is_read(opened, size, places):
    file = TileFile(size, places, None)
    assert opened
    rows = np.random.default_rng(size).standard_normal((places, size)).astype(np.float32)
    first = 7  # row t at place t mod places: the rows go around the end
    for start in range(0, size, TILE):
        tile = slice(start, min(start + TILE, size))
        file.write(tile, first, rows[:, tile])
    for i in range(places):
        np.testing.assert_array_equal(file.row(first + i, first + places), rows[i])


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_like_an_array(data):
    """Writes and reads in any order against rows in memory; small passes, so that one write takes several."""
    size, places = data.draw(st.sampled_from([3, 1500, TILE + 5])), data.draw(st.integers(1, 6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_module, "_PASSED_AT_ONCE", 2 * 4 * TILE)
        file, held = TileFile(size, places, None), np.zeros((places, size), np.float32)
        for step in range(data.draw(st.integers(1, 6))):
            t, count = data.draw(st.integers(0, 20)), data.draw(st.integers(1, places))
            if data.draw(st.booleans()):
                for start in range(0, size, TILE):
                    tile = slice(start, min(start + TILE, size))
                    rows = np.full((count, tile.stop - start), step + start + 1, np.float32) + np.arange(count)[:, None]
                    file.write(tile, t, rows.astype(np.float32))
                    held[np.arange(t, t + count) % places, tile] = rows
            else:
                np.testing.assert_array_equal(file.row(t, t + count), held[t % places])


def test_an_interrupted_read_leaves_no_mixture(monkeypatch):
    """Ctrl-C while rows are read ahead: what is in memory then is neither the old rows nor the new ones."""
    size = TILE + 5
    file = TileFile(size, 4, None)
    rows = np.arange(4 * size, dtype=np.float32).reshape(4, size)
    for tile in (slice(0, TILE), slice(TILE, size)):
        file.write(tile, 0, rows[:, tile])
    np.testing.assert_array_equal(file.row(0, 2), rows[0])
    read = file.read

    def interrupted(tile, t, out):
        if tile.start:
            raise KeyboardInterrupt
        read(tile, t, out)

    monkeypatch.setattr(file, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        file.row(2, 4)
    monkeypatch.setattr(file, "read", read)
    for t in range(4):
        np.testing.assert_array_equal(file.row(t, 4), rows[t])


def test_a_file_system_that_has_no_such_file_says_so(monkeypatch, tmp_path):
    def refuses(path, flag, *rest):
        raise OSError(errno.EACCES, "no")

    monkeypatch.setattr(file_module.os, "open", refuses)
    with pytest.raises(OSError, match="no"):
        TileFile(10, 2, tmp_path)


KILLED = """
import os, signal
import numpy as np
from fedmf.federated.noise.file import TileFile
file = TileFile(10, 2, None)
file.write(slice(0, 10), 0, np.ones((2, 10), np.float32))
assert (file.row(1, 2) == 1).all()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_no_noise_behind(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED], env=os.environ | {"TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not list(tmp_path.glob("fedmf-noise-*"))
