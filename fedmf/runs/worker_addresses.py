"""Where a run's remote workers are: host:port, checked before anything is started."""

from collections.abc import Sequence
from typing import Any

_WAY_OUT = "give host:port,host:port such as 10.0.0.2:8000,10.0.0.3:8000"


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
    if workers is None:
        if execution == "tff-remote":
            raise ValueError(f"workers is missing, which execution=tff-remote needs: {_WAY_OUT}")
        return ()
    if execution != "tff-remote":
        raise ValueError(
            f"workers={workers!r} belongs to execution=tff-remote, not to execution={execution}: leave it out"
        )
    if not isinstance(workers, str | Sequence):
        raise TypeError(f"workers={workers!r} is a {type(workers).__name__}, not addresses: {_WAY_OUT}")
    found = tuple(map(_address, workers.split(",") if isinstance(workers, str) else workers))
    if not found:
        raise ValueError(f"workers={workers!r} names no worker: {_WAY_OUT}")
    for i, address in enumerate(found):
        if address in found[:i]:
            raise ValueError(f"workers names {address} twice: a worker takes one share of a round")
    return found


def _address(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"workers holds {text!r}, a {type(text).__name__}, not an address: {_WAY_OUT}")
    text = text.strip()
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if bracketed else host
    if not name or any(c.isspace() or c in "/[]@," for c in name) or (":" in name) != bracketed:
        raise ValueError(f"workers holds {text!r}, which is not host:port: {_WAY_OUT}")
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 1 <= int(port) <= 65535) or port.startswith("0"):
        raise ValueError(f"workers holds {text!r}, whose port is not a whole number in 1..65535: {_WAY_OUT}")
    return text
