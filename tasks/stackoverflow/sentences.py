"""Conversion of text to sentences of tokens, as in TFF's StackOverflow file.

The file's recipe (docstring of tff.simulation.datasets.stackoverflow.load_data): parse into
sentences, lowercase, unescape HTML symbols, separate punctuation except apostrophes and hyphens,
remove extraneous whitespace, replace URLs by a special token. Here letters outside ASCII are kept
as well, since a user's text need not be English.
"""

import functools
import html
import re
import sys
import unicodedata

_URL = re.compile(r"(?:https?://|www\.)\S*[\w/]")
_SENTENCE_END = re.compile(r"([.!?…。！？][\"'”’)\]]*)\s+")


def split_sentences(text: str) -> list[str]:
    """Splits a text into sentences, which are tokens separated by single blanks. No sentence is
    empty.

    A sentence ends at a line end, and at `.`, `!`, `?` or `…` before a blank.

    >>> split_sentences("Don't use F(x) &amp; co-routines.  See https://a.org/b?c=1.\\nWhy? ")
    ["don't use f ( x ) & co-routines .", 'see <url> .', 'why ?']
    """
    if "&" in text:
        text = html.unescape(text)
    # The text is put into lower case before it is composed, since some composed letters become
    # uncomposed in lower case.
    text = unicodedata.normalize("NFC", text.replace("’", "'").lower())
    text = _SENTENCE_END.sub(r"\1\n", _URL.sub("<url>", text))
    token_pattern = _token_pattern(ascii_only=text.isascii())
    sentences = [" ".join(token_pattern.findall(line)) for line in text.splitlines()]
    return [sentence for sentence in sentences if sentence]


@functools.cache
def _token_pattern(*, ascii_only: bool) -> re.Pattern[str]:
    """Returns the regular expression of a token.

    A token is the mark of a URL, a word with apostrophes, hyphens and accents in it, or one other
    visible character.
    """
    characters = [chr(code) for code in range(128 if ascii_only else sys.maxunicode + 1)]
    invisible_characters = "".join(c for c in characters if unicodedata.category(c) in ("Cc", "Cf"))
    # Accents and vowel signs belong to their word, although `\w` leaves them out. The two joiners
    # occur inside words of Persian and Hindi.
    mark_characters = ""
    if not ascii_only:
        mark_characters = "".join(c for c in characters if unicodedata.category(c)[0] == "M")
        mark_characters += "\u200c\u200d"
    word_pattern = rf"\w[\w{mark_characters}]*" if mark_characters else r"\w+"
    return re.compile(
        rf"<url>|{word_pattern}(?:['-]{word_pattern})*|[^\w\s{mark_characters}{invisible_characters}]"
    )
