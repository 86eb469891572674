"""Low-rank adapters of a frozen PyTorch transformer, fine-tuned with noise. No TensorFlow.

python examples/own_pytorch_model.py

The transformer is trained here on public sentences of one made-up language; the clients write
another one. The noise of a few thousand adapter weights disturbs the model less than the noise of
all its weights at the same epsilon.
"""

import copy

import numpy as np
import torch

import fedmf
from fedmf import pytorch

WORDS, LENGTH, CLIENTS, PER_CLIENT = 24, 8, 400, 8
torch.set_num_threads(1)


def sentences(count, step, rng):
    """Returns sentences in which a word mostly follows from the word before it."""
    words = rng.integers(0, WORDS, (count, LENGTH + 1))
    for i in range(LENGTH):
        is_regular = rng.random(count) < 0.9
        words[is_regular, i + 1] = (words[is_regular, i] * 5 + step) % WORDS
    return words[:, :-1], words[:, 1:]


class Transformer(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, width)
        self.layer = torch.nn.TransformerEncoderLayer(width, 4, 256, 0.0, batch_first=True)
        self.output = torch.nn.Linear(width, WORDS)
        mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, x):
        return self.output(self.layer(self.words(x), src_mask=self.mask)).transpose(1, 2)


class Adapted(torch.nn.Module):
    """A frozen layer plus a product of two thin matrices, which is 0 at the start."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = torch.nn.Linear(layer.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, layer.out_features, bias=False)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def with_adapters():
    model = copy.deepcopy(pretrained).requires_grad_(False)
    model.output = Adapted(model.output, rank=16)
    return model


def accuracy(outputs, labels):
    return (outputs.argmax(1) == labels).double().mean(1)


rng = np.random.default_rng(0)
pretrained = Transformer()
optimizer = torch.optim.Adam(pretrained.parameters(), 3e-3)
for _ in range(100):
    x, y = map(torch.tensor, sentences(64, step=1, rng=rng))
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(pretrained(x), y).backward()
    optimizer.step()
x, y = sentences(CLIENTS * PER_CLIENT, step=7, rng=rng)
config = fedmf.TrainConfig(
    rounds=32, cohort_size=50, min_sep=8, epsilon=1.0, clip_norm=0.5,
    client_learning_rate=0.5, server_learning_rate=0.5, server_momentum=0.9,
)  # fmt: skip
for name, model in {
    "adapters": with_adapters,
    "all weights": lambda: copy.deepcopy(pretrained),
}.items():
    task = pytorch.Task.from_arrays(
        name=name, x=x, y=y, client_ids=np.arange(len(x)) // PER_CLIENT, model=model,
        validation=sentences(200, 7, rng), test=sentences(400, 7, rng), batch_size=8,
        loss=torch.nn.functional.cross_entropy, metrics={"accuracy": accuracy},
    )  # fmt: skip
    run = fedmf.train(task, config, folder=name.replace(" ", "_"), noise_seed="os", progress=False)
    size = sum(weight.size for weight in run.weights)
    length = run.metrics[-1]["noise_stddev"] * size**0.5 / config.cohort_size
    print(f"{name}: {size} numbers, noise of length {length:.1f}, clip norm {config.clip_norm}")
    print(f"{name}: test accuracy {run.result['test']['accuracy']:.3f} at epsilon 1")
