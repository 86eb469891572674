"""The mechanisms whose noise is timed: issue 4's list at n = 2052, k = 6, min_sep = 342, as they are fitted for use."""

import dataclasses
import warnings
from typing import Any

import fedmf
from fedmf.mechanisms import Mechanism

ROUNDS, MIN_SEP = 2052, 342


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One mechanism.

    Attributes:
      name: the row's label.
      family, options: as of `fedmf.fit`; bands shrink with the rounds of a small run.
      schema: of the participation.
      goal: the ratio to an iid draw that issue 4 asks for; None for none.
    """

    name: str
    family: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    schema: str = "min_sep"
    goal: float | None = None


CASES = (
    Case(name="identity", family="identity"),
    Case(name="banded, 8 bands", family="banded", options={"bands": 8, "tolerance": 1e-3}, goal=5),
    Case(name="banded, 32 bands", family="banded", options={"bands": 32, "tolerance": 1e-3}, goal=5),
    Case(name="banded, 342 bands", family="banded", options={"bands": MIN_SEP, "tolerance": 1e-3}, goal=10),
    Case(name="dense", family="dense", options={"tolerance": 2e-3}, schema="fixed_epoch", goal=40),
    Case(name="tree, online", family="tree", options={"decoder": "online"}, goal=5),
    Case(name="tree, full", family="tree", options={"decoder": "full"}, goal=5),
    Case(name="blt, 4 buffers", family="blt", options={"buffers": 4}, goal=5),
    Case(name="low_rank", family="low_rank"),
    Case(name="toeplitz, 342 bands", family="toeplitz", options={"bands": MIN_SEP, "coefficients": "sqrt"}),
    Case(name="toeplitz, full", family="toeplitz", options={"coefficients": "sqrt"}),
    Case(name="fft", family="fft"),
)

# TensorFlow Privacy's tree aggregation: Honaker's estimator from below, the plain tree, and one that is restarted each epoch.
TFP_CASES = (
    Case(name="tfp tree, efficient", family="tfp", options={"use_efficient": True}),
    Case(name="tfp tree, plain", family="tfp", options={"use_efficient": False}),
    Case(name="tfp tree, efficient, restarts", family="tfp", options={"use_efficient": True, "restart_every": MIN_SEP}),
)


def timed_rounds(rounds: int) -> tuple[int, ...]:
    """10, 1000 and 2040 of 2052 rounds, and what is there in fewer."""
    return tuple(t * rounds // ROUNDS for t in (10, 1000, 2040))


def participation(case: Case, rounds: int) -> fedmf.Participation:
    """Clients come back after a sixth of the rounds, six times."""
    return fedmf.Participation(rounds=rounds, schema=case.schema, min_sep=rounds * MIN_SEP // ROUNDS)


def mechanism(case: Case, rounds: int) -> Mechanism:
    """The fitted mechanism; full-size fits come from fedmf's cache after the first time, which takes minutes for dense."""
    options = dict(case.options)
    if "bands" in options and rounds < ROUNDS:
        options["bands"] = max(2, options["bands"] * rounds // ROUNDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of bands or tolerances; the cost is the subject here
        return fedmf.fit(fedmf.prefix_sum(rounds), participation(case, rounds), family=case.family, **options)
