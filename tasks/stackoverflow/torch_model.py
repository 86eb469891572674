"""Next-word model of `fedmf.tasks.stackoverflow.model` as a PyTorch module, with its loss and
metrics.

Its eight parameters have the order and the shapes of the Keras model's arrays, so that the two
exchange weights. The LSTM has one bias, as Keras's has, where that of torch.nn has two.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedmf import checks
from fedmf.tasks.stackoverflow.options import MODELS
from fedmf.tasks.stackoverflow.preprocessing import PAD, SpecialIds
from fedmf.tasks.stackoverflow.torch_lstm import hidden_states

# The standard deviation of a standard normal distribution that is cut off at -2 and 2. Keras
# divides by it.
_TRUNCATED_STDDEV = 0.87962566103423978

# A function that returns a random matrix of a shape.
_DrawMatrix = Callable[[int, int], torch.Tensor]


class NextWord(torch.nn.Module):
    """A module that returns the logits of the next words, (batch, length, V + 4), for word ids
    (batch, length).

    Args:
      seed: draws the initial weights.
      vocabulary_size: V; the model has V + 4 classes.
      embedding_size: width of the embedding and of the projection.
      lstm_size: width of the LSTM layer.
      form: "plain" or "published", as `fedmf.tasks.stackoverflow.model.build_model` describes.
    """

    def __init__(
        self,
        seed: int,
        *,
        vocabulary_size: int = 10_000,
        embedding_size: int = 96,
        lstm_size: int = 670,
        form: str = "plain",
    ) -> None:
        super().__init__()
        self._masks_padding = checks.one_of("form", form, MODELS) == "published"
        num_classes = SpecialIds(vocabulary_size).classes
        generator = torch.Generator().manual_seed(seed)
        draw_gates: _DrawMatrix = functools.partial(_glorot_uniform, generator)
        draw_dense = draw_gates
        if self._masks_padding:
            draw_gates = functools.partial(_he_normal, generator)
            draw_dense = functools.partial(_glorot_normal, generator)
        embedding = torch.empty(num_classes, embedding_size).uniform_(
            -0.05, 0.05, generator=generator
        )
        recurrent_kernel = torch.empty(lstm_size, 4 * lstm_size)
        torch.nn.init.orthogonal_(recurrent_kernel, generator=generator)
        lstm_bias = torch.zeros(4 * lstm_size)
        lstm_bias[lstm_size : 2 * lstm_size] = 1.0  # That of the forget gate.
        # The order is that of the Keras model's weights.
        self.embedding = torch.nn.Parameter(embedding)
        self.lstm_kernel = torch.nn.Parameter(draw_gates(embedding_size, 4 * lstm_size))
        self.lstm_recurrent_kernel = torch.nn.Parameter(recurrent_kernel)
        self.lstm_bias = torch.nn.Parameter(lstm_bias)
        self.projection_kernel = torch.nn.Parameter(draw_dense(lstm_size, embedding_size))
        self.projection_bias = torch.nn.Parameter(torch.zeros(embedding_size))
        self.logits_kernel = torch.nn.Parameter(draw_dense(embedding_size, num_classes))
        self.logits_bias = torch.nn.Parameter(torch.zeros(num_classes))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Returns the logits of the next word at each position."""
        vectors = torch.nn.functional.embedding(words.long(), self.embedding)
        states = hidden_states(
            vectors.transpose(0, 1), self.lstm_kernel, self.lstm_recurrent_kernel, self.lstm_bias
        ).transpose(0, 1)
        if self._masks_padding:
            states = _repeat_last_state(states, words != PAD)
        projection = states @ self.projection_kernel + self.projection_bias
        return projection @ self.logits_kernel + self.logits_bias


def _repeat_last_state(states: torch.Tensor, is_word: torch.Tensor) -> torch.Tensor:
    """Returns states (batch, length, units) with the last state of a word in place of those behind
    the words; 0 in a sentence without words.
    """
    last_position = is_word.sum(1, keepdim=True) - 1
    positions = torch.arange(is_word.shape[1], device=is_word.device)
    is_last = (positions == last_position).to(states.dtype)
    last_state = (states * is_last[:, :, None]).sum(1, keepdim=True)
    return torch.where(is_word[:, :, None], states, last_state)


def _glorot_uniform(generator: torch.Generator, num_inputs: int, num_outputs: int) -> torch.Tensor:
    """Draws the kernel of a layer, uniform with variance 2 / (inputs + outputs)."""
    limit = math.sqrt(6.0 / (num_inputs + num_outputs))
    return torch.empty(num_inputs, num_outputs).uniform_(-limit, limit, generator=generator)


def _glorot_normal(generator: torch.Generator, num_inputs: int, num_outputs: int) -> torch.Tensor:
    """Draws the kernel of a layer, truncated normal with variance 2 / (inputs + outputs)."""
    stddev = math.sqrt(2.0 / (num_inputs + num_outputs))
    return _truncated_normal(generator, num_inputs, num_outputs, stddev)


def _he_normal(generator: torch.Generator, num_inputs: int, num_outputs: int) -> torch.Tensor:
    """Draws the kernel of a layer, truncated normal with variance 2 / inputs."""
    return _truncated_normal(generator, num_inputs, num_outputs, math.sqrt(2.0 / num_inputs))


def _truncated_normal(
    generator: torch.Generator, num_inputs: int, num_outputs: int, stddev: float
) -> torch.Tensor:
    """Draws a kernel from a normal distribution that is cut off at two standard deviations, with
    the given standard deviation after the cut.
    """
    full_stddev = stddev / _TRUNCATED_STDDEV
    kernel = torch.empty(num_inputs, num_outputs)
    return torch.nn.init.trunc_normal_(
        kernel, std=full_stddev, a=-2 * full_stddev, b=2 * full_stddev, generator=generator
    )


def logits_of_weights(
    weights: Sequence[np.ndarray], x: np.ndarray, sizes: Mapping[str, Any]
) -> np.ndarray:
    """Returns the logits of a model with these weights for word ids (batch, length)."""
    model = NextWord(0, **sizes)
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.tensor(weight))
        logits: np.ndarray = model(torch.tensor(x)).numpy()
    return logits


def mean_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the loss that a client minimises, the mean over all positions, padding included."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make_metrics(
    ids: SpecialIds,
) -> Mapping[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]]:
    """Returns the accuracies of `fedmf.tasks.stackoverflow.model.make_metrics` by name."""
    excluded_labels = {
        "accuracy": (ids.pad, ids.out_of_vocabulary, ids.end),
        "accuracy_no_pad_no_oov": (ids.pad, ids.out_of_vocabulary),
        "accuracy_no_pad": (ids.pad,),
    }
    return {
        name: functools.partial(_count_correct, labels_of_name)
        for name, labels_of_name in excluded_labels.items()
    }


def _count_correct(
    excluded_labels: tuple[int, ...], logits: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the number of correct predictions and the number of predictions of each sentence,
    both without those of excluded labels.
    """
    is_counted = ~torch.isin(labels, torch.tensor(excluded_labels, device=labels.device))
    is_correct = (logits.argmax(-1) == labels) & is_counted
    return is_correct.sum(1), is_counted.sum(1)
