"""The audit of the query: honest mechanisms pass, and mistakes in the code that runs are caught.

The host's rows and TFF's process are held to the same rows exactly, in tests/server/test_rows.py
and test_aggregator.py.
"""

import functools

import pytest

from fedmf.audits.distinguishing import worst_case
from fedmf.federated.tff import audit as audits
from fedmf.federated.tff import query as queries
from tests.federated.plans import plan_of
from tests.mechanisms.registry import MECHANISMS
from tests.power import FALSE_POSITIVE_RATE
from tests.server.audited import ROUNDS, game, judged, run

of_query = functools.partial(run, subject=audits.Query)


def test_noise_whose_rows_a_resume_loses_is_caught(monkeypatch):
    """tests/server/test_audit.py has a lost number of the round."""
    claim = plan_of(MECHANISMS["banded"](ROUNDS))
    assert judged(claim, of_query(claim, resume_at=5)).consistent
    honest, made = audits.Query.release, []

    def forgetful(self, state, *clients):
        if self not in made:
            made.append(self)
            if len(made) == 2:
                lost = state.noise._replace(rows=self.initial_state.noise.rows)
                state = state._replace(noise=lost)
        return honest(self, state, *clients)

    monkeypatch.setattr(audits.Query, "release", forgetful)
    assert not judged(claim, of_query(claim, resume_at=5)).consistent
    assert len(made) == 2


@pytest.mark.slow
def test_a_game_that_breaks_the_claim_is_caught(monkeypatch):
    claim = plan_of(MECHANISMS["banded"](12))
    case = worst_case(claim)
    honest = queries.MatrixFactorizationQuery.__init__

    def lenient(self, plan, *args, **kwargs):
        honest(self, plan, *args, **kwargs)
        self._clip_norm *= 1.5

    monkeypatch.setattr(queries.MatrixFactorizationQuery, "__init__", lenient)
    assert game(claim, claim, case, 1.5, audits.Query).findings[0].p_value < FALSE_POSITIVE_RATE
