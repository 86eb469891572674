"""`check_process`: whether anything but clipped and noised sums goes from the clients of a TFF
process to its server.
"""

import dataclasses
from typing import Any

from fedmf.federated.tff import tff
from fedmf.federated.tff.data_flow import Leaf, Origin, Path, Release, RoundFlow, leaves

# Where a round's output has what is neither state nor result. The guarantee does not
# cover that place.
_METRICS_AT = {
    tff.learning.templates.LearningProcessOutput: 1,
    tff.templates.MeasuredProcessOutput: 2,
}
_WAY_OUT = (
    "use an algorithm whose only aggregation is model_aggregator=dp_aggregator(...), such as "
    "build_unweighted_fed_avg"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aggregation:
    """One aggregation from clients to server.

    Attributes:
      operation: TFF's name of it, such as "federated_sum".
      type: of the values that are aggregated, in TFF's notation.
      role: "private" if it is a part of the sum that noise is added to; "metrics" if it reaches at
        most the metrics.
    """

    operation: str
    type: str
    role: str


def check_process(process: Any) -> list[Aggregation]:
    """Lists every aggregation from clients to server of a TFF process, and refuses a process that
    the guarantee does not cover.

    Every tensor of one round (`process.next`) is followed, through TFF's operations and
    TensorFlow's. A process passes if

    - it adds up what the clipping of one `MatrixFactorizationQuery` returns, and no operation
      stands between clipping and that one sum;
    - the sum goes through get_noised_result of that query and nowhere else, and the noise's state
      comes back to its place;
    - nothing else of the clients reaches the state or the result, and no exact count of them does.

    FedAvg, FedProx and FedSGD with `dp_aggregator` pass. Refused are Mime, adaptive clipping around
    or within ours, a mean over the clients that came, and two of our aggregations: each spends the
    whole budget of its plan.

    Metrics may be exact functions of the clients' data, which nobody covers. What a metric is, its
    place decides: `metrics` of a LearningProcessOutput, `measurements` of a MeasuredProcessOutput.

    The check finds mistakes. It does not resist forgery: a process that is written to deceive can
    pass. The calls of the query are recognised by names in their graphs, `initialize` is not looked
    at, and what a caller hands in at the server counts as public. Calls of the query in a
    tf.function are not recognised, and refused.

    Args:
      process: tff.learning.templates.LearningProcess, or any other tff.templates.IterativeProcess.

    Raises:
      TypeError: no such process.
      ValueError: naming what is not covered; or there is no aggregation of ours, or more than one.
    """
    if not isinstance(process, tff.templates.IterativeProcess):
        raise TypeError(
            f"process={process!r} is no tff.templates.IterativeProcess: pass a built one"
        )
    flow = RoundFlow(process)
    state, result, metrics = _places(process, flow.output)
    numbers = {
        key
        for leaf in (*state.values(), *result, *metrics)
        for kind, key in leaf.origins
        if kind == "release"
    }
    if len(numbers) > 1:
        raise ValueError(
            f"process releases {len(numbers)} clipped and noised sums of its clients a round, and "
            "each spends the whole budget of its plan: give dp_aggregator to one aggregation, of "
            "all that the clients send"
        )
    release = flow.releases[numbers.pop()] if numbers else None
    hidden = _of_state(release, "secret", "count")
    places = (
        {path: ("next", release.number, n) for n, path in enumerate(release.paths)}
        if release
        else {}
    )
    released = [
        leaf for path, leaf in state.items() if leaf.name is None or leaf.name != places.get(path)
    ]
    for leaf in (*released, *result):
        _check_released(flow, leaf, hidden)
    if release is None:
        raise ValueError(
            "process has no aggregation of fedmf: build it with "
            "model_aggregator=federated.dp_aggregator(...)"
        )
    if any(path not in state or state[path].name != place for path, place in places.items()):
        raise ValueError(
            "process does not keep the noise's next state where it takes it from, so that noise "
            "may come again: return the state of get_noised_result in its place"
        )
    clipping = release.clipping
    if clipping.params - _of_state(release, "public") or clipping.record & hidden:
        raise ValueError(
            "process sends its clients more of the noise's state than derive_sample_params of the "
            "same query makes of it: send them nothing else of that state"
        )
    for leaf in metrics:
        _check_metrics(leaf, release)
    return [
        Aggregation(
            operation=found.operation,
            type=found.type,
            role="private" if Origin("aggregate", index) in release.total else "metrics",
        )
        for index, found in enumerate(flow.aggregates)
    ]


def _places(process: Any, output: Any) -> tuple[dict[Path, Leaf], list[Leaf], list[Leaf]]:
    """State, by path, result and metrics of a round's output."""
    kind = process.next.type_signature.result
    if process.state_type.is_assignable_from(kind):
        return dict(leaves(output)), [], []
    metrics_at = _METRICS_AT.get(getattr(kind, "python_container", None))
    others = [
        (index, leaf) for index, part in enumerate(output) if index > 0 for _, leaf in leaves(part)
    ]
    result = [leaf for index, leaf in others if index != metrics_at]
    return dict(leaves(output[0])), result, [leaf for index, leaf in others if index == metrics_at]


def _of_state(release: Release | None, *roles: str) -> set[Origin]:
    """The parts of the noise's state with these roles, before the round."""
    pairs = zip(release.paths, release.roles, strict=True) if release else ()
    return {Origin("state", path) for path, role in pairs if role in roles}


def _check_released(flow: RoundFlow, leaf: Leaf, hidden: set[Origin]) -> None:
    kinds = {kind for kind, _ in leaf.origins}
    if found := flow.aggregate_in(leaf.origins):
        raise ValueError(
            f"process has a {found.operation} of {found.type} from the clients, which reaches its "
            f"state or result without clipping and noise: {_WAY_OUT}"
        )
    if leaf.origins & hidden or "secret" in kinds:
        raise ValueError(
            "process lets the noise's key, its rows or the exact counts of an earlier round reach "
            "its state or result: leave the noise's state in its place, and use it for nothing else"
        )
    if kinds - {"state", "release"}:
        raise ValueError(f"process returns values of single clients: {_WAY_OUT}")


def _check_metrics(leaf: Leaf, release: Release) -> None:
    kinds = {kind for kind, _ in leaf.origins}
    if "record" in kinds:
        raise ValueError(
            "process measures its clipped updates, or their sum, without noise: let the sum go "
            "through get_noised_result and nowhere else"
        )
    if leaf.origins & _of_state(release, "secret") or "secret" in kinds:
        raise ValueError("process has the noise's key or rows in its metrics: leave them out")
