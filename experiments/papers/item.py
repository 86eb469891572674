"""Tables and figures of the papers as items of a catalogue, each with its claim, the function that
reproduces it, and the outcome.
"""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from matplotlib.figure import Figure

from fedmf.experiments.papers import catalogue
from fedmf.experiments.papers.clause import Clause, in_words, worst
from fedmf.experiments.papers.drawing import Lines

# The scale "tiny" is only for tests.
Scale = Literal["tiny", "small", "full"]
# Short names of the sources from which tables, figures and claims are reproduced. All slides of
# 2025 are one source, and Denisov's paper with its appendix is another.
SOURCES = {
    "denisov": "Denisov et al. 2022, and its appendix",
    "multi-epoch": "Choquette-Choo et al. 2022, multi-epoch matrix factorization",
    "banded": "Choquette-Choo et al. 2023, banded matrix factorization",
    "slides": "Pillutla 2025, slides on correlated noise and BLT",
    "fedmf": "Beside the papers",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Settings with which an item is reproduced.

    Attributes:
      folder: existing folder of the result. Sweeps of an item go into it.
      scale: "small" ends within minutes on 2 cores, "full" is the paper's size.
      data: the real file, if the item can use one.
      jobs: number of runs at a time, for items that train.
      cluster: address of a Ray cluster on which they train, whose machines share `folder`; None for
        processes of this machine.
      test_sentences: limit on the sentences of StackOverflow's test set; None for that of the
        scale, at full all.
    """

    folder: pathlib.Path
    scale: Scale = "small"
    data: pathlib.Path | None = None
    jobs: int = 1
    cluster: str | None = None
    test_sentences: int | None = None

    def pick(self, tiny: Any, small: Any, full: Any) -> Any:
        """Returns the one of three values that belongs to this scale."""
        return {"tiny": tiny, "small": small, "full": full}[self.scale]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of reproducing an item.

    Attributes:
      figure: panels of lines, or a drawing.
      clauses: the parts of the item's claim, with a verdict each.
      columns, rows: columns and rows of numbers.csv; by default those of the first panel.
      reduced: sizes that are smaller than in the paper; empty if none is.
      seeds: seeds of random draws; empty if there are none.
      training_commits: commits of the code that trained the runs; empty if nothing trains.
      note: text under the figure.
    """

    figure: Sequence[Lines] | Figure
    _: dataclasses.KW_ONLY
    clauses: Sequence[Clause]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    reduced: str = ""
    seeds: tuple[int, ...] = ()
    training_commits: tuple[str, ...] = ()
    note: str = ""

    @property
    def verdict(self) -> str:
        """Verdict on the item in words, which follows from its clauses."""
        return in_words(self.clauses)

    @property
    def holds(self) -> bool:
        """Whether all clauses that are judged are reproduced, and at least one is judged."""
        return worst(self.clauses) == "reproduced"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """Table or figure of a paper, with its claim and the function that reproduces it.

    Attributes:
      name: name on the command line, such as "banded-figure-9".
      number: the paper's caption number, such as "Figure 9".
      claim: the paper's claim in our words, one sentence.
      state: how far it is reproduced.
      why: reason of a state other than "exact", one sentence.
      make: function that computes the outcome; None if nothing can be computed here.
      study: scale -> the `study_grid.Study` that trains; None if nothing trains.
      seconds: scale -> rough time on 2 cores; `study_check` estimates a study's at scale full.
    """

    name: str
    number: str
    claim: str
    state: str
    why: str
    seconds: Mapping[str, float]
    make: Callable[[Request], Outcome] | None = None
    study: Callable[[Scale], Any] | None = None

    @property
    def source(self) -> str:
        """Short name of the item's source, a key of SOURCES."""
        return next(source for source in SOURCES if self.name.startswith(f"{source}-"))


def _parse_item(text: str) -> Item:
    """Parses one entry of the catalogue."""
    head, _, body = text.partition("\n")
    name, number, state = head.split(" | ")
    claim, _, why = " ".join(body.split()).partition(" Why: ")
    seconds: dict[str, float] = {}
    if not why:
        seconds = dict(zip(("small", "full"), map(float, state.split())))  # noqa: B905
        state = "exact"
    return Item(name=name, number=number, claim=claim, state=state, why=why, seconds=seconds)


ITEMS = {
    item.name: item for item in map(_parse_item, re.split(r"\n(?! )", catalogue.ITEMS.strip()))
}
Make = TypeVar("Make", bound=Callable[[Request], Outcome])


def figure(*names: str) -> Callable[[Make], Make]:
    """Returns a decorator for the function that computes the items `names` of the catalogue."""

    def declare(make: Make) -> Make:
        """Registers the function as the one that makes the items."""
        for name in names:
            ITEMS[name] = dataclasses.replace(ITEMS[name], make=make)
        return make

    return declare
