"""The checks of a study's runs before the first one trains: those that `federated.train` makes
before its first round.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedmf import tasks
from fedmf.mechanisms import Mechanism
from fedmf.runs.config import TrainConfig

if TYPE_CHECKING:
    from fedmf.federated.task import Task

# A configuration has checked its own values. No other check looks at these, so that runs which
# differ in them alone are checked as one.
_LOOKED_AT_BY_NONE: dict[str, Any] = {
    "server_learning_rate": 1.0,
    "client_learning_rate": 1.0,
    "server_momentum": 0.0,
    "seed": 0,
}


def check_runs(
    configs: Mapping[str, TrainConfig], folder: pathlib.Path, write_mechanisms: Callable[[], None]
) -> None:
    """Checks every run with the real data's clients: task, model, cohorts, mechanism, plan, and
    room for its noise.

    Args:
      configs: name -> configuration.
      folder: of the sweep, which has to have room.
      write_mechanisms: writes the files of family=file. It is called once all cohorts can be drawn:
        fits may take minutes.

    Raises:
      ValueError: naming the first run that cannot train, and how many cannot.
    """
    from fedmf.federated.execution.base import RunOptions
    from fedmf.federated.training.model_check import check_model
    from fedmf.federated.training.run_setup import controller_of, new_run

    alike: dict[TrainConfig, list[str]] = {}
    for name, config in configs.items():
        alike.setdefault(dataclasses.replace(config, **_LOOKED_AT_BY_NONE), []).append(name)
    made: dict[str, tuple[Task, Mapping[str, str]]] = {}
    fitted: dict[tuple[Any, ...], Mechanism] = {}

    def task_of(config: TrainConfig) -> "tuple[Task, Mapping[str, str]]":
        key = json.dumps([config.task, config.data, dict(config.task_options)])
        if key not in made:
            task = tasks.task_from_config(config, progress=False)
            # Nothing here trains the model, so that one of each task will do.
            task = dataclasses.replace(task, build_model=functools.cache(task.build_model))
            made[key] = task, check_model(task, config)
        return made[key]

    def draw(config: TrainConfig) -> None:
        task, _ = task_of(config)
        if config.sampling is None:
            controller_of(task, config)

    def plan(config: TrainConfig) -> None:
        key = (
            config.family,
            config.mechanism,
            config.bands,
            config.decoder,
            tuple(config.mechanism_options.items()),
            config.participation(),
        )
        if key not in fitted:
            fitted[key] = config.fit()
        # The test split is counted when the task is made; reading StackOverflow's 16 million
        # sentences would take hours.
        task, model = task_of(config)
        new_run(
            task,
            config,
            folder,
            0,
            config.plan(fitted[key]),
            model,
            RunOptions(test=False, progress=False),
        )

    _of_all(draw, alike)
    write_mechanisms()
    _of_all(plan, alike)


def _of_all(
    check: Callable[[TrainConfig], None], alike: Mapping[TrainConfig, Sequence[str]]
) -> None:
    failures: dict[str, str] = {}
    for config, names in alike.items():
        try:
            check(config)
        except (TypeError, ValueError, OSError) as error:
            failures |= dict.fromkeys(names, str(error))
    if failures:
        name, reason = next(iter(failures.items()))
        total = sum(map(len, alike.values()))
        raise ValueError(
            f"{len(failures)} of {total} settings cannot train, the first, {name}: "
            f"{reason}; none has begun"
        )
