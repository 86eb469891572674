"""What the processes of a sweep run, for tests whose subject is not the clients' work."""

from fedmf.sweeps import job


def clients_in_turn():
    """`job.PROGRAM` with clients of small models one after the other: tracing them side by side
    takes two thirds of a small run.
    """
    *python, program = job.PROGRAM
    small = "from fedmf.federated.execution import side_by_side; side_by_side.SMALL_MODEL = 0; "
    return *python, small + program
