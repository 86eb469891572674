"""The state from which a run is resumed, as an .npz file without pickles."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from fedmf.files import check_archive
from fedmf.mechanisms.storage import READ_ERRORS
from fedmf.participation.ledger import ParticipationLedger


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
        """Writes the arrays one by one: no leaf is copied as a whole.

        Args:
          out: an empty file that can be sought.

        Raises:
          TypeError: a leaf of Python objects, which could be written but not read back.
        """
        arrays = {f"state_{i}": np.asarray(leaf) for i, leaf in enumerate(self.state)}
        for name, array in arrays.items():
            # Kind V covers the extension types, bfloat16 among them, that an .npz turns
            # into raw bytes.
            if array.dtype.hasobject or array.dtype.kind == "V":
                raise TypeError(
                    f"{name} holds {array.dtype} entries: a checkpoint keeps "
                    "plain numeric arrays only"
                )
        for name, cohorts in (
            ("cohort", self.ledger.cohorts),
            ("selected", self.ledger.selections),
        ):
            arrays[f"{name}_lengths"] = np.array([len(c) for c in cohorts], np.int64)
            arrays[f"{name}_clients"] = np.concatenate([*cohorts, np.zeros(0, np.int64)])
        header = [self.rounds_done, self.config_digest, self.ledger.cohort_size, len(self.state)]
        np.savez(out, header=np.array(json.dumps(header)), **arrays)

    @staticmethod
    def read(path: pathlib.Path) -> "Checkpoint":
        """The inverse of `write`.

        Raises:
          ValueError: it is not a whole checkpoint. Every entry has a checksum.
        """
        try:
            check_archive(path)
            with np.load(path, allow_pickle=False) as arrays:
                rounds_done, config_digest, cohort_size, leaves = json.loads(
                    arrays["header"].item()
                )
                state = [arrays[f"state_{i}"] for i in range(leaves)]
                cohorts, selected = (
                    np.split(arrays[f"{name}_clients"], np.cumsum(arrays[f"{name}_lengths"]))[:-1]
                    for name in ("cohort", "selected")
                )
            ledger = ParticipationLedger(cohort_size=cohort_size)
            for achieved, planned in zip(cohorts, selected, strict=True):
                ledger.append(achieved, selected=planned)
        except READ_ERRORS as error:
            raise ValueError(
                f"checkpoint {path} is damaged or half-written ({path.stat().st_size} bytes): "
                "delete this file to resume from the one before it"
            ) from error
        return Checkpoint(
            rounds_done=rounds_done, config_digest=config_digest, state=state, ledger=ledger
        )
