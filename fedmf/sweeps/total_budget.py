"""A privacy budget for all runs of a sweep together, divided before the first run.

The number of runs and their shares do not depend on results, so that the guarantee also holds if
each setting depends on the results of earlier runs. N runs without client sampling have sqrt(N)
times the noise multiplier of the total: the inverse squared noise multipliers of Gaussian
mechanisms add up (Dong, Roth and Su, Gaussian Differential Privacy). With client sampling each run
has epsilon / N at delta / N, since epsilons and deltas add up.
"""

import contextlib
import dataclasses
import math
import pathlib
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fedmf import checks, strict_json
from fedmf.files import lock, make_folder, write_atomically
from fedmf.privacy.flat_config import TARGETS
from fedmf.privacy.gaussian import check_delta, check_epsilon, gaussian_noise_multiplier
from fedmf.privacy.source_tail import check_tail_of_runs
from fedmf.runs.config import TrainConfig, read_config_file
from fedmf.runs.reading import read_object

_FILE = "total_budget.json"
# Number of times that a locked folder is tried again, a tenth of a second apart.
_MAX_WAITS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class TotalBudget:
    """A privacy budget for a fixed number of runs.

    Attributes:
      epsilon, delta: guarantee of all runs together.
      num_runs: number of runs.

    >>> budget = TotalBudget(epsilon=8.0, delta=1e-6, num_runs=4)
    >>> budget.share(is_sampled=True)
    {'epsilon': 2.0, 'delta': 2.5e-07}
    >>> round(budget.share(is_sampled=False)["noise_multiplier"], 4)
    1.3059
    """

    epsilon: float
    delta: float
    num_runs: int

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        checks.integer("num_runs", self.num_runs, low=1, hint="count the runs of the sweep")

    def share(self, *, is_sampled: bool) -> dict[str, float]:
        """Returns the fields of a run's configuration that state its share.

        Args:
          is_sampled: whether any run samples its clients.

        Raises:
          ValueError: runs without client sampling would have too little noise for the bounded size
            of its draws.
        """
        if is_sampled:
            return {"epsilon": self.epsilon / self.num_runs, "delta": self.delta / self.num_runs}
        total_multiplier = gaussian_noise_multiplier(self.epsilon, self.delta)
        noise_multiplier = math.sqrt(self.num_runs) * total_multiplier
        check_tail_of_runs(noise_multiplier, self.num_runs, self.delta)
        return {"noise_multiplier": noise_multiplier}

    def reserve(self, out: pathlib.Path, configs: Mapping[str, TrainConfig]) -> None:
        """Records runs in a sweep's folder before they begin, as some of those that the budget was
        divided among.

        Args:
          out: folder of the sweep.
          configs: name -> configuration. Runs without noise do not count.

        Raises:
          ValueError: the folder has another budget, runs without one, or would have more runs; or a
            run adds other noise than its share.
        """
        make_folder(out)
        with _locked(out):
            content = _content(out)
            recorded_budget = TotalBudget.of(out)
            begun_configs = {
                path.parent.name: TrainConfig.from_mapping(read_config_file(path), str(path))
                for path in (out / "runs").glob("*/config.json")
            }
            if recorded_budget is None and begun_configs:
                raise ValueError(
                    f"{out} holds runs that no `total_epsilon` covers: name another folder"
                )
            if recorded_budget not in (None, self):
                raise ValueError(
                    f"{out} was begun with total_epsilon={recorded_budget.epsilon} for "
                    f"{recorded_budget.num_runs} runs, and this command asks for {self.epsilon} "
                    f"and {self.num_runs}: a budget cannot be divided again; name another folder"
                )
            private_configs = {
                name: config
                for name, config in {**begun_configs, **configs}.items()
                if config.adds_noise
            }
            for name, config in private_configs.items():
                self._check_share(name, config)
            run_names = sorted({*content.get("runs", []), *private_configs})
            if len(run_names) > self.num_runs:
                raise ValueError(
                    f"{out} would have {len(run_names)} runs, and total_epsilon={self.epsilon} was "
                    f"divided among {self.num_runs}: name another folder"
                )
            content = dataclasses.asdict(self) | {"runs": run_names}
            budget_text = strict_json.dumps(content, indent=2) + "\n"
            write_atomically(out / _FILE, budget_text, mode=0o600)

    def _check_share(self, name: str, config: TrainConfig) -> None:
        """Raises ValueError unless a run adds the noise of its share."""
        for is_sampled in (False, True):
            share = self.share(is_sampled=is_sampled)
            if all(getattr(config, field) == value for field, value in share.items()):
                return
        raise ValueError(
            f"run {name} does not add the noise of one of {self.num_runs} runs with "
            f"total_epsilon={self.epsilon}: name another folder"
        )

    @staticmethod
    def of(out: pathlib.Path) -> "TotalBudget | None":
        """Returns the budget of a sweep's folder; None if it has none."""
        content = _content(out)
        content.pop("runs", None)
        return TotalBudget(**content) if content else None

    def in_words(self) -> str:
        """Returns a sentence on the guarantee."""
        return (
            f"All {self.num_runs} runs together: epsilon {self.epsilon:g} at delta {self.delta:g}, "
            "as planned before the first. That is the guarantee of a model chosen by looking at "
            "all, even if fewer were trained."
        )


