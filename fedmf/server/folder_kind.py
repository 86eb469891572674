"""File names, rules and phrases of messages in which folders of servers and of runs differ. All of
their code is in `fedmf.server.journal_folder`.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadableFile:
    """A file for people and audits, with lines that follow from the rows of the journal.

    Attributes:
      name: name of the file.
      lines_of: returns the lines of a round, from the round's row in the journal.
      header: first line of the file; empty if it has none.
      starts_as: name of an earlier readable file. This file is created in the first round that
        `is_needed`, as a copy of the other, because the lines of all earlier rounds are equal.
      is_needed: returns whether a row of the journal needs the file.
    """

    name: str
    lines_of: Callable[[Mapping[str, Any]], str]
    header: str = ""
    starts_as: str | None = None
    is_needed: Callable[[Mapping[str, Any]], bool] = lambda journal_row: True


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderKind:
    """A kind of folders with a journal, either those of servers or those of runs.

    Attributes:
      noun: "server" or "run".
      way_to_begin: how to begin one again that was stopped before round 0.
      way_to_resume: how to resume one that exists.
      way_to_retry: what to do after a file was put back.
      config_name: name of the file that is written last and makes the folder a server's or a run's.
      bound: names of the files that noise and sums follow from. The journal has their digests.
      bound_content: returns the content of a bound file that its digest covers.
      first_files: names of the other files that may exist before round 0.
      later_files: names of files that a new server or run would overwrite or take for its own.
      allows_other_files: whether one may begin in a folder with files of any other names.
      requires_lock: whether a folder on a file system without locks is refused.
      readable_files: files with lines that follow from the journal.
      metrics_name: name of the file with the metrics of each round; None for a kind without one.
    """

    noun: str
    way_to_begin: str
    way_to_resume: str
    way_to_retry: str
    config_name: str
    bound: tuple[str, ...]
    bound_content: Callable[[pathlib.Path], bytes] = pathlib.Path.read_bytes
    first_files: tuple[str, ...] = ()
    later_files: tuple[str, ...] = ()
    allows_other_files: bool
    requires_lock: bool
    readable_files: tuple[ReadableFile, ...]
    metrics_name: str | None = None

    def moved_error(self, path: pathlib.Path) -> ValueError:
        """Returns the error for a folder that was moved, or that another process has used."""
        return ValueError(
            f"the {self.noun}'s folder {path} was moved, replaced, closed or resumed elsewhere: "
            "nothing was released; open it again where it is, in one process"
        )

    def edited_error(self, path: pathlib.Path, name: str) -> ValueError:
        """Returns the error for a file of the folder that was edited while in use."""
        return ValueError(
            f"{name} of the {self.noun}'s folder {path} changed while it was in use: nothing was "
            f"released; put back the {self.noun}'s own file and {self.way_to_retry}, or begin a "
            f"new {self.noun}, with another seed"
        )

    def removed_error(self, path: pathlib.Path, name: str) -> ValueError:
        """Returns the error for a readable file that was removed after the newest commit."""
        return ValueError(
            f"{name} of the {self.noun}'s folder {path} was removed while it was in use: the "
            f"{self.noun}'s rounds are committed; {self.way_to_resume}, and it is written again"
        )

    def edited_rows_error(self, path: pathlib.Path, name: str) -> ValueError:
        """Returns the error for a readable file that was edited between two uses of the folder."""
        return ValueError(
            f"cannot open {path}: {name} has other rows than the journal; put back the "
            f"{self.noun}'s own, or remove it, and it is written again"
        )

    def backup_error(self, path: pathlib.Path, name: str, t: int, num_rounds: int) -> ValueError:
        """Returns the error for a file that has round t, although the journal has only
        `num_rounds` rounds.
        """
        return ValueError(
            f"{path / name} has round {t} and the journal's newest round is {num_rounds - 1}: the "
            "journal was put back from a backup, and resuming would release rounds again with the "
            f"same noise; begin a new {self.noun}, with another seed"
        )

    def changed_error(self, names: list[str]) -> ValueError:
        """Returns the error for bound files that changed between two uses of the folder."""
        return ValueError(
            f"{', '.join(names)} changed since the {self.noun} was begun: put back its own, or "
            f"begin a new {self.noun}, with another seed"
        )

    def damaged_error(self, path: pathlib.Path, error: BaseException) -> ValueError:
        """Returns the error for a file that cannot be read or is of another server or run."""
        damage = type(error).__name__
        if str(error):
            damage = str(error).splitlines()[0]
        return ValueError(
            f"{path} is damaged or not of this {self.noun} ({damage}): without its own newest file "
            f"no round can be released safely, so begin a new {self.noun}, with another seed"
        )
