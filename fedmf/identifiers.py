"""Ids of clients, and rounds, as records and arrays have them: which are missing, which look alike,
and what is wrong with one.
"""

import functools
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
# Controls that leave a blank as people see it: tabs, line ends and separators.
BLANK_CONTROLS = "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85"
# Letters of other scripts that look like an ASCII character (Unicode's confusables, UTS 39), and
# marks that a text editor puts in its place. No two ASCII characters are taken for one another.
# Behind them are digits and letters that Arabic and Persian keyboards write with other code points.
_LOOK_ALIKES = {
    # Greek, Cyrillic, and then Armenian, Coptic, Cherokee, Lisu and rare Latin letters
    "A": "\u0391\u0410\u13aa\ua4ee",
    "B": "\u0392\u0412\u13f4\ua4d0",
    "C": "\u03f9\u0421\u2ca4\u13df\ua4da",
    "D": "\u13a0\ua4d3",
    "E": "\u0395\u0415\u13ac\ua4f0",
    "F": "\u03dc\ua4dd",
    "G": "\u050c\u13c0\ua4d6",
    "H": "\u0397\u041d\u2c8e\u13bb\ua4e7",
    "I": "\u0399\u0406\u04c0\u2c92\ua4f2",
    "J": "\u037f\u0408\u13ab\ua4d9",
    "K": "\u039a\u041a\u2c94\u13e6\ua4d7",
    "L": "\u13de\ua4e1",
    "M": "\u039c\u03fa\u041c\u2c98\u13b7\ua4df",
    "N": "\u039d\u2c9a\ua4e0",
    "O": "\u039f\u041e\u0555\u2c9e\ua4f3",
    "P": "\u03a1\u0420\u2ca2\u13e2\ua4d1",
    "Q": "\u051a",
    "R": "\u13a1\ua4e3",
    "S": "\u0405\u054f\u13da\ua4e2",
    "T": "\u03a4\u0422\u2ca6\u13a2\ua4d4",
    "U": "\u054d\ua4f4",
    "V": "\u0474\u13d9\ua4e6",
    "W": "\u051c\u13b3\ua4ea",
    "X": "\u03a7\u0425\u2cac\ua4eb",
    "Y": "\u03a5\u03d2\u0423\u04ae\u2ca8\ua4ec",
    "Z": "\u0396\u13c3\ua4dc",
    "a": "\u03b1\u0430\u0251",
    "b": "\u042c\u13cf",
    "c": "\u03f2\u0441\u2ca5\u1d04\uabaf",
    "d": "\u0501\u13e7",
    "e": "\u0435\u04bd\uab32",
    "f": "\u0584",
    "g": "\u0581\u0261",
    "h": "\u04bb\u0570",
    "i": "\u03b9\u1fbe\u0456",
    "j": "\u03f3\u0458",
    "k": "\u03ba\u043a",
    "l": "\u04cf\u01c0",
    "n": "\u0578\u057c",
    "o": "\u03bf\u043e\u0585\u2c9f\u1d0f",
    "p": "\u03c1\u03f1\u0440\u2ca3",
    "q": "\u051b\u0563",
    "r": "\u0433\u2c85\uab81",
    "s": "\u0455\ua731\uabaa",
    "u": "\u03c5\u057d\u1d1c",
    "v": "\u03bd\u0475\u1d20\uaba9",
    "w": "\u051d\u0461\u0561\u1d21\uab83",
    "x": "\u03c7\u0445",
    "y": "\u03b3\u0443\u04af",
    "z": "\u1d22\uab93",
    "3": "\u0417\u04e0",
    "6": "\u0431",
    "-": "\u2010\u2011\u2012\u2013\u2043\u2212\ufe58",
    "'": "\u2018\u2019\u02b9\u02bc\u0374",
    "/": "\u2044\u2215",
    ":": "\u0589\u2236",
    ".": "\u2024",
    **{chr(0x660 + digit): chr(0x6F0 + digit) for digit in (0, 1, 2, 3, 7, 8, 9)},
    "\u0643": "\u06a9",
    "\u0649": "\u06cc",
}
# Where letters stand that are one of these with an accent: Greek, Cyrillic.
_ACCENTED = (range(0x370, 0x530), range(0x1F00, 0x2000))
# Where other forms of a text stand (letter-like symbols, Roman numerals, radicals, ligatures,
# mathematical and full-width forms), and which of Unicode's compatibility forms look like it.
_STYLED = (
    range(0x80, 0x3100),
    range(0x3200, 0x3400),
    range(0xF900, 0xFB50),
    range(0xFE50, 0xFFA0),
    range(0x1D400, 0x1D800),
)
_STYLES = ("<compat>", "<font>", "<narrow>", "<noBreak>", "<small>", "<wide>")
_LONG_S = "\u017f\ufb05"  # which looks like an f, and not like its compatibility form
_DIGITS = 9  # of the largest round that is read
_SHOWN_CHARACTERS, _SHOWN_ROUNDS = 80, 20


