"""Synthetic clients, made by partitioning the pooled examples of a task."""

import dataclasses
import hashlib

import numpy as np

from fedmf import fields, partition


@dataclasses.dataclass(frozen=True)
class SyntheticClients:
    """Synthetic clients, among whom the pooled examples are partitioned.

    Attributes:
      indices: client id -> indices of its examples among all, ascending.
      version: digest of the partition.
      description: the partition, in words for reports and statements.
    """

    indices: dict[str, np.ndarray]
    version: str
    description: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionOptions(fields.Checked):
    """Options of a task whose examples can be partitioned among synthetic clients. Commands have an
    option for each of them.

    Raises:
      TypeError, ValueError: naming the option, its value and what to do instead.
    """

    partition: str | None = fields.option(
        None,
        "Partition all training examples among synthetic clients: dirichlet:ALPHA, "
        "shards:PER_CLIENT or quantity:SIGMA. Not the partitions of cyclic sampling, which are "
        "of clients.",
        partition.check_text,
        lambda: [f"{kind}:" for kind in ("dirichlet", "shards", "quantity")],
    )
    clients: int | None = fields.whole_number(
        None, "With a partition: the number of synthetic clients."
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

    def synthetic_clients(self, labels: np.ndarray, pool: str) -> SyntheticClients:
        """Partitions examples among synthetic clients.

        Args:
          labels: of the pooled examples.
          pool: what they are, such as "5000 training images".

        Raises:
          ValueError: fewer examples than clients.
        """
        assert self.partition is not None
        assert self.clients is not None
        client_of_example = partition.assign_clients(
            self.partition, labels, self.clients, self.partition_seed
        )
        order_by_client = np.argsort(client_of_example, kind="stable")
        client_starts = np.searchsorted(
            client_of_example[order_by_client], np.arange(1, self.clients)
        )
        indices_by_client = np.split(order_by_client, client_starts)
        num_digits = len(str(self.clients - 1))
        return SyntheticClients(
            indices={f"{i:0{num_digits}d}": indices for i, indices in enumerate(indices_by_client)},
            version=hashlib.sha256(client_of_example.astype("<i8").tobytes()).hexdigest()[:16],
            description=f"{self.clients} synthetic clients by {self.partition} "
            f"(seed {self.partition_seed}) of {pool}",
        )
