"""Origins of the tensors of a TFF process: the values of a round that each depends on."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from fedmf.federated.tff import tff

Path = tuple[int, ...]


class Origin(NamedTuple):
    """A value that a tensor depends on.

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
    """A tensor.

    Attributes:
      name: name of the value that it equals, such as ("state", path); None for the result of a
        computation.
      origins: the values that it depends on.
    """

    name: tuple[Any, ...] | None = None
    origins: Origins = frozenset()


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """An operation that aggregates values of the clients at the server.

    Attributes:
      operation: TFF's name of it.
      type: type of the clients' values, in TFF's notation.
    """

    operation: str
    type: str


@dataclasses.dataclass(frozen=True)
class ClippingCall:
    """A call of the query's clipping.

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
    """A call of the query that adds noise.

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
    """The calls of a round that aggregate values of clients, clip them or add noise.

    Attributes:
      aggregates, noise_calls: in their order.
      clipping_calls: by name.
    """

    aggregates: list[Aggregate] = dataclasses.field(default_factory=list)
    noise_calls: list[NoiseCall] = dataclasses.field(default_factory=list)
    clipping_calls: dict[str, ClippingCall] = dataclasses.field(default_factory=dict)

    def aggregate_in(self, origins: Origins) -> Aggregate | None:
        """Returns the first aggregate among the origins."""
        indices = [origin.key for origin in origins if origin.kind == "aggregate"]
        return self.aggregates[min(indices)] if indices else None


def origins_of(values: Iterable[Any]) -> Origins:
    """Returns the origins of leaves, functions and structures of them."""
    origins: Origins = frozenset()
    for value in values:
        if isinstance(value, tff.structure.Struct):
            origins |= origins_of(value)
        else:
            origins |= value.origins
    return origins


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    """Yields the leaves of a structure with their paths, in their order."""
    if isinstance(value, tff.structure.Struct):
        for index, element in enumerate(value):
            yield from leaves(element, (*path, index))
    else:
        yield path, value
