"""Ids of clients, and rounds, as records and arrays have them: which are missing, which look alike,
and what is wrong with one.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

# Characters that leave no mark beside controls, formats and joiners (Cc, Cf): Unicode's other
# default ignorables, the blank Braille pattern and the null notehead. First and last code point of
# each range.
UNMARKED = (
    *(
        (0x34F, 0x34F),
        (0x115F, 0x1160),
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
        (0x2065, 0x2065),
        (0x2800, 0x2800),
    ),
    *(
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),
        (0xFFA0, 0xFFA0),
        (0xFFF0, 0xFFF8),
        (0x1D159, 0x1D159),
        (0xE0000, 0xE0FFF),
    ),
)
_DIGITS = 9  # of the largest round that is read
_SHOWN_CHARACTERS, _SHOWN_ROUNDS = 80, 20


def seen(text: str) -> str:
    """A text as people see it: one kind of blank, nothing invisible,
    letters composed in one way (NFC).

    `fedmf.tables.as_seen` is the same in SQL.

    >>> ascii(seen("zoe\\u0301\\u200b\\u00a0k")), seen("two  blanks")
    ("'zo\\\\xe9 k'", 'two blanks')
    """
    if text.isascii() and text.isprintable() and "  " not in text:
        return text
    # What is invisible goes first: blanks on both sides of it are one.
    blanks = itertools.groupby((c for c in text if not _is_invisible(c)), key=_is_blank)
    text = "".join(" " if blank else "".join(characters) for blank, characters in blanks)
    return unicodedata.normalize("NFC", text)


def _is_blank(character: str) -> bool:
    return unicodedata.category(character)[0] == "Z"


def _is_invisible(character: str) -> bool:
    code = ord(character)
    return unicodedata.category(character) in ("Cc", "Cf") or any(
        first <= code <= last for first, last in UNMARKED
    )


def client_array(name: str, ids: Any) -> np.ndarray:
    """Ids of clients, one for each example, as an array of what they are.

    Raises:
      TypeError: ids of kinds that have no order among each other.
      ValueError: those of `check_clients`.
    """
    if not (hasattr(ids, "__array__") or isinstance(ids, str | bytes)):
        ids = np.asarray(ids, object)  # as texts, NaN among texts would be the text "nan"
        check_clients(name, ids.ravel())
        ids = np.asarray(ids.tolist())
    elif np.ma.isMaskedArray(ids) or np.asarray(ids).dtype == object:
        check_clients(name, ids.ravel() if np.ma.isMaskedArray(ids) else np.ravel(ids))
    array = np.asarray(ids)
    try:
        different, places = np.unique(array, return_index=True)
    except TypeError as error:
        raise TypeError(
            f"{name} mixes kinds of ids ({error}): write all of them as texts, or all as numbers"
        ) from error
    check_clients(name, different, places.tolist())
    return array


def check_clients(name: str, ids: Iterable[Any], places: Sequence[int] | None = None) -> None:
    """Refuses ids of clients of which one is missing, or two look alike: each stands for one client
    of the guarantee.

    Args:
      name: of the argument, for errors.
      ids: in order; the same id may be there more than once.
      places: of the ids in the argument; None for 0, 1, ...

    Raises:
      ValueError: None, NaN, NaT, or a text without a visible character; or two that differ only in
        blanks at the ends, in the kind of blank, in characters that leave no mark, in how letters
        are composed, or in their kinds such as 1 and "1".
    """
    looks: dict[str, Any] = {}
    for place, client in zip(itertools.count() if places is None else places, ids, strict=False):
        if is_missing(client):
            raise ValueError(
                f"{name}[{place}]={client!r} is missing: whose examples these are is not known, "
                "and the guarantee is for each client; leave them out, or give every client an id"
            )
        look = seen(str(client)).strip()
        if not look:
            raise ValueError(
                f"{name}[{place}]={client!r} has no visible character: give every client an id"
            )
        other = looks.setdefault(look, client)
        if other is not client and (str(other) != str(client) or other != client):
            raise ValueError(
                f"{name} has {other!a} and, at {place}, {client!a}, which look alike: one person "
                "in two clients has half the "
                "protection; write them in one way, or give them other ids if they are two"
            )


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, NaT, pandas' NA or a masked entry.

    >>> is_missing(np.datetime64("NaT")), is_missing(float("nan")), is_missing("nan")
    (True, True, False)
    """
    if value is None or value is np.ma.masked or type(value).__name__ == "NAType":
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):
        return False


def client_fault(client: str | None) -> str | None:
    """What is wrong with a client's id in a record, as an end of a sentence with "the client"; None
    where nothing is.
    """
    if client is None or not client:
        return "is missing"
    if not seen(client).strip():
        return f"has no visible character ({_codes(client)})"
    for ends, what in ((_is_blank, "blanks"), (_is_invisible, "invisible characters")):
        around = [c for c in (client[0], client[-1]) if ends(c)]
        if around:
            return (
                f"has {what} around it ({_codes(around)}): write every client "
                f"without {what} around it"
            )
    return None


def round_fault(t: str | None, first: int, last: int) -> str | None:
    """What is wrong with a round in a record, as an end of a sentence with "the round"; None where
    nothing is.
    """
    if t is None or not t or t.strip().lower() in ("nan", "nat", "null", "none"):
        return "is missing"
    invisible = [c for c in t if _is_invisible(c)]
    if invisible:
        return f"has invisible characters ({_codes(invisible)})"
    if _is_blank(t[0]) or _is_blank(t[-1]):
        return "has blanks around it"
    if not re.fullmatch("[0-9]+", t):
        if re.fullmatch("-[0-9]+", t):
            return f"is negative: rounds are {first} to {last}"
        is_number = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", t)
        return (
            "is not written as a whole number, in digits alone" if is_number else "is not a number"
        )
    number = int(t) if len(t) <= _DIGITS else 10**_DIGITS
    if number < first:
        return f"is before the first round: rounds are {first} to {last}"
    if number > last:
        return f"is beyond the run: rounds are {first} to {last}"
    return None


def _codes(characters: Sequence[str]) -> str:
    """The first code points in Unicode's notation."""
    shown = [f"U+{ord(c):04X}" for c in characters[:3]]
    return ", ".join(shown)


def shown_client(client: Any) -> str:
    r"""An id for people: in ASCII, with quotes around a text, and cut where it is long.

    >>> shown_client("zo\u00eb"), shown_client(7)
    ("'zo\\xeb'", '7')
    """
    return ascii(client[:_SHOWN_CHARACTERS] if isinstance(client, str) else client)


def shown_rounds(rounds: Sequence[int]) -> str:
    """Rounds of a client for people.

    >>> shown_rounds([3]), shown_rounds([1, 11, 80]), shown_rounds(range(400))[-25:]
    ('round 3', 'rounds 1, 11, 80', '18, 19 and 380 other ones')
    """
    shown = ", ".join(map(str, rounds[:_SHOWN_ROUNDS]))
    more = len(rounds) - _SHOWN_ROUNDS
    return f"round{'s' if len(rounds) > 1 else ''} {shown}" + (
        f" and {more} other ones" if more > 0 else ""
    )
