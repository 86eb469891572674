"""Escaping of texts in Markdown. Names of clients, tasks, folders and files may contain any
character, and must not be read as Markdown.
"""

import re

# Stands for a blank at which lines are not broken. `plain_markdown` and `code_span` first replace
# this character in the texts of callers, so that only fedmf can put it into a text.
GLUED_BLANK = "\0"
# Line ends, other control characters, and characters that change the writing direction of the text
# after them.
_CONTROLS = re.compile("[\x01-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# Surrogates are the characters by which Python represents bytes of a file name that are not UTF-8.
_NO_UNICODE = re.compile("[\ud800-\udfff]")
# Characters that begin code, HTML, an entity, a table, a formula, emphasis or a link in Markdown.
_SPECIAL = re.compile(
    r"[`<>|*${}]"
    r"|&(?=#?\w+;)"
    r"|~(?=~)"
    r"|\](?=[(\[:])"
    r"|(?<![^\W_])_|_(?![^\W_])"
    r"|\\(?=[!-/:-@\[-`{-~]|$)"
)


def in_one_line(text: str) -> str:
    """Makes a text stay on one line. Control characters, line ends and characters that change the
    direction of writing become blanks. Bytes that are not text become U+FFFD.

    >>> in_one_line("first\\nsecond")
    'first second'
    """
    text = _NO_UNICODE.sub("\ufffd", text)
    return _CONTROLS.sub(" ", text)


def plain_markdown(text: str) -> str:
    """Escapes a text so that Markdown shows it as it is, without HTML, code, links or tables.

    Characters with a meaning in Markdown become character references, which every renderer knows.

    >>> plain_markdown("my_task <b>`x`|</b>")
    'my_task &lt;b&gt;&#96;x&#96;&#124;&lt;/b&gt;'
    """
    references = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    text = in_one_line(text.replace(GLUED_BLANK, " "))
    return _SPECIAL.sub(lambda match: references.get(match[0], f"&#{ord(match[0])};"), text)


def code_span(text: str) -> str:
    """Returns a text as a code span of Markdown on one line. It stands between more backticks than
    the text contains in a row.

    >>> code_span("my run").replace(GLUED_BLANK, " "), code_span("a`b")
    ('`my run`', '``a`b``')
    """
    text = in_one_line(text.replace(GLUED_BLANK, " "))
    backtick_fence = "`"
    while backtick_fence in text:
        backtick_fence += "`"
    if text.startswith("`") or text.endswith("`"):
        text = f" {text} "
    return f"{backtick_fence}{text}{backtick_fence}".replace(" ", GLUED_BLANK)
