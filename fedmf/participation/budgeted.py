"""The participation schema with a budget, which bounds the sensitivity to each client's rounds."""

import dataclasses
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np

from fedmf import checks, fields
from fedmf.participation.base import Participation
from fedmf.participation.clients import ClientRounds
from fedmf.participation.history import History
from fedmf.participation.separated import EveryRound, MinSep
from fedmf.participation.sharpening import Sensitivity
from fedmf.participation.stats import ParticipationStats

# The sensitivity to a client's rounds may exceed the budget by this relative margin, because of
# rounding errors. The sensitivity of the schema includes the margin.
BUDGET_ROUNDING = 1e-12
# Largest budget, which is a limit on the sensitivity to a client's rounds. Its square must not
# overflow float64.
_MAX_BUDGET = 1e150


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budgeted(Participation):
    """The schema that bounds the sum of |X_st| over all rounds s and t of a client by budget^2,
    where X = C^T C for the encoder C.

    X = C^T C is the Gram matrix of the encoder C. A `fedmf.Budget` has the encoder, and decides
    which rounds are allowed.

    Attributes:
      rounds, schema, min_sep, max_participations, budget: as of `Participation`.
    """

    settings: ClassVar[tuple[str, ...]] = ("budget",)
    needs_encoder: ClassVar[bool] = True
    assumption: ClassVar[str] = (
        "Every client keeps to a participation budget S = {{ budget | up(6) }}: over the rounds s "
        "and t in which it takes part, out of {{ rounds }}, the sum of |X_st| is at most S^2, "
        "where X = C^T C is the Gram matrix of the encoder. When devices check in and who is "
        "drawn does not depend on the data of clients."
    )

    schema: str = "budget"

    def _check_budget(self) -> None:
        """Raises TypeError or ValueError unless the budget is a positive number."""
        if self.budget is None:
            raise ValueError(
                f"budget=None does not suit schema={self.schema!r}: "
                "let fedmf.Budget.of(mechanism, participation) compute it"
            )
        hint = "pass a sensitivity"
        budget = checks.positive("budget", self.budget, hint, below=_MAX_BUDGET)
        fields.set_fields(self, {"budget": budget})

    @classmethod
    def for_fit(
        cls, *, rounds: int, min_sep: int | None, max_participations: int | None
    ) -> Participation:
        """Returns the min_sep participation whose sensitivity is the budget. Mechanisms are fitted
        for it.
        """
        return Participation(
            rounds=rounds,
            schema=MinSep.schema,
            min_sep=min_sep,
            max_participations=max_participations,
        )

    def violations(self, observed: ParticipationStats, most_spent: float) -> list[str]:
        """Returns a sentence that compares the largest sensitivity that one client's rounds cost
        with the budget.
        """
        return [
            f"a client's rounds cost a sensitivity of {most_spent:.6g} where a budget of "
            f"{self.budget:.6g} was planned"
        ]

    def describe_limit(self) -> str:
        """Returns the budget in words, for the title of a figure."""
        return f"participation budget {self.budget:.4g}"

    def describe_planned_limits(self) -> tuple[str, str]:
        """Returns the budget in words, once for the planned separation and once for the planned
        participations, neither of which this schema has.
        """
        budget_text = f"budget {self.budget:.4g}"
        return budget_text, budget_text

    def affords(self, spent_squared: Any) -> Any:
        """Returns whether the budget pays for a client's rounds, given the sum of |X_st| over all
        pairs (s, t) of these rounds, where X = C^T C for the encoder C.
        """
        assert self.budget is not None
        is_number = isinstance(spent_squared, int | float | np.number | np.ndarray)
        if not is_number or np.asarray(spent_squared).dtype.kind not in "iuf":
            raise TypeError(
                f"spent_squared={reprlib.repr(spent_squared)} is not a number or an array of "
                "numbers: pass sums of |X_st|"
            )
        return spent_squared <= self.budget**2 * (1 + 2 * BUDGET_ROUNDING)

    def allows(self, rounds_of_one_client: Iterable[int]) -> bool:
        """Raises ValueError, since the allowed rounds depend on the encoder, which a schema does
        not have.
        """
        raise self._missing_encoder()

    def allows_sorted(self, sorted_rounds: list[int]) -> bool:
        """Raises ValueError, since the allowed rounds depend on the encoder, which a schema does
        not have.
        """
        raise self._missing_encoder()

    def allows_each(
        self, clients: ClientRounds, spent_squared: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns for each client whether the budget pays for its rounds, as a bool array of shape
        (clients,).
        """
        if spent_squared is not None:
            return np.asarray(self.affords(spent_squared))
        raise ValueError(
            f'the rounds that schema="{self.schema}" allows depend on the encoder: let '
            "fedmf.audit_ledger name the clients, which has one"
        )

    def new_history(self, num_clients: int) -> History:
        """Raises ValueError, since eligibility depends on the encoder, which a schema does not
        have.
        """
        raise self._missing_encoder()

    def is_eligible(
        self,
        t: int,
        history: History,
        clients: np.ndarray | slice,
        *,
        rounds_early: np.ndarray | int = 0,
    ) -> np.ndarray:
        """Raises ValueError, since eligibility depends on the encoder, which a schema does not
        have.
        """
        raise self._missing_encoder()

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Raises ValueError, since the allowed rounds depend on the encoder, which a schema does
        not have.
        """
        raise self._missing_encoder()

    def sensitivity(self, encoder_or_mechanism: Any) -> Sensitivity:
        """Returns the budget, or the sensitivity to a client that takes part in all rounds if that
        is smaller.

        The budget is a bound for every C: the sum of X_st <u_s, u_t> over s and t is at most that
        of |X_st|, which the schema bounds.
        """
        assert self.budget is not None
        sensitivity_to_all_rounds = EveryRound(rounds=self.rounds).sensitivity(encoder_or_mechanism)
        budget_with_margin = self.budget * (1 + BUDGET_ROUNDING)
        if sensitivity_to_all_rounds.value <= budget_with_margin:
            return sensitivity_to_all_rounds
        method_text = "participation budget (banded paper, Prop. E.1): upper bound"
        return Sensitivity(value=budget_with_margin, exact=False, method=method_text)

    def _missing_encoder(self) -> ValueError:
        """Returns the error for a method that needs the encoder, and names `fedmf.Budget`, which
        has one.
        """
        return ValueError(
            f'the rounds that schema="{self.schema}" allows depend on the encoder: ask a '
            "fedmf.Budget, which has one"
        )
