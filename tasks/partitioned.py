"""Clients that a task makes of pooled examples, in place of the clients that its data have."""

import dataclasses
import hashlib

import numpy as np

from fedmf import fields, partition


@dataclasses.dataclass(frozen=True)
class Dealt:
    """Made clients.

    Attributes:
      places: client id -> the places of its examples among all, ascending.
      version: another text for other clients.
      made: how they were made, for reports and statements.
    """

    places: dict[str, np.ndarray]
    version: str
    made: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionOptions(fields.Checked):
    """The options of a task whose clients can be made; commands that train have an option for each.

    Raises:
      TypeError, ValueError: naming the option, its value and what to do instead.
    """

    partition: str | None = fields.option(
        None,
        "Make clients of all training examples: dirichlet:ALPHA, shards:PER_CLIENT or "
        "quantity:SIGMA. Not the partitions of cyclic sampling, which are of clients.",
        partition.check_text,
        lambda: [f"{kind}:" for kind in ("dirichlet", "shards", "quantity")],
    )
    clients: int | None = fields.whole_number(
        None, "With a partition: the number of clients to make."
    )
    partition_seed: int = fields.seed(0, "With a partition: another seed, other clients.")

    def __post_init__(self) -> None:
        super().__post_init__()
        has_partition = self.partition is not None
        for name in ("clients", "partition_seed"):
            fields.require(self, name, needs="partition", present=has_partition)
        if has_partition and self.clients is None:
            raise ValueError(
                f"partition={self.partition!r} needs clients: give their number, such as 60"
            )

    def dealt(self, labels: np.ndarray, pool: str) -> Dealt:
        """The clients that `partition` makes.

        Args:
          labels: of the pooled examples.
          pool: what they are, such as "5000 training images".

        Raises:
          ValueError: fewer examples than clients.
        """
        assert self.partition is not None
        assert self.clients is not None
        owners = partition.assign_clients(self.partition, labels, self.clients, self.partition_seed)
        order = np.argsort(owners, kind="stable")
        parts = np.split(order, np.searchsorted(owners[order], np.arange(1, self.clients)))
        width = len(str(self.clients - 1))
        return Dealt(
            places={f"{i:0{width}d}": part for i, part in enumerate(parts)},
            version=hashlib.sha256(owners.astype("<i8").tobytes()).hexdigest()[:16],
            made=f"{self.clients} clients dealt by {self.partition} (seed {self.partition_seed}) "
            f"from {pool}",
        )
