"""Tasks whose learner trains a model of a framework."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

from fedmf.training.examples import Examples
from fedmf.training.learner import Learner
from fedmf.training.task import Task


class ModelLearner(Learner):
    """Base class of learners that build a model of their framework.

    Attributes:
      build_model: seed -> an untrained model.
    """

    build_model: Callable[[int], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelTask(Task):
    """Base class of tasks with a model of a framework. A subclass makes the learner from its
    attributes.

    Attributes:
      build_model: seed -> an untrained model.
    """

    learner: Learner = dataclasses.field(init=False, repr=False, compare=False)
    build_model: Callable[[int], Any]

    def _with_learner(self, learner: Learner) -> Self:
        """Returns this task with the models of another learner of its class."""
        assert isinstance(learner, ModelLearner)
        return dataclasses.replace(self, build_model=learner.build_model)

    @classmethod
    def from_arrays(  # type: ignore[override]
        cls,
        *,
        x: Any,
        y: Any,
        client_ids: Any,
        validation: Examples,
        test: Examples,
        model: Callable[[], Any],
        sample_weight: Any = None,
        **attributes: Any,
    ) -> Self:
        """Returns a task whose examples are arrays in memory, with the client id of each example.

        Args:
          x, y, client_ids, validation, test, sample_weight: as in `training.Task.from_arrays`.
          model: () -> a model, as `build_model` returns it. The run's seed determines its weights,
            because it seeds the framework's random number generator.
          attributes: `name`, `loss`, `metrics`, `batch_size` and any other attribute of `Task`.

        Raises:
          TypeError, ValueError: as `training.Task.from_arrays` does.
        """
        return cls._from_arrays(
            x=x,
            y=y,
            client_ids=client_ids,
            splits={"validation": validation, "test": test},
            sample_weight=sample_weight,
            attributes={"build_model": cls._seeded(model), **attributes},
        )

    @staticmethod
    def _seeded(model: Callable[[], Any]) -> Callable[[int], Any]:
        """Returns a function of a seed, as `build_model` is, from a function without arguments."""
        raise NotImplementedError
