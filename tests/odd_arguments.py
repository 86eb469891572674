"""Odd values for arguments of public calls, and a check that each is refused by name."""

import contextlib
import dataclasses
import dis
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import fedmf

PACKAGE = f"{pathlib.Path(fedmf.__file__).parent}/"
RAISE = dis.opmap["RAISE_VARARGS"]
ITS_CLASS = "class"  # The class of the fitting argument replaces an object of it.

# Values by name; they are made anew for each call.
ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "empty": lambda: "",
    "text": lambda: "abc",
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-1": lambda: -1,
    "0": lambda: 0,
    "0.5": lambda: 0.5,
    "10**20": lambda: 10**20,
    "True": lambda: True,
    "1j": lambda: 1j,
    "[]": lambda: [],
    "{}": dict,
    "[None]": lambda: [None],
    "object": object,
    ITS_CLASS: object,
    "function": lambda: lambda: None,
    "bytes": lambda: b"abc",
    "generator": lambda: iter(()),
    "bools": lambda: np.ones(2, bool),
    "texts": lambda: np.array(["a", "b"]),
    "3-D": lambda: np.ones((1, 2, 3)),
    "nans": lambda: np.array([np.nan, 1.0]),
}


class Reached(BaseException):
    """Raised in place of the work behind the checks of arguments."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """A public call with arguments that fit.

    Attributes:
      function: what is called.
      arguments: by name; each is replaced by each odd value in turn.
      accepts: by argument, the names of the odd values that fit, separated by blanks.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    accepts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def run(self, **changes: Any) -> None:
        """Calls the function with some arguments changed."""
        with contextlib.suppress(Reached):
            self.function(**{**self.arguments, **changes})

    def faults(self) -> list[str]:
        """Returns a line for each odd value that is not answered as it should be."""
        lines = []
        for argument, value in self.arguments.items():
            accepted = set(self.accepts.get(argument, "").split())
            assert accepted <= set(ODD), f"{argument} accepts unknown values"
            for name, make in ODD.items():
                odd = type(value) if name == ITS_CLASS else make()
                answer = self.fault(argument, odd)
                if answer != ("accepted" if name in accepted else None):
                    lines.append(f"{argument}={name}: {answer or 'refused'}")
        return lines

    def fault(self, argument: str, odd: Any) -> str | None:
        """Returns what is wrong with the answer to an odd argument: "accepted", an error that is
        not fedmf's, or one that does not name the argument; None for a refusal in a sentence.
        """
        try:
            self.run(**{argument: odd})
        except OSError:  # A path without a file may raise this error.
            return "accepted"
        except Exception as error:
            if not isinstance(error, TypeError | ValueError) or not is_raised_by_fedmf(error):
                return f"{type(error).__name__}: {error}"
            is_named = re.search(rf"(?<![a-z_]){argument}(?![a-z])", str(error))
            return None if is_named else f"does not name it: {error}"
        return "accepted"


def is_raised_by_fedmf(error: Exception) -> bool:
    """Returns whether a `raise` of the package raised it: not Python, numpy or another library."""
    entry = error.__traceback__
    assert entry is not None
    while entry.tb_next is not None:
        entry = entry.tb_next
    code = entry.tb_frame.f_code
    return code.co_filename.startswith(PACKAGE) and code.co_code[entry.tb_lasti] == RAISE