def visible_text(text: str) -> str:
    """A text as people see it: one kind of blank, nothing invisible,
    letters composed in one way (NFC).

    `fedmf.tables.visible_text_sql` is the same in SQL.

    >>> ascii(visible_text("zoe\\u0301\\u200b\\u00a0k")), visible_text("two  blanks")
    ("'zo\\\\xe9 k'", 'two blanks')
    """
    if text.isascii() and text.isprintable() and "  " not in text:
        return text
    # What is invisible goes first: blanks on both sides of it are one.
    blanks = itertools.groupby((c for c in text if not _is_invisible(c)), key=_is_blank)
    text = "".join(" " if blank else "".join(characters) for blank, characters in blanks)
    return unicodedata.normalize("NFC", text)


@functools.cache
def _ascii_by_look_alike() -> dict[int, str]:
    """Code point -> what stands for it in a skeleton."""
    table = {ord(c): plain for plain, alike in _LOOK_ALIKES.items() for c in alike}
    for code in itertools.chain(*_ACCENTED):
        accented = unicodedata.normalize("NFD", chr(code))
        if len(accented) > 1 and ord(accented[0]) in table:
            table[code] = accented.translate(table)
    for code in itertools.chain(*_STYLED):
        plain = unicodedata.normalize("NFKC", chr(code))
        # With a blank are accents that stand alone, and no accent looks like a blank.
        if unicodedata.decomposition(chr(code)).startswith(_STYLES) and " " not in plain:
            table[code] = plain.translate(table)
    return {code: plain for code, plain in table.items() if chr(code) not in _LONG_S}


def skeleton(text: str) -> str:
    """Returns what a text shares with all that look like it: `seen`, with letters of other scripts
    as the ASCII letters that they look like, and full-width forms and ligatures as their letters.

    Two ids of one skeleton count as one client. Different ASCII ids have different skeletons.

    >>> skeleton("\u0410nn\u0430"), skeleton("\uff21nna"), skeleton("\u0430\u0301") == "\u00e1"
    ('Anna', 'Anna', True)
    """
    text = visible_text(text)
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", text.translate(_ascii_by_look_alike()))


def _is_blank(character: str) -> bool:
    return unicodedata.category(character)[0] == "Z" or character in BLANK_CONTROLS


def _is_invisible(character: str) -> bool:
    code = ord(character)
    return not _is_blank(character) and (
        unicodedata.category(character) in ("Cc", "Cf")
        or any(first <= code <= last for first, last in UNMARKED)
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
        are composed, in the script of letters that look alike (`skeleton`), or in their kinds such
        as 1 and "1".
    """
    looks: dict[str, Any] = {}
    for place, client in zip(itertools.count() if places is None else places, ids, strict=False):
        if is_missing(client):
            raise ValueError(
                f"{name}[{place}]={client!r} is missing: whose examples these are is not known, "
                "and the guarantee is for each client; leave them out, or give every client an id"
            )
        look = skeleton(str(client)).strip()
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
    if not visible_text(client).strip():
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


def format_client(client: Any) -> str:
    r"""An id for people: in ASCII, with quotes around a text, and cut where it is long.

    >>> format_client("zo\u00eb"), format_client(7)
    ("'zo\\xeb'", '7')
    """
    return ascii(client[:_SHOWN_CHARACTERS] if isinstance(client, str) else client)


def format_rounds(rounds: Sequence[int]) -> str:
    """Rounds of a client for people.

    >>> format_rounds([3]), format_rounds([1, 11, 80]), format_rounds(range(400))[-25:]
    ('round 3', 'rounds 1, 11, 80', '18, 19 and 380 other ones')
    """
    shown = ", ".join(map(str, rounds[:_SHOWN_ROUNDS]))
    more = len(rounds) - _SHOWN_ROUNDS
    return f"round{'s' if len(rounds) > 1 else ''} {shown}" + (
        f" and {more} other ones" if more > 0 else ""
    )
