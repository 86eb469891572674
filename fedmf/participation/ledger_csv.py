"""The CSV text of a participation ledger, which has a header and then one row for each
participation.
"""

import io
import os
import re
import reprlib
import warnings

import numpy as np

from fedmf import identifiers
from fedmf.files import checked_path

HEADER = "round,client\n"
_DAMAGED = "the ledger is damaged"


def read_text(text: str | os.PathLike[str]) -> str:
    """Reads CSV text, and returns it with "\n" at the end of each line. The argument is either the
    text itself or the path of a file that contains it.

    Raises:
      TypeError: `text` is neither text nor a path.
      ValueError: the file is not UTF-8.
      OSError: the file cannot be read.
    """
    if not isinstance(text, str | os.PathLike):
        raise TypeError(
            f"text={reprlib.repr(text)} must be the text of to_csv, or the path of a file of it"
        )
    is_path = isinstance(text, os.PathLike) or (text and "\n" not in text and "\r" not in text)
    if is_path:
        path = checked_path("text", text)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"text={str(path)!r} is not a file of text in UTF-8 ({error}): name one that "
                "to_csv wrote"
            ) from error
    return str(text).replace("\r\n", "\n").replace("\r", "\n")


def parse_pairs(text: str, rounds: int) -> np.ndarray:
    """Returns the (round, client) pairs of CSV text in the order of its rows, int64
    (participations, 2).

    Args:
      text: the result of `read_text`.
      rounds: number of recorded rounds; every round in the text is below it.

    Raises:
      ValueError: the header, the last line end or a row is wrong; the message names the row.
    """
    if not text.startswith(HEADER):
        raise ValueError(
            "text does not begin with the header round,client: give the text of to_csv, or the "
            "path of a file of it"
        )
    if not text.endswith("\n"):
        raise ValueError(
            f"{_DAMAGED} (the last line has no line end, so that it may be cut off): "
            "write it again with to_csv"
        )
    if text == HEADER:
        return np.zeros((0, 2), np.int64)
    reason = "a row is not round,client"
    try:
        with warnings.catch_warnings():
            # numpy only warns of a number that is too large or not whole, so its warnings are
            # turned into errors here.
            warnings.simplefilter("error")
            row_stream = io.StringIO(text.removeprefix(HEADER))
            round_client_pairs = np.loadtxt(
                row_stream, np.int64, delimiter=",", comments=None, ndmin=2
            )
        is_valid = (
            round_client_pairs.shape[1] == 2
            and round_client_pairs.min() >= 0
            and round_client_pairs[:, 0].max() < rounds
        )
    except (ValueError, Warning) as error:
        is_valid = False
        reason = str(error).splitlines()[0][:120]
    if not is_valid:
        fault = _first_fault(text, rounds) or reason
        raise ValueError(f"{_DAMAGED} ({fault}): write it again with to_csv")
    return round_client_pairs


def _first_fault(text: str, rounds: int) -> str | None:
    """Returns a description of the first wrong row of the text, or None if all rows are right."""
    row_lines = text.removeprefix(HEADER).splitlines()
    for row, line in enumerate(row_lines, 1):
        if not line:
            continue
        location = f"row {row}, {line[:80]!a}"
        cells = line.split(",")
        if len(cells) != 2:
            return f"{location}, is not round,client"
        round_text, client_text = cells
        fault = identifiers.round_fault(round_text, 0, rounds - 1)
        if fault:
            return f"{location}: the round {fault}"
        is_index = re.fullmatch("[0-9]{1,19}", client_text) and int(client_text) < 2**63
        if not is_index:
            fault = identifiers.client_fault(client_text)
            return f"{location}: the client {fault or 'is not a whole number from 0 to 2^63 - 1'}"
    return None
