"""Where a run's remote workers are: host:port, checked before anything is started."""

import re
from collections.abc import Sequence
from typing import Any

_HINT = "give host:port,host:port such as 10.0.0.2:8000,10.0.0.3:8000"
# An IPv6 host is in brackets.
_ADDRESS = re.compile(r"(?:\[[^\s/\[\]@,]*:[^\s/\[\]@,]*\]|[^\s/\[\]@,:]+):([1-9][0-9]{0,4})")


def worker_addresses(workers: Any, execution: str) -> tuple[str, ...]:
    """The addresses in `workers`, in order.

    Args:
      workers: "host:port,host:port", or a sequence of "host:port"; an IPv6 host in brackets; None for no workers.
      execution: of the config; "tff-remote" needs workers, any other refuses them.

    Raises:
      TypeError, ValueError: naming the address that cannot be one.

    >>> worker_addresses("10.0.0.2:8000, [::1]:8001", "tff-remote")
    ('10.0.0.2:8000', '[::1]:8001')
    >>> worker_addresses(None, "fast")
    ()
    """
    if workers is None and execution != "tff-remote":
        return ()
    if execution != "tff-remote":
        raise ValueError(
            f"workers={workers!r} belongs to execution=tff-remote, not to execution={execution}: leave it out"
        )
    if not workers and (workers is None or isinstance(workers, str | Sequence)):
        raise ValueError(f"workers={workers!r} names no worker, which execution=tff-remote needs: {_HINT}")
    if not isinstance(workers, str | Sequence) or not all(isinstance(address, str) for address in workers):
        raise TypeError(f"workers={workers!r} is not addresses: {_HINT}")
    addresses = tuple(text.strip() for text in (workers.split(",") if isinstance(workers, str) else workers))
    for i, address in enumerate(addresses):
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match[1]) > 65535:
            raise ValueError(f"workers holds {address!r}, which is not host:port: {_HINT}")
        if address in addresses[:i]:
            raise ValueError(f"workers names {address} twice: a worker takes one share of a round")
    return addresses
