"""Programs for the processes of a sweep, for tests that do not depend on the clients' work."""

import types

from fedmf.cli import main
from fedmf.sweeps import job


def clients_in_turn():
    """Returns `job.PROGRAM` with clients of small models that train one after the other.

    Tracing vectorised clients takes two thirds of a small run.
    """
    *python, program = job.PROGRAM
    small_model_code = (
        "from fedmf.training import vectorised_sizes; vectorised_sizes.SMALL_MODEL = 0; "
    )
    return *python, small_model_code + program


class Here:
    """A substitute for a process of a sweep that runs in this process, which has traced its
    models.
    """

    process = types.SimpleNamespace(poll=lambda: 0, send_signal=lambda number: None, wait=lambda: 0)

    def __init__(self, program):
        pass

    def begin(self, arguments, log):
        at = arguments.index("--threads")  # TensorFlow accepts this setting once.
        try:
            main([*arguments[:at], *arguments[at + 2 :]])
            self._status = 0
        except SystemExit as stop:
            self._status = stop.code

    def status(self):
        return self._status

    def end(self):
        pass
