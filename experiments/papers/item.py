"""One table or figure of a paper: what it claims, how it is made here, and what came out."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from matplotlib.figure import Figure

State = Literal["exact", "trained at reduced scale", "needs the real file", "not reproducible"]
Scale = Literal["tiny", "small", "full"]  # "tiny" is for tests
# Short names of the five sources; the slides of 2025 are one,
# Denisov's paper and its appendix another.
SOURCES = {
    "denisov": "Denisov et al. 2022, and its appendix",
    "multi-epoch": "Choquette-Choo et al. 2022, multi-epoch matrix factorization",
    "banded": "Choquette-Choo et al. 2023, banded matrix factorization",
    "slides": "Pillutla 2025, slides on correlated noise and BLT",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What an item is asked for.

    Attributes:
      folder: of the result; exists. Sweeps of an item go into it.
      scale: "small" ends within minutes on 2 cores, "full" is the paper's size.
      data: the real file, where the item can use one.
      jobs: runs at a time, of items that train.
      test_sentences: limit on the sentences of StackOverflow's test set; None for that of the
        scale, at full all.
    """

    folder: pathlib.Path
    scale: Scale = "small"
    data: pathlib.Path | None = None
    jobs: int = 1
    test_sentences: int | None = None

    def pick(self, *, tiny: Any, small: Any, full: Any) -> Any:
        """The one of this scale."""
        return {"tiny": tiny, "small": small, "full": full}[self.scale]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an item came to.

    Attributes:
      columns, rows: of numbers.csv.
      figure: a matplotlib figure, or PNG bytes.
      verdict: one sentence computed from the numbers.
      holds: whether the numbers bear the claim out.
      reduced: what is smaller than in the paper; empty if nothing is.
      seeds: of what was drawn; empty where nothing was.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    figure: Figure | bytes
    verdict: str
    holds: bool
    reduced: str = ""
    seeds: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure.

    Attributes:
      name: on the command line, "banded-figure-9".
      source: one of SOURCES.
      number: the paper's caption number, "Figure 9".
      claim: the paper's claim in our words, one sentence.
      state: how far it is reproduced.
      why: one sentence, where the state is not "exact".
      make: computes it; None where nothing can be computed here.
      study: scale -> the grid of what trains, a `study.Study`; None where nothing does.
      seconds: scale -> rough time on 2 cores. `study_cost` estimates that of a study at scale full.

    Raises:
      ValueError: a field contradicts another.
    """

    name: str
    source: str
    number: str
    claim: str
    state: State = "exact"
    why: str = ""
    make: Callable[[Request], Outcome] | None = None
    study: Callable[[Scale], Any] | None = None
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.source not in SOURCES or self.state not in get_args(State):
            raise ValueError(
                f"{self.name}: source={self.source!r} or state={self.state!r} is none that there is"
            )
        if (self.state == "exact") == bool(self.why):
            raise ValueError(
                f"{self.name}: why={self.why!r} does not suit state={self.state!r}: "
                "say why it is not exact"
            )
        if (self.make is None) != (not self.seconds) or (
            self.make is None and self.state == "exact"
        ):
            raise ValueError(
                f"{self.name}: give make and seconds, or neither and a state other than exact"
            )

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts by source, kind and number."""
        parts = re.split(r"(\d+)", self.number)
        return list(SOURCES).index(self.source), *(
            int(part) if part.isdigit() else part for part in parts
        )


def numbered(
    source: str,
    number: str,
    make: Callable[[Request], Outcome],
    small: float,
    full: float,
    claim: str,
) -> Item:
    """An exact item, named by its source and caption number; `small` and `full` are its seconds at
    these scales.
    """
    name = f"{source}-{number.lower().replace(' ', '-')}"
    return Item(
        name=name,
        source=source,
        number=number,
        claim=claim,
        make=make,
        seconds={"small": small, "full": full},
    )
