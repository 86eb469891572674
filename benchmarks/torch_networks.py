"""The networks of the benchmarks of training in PyTorch. It needs no fedmf, which environments of
other libraries do not have.
"""

from typing import Any

import torch
from torch import nn


class NextWord(nn.Module):
    """An LSTM over words, with the LSTM layer of PyTorch, which has a second bias."""

    def __init__(self, vocabulary_size: int, embedding_size: int, lstm_size: int) -> None:
        super().__init__()
        num_classes = vocabulary_size + 4
        self.embedding = nn.Embedding(num_classes, embedding_size)
        self.lstm = nn.LSTM(embedding_size, lstm_size, batch_first=True)
        self.projection = nn.Linear(lstm_size, embedding_size)
        self.logits = nn.Linear(embedding_size, num_classes)

    def forward(self, words: torch.Tensor) -> Any:
        """Returns the logits of the next word at each position."""
        return self.logits(self.projection(self.lstm(self.embedding(words))[0]))


def convolutions(first: int, second: int, *, pooled_twice: bool, dense: int) -> nn.Module:
    """Returns a network for images (1, 28, 28) of ten classes, with two convolutions."""
    side = 5 if pooled_twice else 12
    first_pooling = [nn.MaxPool2d(2)] if pooled_twice else []
    return nn.Sequential(
        nn.Conv2d(1, first, 3),
        nn.ReLU(),
        *first_pooling,
        nn.Conv2d(first, second, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * side * side, dense),
        nn.ReLU(),
        nn.Linear(dense, 10),
    )


NETWORKS = {
    "logistic": lambda: nn.Linear(30, 2),
    "cnn": lambda: convolutions(16, 32, pooled_twice=True, dense=64),
    "emnist": lambda: convolutions(32, 64, pooled_twice=False, dense=128),
    "lstm": lambda: NextWord(1000, 32, 64),
    "full": lambda: NextWord(10_000, 96, 670),
}
