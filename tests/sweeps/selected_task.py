"""Tasks of a small linear model, for private selections whose trials train in a moment."""

from tests.training.numpy_task import linear_task


def task():
    """Returns a task that declares that no training client is in its validation split."""
    return linear_task(validation_clients="others")


def undeclared():
    """Returns a task that declares nothing."""
    return linear_task()
