"""The calls of the strategy that `MatrixFactorizationDP` wraps, with its state before each call."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedmf.flower.arrays import Model, copy_of
from fedmf.flower.evaluation import EvaluationResult, evaluate, text_of
from fedmf.flower.nodes import PatientGrid
from fedmf.flower.state import State
from fedmf.flower.strategy_state import StrategyState
from fedmf.flower.trial import attribute_list, check_is_kept, refusal_of, try_strategy
from fedmf.flower.watch import Watch


class WrappedStrategy:
    """The Flower strategy that `MatrixFactorizationDP` wraps, with its state.

    Args:
      strategy: strategy as the program made it.

    Attributes:
      strategy: the same.
      state: state of the strategy, as changes since the run began.
      is_tried: whether it has passed its trial.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.state = StrategyState(strategy)
        self.is_tried = False
        # This attribute detects changes in objects whose state a folder cannot hold. It is None
        # outside of an evaluation.
        self._watch: Watch | None = None
        self._state_before_evaluation: State | None = None

    def begin(self, *, has_folder: bool) -> None:
        """Records the current state of the strategy as its initial state."""
        self.state = StrategyState(self.strategy)
        self._watch = self.state.watch() if has_folder else None

    def messages(
        self, t: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, seconds: float
    ) -> list[Message]:
        """Returns the training messages of round t, as the strategy makes them.

        Raises:
          TimeoutError: the strategy has waited for nodes for so many seconds.
          ValueError: it raised an error before the first round.
        """
        patient_grid: Any = PatientGrid(grid, seconds)
        try:
            return list(self.strategy.configure_train(t + 1, arrays, config, patient_grid))
        except TimeoutError:
            raise
        except Exception as error:
            if self.is_tried:
                raise
            raise ValueError(refusal_of(self.strategy, text_of(error))) from error

    def try_once(
        self, t: int, model: Model, folder: pathlib.Path | None, warn: Callable[[str], None]
    ) -> None:
        """Tries the strategy with a synthetic reply before the first round of this program.

        Args:
          t: the round.
          model: model before the round.
          folder: folder of the run, or None.
          warn: called with a sentence about state that the folder does not hold.

        Raises:
          ValueError: it does not move the model by one reply, or the folder cannot hold its state.
        """
        if self.is_tried:
            return
        lost_types = try_strategy(self.strategy, t, model)
        if folder is not None and self._watch is not None:
            lost_types |= self.state.changes().lost | self._watch.changed()
            check_is_kept(lost_types, folder)
            opaque_objects = self.state.opaque
            if opaque_objects:
                warn(
                    f"the folder does not keep strategy.{attribute_list(opaque_objects)}: a run "
                    "that is started again has those that its program makes"
                )
        self.is_tried = True

    def evaluation_messages(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, seconds: float
    ) -> list[Message]:
        """Returns the strategy's messages for an evaluation after `number` rounds.

        Raises:
          TimeoutError: the strategy has waited for nodes for so many seconds.
        """
        self._state_before_evaluation = self.state.changes().state
        patient_grid: Any = PatientGrid(grid, seconds)
        model_copy = copy_of(arrays)
        return list(self.strategy.configure_evaluate(number, model_copy, config, patient_grid))

    def evaluate(self, number: int, replies: Sequence[Message]) -> EvaluationResult:
        """Lets the strategy aggregate the replies of an evaluation, and returns metrics and counts
        of dropped replies.
        """
        state_before = self.state.changes().state
        return evaluate(self.strategy, number, replies, lambda: self.state.rewind(state_before))

    def end_evaluation(self) -> None:
        """Ends an evaluation, and keeps the changes that it made in the strategy."""
        self._state_before_evaluation = None

    def undo_evaluation(self) -> None:
        """Restores the state that the strategy had before an evaluation that was interrupted."""
        if self._state_before_evaluation is not None:
            self.state.rewind(self._state_before_evaluation)
            self._state_before_evaluation = None