def reserve(out: pathlib.Path, configs: Mapping[str, TrainConfig]) -> None:
    """Records runs before they begin, if their folder has a budget (`TotalBudget.reserve`)."""
    budget = TotalBudget.of(out)
    if budget is not None:
        budget.reserve(out, configs)


def _content(out: pathlib.Path) -> dict[str, Any]:
    """Returns the contents of the budget's file; empty if there is none."""
    path = out / _FILE
    return read_object(path) if path.exists() else {}


@contextlib.contextmanager
def _locked(out: pathlib.Path) -> Iterator[None]:
    """Locks a sweep's folder while its budget is read and written."""
    folder_lock = lock(out)
    for _ in range(_MAX_WAITS):
        if folder_lock is not None:
            break
        time.sleep(0.1)
        folder_lock = lock(out)
    if folder_lock is None:
        raise ValueError(f"another process has locked {out}: try again")
    try:
        yield
    finally:
        folder_lock.release()


def total_epsilon_of(budget: TotalBudget | None) -> float | None:
    """Returns the epsilon of all runs together; None without a budget."""
    return None if budget is None else budget.epsilon


def check_no_target(fixed: Mapping[str, Any], varied: Mapping[str, Any]) -> None:
    """Raises ValueError if the options of a sweep have a privacy target, or if delta varies."""
    for name in (*TARGETS, "mean_trials"):
        if fixed.get(name) is not None or name in varied:
            raise ValueError(
                f"`total_epsilon` beside {name}={fixed.get(name, varied.get(name))}, and it "
                "determines the noise of each run: leave one of them out"
            )
    if "delta" in varied:
        raise ValueError("`delta` varies beside `total_epsilon`, which has one delta: give one")


def divided(
    fixed: Mapping[str, Any],
    total_epsilon: float,
    configs: Collection[TrainConfig],
    num_trials: int | None,
) -> tuple[TotalBudget, dict[str, Any]]:
    """Divides a total epsilon among the runs of a sweep.

    Args:
      fixed: fixed options of the sweep, without a privacy target.
      total_epsilon: epsilon of all runs together.
      configs: the runs of a grid, or the corners of a search, with any privacy target.
      num_trials: number of trials of a search; None for a grid.

    Returns:
      The budget, and the fixed options with the share of each run.
    """
    private_configs = [config for config in configs if config.adds_noise]
    num_runs = num_trials or max(1, len(private_configs))
    delta = fixed.get("delta", TrainConfig.delta)
    budget = TotalBudget(epsilon=total_epsilon, delta=delta, num_runs=num_runs)
    is_sampled = any(config.sampling is not None for config in private_configs)
    return budget, {**fixed, **budget.share(is_sampled=is_sampled)}
