"""Rounds in TFF on other machines: the same learning process as `TffExecution`, its clients shared out to remote workers."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fedmf.federated.execution.remote_workers import RemoteWorkers
from fedmf.federated.execution.tff import TffExecution
from fedmf.federated.noise.host import HostNoise
from fedmf.federated.task import Task
from fedmf.federated.tff import tff
from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig

T = TypeVar("T")


class RemoteTffExecution(TffExecution):
    """Each worker sums the updates of its share of the cohort; the shares are added in their order, and one worker does the rest.

    TFF splits the process at its only aggregation (tff.backends.native.compile_to_mergeable_comp_form). A share is a fixed part of the
    cohort, whoever computes it: a round in which a worker was lost has the same result bit for bit. Another number of workers adds in
    another order, and differs by float32 rounding.

    Args:
      task, plan, config, noise, noise_seed: as of `TffExecution`.
      workers: connected; the caller closes them.
    """

    def __init__(
        self, task: Task, plan: Plan, config: TrainConfig, noise: HostNoise, noise_seed: int, workers: RemoteWorkers
    ) -> None:
        super().__init__(task, plan, config, noise, noise_seed)
        self._workers = workers
        self._form = tff.backends.native.compile_to_mergeable_comp_form(self._process.next)

    def _run(self, job: Callable[[], T]) -> T:
        return self._workers.run(job)

    def _round(self, state: Any, data: Sequence[Any]) -> Any:
        def summed(share: Sequence[Any]) -> Callable[[], Any]:
            return lambda: self._form.up_to_merge(state, list(share))

        total, *others = self._workers.run_all([summed(share) for share in shares(data, len(self._workers))])
        for other in others:
            total = self._add(total, other)
        # What is left is the server's: it needs no client's data.
        return self._run(lambda: self._form.after_merge((state, []), total))

    def _add(self, total: Any, other: Any) -> Any:
        return self._run(lambda: self._form.merge(total, other))


def shares(data: Sequence[T], count: int) -> list[Sequence[T]]:
    """`data` in at most `count` parts in order, of sizes that differ by one at most; a single empty part if there is none.

    >>> shares([1, 2, 3, 4, 5], 2), shares([1], 3), shares([], 2)
    ([[1, 2, 3], [4, 5]], [[1]], [[]])
    """
    parts = max(1, min(count, len(data)))
    size, longer = divmod(len(data), parts)
    ends = [size * (i + 1) + min(i + 1, longer) for i in range(parts)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
