"""Texts of callers inside Markdown: names of clients, tasks, folders and files, which may hold any
character and must stay text.
"""

import re

# A blank at which a line is not broken. No other text has it: the functions below take it away.
GLUED_BLANK = "\0"
# Line ends, other control characters, and those that turn the direction of what follows.
_CONTROLS = re.compile("[\x01-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# Bytes of a file's name that are no UTF-8, as Python has them.
_NO_UNICODE = re.compile("[\ud800-\udfff]")
# What begins code, HTML, an entity, a table, a formula, emphasis or a link.
_SPECIAL = re.compile(
    r"[`<>|*${}]"
    r"|&(?=#?\w+;)"
    r"|~(?=~)"
    r"|\](?=[(\[:])"
    r"|(?<![^\W_])_|_(?![^\W_])"
    r"|\\(?=[!-/:-@\[-`{-~]|$)"
)


def in_one_line(text: str) -> str:
    """Returns the text with a blank for each control character, line end or character that turns
    the direction of writing, and with a replacement character for bytes that are no text.

    >>> in_one_line("first\\nsecond")
    'first second'
    """
    text = _NO_UNICODE.sub("\ufffd", text)
    return _CONTROLS.sub(" ", text)


def plain_markdown(text: str) -> str:
    """Returns Markdown that shows the text and nothing else: no HTML, no code, no link, no table.

    What Markdown would read is written as a character reference, which every renderer knows.

    >>> plain_markdown("my_task <b>`x`|</b>")
    'my_task &lt;b&gt;&#96;x&#96;&#124;&lt;/b&gt;'
    """
    references = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    text = in_one_line(text.replace(GLUED_BLANK, " "))
    return _SPECIAL.sub(lambda match: references.get(match[0], f"&#{ord(match[0])};"), text)


def code_span(text: str) -> str:
    """Returns the text as code of Markdown, between more backticks than it has, in one line.

    >>> code_span("my run").replace(GLUED_BLANK, " "), code_span("a`b")
    ('`my run`', '``a`b``')
    """
    text = in_one_line(text.replace(GLUED_BLANK, " "))
    fence = "`"
    while fence in text:
        fence += "`"
    if text.startswith("`") or text.endswith("`"):
        text = f" {text} "
    return f"{fence}{text}{fence}".replace(" ", GLUED_BLANK)
