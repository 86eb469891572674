"""Client work of a task, and whether it is vectorised."""

import dataclasses
import math

import pytest
import tensorflow as tf

from fedmf.server.messages import ClientParams
from fedmf.training import vectorised_sizes
from fedmf.training.client_work import Broadcast
from fedmf.training.examples import ClientData
from fedmf.training.learner import Machine


def work_of(task, config, threads=1, learner=None, **bounds):
    """Returns the client work of a run, by the task's learner or another one."""
    learner = learner or task.learner
    settings = task.client_settings(config, **bounds)
    settings = dataclasses.replace(settings, work_kind=learner.work_kind(settings))
    return learner.client_work(settings, Machine(threads=threads))


@pytest.fixture
def vectorized_map_calls(monkeypatch):
    """Returns a list that gets one entry for each trace of tf.vectorized_map."""
    calls = []
    vectorized_map = tf.vectorized_map

    @tf.autograph.experimental.do_not_convert
    def counted(function, elements):
        calls.append(function)
        return vectorized_map(function, elements)

    monkeypatch.setattr(tf, "vectorized_map", counted)
    return calls


@pytest.fixture
def sums_of(monkeypatch):
    """Returns (task, settings, small) -> the function that sums the clipped updates of a cohort.

    Models of up to `small` parameters are vectorised; clients of larger ones train in threads.
    """

    def make_sum(task, settings, small, threads=1, learner=None):
        monkeypatch.setattr(vectorised_sizes, "SMALL_MODEL", small)
        work = work_of(task, settings, threads, learner)
        broadcast = Broadcast(
            task.initial_weights(3), ClientParams(settings.clip_norm, math.inf, ())
        )

        def sum_of_cohort(cohort):
            clients = [
                client if isinstance(client, ClientData) else ClientData(client)
                for client in cohort
            ]
            [cohort_sum] = work.sums(broadcast, [clients])
            return cohort_sum

        return sum_of_cohort

    return make_sum
