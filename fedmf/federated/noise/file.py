"""Noise in a private file: the history of a banded encoder with so many bands that they do not fit the memory."""

import contextlib
import errno
import hashlib
import json
import mmap
import os
import pathlib
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import scipy.linalg

from fedmf.files import lock
from fedmf.noise.strategies import NOISE_FILE, TILE, NoiseStrategy, free_for_noise, rows_ahead

_HEADER = "noise_history.json"
# Float32 rounding of a row of C X, relative to a sum of absolute values; and what does no harm in Z, which has deviation 1.
_ROUNDING, _HARMLESS = 1e-5, 1e-3
_PAGE = 4096
_PASSED_AT_ONCE = 16 << 20


class TileFile:
    """Rows of model size in a private file, tile after tile of coordinates, row t at place t mod `places`.

    As secret as the seed: mode 0600 in a folder of mode 0700. The pages of the file are not kept in memory, where the system can do without
    (O_DIRECT): gigabytes that pass by would cost more than the disk does, and more in one round than in another.

    Args:
      size: coordinates of a row.
      places: rows that the file holds.
      folder: where to keep it, or None for a file without a name, which goes with this process however that ends.

    Raises:
      ValueError: the disk has no room for the file, or another process has it. An older object of this process gives it up, and raises this
        itself when it is used again.
    """

    _named: ClassVar[weakref.WeakValueDictionary[str, "TileFile"]] = weakref.WeakValueDictionary()

    def __init__(self, size: int, places: int, folder: str | pathlib.Path | None) -> None:
        self.size, self.places = size, places
        # What passes between the file and arrays: whole pages, as O_DIRECT has it.
        self._passing = memoryview(mmap.mmap(-1, _PASSED_AT_ONCE))
        if folder is None:
            with tempfile.TemporaryDirectory(prefix="fedmf-noise-") as temporary:
                self._descriptor = self._opened(pathlib.Path(temporary))
        else:
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
            name = os.path.realpath(folder)
            older = self._named.pop(name, None)
            if older is not None:
                older._close()
            self._descriptor = self._opened(pathlib.Path(folder))
            self._named[name] = self
        self._close: Any = weakref.finalize(self, os.close, self._descriptor)
        self._ahead, self._held = np.empty((0, size), np.float32), range(0)  # rows, and which they are

    def _opened(self, folder: pathlib.Path) -> int:
        needed, have = self._offset(self.size), free_for_noise(folder)
        if have < needed:
            raise ValueError(
                f"folder={str(folder)!r} has {have / 1e9:.1f} GB free and the noise needs {needed / 1e9:.1f} GB: "
                "name another folder, or noise_strategy='redrawn'"
            )
        self._path = folder / NOISE_FILE
        return _open(self._path, needed, self._passing[:_PAGE])

    def row(self, t: int, end: int) -> np.ndarray:
        """Row t as a new array, float32 (size,), and some of the rows behind it, before `end`, in the same pass."""
        if t not in self._held:
            count, self._held = min(rows_ahead(self.size), end - t), range(0)
            if len(self._ahead) != count:
                self._ahead = np.empty((count, self.size), np.float32)
            for start in range(0, self.size, TILE):
                tile = slice(start, min(start + TILE, self.size))
                self.read(tile, t, self._ahead[:, tile])
            self._held = range(t, t + count)
        return self._ahead[t - self._held.start].copy()

    def read(self, tile: slice, t: int, out: np.ndarray) -> None:
        """Rows t .. t + len(out) - 1 of `tile` into out, float32 (rows, coordinates)."""
        self.check_open()
        for offset, rows, passing in self._pieces(tile, t, len(out)):
            if os.preadv(self._descriptor, [passing], offset) < len(passing):
                raise OSError(f"{self._path} is shorter than it should be: delete it and resume")
            out[rows] = np.frombuffer(passing, np.float32).reshape(rows.stop - rows.start, -1)[:, : out.shape[1]]

    def write(self, tile: slice, t: int, rows: np.ndarray) -> None:
        """The inverse of `read`."""
        self._held = range(0)
        self.check_open()
        for offset, some, passing in self._pieces(tile, t, len(rows)):
            np.frombuffer(passing, np.float32).reshape(some.stop - some.start, -1)[:, : rows.shape[1]] = rows[some]
            while len(passing):
                done = os.pwritev(self._descriptor, [passing], offset)
                passing, offset = passing[done:], offset + done

    def sync(self) -> None:
        """Returns when what was written is on the disk."""
        os.fsync(self._descriptor)

    def check_open(self) -> None:
        """Raises a ValueError if a later object has the file."""
        if not self._close.alive:
            raise ValueError(f"{self._path} has been taken over by a later HostNoise of this process: use that one")

    def _pieces(self, tile: slice, t: int, count: int) -> Iterator[tuple[int, slice, memoryview]]:
        """Rows t .. t + count - 1 of this tile in runs of neighbours: offset in the file, which rows, and the memory to pass them in."""
        width = 4 * _whole_pages(tile.stop - tile.start)
        row = 0
        while row < count:
            place = (t + row) % self.places
            some = min(count - row, self.places - place, _PASSED_AT_ONCE // width)
            offset = self._offset(tile.start) + place * width
            yield offset, slice(row, row + some), self._passing[: some * width]
            row += some

    def _offset(self, coordinate: int) -> int:
        """Bytes of the tiles before this coordinate, which begins one, or is the last."""
        tiles, rest = divmod(coordinate, TILE)
        return 4 * self.places * (tiles * _whole_pages(TILE) + _whole_pages(rest))


def _whole_pages(coordinates: int) -> int:
    """As many, rounded up to pages of the file."""
    return -(-4 * coordinates // _PAGE) * _PAGE // 4


def _open(path: pathlib.Path, size: int, page: memoryview) -> int:
    """Descriptor of a file of `size` bytes, past the page cache if its file system can do that."""
    descriptor = -1
    for flag in (getattr(os, "O_DIRECT", 0), 0):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flag, 0o600)
            if not lock(descriptor):
                raise BlockingIOError
            os.truncate(descriptor, size)
            os.preadv(descriptor, [page], 0)
            return descriptor
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise ValueError(
                    f"another process makes its noise in {path.parent}: wait for it, stop it, or name another folder"
                ) from error
            if error.errno != errno.EINVAL or not flag:
                raise
    raise AssertionError("the second way returns or raises")


class NoiseFile:
    """x_t = (z_t - sum_j C[t, t-j] x_(t-j)) / C[t, t] for L rounds at a time, as D X = Z - E H on tiles of coordinates.

    The file holds the rows of the last L + bands - 1 rounds: making a block leaves those alone that it needs, so that a run that is killed
    meanwhile finds them. Its header names the rounds that are whole; it is written after them. A file that is found must obey C X = Z in
    its last block, which involves every row that is used again; one that does not is made anew.

    Args:
      strategy: of `fedmf.noise.strategies`, "spilled".
      tiles: draws in tiles; see `fedmf.federated.noise.host`.
      recurrence: C by rows, float64 (rounds, bands).
      folder: as of `TileFile`, which raises.
    """

    def __init__(
        self, strategy: NoiseStrategy, tiles: Any, recurrence: np.ndarray, folder: str | pathlib.Path | None
    ) -> None:
        self._tiles, self._recurrence = tiles, recurrence
        self._length, self._width = strategy.length, strategy.width
        self._places = self._length + self._width
        self._file = TileFile(tiles.size, self._places, folder)
        self._header = None if folder is None else pathlib.Path(folder) / _HEADER
        digest = hashlib.sha256(np.ascontiguousarray(recurrence).tobytes())
        digest.update(np.asarray(tiles.key).tobytes() + repr((tiles.size, self._length, TILE)).encode())
        self._digest = digest.hexdigest()
        self._first, self._end = 0, 0  # rounds that are whole in the file
        if self._header is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                header = json.loads(self._header.read_text())
                if header["digest"] == self._digest:
                    self._first, self._end = int(header["first"]), int(header["end"])
        if self._end and not self._obeys_the_recurrence():
            self._first, self._end = 0, 0

    def row(self, t: int) -> np.ndarray:
        """Row t, float32 (size,): read from the file, after it was made if it is not there."""
        if t < self._first:
            self._first, self._end = 0, 0
        while t >= self._end:
            self._make()
        return self._file.row(t, self._end)

    def snapshot(self) -> list[np.ndarray]:
        """Nothing: the file itself is kept."""
        return []

    def restore(self, leaves: Sequence[np.ndarray]) -> bool:
        """The file is taken as it is if it fits."""
        return not leaves

    def _rows_of_encoder(self, s: int, e: int) -> tuple[np.ndarray, int]:
        """Rows s .. e - 1 of C from column s - r on, and r, the number of rows before s that they reach back to."""
        r = min(self._width, s)
        C = np.zeros((e - s, r + e - s))
        for i in range(e - s):
            count = min(self._recurrence.shape[1], r + i + 1)
            C[i, r + i - np.arange(count)] = self._recurrence[s + i, :count]
        return C, r

    def _make(self) -> None:
        self._file.check_open()
        s, e = self._end, min(self._end + self._length, len(self._recurrence))
        C, r = self._rows_of_encoder(s, e)
        D, E, L = C[:, r:], C[:, :r], e - s
        solved = scipy.linalg.solve_triangular(D, np.hstack([np.eye(L), -E]), lower=True, check_finite=False)
        weights = solved.astype(np.float32)
        # The oldest rows are overwritten from here on.
        first = max(0, e - self._places)
        self._write_header(first, s)
        inputs = np.empty((L + r, min(TILE, self._tiles.size)), np.float32)
        for tile in self._tiles.watched():
            stacked = inputs[:, : tile.stop - tile.start]
            self._tiles.draw(s, L, tile, stacked[:L])
            self._file.read(tile, s - r, stacked[L:])
            self._file.write(tile, s, weights @ stacked)
        if self._header is not None:
            self._file.sync()  # or a header might outlive a power cut, and its rows not
        self._write_header(first, e)

    def _obeys_the_recurrence(self) -> bool:
        """Whether C X = Z in the last block of the file."""
        n, e = len(self._recurrence), self._end
        s = (e - 1) // self._length * self._length
        if not 0 <= self._first <= max(0, s - self._width) <= s < e <= n or (e != n and e % self._length):
            return False
        C, r = self._rows_of_encoder(s, e)
        C32 = C.astype(np.float32)
        inputs = np.empty((r + e - s, min(TILE, self._tiles.size)), np.float32)
        drawn = np.empty((e - s, inputs.shape[1]), np.float32)
        for tile in self._tiles:
            X, Z = inputs[:, : tile.stop - tile.start], drawn[:, : tile.stop - tile.start]
            try:
                self._file.read(tile, s - r, X)
            except OSError:
                return False
            self._tiles.draw(s, e - s, tile, Z)
            scale = np.abs(C) @ np.abs(X).max(axis=1, initial=0.0)
            # Negated, so that a NaN counts as wrong.
            if not (np.abs(C32 @ X - Z).max(axis=1, initial=0.0) <= np.minimum(_ROUNDING * scale, _HARMLESS)).all():
                return False
        return True

    def _write_header(self, first: int, end: int) -> None:
        if self._header is not None:
            path = self._header.with_suffix(".new")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump({"digest": self._digest, "first": first, "end": end}, file)
                file.flush()
                os.fsync(descriptor)
            os.replace(path, self._header)
        self._first, self._end = first, end
