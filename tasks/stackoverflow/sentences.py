"""Text to sentences of tokens, as in TFF's StackOverflow file.

Its recipe (the text of tff.simulation.datasets.stackoverflow.load_data): parse into sentences,
lowercase, unescape HTML symbols, separate punctuation except apostrophes and hyphens, remove
extraneous whitespace, replace URLs by a special token. One thing differs: letters outside ASCII
stay, because text of one's own need not be English.
"""

import functools
import html
import re
import sys
import unicodedata

_URL = re.compile(r"(?:https?://|www\.)\S*[\w/]")
_SENTENCE_END = re.compile(r"([.!?…。！？][\"'”’)\]]*)\s+")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text in order: tokens separated by single blanks, none of them empty.

    A sentence ends at a line end, and at `.`, `!`, `?` or `…` before a blank.

    >>> split_sentences("Don't use F(x) &amp; co-routines.  See https://a.org/b?c=1.\\nWhy? ")
    ["don't use f ( x ) & co-routines .", 'see <url> .', 'why ?']
    """
    if "&" in text:
        text = html.unescape(text)
    # Lower case first: of some letters it is not composed.
    text = unicodedata.normalize("NFC", text.replace("’", "'").lower())
    text = _SENTENCE_END.sub(r"\1\n", _URL.sub("<url>", text))
    token = _token_pattern(ascii_only=text.isascii())
    return [" ".join(tokens) for line in text.splitlines() if (tokens := token.findall(line))]


@functools.cache
def _token_pattern(*, ascii_only: bool) -> re.Pattern[str]:
    """Matches the mark of a URL, a word with the apostrophes, hyphens and accents in it, or one
    other character that is visible.
    """
    characters = [chr(code) for code in range(128 if ascii_only else sys.maxunicode + 1)]
    invisible = "".join(c for c in characters if unicodedata.category(c) in ("Cc", "Cf"))
    # Accents and vowel signs belong to their word; `\w` leaves them out. The two joiners stand
    # inside words of Persian and Hindi.
    marks = (
        ""
        if ascii_only
        else "".join(c for c in characters if unicodedata.category(c)[0] == "M") + "\u200c\u200d"
    )
    word = rf"\w[\w{marks}]*" if marks else r"\w+"
    return re.compile(rf"<url>|{word}(?:['-]{word})*|[^\w\s{marks}{invisible}]")
