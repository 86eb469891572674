"""Low-rank adapters of a frozen PyTorch transformer, fine-tuned with noise. No TensorFlow.

python examples/own_pytorch_model.py

The transformer is trained on public sentences of one made-up language; the clients write another.
The noise of 1,408 adapter weights disturbs it less than noise of all its weights does.
"""

import copy

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import fedmf.pytorch

WORDS, LENGTH, CLIENTS, PER_CLIENT = 24, 8, 400, 8


def sentences(count, step, rng):
    """Returns sentences in which a word mostly follows from the word before it."""
    words = rng.integers(0, WORDS, (count, LENGTH + 1))
    for i in range(LENGTH):
        next_word = (words[:, i] * 5 + step) % WORDS
        words[:, i + 1] = np.where(rng.random(count) < 0.9, next_word, words[:, i + 1])
    return words[:, :-1], words[:, 1:]


class Transformer(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, width)
        self.layer = torch.nn.TransformerEncoderLayer(width, 4, 256, 0.0, batch_first=True)
        self.output = torch.nn.Linear(width, WORDS)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -torch.inf).triu(1))

    def forward(self, x):
        return self.output(self.layer(self.words(x), src_mask=self.mask)).transpose(1, 2)


def with_adapter(rank=16):
    """Returns the frozen model with a product of two thin matrices, 0 at the start, in its head."""
    model = copy.deepcopy(pretrained).requires_grad_(False)
    thin = torch.nn.Linear(model.output.in_features, rank, bias=False)
    model.output = LowRank(model.output, thin, torch.nn.Linear(rank, WORDS, bias=False))
    torch.nn.init.zeros_(model.output[2].weight)
    return model


class LowRank(torch.nn.Sequential):
    def forward(self, x):
        return self[0](x) + self[2](self[1](x))


rng = np.random.default_rng(0)
pretrained = Transformer()
optimizer = torch.optim.Adam(pretrained.parameters(), 3e-3)
for _ in range(100):
    x, y = map(torch.tensor, sentences(64, step=1, rng=rng))
    optimizer.zero_grad()
    cross_entropy(pretrained(x), y).backward()
    optimizer.step()
x, y = sentences(CLIENTS * PER_CLIENT, step=7, rng=rng)
config = fedmf.TrainConfig(
    rounds=32, cohort_size=50, min_sep=8, epsilon=1.0, clip_norm=0.5, client_learning_rate=0.5,
    server_learning_rate=0.5, server_momentum=0.9,
)  # fmt: skip
models = {"adapters": with_adapter, "all weights": lambda: copy.deepcopy(pretrained)}
for name, model in models.items():
    task = fedmf.pytorch.Task.from_arrays(
        name=name, x=x, y=y, client_ids=np.arange(len(x)) // PER_CLIENT, model=model,
        validation=sentences(200, 7, rng), test=sentences(400, 7, rng), batch_size=8,
        loss=cross_entropy, metrics={"accuracy": lambda z, y: (z.argmax(1) == y).double().mean(1)},
    )  # fmt: skip
    run = fedmf.train(task, config, folder=name.replace(" ", "_"), noise_seed="os", progress=False)
    size = sum(weight.size for weight in run.weights)
    length = run.metrics[-1]["noise_stddev"] * size**0.5 / config.cohort_size
    print(f"{name}: {size} numbers, noise of length {length:.1f}, clip norm {config.clip_norm}")
    print(f"{name}: test accuracy {run.result['test']['accuracy']:.3f} at epsilon 1")
