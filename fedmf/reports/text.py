"""Formatting of numbers and texts in reports, and conversion of privacy statements to HTML."""

import math
import re
from collections.abc import Sequence

import markdown
import markupsafe

# Privacy statements have no raw HTML, links or images. If a statement of a damaged or foreign run
# folder has them, they are shown as text.
_DISABLED_PATTERNS = (
    "html entity autolink automail link image_link image_reference reference "
    "short_reference short_image_ref"
)


def significant(value: float, digits: int = 3) -> str:
    """Formats a value with at least `digits` significant digits, and keeps trailing zeros.

    >>> significant(8.0), significant(0.65294, 4), significant(123456.0), significant(0.0)
    ('8.00', '0.6529', '123,456', '0')
    """
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    rounded_text = f"{value:.{digits - 1}e}"
    exponent = int(rounded_text.split("e")[1])
    if exponent < -3 or exponent > 6:
        return f"{value:.{digits - 1}e}"
    if exponent < digits:
        return f"{float(rounded_text):,.{max(0, digits - 1 - exponent)}f}"
    return f"{value:,.0f}"


def plain(value: float) -> str:
    """Formats a number without trailing zeros, as a user would write it in a configuration.

    >>> plain(1e-6), plain(0.25), plain(8.0)
    ('1e-6', '0.25', '8')
    """
    return re.sub(r"e([+-])0+", r"e\1", f"{value:g}")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Formats the rows of a table as lines of text with aligned columns.

    >>> aligned([["family", "rate"], ["tree", "0.5"]])
    ['family  rate', 'tree    0.5']
    """
    column_widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned_lines = []
    for row in rows:
        padded_cells = [cell.ljust(width) for cell, width in zip(row, column_widths, strict=True)]
        aligned_lines.append("  ".join(padded_cells).rstrip())
    return aligned_lines


def is_share(metric: str) -> bool:
    """Returns whether a metric is shown in percent, because its name has "accuracy" or "recall"."""
    return "accuracy" in metric or "recall" in metric


def metric_value(metric: str, value: float | None) -> str:
    """Formats the value of a metric, where None becomes a dash."""
    if value is None:
        return "–"
    if is_share(metric) and math.isfinite(value):
        return f"{100 * value:.2f}%"
    return significant(value, 4)


def metric_name(metric: str) -> str:
    """Returns the name of a metric in words."""
    return metric.replace("_", " ")


def duration(seconds: float) -> str:
    """Formats a duration in hours, minutes and seconds.

    >>> duration(42.4), duration(200.0), duration(7260.0)
    ('42 s', '3 min 20 s', '2 h 1 min')
    """
    total_minutes, rest_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(total_minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {rest_seconds} s"
    return f"{rest_seconds} s"


def join(words: list[str]) -> str:
    """Joins words of a sentence with commas and "and".

    >>> join(["a"]), join(["a", "b"]), join(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def plural(word: str, count: int) -> str:
    """Returns a word in the plural, by adding an s, unless the count is 1.

    >>> plural("seed", 2)
    'seeds'
    """
    if count == 1:
        return word
    return f"{word}s"


def without_subject(text: str) -> str:
    """Returns a privacy statement without its head, which is the title and the list that names the
    run.

    >>> without_subject("# Title\\n\\n- **Date.** Today.\\n\\n1. **DP setting.** Central.\\n")
    '1. **DP setting.** Central.\\n'
    """
    statement_body = re.sub(r"\A\s*# .*\n", "", text)
    return re.sub(r"\A\s*(?:(?:- |  ).*\n)*\s*(?=\S)", "", statement_body)


def statement_html(text: str) -> markupsafe.Markup:
    """Converts the Markdown of a privacy statement to HTML, and escapes raw HTML in it."""
    # Nested lists in statements are indented by three spaces, the width of "1. ".
    markdown_renderer = markdown.Markdown(
        tab_length=3, extensions=["sane_lists", "tables"], output_format="html"
    )
    markdown_renderer.preprocessors.deregister("html_block")
    for name in _DISABLED_PATTERNS.split():
        markdown_renderer.inlinePatterns.deregister(name)
    statement_body = markdown_renderer.convert(text)
    # The headings of a privacy statement are moved three levels down, below those of the report.
    statement_body = re.sub(
        r"<(/?)h([1-6])>", lambda match: f"<{match[1]}h{min(6, int(match[2]) + 3)}>", statement_body
    )
    # The Markdown renderer has escaped all text already, so the HTML is safe.
    return markupsafe.Markup(statement_body)
