"""The limits on memory and disk space that the noise of a run may take."""

import dataclasses
import os
import pathlib
import shutil
import tempfile

from fedmf import checks
from fedmf.files import expanded
from fedmf.noise.strategy import NoiseStrategy, row_bytes


def default_memory() -> int:
    """Returns a quarter of the memory of this machine or its container, in bytes."""
    total_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit_file = pathlib.Path("/sys/fs/cgroup/memory.max")
    memory_limit = limit_file.read_text().strip() if limit_file.exists() else "max"
    if memory_limit.isdigit():
        total_memory = min(total_memory, int(memory_limit))
    return total_memory // 4


def default_disk(folder: str | pathlib.Path | None) -> int:
    """Returns two thirds of the free space on the disk that holds `folder`, in bytes.

    Args:
      folder: need not exist; None is the folder of temporary files.
    """
    if folder is None:
        folder = tempfile.gettempdir()
    absolute_path = expanded(folder).absolute()
    existing_folder = next(
        parent for parent in (absolute_path, *absolute_path.parents) if parent.exists()
    )
    return shutil.disk_usage(existing_folder).free * 2 // 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storage:
    """Limits on the memory and disk space that the noise vectors of a model may take.

    Attributes:
      size: number of model parameters.
      memory: bytes of arrays in memory.
      disk: bytes of a memory map.
    """

    size: int
    memory: int
    disk: int

    @classmethod
    def of(
        cls, size: int, memory_bytes: int | None, folder: str | pathlib.Path | None
    ) -> "Storage":
        """Returns the limits for a model of `size` parameters on this machine.

        Args:
          size: number of model parameters.
          memory_bytes: bytes for arrays; None for `default_memory`.
          folder: folder of a memory map; see `default_disk`.
        """
        size = checks.integer("size", size, low=0, hint="it is the number of model parameters")
        if memory_bytes is None:
            memory_bytes = default_memory()
        memory_hint = "give bytes, such as 1_500_000_000"
        memory_limit = checks.integer("memory_bytes", memory_bytes, low=1, hint=memory_hint)
        return cls(size=size, memory=memory_limit, disk=default_disk(folder))

    def placed(self, strategy: NoiseStrategy, scratch: int, file_cost: float) -> NoiseStrategy:
        """Returns the strategy with its rows in memory if they fit, and otherwise in a memory map
        on disk.

        If neither has the space, it returns a strategy that is not possible.

        Args:
          strategy: the strategy without its memory.
          scratch: bytes that it needs in memory beside its rows.
          file_cost: additional cost of a round with a memory map.
        """
        bytes_of_rows = strategy.rows * row_bytes(self.size)
        total_bytes = scratch + bytes_of_rows
        if total_bytes <= self.memory:
            return dataclasses.replace(strategy, memory=total_bytes)
        if scratch <= self.memory and bytes_of_rows <= self.disk:
            return dataclasses.replace(
                strategy,
                memory=scratch,
                disk=bytes_of_rows,
                cost=strategy.cost + file_cost,
                reason=f"{strategy.reason}, in a private memory map",
            )
        return NoiseStrategy(
            name=strategy.name, reason=f"needs {total_bytes / 1e6:.3g} MB of memory or disk"
        )

    def row_limits(self, scratch: int, *, has_recurrence: bool) -> list[int]:
        """Returns a list with the number of noise vectors that fit into memory and, if a memory map
        is worth considering, the number that fit into one.

        Args:
          scratch: bytes that are needed in memory beside the rows.
          has_recurrence: whether the mechanism has a recurrence. Its memory map is smaller than one
            of all rows, so that a single row in memory excludes a map here.
        """
        bytes_per_row = row_bytes(self.size)
        rows_in_memory = (self.memory - scratch) // bytes_per_row
        if has_recurrence and rows_in_memory >= 1:
            return [rows_in_memory]
        return [rows_in_memory, self.disk // bytes_per_row]
