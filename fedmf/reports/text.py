"""Numbers for people, and the statement's Markdown as HTML."""

import math
import re
from collections.abc import Sequence

import markdown
import markupsafe

# Raw HTML, links and images are no part of a statement; those in a damaged or foreign run folder
# must stay text.
_INLINE_REFUSED = (
    "html entity autolink automail link image_link image_reference reference "
    "short_reference short_image_ref"
)


def significant(value: float, digits: int = 3) -> str:
    """`value` with at least that many significant digits, trailing zeros kept.

    >>> significant(8.0), significant(0.65294, 4), significant(123456.0), significant(0.0)
    ('8.00', '0.6529', '123,456', '0')
    """
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0:
        return "0"
    rounded = f"{value:.{digits - 1}e}"
    exponent = int(rounded.split("e")[1])
    if exponent < -3 or exponent > 6:
        return f"{value:.{digits - 1}e}"
    return f"{float(rounded) if exponent < digits else value:,.{max(0, digits - 1 - exponent)}f}"


def plain(value: float) -> str:
    """A number that was chosen, as its author would write it.

    >>> plain(1e-6), plain(0.25), plain(8.0)
    ('1e-6', '0.25', '8')
    """
    return re.sub(r"e([+-])0+", r"e\1", f"{value:g}")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text with one column under another.

    >>> aligned([["family", "rate"], ["tree", "0.5"]])
    ['family  rate', 'tree    0.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def is_share(metric: str) -> bool:
    """Whether a metric of this name is a share between 0 and 1, shown in percent."""
    return "accuracy" in metric or "recall" in metric


def metric_value(metric: str, value: float | None) -> str:
    """A value of `metric` for people; an en dash where there is none."""
    if value is None:
        return "–"
    if is_share(metric) and math.isfinite(value):
        return f"{100 * value:.2f}%"
    return significant(value, 4)


def metric_name(metric: str) -> str:
    """The metric's name as words."""
    return metric.replace("_", " ")


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(42.4), duration(200.0), duration(7260.0)
    ('42 s', '3 min 20 s', '2 h 1 min')
    """
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {s} s" if minutes else f"{s} s"


def join(parts: list[str]) -> str:
    """Parts of a sentence.

    >>> join(["a"]), join(["a", "b"]), join(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def without_subject(text: str) -> str:
    """Returns a statement without its title and subject, which name one run and its day.

    >>> without_subject("# Title\\n\\n- **Date.** Today.\\n\\n1. **DP setting.** Central.\\n")
    '1. **DP setting.** Central.\\n'
    """
    body = re.sub(r"\A\s*# .*\n", "", text)
    return re.sub(r"\A\s*(?:(?:- |  ).*\n)*\s*(?=\S)", "", body)


def statement_html(text: str) -> markupsafe.Markup:
    """The Markdown of a privacy statement as HTML.

    Raw HTML in it stays text.
    """
    # Statements nest lists by three spaces, the width of "1. ".
    renderer = markdown.Markdown(
        tab_length=3, extensions=["sane_lists", "tables"], output_format="html"
    )
    renderer.preprocessors.deregister("html_block")
    for name in _INLINE_REFUSED.split():
        renderer.inlinePatterns.deregister(name)
    html = renderer.convert(text)
    # Below the report's own headings.
    html = re.sub(
        r"<(/?)h([1-6])>", lambda match: f"<{match[1]}h{min(6, int(match[2]) + 3)}>", html
    )
    return markupsafe.Markup(html)  # the renderer has escaped it
