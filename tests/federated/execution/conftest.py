"""The work of clients, and whether those without a compiled epoch train side by side."""

import math

import pytest
import tensorflow as tf

from fedmf.federated.execution import side_by_side
from fedmf.federated.execution.client_setup import ClientSetup
from fedmf.federated.execution.client_work import Broadcast
from fedmf.server.messages import ClientParams


@pytest.fixture
def vectorised(monkeypatch):
    """A list with each trace of clients or examples side by side."""
    calls, vectorized_map = [], tf.vectorized_map

    @tf.autograph.experimental.do_not_convert
    def counted(function, elements):
        calls.append(function)
        return vectorized_map(function, elements)

    monkeypatch.setattr(tf, "vectorized_map", counted)
    return calls


@pytest.fixture
def sums_of(monkeypatch):
    """(task, settings, small) -> the function that sums the clipped updates of a cohort; models of
    up to `small` parameters train side by side in one call, others in threads.
    """

    def made(task, settings, small, threads=1):
        monkeypatch.setattr(side_by_side, "SMALL_MODEL", small)
        weights = [v.value() for v in task.build_model(3).trainable_variables]
        work = ClientSetup.here(task, settings).work(threads)
        norms = (tf.constant(norm, tf.float64) for norm in (settings.clip_norm, math.inf))
        params = ClientParams(*norms, ())

        def summed(cohort):
            [part] = work.sums(Broadcast(weights, params), [cohort])
            return part

        return summed

    return made
