"""Conversion of examples to tensors, and the loss of a batch."""

from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fedmf import nest
from fedmf.pytorch.module_functions import TensorFunction
from fedmf.training.examples import Examples, Weighted, split_weights


def as_tensors(examples: Examples, device: torch.device) -> Examples:
    """Returns examples with tensors in place of arrays. The tensors are copies, so that a model may
    overwrite them. Labels that are whole numbers become int64, as losses of PyTorch take them.
    """

    def copied_tensor(array: np.ndarray) -> torch.Tensor:
        # PyTorch takes no negative strides and no other byte order than the machine's.
        native_array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
        return torch.from_numpy(native_array).to(device)

    def label_tensor(array: np.ndarray) -> torch.Tensor:
        tensor = copied_tensor(array)
        return tensor.long() if array.dtype.kind in "iu" else tensor

    x, y = examples
    return nest.map_leaves(copied_tensor, x), nest.map_leaves(label_tensor, y)


def example_losses(loss: TensorFunction, outputs: Any, labels: Any) -> torch.Tensor:
    """Returns the loss of each example of a batch, (examples,). The loss is called on the outputs
    and labels of each example with a batch axis of 1, by torch.vmap.

    Raises:
      ValueError: the loss has more than one number for an example.
    """
    single_outputs = pytree.tree_map(lambda tensor: tensor.unsqueeze(1), outputs)
    single_labels = nest.map_leaves(lambda tensor: tensor.unsqueeze(1), labels)
    losses = torch.func.vmap(loss)(single_outputs, single_labels)
    if not isinstance(losses, torch.Tensor) or losses.numel() != losses.shape[0]:
        shape = tuple(losses.shape[1:]) if isinstance(losses, torch.Tensor) else type(losses)
        raise ValueError(
            f"the loss of one example has the shape {shape}: return one number, such as the mean"
        )
    return losses.reshape(-1)


def mean_loss(loss: TensorFunction, outputs: Any, y: Any) -> torch.Tensor:
    """Returns the loss that a client minimises on a batch, which is the mean over its examples of
    the weight of an example times its loss.

    Args:
      loss: loss of the task.
      outputs: outputs of the model.
      y: labels, or `Weighted` labels.
    """
    labels, weights = split_weights(y)
    losses = example_losses(loss, outputs, labels)
    if weights is not None:
        losses = losses * weights.to(losses.dtype)
    return losses.mean()


def without_weights(examples: Examples) -> Examples:
    """Returns examples with plain labels in place of `Weighted` labels."""
    x, y = examples
    return (x, y.labels) if isinstance(y, Weighted) else (x, y)
