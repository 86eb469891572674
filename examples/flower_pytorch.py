"""Flower clients train a PyTorch model under a guarantee for each client. No TensorFlow.

python examples/flower_pytorch.py

A client trains the model by hand on its own points, and sends its state_dict. fedmf's strategy
samples the clients, clips their updates, and adds correlated noise to the sums. Flower simulates
the clients here; the two apps run on machines of their own as well (docs/flower.md).
"""

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvgM
from flwr.simulation import run_simulation

import fedmf
from fedmf.flower import MatrixFactorizationDP, tell_partition

CLIENTS, PER_ROUND, ROUNDS, APART = 200, 20, 10, 5

participation = fedmf.Participation(rounds=ROUNDS, schema="min_sep", min_sep=APART)
mechanism = fedmf.fit(fedmf.prefix_sum(ROUNDS), participation, family="banded")
plan = fedmf.calibrate(mechanism, participation, epsilon=8.0, delta=1e-5, clip_norm=1.0)


def build_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def points(seed, count):
    """Returns points of a plane, and whether each of them is above a line."""
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x @ torch.tensor([1.0, -2.0]) > 0.5).long()


client = ClientApp()
tell_partition(client)


@client.train()
def train(message, context):
    torch.set_num_threads(1)
    model = build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    x, y = points(seed=1 + context.node_config["partition-id"], count=40)
    for batch in torch.arange(40).split(10):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


server = ServerApp()


@server.main()
def main(grid, context):
    strategy = MatrixFactorizationDP(
        FedAvgM(fraction_evaluate=0.0, server_momentum=0.5),
        plan, clients_per_round=PER_ROUND, population=CLIENTS, noise_seed="os",
        folder="flower_pytorch",
    )  # fmt: skip
    model = build_model()
    result = strategy.start(grid, ArrayRecord(model.state_dict()), timeout=600)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    x, y = points(seed=0, count=2000)
    accuracy = (model(x).argmax(dim=1) == y).double().mean()
    print(f"test accuracy {accuracy:.3f} at epsilon {plan.epsilon:.2f} for each client")


if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=CLIENTS)
