"""An app for Flower: twenty nodes with a numpy model. `python -m tests.flower.app FOLDER` simulates
it; test_processes.py sends it to a SuperLink.

It imports nothing from beside it, as an app must that is sent to other machines.
"""

import os
import sys

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvgM

import fedmf
from fedmf.flower import MatrixFactorizationDP, tell_partition

NODES, ROUNDS, APART, COHORT, SIZE = 20, 4, 2, 4, 6

client = ClientApp()
tell_partition(client)


def step(partition, weights):
    """What a client adds to the weights."""
    pull = np.random.default_rng(partition).normal(size=SIZE)
    return (0.1 * (pull - weights)).astype(np.float32)


@client.train()
def train(message, context):
    weights = message.content["arrays"]["weights"].numpy()
    partition = context.node_config["partition-id"]
    after = ArrayRecord({"weights": Array(weights + step(partition, weights))})
    said = MetricRecord({"num-examples": 1 + partition})
    return Message(RecordDict({"arrays": after, "metrics": said}), reply_to=message)


def strategy_for(folder, population):
    apart = fedmf.Participation(rounds=ROUNDS, schema="min_sep", min_sep=APART)
    plan = fedmf.calibrate(
        fedmf.fit(fedmf.prefix_sum(ROUNDS), apart), apart, epsilon=8.0, delta=1e-5
    )
    return MatrixFactorizationDP(
        FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.5, server_momentum=0.9),
        plan,
        clients_per_round=min(COHORT, population // APART),
        noise_seed=17,
        folder=folder,
        population=population,
    )


server = ServerApp()


@server.main()
def main(grid, context):
    folder, population = os.environ["FEDMF_FOLDER"], int(os.environ.get("FEDMF_NODES", NODES))
    strategy = strategy_for(folder, population)
    arrays = ArrayRecord({"weights": Array(np.zeros(SIZE, np.float32))})
    result = strategy.start(grid, arrays, timeout=600)
    np.save(f"{folder}/final.npy", result.arrays["weights"].numpy())
    print("statement:", strategy.server.statement().splitlines()[0], flush=True)


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    os.environ["FEDMF_FOLDER"] = sys.argv[1]
    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": 1, "include_dashboard": False},
    }
    run_simulation(server, client, NODES, backend_config=backend)
