"""What a run goes on from after a stop, as a file."""

import dataclasses
import hashlib
import json
import pathlib
import zipfile
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from fedmf.participation.ledger import ParticipationLedger

_MAGIC = b"fedmf checkpoint 1\n"
_DIGEST = hashlib.sha256().digest_size
_READ_AT_ONCE = 2**22


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of a run after `rounds_done` rounds.

    Attributes:
      rounds_done: rounds completed; the next round has this index.
      config_digest: `RunFolder.digest` of the run it belongs to.
      state: leaves of the execution's state, in its own order.
      ledger: participation of the completed rounds.
    """

    rounds_done: int
    config_digest: str
    state: Sequence[np.ndarray]
    ledger: ParticipationLedger

    def write(self, out: BinaryIO) -> None:
        """Magic line, SHA-256 of the rest, the rest: an .npz without pickles. No leaf is copied as a whole.

        Args:
          out: an empty file that can be sought.

        Raises:
          TypeError: a leaf of Python objects, which could be written but not read back.
        """
        arrays = {f"state_{i}": np.asarray(leaf) for i, leaf in enumerate(self.state)}
        for name, array in arrays.items():
            # Kind V covers the extension types, bfloat16 among them, that an .npz turns into raw bytes.
            if array.dtype.hasobject or array.dtype.kind == "V":
                raise TypeError(f"{name} holds {array.dtype} entries: a checkpoint keeps plain numeric arrays only")
        for name, of in (("cohort", self.ledger.cohort), ("selected", self.ledger.selected)):
            cohorts = [of(t) for t in range(len(self.ledger))]
            arrays[f"{name}_lengths"] = np.array([len(c) for c in cohorts], np.int64)
            arrays[f"{name}_clients"] = np.concatenate([*cohorts, np.zeros(0, np.int64)])
        header = {
            "rounds_done": self.rounds_done,
            "config_digest": self.config_digest,
            "cohort_size": self.ledger.cohort_size,
        }
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        out.write(_MAGIC + bytes(_DIGEST))
        body = _Hashed(out)
        with zipfile.ZipFile(body, "w") as archive:  # type: ignore[call-overload]
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        out.seek(len(_MAGIC))
        out.write(body.hash.digest())

    @staticmethod
    def read(source: BinaryIO, path: pathlib.Path, *, with_state: bool = True) -> "Checkpoint":
        """The inverse of `write`.

        Args:
          source: the file, at its beginning.
          path: its name, for the error.
          with_state: whether to read the state; it is checked anyway.

        Raises:
          ValueError: it is not a whole checkpoint.
        """
        magic, digest = source.read(len(_MAGIC)), source.read(_DIGEST)
        body = hashlib.sha256()
        while part := source.read(_READ_AT_ONCE):
            body.update(part)
        if magic != _MAGIC or body.digest() != digest:
            raise ValueError(
                f"checkpoint {path} is damaged or half-written ({source.tell()} bytes): delete this file to resume from the one before it"
            )
        source.seek(len(magic) + len(digest))
        with np.load(source, allow_pickle=False) as arrays:
            header = json.loads(arrays["header"].tobytes())
            leaves = sum(name.startswith("state_") for name in arrays.files) if with_state else 0
            state = [arrays[f"state_{i}"] for i in range(leaves)]
            cohorts, selected = (
                np.split(arrays[f"{name}_clients"], np.cumsum(arrays[f"{name}_lengths"]))[:-1]
                for name in ("cohort", "selected")
            )
        ledger = ParticipationLedger(cohort_size=header["cohort_size"])
        for achieved, planned in zip(cohorts, selected, strict=True):
            ledger.append(achieved, selected=planned)
        return Checkpoint(
            rounds_done=header["rounds_done"], config_digest=header["config_digest"], state=state, ledger=ledger
        )


class _Hashed:
    """Writes on to a file. It offers no seeking, and so an archive is written into it in one pass."""

    def __init__(self, out: BinaryIO) -> None:
        self.hash = hashlib.sha256()
        self._out = out

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return self._out.write(data)

    def flush(self) -> None:
        self._out.flush()
