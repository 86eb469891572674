"""Numbers in the text of a page, compared with what is computed when the site is built.

A hidden cell at the end of a page says them again, with a {} in the place of each number:

    epsilon = gaussian_epsilon(1 / math.sqrt(2 * 0.2355), 1e-10)
    says("papers/banded", "{} is the epsilon of rho = 0.2355", epsilon)
"""

import decimal
import pathlib
import re

DOCS = pathlib.Path(__file__).parents[1]
_NUMBER = r"(\d*\.?\d+(?:e-?\d+)?)(?!\.?\d)"


def says(page: str, phrase: str, *values: float) -> None:
    """Fails unless the page has the phrase once, and each value rounds to the digits that are
    printed in its place.

    Args:
      page: its name in docs/, without the suffix.
      phrase: as on the page, with {} for each number. Line ends count as blanks.
      values: of the numbers, in their order.
    """
    text = " ".join((DOCS / f"{page}.md").read_text().split())
    pattern = r"\s".join(re.escape(word).replace(r"\{\}", _NUMBER) for word in phrase.split())
    found = re.findall(f"(?<![\\w.]){pattern}", text)
    if len(found) != 1 or not values:
        raise ValueError(
            f"docs/{page}.md has {phrase!r} {len(found)} times and not once: mend the page or "
            "the cell that checks it"
        )
    printed = found[0] if isinstance(found[0], tuple) else found
    for number, value in zip(printed, values, strict=True):
        unit = 10.0 ** int(decimal.Decimal(number).as_tuple().exponent)
        if abs(float(number) - value) > unit * 0.500001:
            raise ValueError(
                f"docs/{page}.md prints {number} in {phrase!r}, and {value:.7g} is computed"
            )
