"""Data types for the data-flow analysis, such as tensors with the values that they depend on."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from fedmf.federated.tff import tff

Path = tuple[int, ...]


class Origin(NamedTuple):
    """Value in a round that a tensor depends on, such as data of a client.

    Attributes:
      kind: "client", data of the client itself; "record" or "count", of a clipped sample;
        "secured", of a sample in a secure sum; "aggregate", an aggregate of clients without noise;
        "state", the process's state before the round; "secret", the noise's state after it;
        "release", a sum with noise.
      key: the path of a state, the index of an aggregate or a noise call, or the name of a clipping
        call.
    """

    kind: str
    key: Any = None


Origins = frozenset[Origin]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Tensor in a round of a TFF process, described by the values that it depends on.

    Attributes:
      name: name of the value that it equals, such as ("state", path); None for the result of a
        computation.
      origins: the values that it depends on.
    """

    name: tuple[Any, ...] | None = None
    origins: Origins = frozenset()


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """TFF operation that aggregates values of the clients at the server, such as a sum.

    Attributes:
      operation: TFF's name of it.
      type: type of the clients' values, in TFF's notation.
    """

    operation: str
    type: str


@dataclasses.dataclass(frozen=True)
class ClippingCall:
    """Call of the query's method that clips a record.

    Attributes:
      plan: fingerprint of the query's plan.
      size: number of tensors of a sample.
      params, record: origins of its arguments.
    """

    plan: str
    size: int
    params: Origins
    record: Origins


@dataclasses.dataclass(frozen=True)
class NoiseCall:
    """Call of the query's method that adds noise to a sum.

    Attributes:
      number: index among the noise calls of the round.
      clipping: the call that clipped the records of the sum.
      total: origins of the sum of samples.
      paths: position of each tensor of the noise's state in the state of the process.
      roles: roles of these tensors: "secret", "count" or "public".
    """

    number: int
    clipping: ClippingCall
    total: Origins
    paths: list[Path]
    roles: list[str]


@dataclasses.dataclass(kw_only=True)
class RoundCalls:
    """All calls in a round that aggregate values of clients, clip them or add noise.

    Attributes:
      aggregates, noise_calls: in their order.
      clipping_calls: by name.
    """

    aggregates: list[Aggregate] = dataclasses.field(default_factory=list)
    noise_calls: list[NoiseCall] = dataclasses.field(default_factory=list)
    clipping_calls: dict[str, ClippingCall] = dataclasses.field(default_factory=dict)

    def aggregate_in(self, origins: Origins) -> Aggregate | None:
        """Returns the first aggregate among some origins; None if there is none."""
        aggregate_indices = [origin.key for origin in origins if origin.kind == "aggregate"]
        return self.aggregates[min(aggregate_indices)] if aggregate_indices else None


def origins_of(values: Iterable[Any]) -> Origins:
    """Returns the origins of all values, which are leaves, functions or structures of these."""
    origins: Origins = frozenset()
    for value in values:
        if isinstance(value, tff.structure.Struct):
            origins |= origins_of(value)
        else:
            origins |= value.origins
    return origins


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    """Yields each leaf of a structure with its path."""
    if isinstance(value, tff.structure.Struct):
        for index, element in enumerate(value):
            yield from leaves(element, (*path, index))
    else:
        yield path, value
