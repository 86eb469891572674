"""A check that a TFF process releases only clipped sums with noise."""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from fedmf.federated.tff import tff
from fedmf.federated.tff.data_flow import RoundFlow
from fedmf.federated.tff.origins import Leaf, NoiseCall, Origin, Path, leaves

# A round's output is a tuple with a state, a result and metrics. For each class of output, this is
# the index of the metrics, which the guarantee does not cover.
_METRICS_INDEX = {
    tff.learning.templates.LearningProcessOutput: 1,
    tff.templates.MeasuredProcessOutput: 2,
}
_WAY_OUT = (
    "use an algorithm whose only aggregation is model_aggregator=dp_aggregator(...), such as "
    "build_unweighted_fed_avg"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aggregation:
    """One aggregation of client values at the server, in the list that `check_process` returns.

    Attributes:
      operation: TFF's name of it, such as "federated_sum".
      type: type of the values that are aggregated, in TFF's notation.
      role: "private" if it is a part of the sum that noise is added to; "metrics" if it reaches at
        most the metrics.
    """

    operation: str
    type: str
    role: str


class _RoundOutput(NamedTuple):
    """Tensors that a round of a TFF process returns, each with the values that it depends on.

    Attributes:
      state: by path in the state.
      result: the other leaves that the guarantee covers.
      metrics: leaves that the guarantee does not cover.
    """

    state: dict[Path, Leaf]
    result: list[Leaf]
    metrics: list[Leaf]


def check_process(process: Any) -> list[Aggregation]:
    """Checks that the privacy guarantee covers a TFF process, and lists its aggregations.

    The check follows every tensor of one round (`process.next`), through TFF's operations and
    TensorFlow's. A process passes if

    - it adds up the results of the clipping of one `MatrixFactorizationQuery`, and no operation
      stands between clipping and that one sum;
    - the sum goes through get_noised_result of that query and nowhere else, and the noise's state
      returns to its position in the process's state;
    - no other value of the clients reaches the state or the result, and no exact count of them.

    FedAvg, FedProx and FedSGD with `dp_aggregator` pass. Refused are Mime, adaptive clipping around
    or within ours, a mean over the participating clients, and two of our aggregations: each spends
    the whole budget of its plan.

    Metrics may be exact functions of the clients' data, which no guarantee covers. Metrics are
    `metrics` of a LearningProcessOutput and `measurements` of a MeasuredProcessOutput.

    The check finds mistakes. It does not resist forgery: a process that is written to deceive can
    pass. It recognises the calls of the query by names in their graphs, does not look at
    `initialize`, and treats a caller's inputs at the server as public. It does not recognise calls
    of the query in a tf.function, and refuses them.

    Args:
      process: tff.learning.templates.LearningProcess, or any other tff.templates.IterativeProcess.

    Raises:
      TypeError: the process is no IterativeProcess.
      ValueError: a value is not covered; or there is no aggregation of fedmf, or more than one.
    """
    if not isinstance(process, tff.templates.IterativeProcess):
        raise TypeError(
            f"process={process!r} is no tff.templates.IterativeProcess: pass a built one"
        )
    round_flow = RoundFlow(process)
    round_output = _round_output(process, round_flow.output)
    noise_call = _only_noise_call(round_flow, round_output)
    _check_covered(round_flow, round_output, noise_call)
    if noise_call is None:
        raise ValueError(
            "process has no aggregation of fedmf: build it with "
            "model_aggregator=federated.dp_aggregator(...)"
        )
    _check_noise_state(round_output, noise_call)
    _check_broadcast(noise_call)
    for leaf in round_output.metrics:
        _check_metric(leaf, noise_call)
    aggregations = []
    for index, aggregate in enumerate(round_flow.calls.aggregates):
        aggregation_role = (
            "private" if Origin("aggregate", index) in noise_call.total else "metrics"
        )
        aggregations.append(
            Aggregation(operation=aggregate.operation, type=aggregate.type, role=aggregation_role)
        )
    return aggregations


def _round_output(process: Any, output: Any) -> _RoundOutput:
    """Splits the output of a round into state, result and metrics."""
    output_type = process.next.type_signature.result
    if process.state_type.is_assignable_from(output_type):
        return _RoundOutput(dict(leaves(output)), [], [])
    metrics_index = _METRICS_INDEX.get(getattr(output_type, "python_container", None))
    state, *components = output
    result: list[Leaf] = []
    metrics: list[Leaf] = []
    for index, component in enumerate(components, 1):
        component_leaves = metrics if index == metrics_index else result
        component_leaves.extend(leaf for _, leaf in leaves(component))
    return _RoundOutput(dict(leaves(state)), result, metrics)


def _only_noise_call(flow: RoundFlow, output: _RoundOutput) -> NoiseCall | None:
    """Returns the call that added noise to the output, if there is exactly one such call; otherwise
    None.

    Raises:
      ValueError: several calls added noise.
    """
    all_leaves = (*output.state.values(), *output.result, *output.metrics)
    numbers: set[int] = set()
    for leaf in all_leaves:
        numbers |= {origin.key for origin in leaf.origins if origin.kind == "release"}
    if len(numbers) > 1:
        raise ValueError(
            f"process releases {len(numbers)} clipped and noised sums of its clients a round, and "
            "each spends the whole budget of its plan: give dp_aggregator to one aggregation, of "
            "all that the clients send"
        )
    return flow.calls.noise_calls[numbers.pop()] if numbers else None


def _check_covered(flow: RoundFlow, output: _RoundOutput, noise_call: NoiseCall | None) -> None:
    """Raises ValueError for a tensor in state or result that the guarantee does not cover."""
    hidden_origins: set[Origin] = set()
    next_state_names: dict[Path, Any] = {}
    if noise_call is not None:
        hidden_origins = _state_origins(noise_call, {"secret", "count"})
        next_state_names = _next_state_names(noise_call)
    for path, leaf in output.state.items():
        is_next_noise_state = leaf.name is not None and leaf.name == next_state_names.get(path)
        if not is_next_noise_state:
            _check_released(flow, leaf, hidden_origins)
    for leaf in output.result:
        _check_released(flow, leaf, hidden_origins)


def _next_state_names(noise_call: NoiseCall) -> dict[Path, Any]:
    """Returns the name of each tensor of the noise's next state, by its path in the state."""
    return {path: ("next", noise_call.number, n) for n, path in enumerate(noise_call.paths)}


def _state_origins(noise_call: NoiseCall, roles: Iterable[str]) -> set[Origin]:
    """Returns origins for the tensors of the noise's state that have one of these roles."""
    path_roles = zip(noise_call.paths, noise_call.roles, strict=True)
    return {Origin("state", path) for path, role in path_roles if role in roles}


def _check_noise_state(output: _RoundOutput, noise_call: NoiseCall) -> None:
    """Raises ValueError unless the process returns the noise's next state in place of the state
    before.
    """
    for path, name in _next_state_names(noise_call).items():
        if path not in output.state or output.state[path].name != name:
            raise ValueError(
                "process does not keep the noise's next state where it takes it from, so that "
                "noise may come again: return the state of get_noised_result in its place"
            )


def _check_broadcast(noise_call: NoiseCall) -> None:
    """Raises ValueError if clients receive secret parts of the noise's state."""
    clipping_call = noise_call.clipping
    sends_secrets = clipping_call.params - _state_origins(noise_call, {"public"})
    trains_on_secrets = clipping_call.record & _state_origins(noise_call, {"secret", "count"})
    if sends_secrets or trains_on_secrets:
        raise ValueError(
            "process sends its clients more of the noise's state than derive_sample_params of the "
            "same query makes of it: send them nothing else of that state"
        )


def _check_released(flow: RoundFlow, leaf: Leaf, hidden: set[Origin]) -> None:
    """Raises ValueError if a tensor depends on secrets or on unprotected client values."""
    origin_kinds = {origin.kind for origin in leaf.origins}
    first_aggregate = flow.calls.aggregate_in(leaf.origins)
    if first_aggregate is not None:
        raise ValueError(
            f"process has a {first_aggregate.operation} of {first_aggregate.type} from the "
            f"clients, which reaches its state or result without clipping and noise: {_WAY_OUT}"
        )
    if leaf.origins & hidden or "secret" in origin_kinds:
        raise ValueError(
            "process lets the noise's key, its rows or the exact counts of an earlier round reach "
            "its state or result: leave the noise's state in its place, and use it for nothing else"
        )
    if origin_kinds - {"state", "release"}:
        raise ValueError(f"process returns values of single clients: {_WAY_OUT}")


def _check_metric(leaf: Leaf, noise_call: NoiseCall) -> None:
    """Raises ValueError if a metric depends on clipped updates or on secrets of the noise."""
    origin_kinds = {origin.kind for origin in leaf.origins}
    if "record" in origin_kinds:
        raise ValueError(
            "process measures its clipped updates, or their sum, without noise: let the sum go "
            "through get_noised_result and nowhere else"
        )
    if leaf.origins & _state_origins(noise_call, {"secret"}) or "secret" in origin_kinds:
        raise ValueError("process has the noise's key or rows in its metrics: leave them out")
