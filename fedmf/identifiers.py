"""Checks of client ids and rounds in records and arrays. They find ids that are missing, and pairs
of different ids that look alike.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

# Ranges of invisible characters as pairs (first, last code point). They are Unicode's default
# ignorables, the blank Braille pattern and the null notehead. Controls, formats and joiners are not
# listed, because their categories Cc and Cf identify them.
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
# Control characters that look like a blank, such as tabs, line ends and separators.
BLANK_CONTROLS = "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85"
# For each ASCII character, the characters that look like it, such as letters of other scripts
# (Unicode's confusables, UTS 39). The last entries are digits and letters for which Arabic and
# Persian keyboards have different code points.
_LOOK_ALIKES = {
    # The look-alikes of each letter are in this order: Greek, Cyrillic, Armenian, Coptic, Cherokee,
    # Lisu, and rare Latin letters.
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
# Code points of Greek and Cyrillic letters. Some of them are letters of `_LOOK_ALIKES` with an
# accent.
_ACCENTED = (range(0x370, 0x530), range(0x1F00, 0x2000))
# Code points of styled forms of other characters, such as letter-like symbols, Roman numerals,
# radicals, ligatures, mathematical and full-width forms.
_STYLED = (
    range(0x80, 0x3100),
    range(0x3200, 0x3400),
    range(0xF900, 0xFB50),
    range(0xFE50, 0xFFA0),
    range(0x1D400, 0x1D800),
)
# Kinds of Unicode's compatibility decompositions whose result looks like the decomposed character.
_STYLES = ("<compat>", "<font>", "<narrow>", "<noBreak>", "<small>", "<wide>")
# The long s is not replaced by its compatibility form s, because the long s looks like an f.
_LONG_S = "\u017f\ufb05"
# Round numbers with more digits than this are not parsed, since no run has so many rounds.
_MAX_ROUND_DIGITS = 9
# Largest number of characters of a client id, and largest number of rounds, that a message shows.
_MAX_CHARACTERS = 80
_MAX_ROUNDS = 20


def visible_text(text: str) -> str:
    """Normalises a text to what people see of it. Blanks of any kind become single ones, invisible
    characters are removed, and letters are composed (Unicode's NFC).

    `fedmf.tables.visible_text_sql` does the same in SQL.

    >>> ascii(visible_text("zoe\\u0301\\u200b\\u00a0k")), visible_text("two  blanks")
    ("'zo\\\\xe9 k'", 'two blanks')
    """
    if text.isascii() and text.isprintable() and "  " not in text:
        return text
    # Invisible characters are removed first, because two blanks with an invisible character between
    # them look like one blank.
    visible_characters = [character for character in text if not _is_invisible(character)]
    visible_words = []
    for is_blank, characters in itertools.groupby(visible_characters, key=_is_blank):
        visible_words.append(" " if is_blank else "".join(characters))
    return unicodedata.normalize("NFC", "".join(visible_words))


@functools.cache
def _ascii_by_look_alike() -> dict[int, str]:
    """Returns a dict that maps the code point of a character to the plain characters that it looks
    like.
    """
    ascii_by_code: dict[int, str] = {}
    for plain_characters, look_alikes in _LOOK_ALIKES.items():
        ascii_by_code.update((ord(character), plain_characters) for character in look_alikes)
    for code in itertools.chain(*_ACCENTED):
        accented_letters = unicodedata.normalize("NFD", chr(code))
        if len(accented_letters) > 1 and ord(accented_letters[0]) in ascii_by_code:
            ascii_by_code[code] = accented_letters.translate(ascii_by_code)
    for code in itertools.chain(*_STYLED):
        plain_characters = unicodedata.normalize("NFKC", chr(code))
        # The compatibility form of an accent without a letter is a blank and an accent. It is not
        # used, because the two do not look alike.
        if unicodedata.decomposition(chr(code)).startswith(_STYLES) and " " not in plain_characters:
            ascii_by_code[code] = plain_characters.translate(ascii_by_code)
    return {
        code: plain_characters
        for code, plain_characters in ascii_by_code.items()
        if chr(code) not in _LONG_S
    }


def skeleton(text: str) -> str:
    """Returns the skeleton of a text (UTS 39), which is the same for all texts that look alike.

    It is the `visible_text`, in which letters of other scripts are replaced by ASCII letters that
    look the same, and full-width forms and ligatures by simple letters. Two ids with the same
    skeleton count as one client. Different visible ASCII texts have different skeletons.

    >>> skeleton("\u0410nn\u0430"), skeleton("\uff21nna"), skeleton("\u0430\u0301") == "\u00e1"
    ('Anna', 'Anna', True)
    """
    text = visible_text(text)
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", text.translate(_ascii_by_look_alike()))


def _is_blank(character: str) -> bool:
    """Returns whether a character looks like a blank."""
    return unicodedata.category(character)[0] == "Z" or character in BLANK_CONTROLS


def _is_invisible(character: str) -> bool:
    """Returns whether a character is invisible, and not a blank."""
    if _is_blank(character):
        return False
    if unicodedata.category(character) in ("Cc", "Cf"):
        return True
    return any(first <= ord(character) <= last for first, last in UNMARKED)


def client_array(name: str, ids: Any) -> np.ndarray:
    """Returns the client ids of examples as an array, after checking that no id is missing and no
    two ids look alike.

    Args:
      name: name of the argument in errors.
      ids: one client id for each example.

    Raises:
      TypeError: the ids have types without a common order.
      ValueError: see `check_clients`.
    """
    if not (hasattr(ids, "__array__") or isinstance(ids, str | bytes)):
        # numpy would turn NaN among texts into the text "nan", unless the dtype is object.
        ids = np.asarray(ids, object)
        check_clients(name, ids.ravel())
        ids = _converted(name, ids)
    elif np.ma.isMaskedArray(ids) or np.asarray(ids).dtype == object:
        check_clients(name, ids.ravel() if np.ma.isMaskedArray(ids) else np.ravel(ids))
    id_array = np.asarray(ids)
    try:
        unique_ids, positions = np.unique(id_array, return_index=True)
    except TypeError as error:
        raise TypeError(
            f"{name} mixes kinds of ids ({error}): write all of them as texts, or all as numbers"
        ) from error
    check_clients(name, unique_ids, positions.tolist())
    return id_array


def _converted(name: str, ids: np.ndarray) -> np.ndarray:
    """Converts an object array of ids to an array of texts or numbers.

    Raises:
      ValueError: the conversion would make two different ids equal, such as b"a" and b"a\\0", or
        whole numbers above 2^53 among floats.
    """
    python_ids = ids.tolist()
    converted_array = np.asarray(python_ids)
    original_by_converted: dict[Any, Any] = {}
    for original, value in zip(
        ids.ravel().tolist(), np.ravel(converted_array).tolist(), strict=False
    ):
        if not isinstance(original, Hashable):
            # The caller of this function raises an error for a value that is not hashable.
            break
        first_original = original_by_converted.setdefault(value, original)
        if first_original != original:
            raise ValueError(
                f"{name} has {first_original!r} and {original!r}, which numpy makes the same "
                f"{value!r}: write all ids as texts"
            )
    return converted_array


def check_clients(name: str, ids: Iterable[Any], positions: Sequence[int] | None = None) -> None:
    """Raises ValueError if a client id is missing, or if two ids look alike.

    The guarantee is for each client, so that every id must stand for one client. An id is missing
    if it is None, NaN, NaT, or a text without a visible character. Two ids look alike if they
    differ only in blanks at the ends, in the kind of blank, in invisible characters, in how letters
    are composed, in the script of letters that look alike (`skeleton`), or in their type such as 1
    and "1".

    Args:
      name: the argument, for errors.
      ids: ids in order; the same id may occur more than once.
      positions: positions of the ids in the argument; None for 0, 1, ...
    """
    id_by_skeleton: dict[str, Any] = {}
    for position, client in zip(positions or itertools.count(), ids, strict=False):
        if is_missing(client):
            raise ValueError(
                f"{name}[{position}]={client!r} is missing: whose examples these are is not known, "
                "and the guarantee is for each client; leave them out, or give every client an id"
            )
        client_skeleton = skeleton(str(client)).strip()
        if not client_skeleton:
            raise ValueError(
                f"{name}[{position}]={client!r} has no visible character: give every client an id"
            )
        first_id = id_by_skeleton.setdefault(client_skeleton, client)
        if first_id is not client and (str(first_id) != str(client) or first_id != client):
            raise ValueError(
                f"{name} has {first_id!a} and, at {position}, {client!a}, which look alike: one "
                "person in two clients has half the "
                "protection; write them in one way, or give them other ids if they are two"
            )


def is_missing(value: Any) -> bool:
    """Returns whether a value is None, NaN, NaT, pandas' NA or a masked entry.

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
    """Describes what is wrong with a client id of a record; None if nothing is.

    The result completes a sentence that begins with "the client".
    """
    if client is None or not client:
        return "is missing"
    if not visible_text(client).strip():
        return f"has no visible character ({_codes(client)})"
    for is_wrong, what in ((_is_blank, "blanks"), (_is_invisible, "invisible characters")):
        wrong_ends = [character for character in (client[0], client[-1]) if is_wrong(character)]
        if wrong_ends:
            return (
                f"has {what} around it ({_codes(wrong_ends)}): write every client "
                f"without {what} around it"
            )
    return None


def round_fault(t: str | None, first: int, last: int) -> str | None:
    """Describes what is wrong with the number of a round in a record; None if nothing is.

    The result completes a sentence that begins with "the round".

    Args:
      t: the text of the round.
      first, last: the first and the last round of the run.
    """
    if t is None or not t or t.strip().lower() in ("nan", "nat", "null", "none"):
        return "is missing"
    invisible_characters = [c for c in t if _is_invisible(c)]
    if invisible_characters:
        return f"has invisible characters ({_codes(invisible_characters)})"
    if _is_blank(t[0]) or _is_blank(t[-1]):
        return "has blanks around it"
    if not re.fullmatch("[0-9]+", t):
        if re.fullmatch("-[0-9]+", t):
            return f"is negative: rounds are {first} to {last}"
        if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", t):
            return "is not written as a whole number, in digits alone"
        return "is not a number"
    number = int(t) if len(t) <= _MAX_ROUND_DIGITS else 10**_MAX_ROUND_DIGITS
    if number < first:
        return f"is before the first round: rounds are {first} to {last}"
    if number > last:
        return f"is beyond the run: rounds are {first} to {last}"
    return None


def _codes(characters: Sequence[str]) -> str:
    """Returns the code points of the first three characters in Unicode's notation, such as
    U+0020.
    """
    return ", ".join(f"U+{ord(character):04X}" for character in characters[:3])


def format_client(client: Any) -> str:
    r"""Formats a client id for a message, in ASCII, truncated, and in quotes if it is a text.

    >>> format_client("zo\u00eb"), format_client(7)
    ("'zo\\xeb'", '7')
    """
    if isinstance(client, str):
        client = client[:_MAX_CHARACTERS]
    return ascii(client)


def format_rounds(rounds: Sequence[int]) -> str:
    """Formats a list of rounds for a message, truncated if it is long.

    >>> format_rounds([3]), format_rounds([1, 11, 80]), format_rounds(range(400))[-25:]
    ('round 3', 'rounds 1, 11, 80', '18, 19 and 380 other ones')
    """
    noun = "rounds" if len(rounds) > 1 else "round"
    text = f"{noun} {', '.join(map(str, rounds[:_MAX_ROUNDS]))}"
    num_hidden = len(rounds) - _MAX_ROUNDS
    if num_hidden > 0:
        text += f" and {num_hidden} other ones"
    return text
