"""`check_process`: whether anything but clipped and noised sums goes from the clients of a TFF process to its server."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from fedmf.federated.aggregation.query import QuerySample
from fedmf.federated.tff import building_blocks, tff, transformation_utils, transformations

# Outputs of a process that are neither state nor result. The guarantee does not cover them.
_METRICS = ("metrics", "measurements")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aggregation:
    """One aggregation from clients to server.

    Attributes:
      operation: TFF's name of it, such as "federated_sum".
      type: of the values that are aggregated, in TFF's notation.
      role: "private" for a part of `dp_aggregator`; "metrics" if it reaches no output but the metrics.
    """

    operation: str
    type: str
    role: str


def check_process(process: Any) -> list[Aggregation]:
    """Lists every aggregation from clients to server of a built TFF process, and refuses one that is neither ours nor for metrics alone.

    Follows the data through one round (`process.next`). An aggregation is private if all that it takes from clients comes out of the
    clipping of `MatrixFactorizationQuery`. Any other one must not reach the state or the result. Nor may a second clipping: each release
    spends the whole budget of its plan. FedAvg, FedProx and FedSGD with `dp_aggregator` pass; Mime and adaptive clipping around ours fail.

    Metrics are exact functions of the clients' data, and nobody covers them. What a process broadcasts by client is not looked at.

    Args:
      process: tff.learning.templates.LearningProcess, or any other tff.templates.IterativeProcess or AggregationProcess.

    Raises:
      TypeError: no such process.
      ValueError: naming the aggregation that is not covered; or there is none of ours, or more than one.
    """
    if not isinstance(getattr(process, "next", None), tff.Computation):
        raise TypeError(
            f"process={process!r} has no TFF computation `next`: pass a built tff.templates.IterativeProcess"
        )
    tree = transformations.to_call_dominant(process.next.to_building_block())
    steps = dict(tree.result.locals)
    outputs = tree.result.result
    released = [output for name, output in _named(outputs) if name not in _METRICS]
    reached = _ancestors(steps, [name for output in released for name, _ in _references(output)])
    aggregations: list[Aggregation] = []
    clippings: set[str] = set()
    for name, step in steps.items():
        if not _placed(step.type_signature, tff.SERVER) or not _from_clients(step):
            continue
        origins = [_clippings(steps, *source) for source in _from_clients(step)]
        private = None not in origins
        taken = ", ".join(kind.compact_representation() for _, kind in _from_clients(step))
        operation = getattr(step.function, "uri", "an aggregation")
        if not private and name in reached:
            raise ValueError(
                f"process has a {operation} of {taken} from the clients, which reaches its state or result without clipping and noise: "
                "use an algorithm whose only aggregation is model_aggregator=dp_aggregator(...), such as build_unweighted_fed_avg"
            )
        if name in reached:
            clippings.update(*filter(None, origins))
        aggregations.append(Aggregation(operation=operation, type=taken, role="private" if private else "metrics"))
    if not clippings:
        raise ValueError(
            "process has no aggregation of fedmf: build it with model_aggregator=federated.dp_aggregator(...)"
        )
    if len(clippings) > 1:
        raise ValueError(
            f"process releases {len(clippings)} clipped and noised sums of its clients a round, and each spends the whole budget of its "
            "plan: give dp_aggregator to one aggregation, of all that the clients send"
        )
    return aggregations


def _named(outputs: Any) -> Iterable[tuple[str | None, Any]]:
    if isinstance(outputs, building_blocks.Struct):
        return list(tff.structure.iter_elements(outputs))
    return [(None, outputs)]


def _references(step: Any) -> list[tuple[str, Any]]:
    """(name, type) of the steps that `step` refers to. In call-dominant form these are all that it depends on."""
    references: list[tuple[str, Any]] = []

    def visit(part: Any) -> tuple[Any, bool]:
        if isinstance(part, building_blocks.Reference):
            references.append((part.name, part.type_signature))
        return part, False

    transformation_utils.transform_postorder(step, visit)
    return references


def _placed(kind: Any, placement: Any) -> bool:
    return isinstance(kind, tff.FederatedType) and kind.placement is placement


def _from_clients(step: Any) -> list[tuple[str, Any]]:
    """(name, type) of the values at clients that a call takes; of the process's arguments, those at clients."""
    if isinstance(step, building_blocks.Call):
        return [] if step.argument is None else _from_clients(step.argument)
    if isinstance(step, building_blocks.Struct):
        return [source for _, part in _named(step) for source in _from_clients(part)]
    if not _placed(step.type_signature, tff.CLIENTS):
        return []
    return [(name, step.type_signature) for name, _ in _references(step)]


def _clippings(steps: dict[str, Any], name: str, kind: Any) -> set[str] | None:
    """The steps of the query's clipping that all of a value at clients comes out of; None if anything else of theirs is in it."""
    if name not in steps:
        return None
    clippings: set[str] = set()
    for source in _from_clients(steps[name]):
        origin = _clippings(steps, *source)
        if origin is None:
            return {name} if _is_sample(kind) else None
        clippings |= origin
    return clippings


def _is_sample(kind: Any) -> bool:
    """Whether it is the type of a clipped record."""
    return (
        isinstance(kind.member, tff.StructType) and tuple(tff.structure.name_list(kind.member)) == QuerySample._fields
    )


def _ancestors(steps: dict[str, Any], names: list[str]) -> set[str]:
    """Names of the steps that those named depend on, they included."""
    reached: set[str] = set()
    while names:
        name = names.pop()
        if name in steps and name not in reached:
            reached.add(name)
            names += [source for source, _ in _references(steps[name])]
    return reached
