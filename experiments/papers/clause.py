"""Clauses of a paper's claim, each with a verdict that is computed from numbers."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

Verdict = Literal["reproduced", "inconclusive", "contradicted", "not judged"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
# The verdicts on a clause that was judged, from the best to the worst.
_FROM_BEST_TO_WORST: tuple[Verdict, ...] = ("reproduced", "inconclusive", "contradicted")
# Words after the verdict on an item that has clauses which are not judged.
IN_PART = ", in part"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clause:
    """One part of a claim, such as one order of two lines at one epsilon, and the verdict on it.

    Attributes:
      text: the part of the claim, as a sentence that can be true or false.
      verdict: verdict on the sentence.
      evidence: the numbers of which the verdict follows, or for a clause that is not judged the
        reason why this scale cannot compute it.
      interval: the 95% interval of random runs on which the verdict rests; None if it rests on
        none.
    """

    text: str
    verdict: Verdict
    evidence: str
    interval: tuple[float, float] | None = None


def from_interval(text: str, *, low: float, high: float, evidence: str) -> Clause:
    """Judges a clause which says that a quantity is positive.

    Args:
      text: the clause.
      low, high: 95% interval of the quantity, such as the paired difference of two lines.
      evidence: the numbers in words.

    Returns:
      The clause, which is reproduced if the interval lies above 0, contradicted if it lies below 0,
      and inconclusive otherwise.
    """
    verdict: Verdict = "inconclusive"
    if low > 0:
        verdict = "reproduced"
    if high < 0:
        verdict = "contradicted"
    return Clause(text=text, verdict=verdict, evidence=evidence, interval=(float(low), float(high)))


def from_numbers(text: str, is_true: bool, evidence: str) -> Clause:
    """Judges a clause about numbers that are computed exactly, without random draws."""
    return Clause(text=text, verdict="reproduced" if is_true else "contradicted", evidence=evidence)


def not_judged(text: str, reason: str) -> Clause:
    """Returns a clause that this scale cannot compute, with the reason."""
    return Clause(text=text, verdict="not judged", evidence=reason)


def worst(clauses: Sequence[Clause]) -> Verdict:
    """Returns the worst verdict on the judged clauses, or "not judged" if none is judged."""
    verdicts = {clause.verdict for clause in clauses}
    for verdict in reversed(_FROM_BEST_TO_WORST):
        if verdict in verdicts:
            return verdict
    return "not judged"


def in_words(clauses: Sequence[Clause]) -> str:
    """Returns the verdict on an item, which says "in part" if a clause is not judged."""
    verdict = worst(clauses)
    has_unjudged = any(clause.verdict == "not judged" for clause in clauses)
    if has_unjudged and verdict != "not judged":
        return f"{verdict}{IN_PART}"
    return verdict


def base_verdict(words: str) -> str:
    """Returns an item's verdict without the words "in part", which `in_words` may append."""
    return words.removesuffix(IN_PART)
