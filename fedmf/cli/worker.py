"""fedmf worker."""

import click

from fedmf.cli.errors import Command
from fedmf.cli.options import COUNT


@click.command(cls=Command)
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="Port to listen on.")
@click.option("--threads", type=COUNT, help="Most threads that compute.  [default: one on each processor]")
def worker(port: int, threads: int | None) -> None:
    """Run TFF's worker here, for `fedmf train --execution tff-remote` elsewhere. Ctrl-C ends it.

    It listens on all network interfaces, without encryption and without asking who calls, and it computes whatever it is sent:
    let nobody but your own machines reach the port (docs/remote.md).

    \b
    Example:
      fedmf worker --port 8000
      fedmf train --execution tff-remote --workers localhost:8000 ...
    """
    import importlib.util
    import os
    import pathlib
    import socket

    package = importlib.util.find_spec("tensorflow_federated")  # without importing it, which takes ten seconds
    if package is None or package.origin is None:
        raise ImportError("fedmf worker needs TensorFlow Federated: run `make setup` in the checkout")
    binary = pathlib.Path(package.origin).parent / "data" / "worker_binary"
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
        # TFF's worker itself stays alive and silent where it cannot listen.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise OSError(f"port={port} is not free here ({error.strerror}): use another one") from error
    click.echo(f"fedmf: worker on port {port}; Ctrl-C ends it", err=True)
    arguments = [str(binary), f"--port={port}"]
    environment = dict(os.environ)
    if threads is not None:
        arguments.append(f"--max_concurrent_computation_calls={threads}")
        environment |= {"TF_NUM_INTRAOP_THREADS": str(threads), "TF_NUM_INTEROP_THREADS": str(threads)}
    os.execve(binary, arguments, environment)
