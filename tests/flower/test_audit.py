"""Tests of the auditor on Flower's wrapper with fixed clipping."""

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from fedmf.audits.aggregator import audit_aggregator
from fedmf.audits.aggregator_claim import AggregatorClaim
from tests.flower.made_up import Grid, answer, record

CLIENTS = 6
MULTIPLIER = 0.1


def test_flower_wrapper_with_equal_weights_has_the_claimed_guarantee(caplog):
    """An update of zeros raises an error, a NaN passes, and a mean of fewer clients has the noise
    for all of them.
    """
    caplog.set_level("ERROR")
    # Tests of many inputs are left out: a round of the wrapper takes milliseconds.
    claim = AggregatorClaim(
        clients=CLIENTS,
        rounds=8,
        noise_multiplier=MULTIPLIER,
        shapes="60x40,20",
        leave_out="types,patterns,cohort",
    )

    def make():
        def aggregate(updates):
            if not updates:
                raise ValueError("Flower waits for a client")
            strategy = DifferentialPrivacyServerSideFixedClipping(
                FedAvg(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1),
                MULTIPLIER,
                1.0,
                CLIENTS,
            )
            zeros = {str(i): np.zeros(shape, np.float32) for i, shape in enumerate(claim.arrays)}
            grid = Grid(range(len(updates)))
            sent_messages = list(strategy.configure_train(1, record(zeros), ConfigRecord(), grid))
            replies = [
                answer(message, {str(i): array for i, array in enumerate(update)})
                for message, update in zip(sent_messages, updates, strict=True)
            ]
            arrays, _ = strategy.aggregate_train(1, replies)
            return [arrays[str(i)].numpy() for i in range(len(zeros))]

        return aggregate

    result = audit_aggregator(make, claim)
    assert result.failed == ("zeros", "not-finite", "dropout")
    verdicts = {test.name: test.verdict for test in result.tests}
    assert "the function raised ZeroDivisionError" in verdicts["zeros"]
    assert "(nan in array 1; inf in array 1; -inf in array 1)" in verdicts["not-finite"]
    assert "1 of 6 clients" in verdicts["dropout"]
    assert "A mean that divides by those who came" in verdicts["dropout"]
