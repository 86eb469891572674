"""Copies of modules that share tensors.

Each client trains in a copy, so that no attribute that a module sets in training, such as a counter
or a cache, reaches the next client.
"""

import collections
import copy
import enum
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from fedmf.pytorch.module_tensors import as_array
from fedmf.training.examples import digest
from fedmf.training.learner import function_text, value_text

# Attributes that each module has, which are no part of its program.
_COMMON_ATTRIBUTES = frozenset(vars(torch.nn.Module()))


def copied(value: Any, shared_tensors: Iterable[torch.Tensor] = ()) -> Any:
    """Returns a copy of a module, a loss or metrics, or of a structure of them.

    Args:
      value: what to copy. Functions are not copied.
      shared_tensors: tensors that the copy shares with the original.

    Raises:
      ValueError: it cannot be copied.
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared_tensors}
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:
        # The `__deepcopy__` of a user's object may raise any type of error.
        raise ValueError(
            f"model, loss or metrics cannot be copied for each client ({type(error).__name__}: "
            f"{error}): compute tensors from parameters in `forward`, use "
            "torch.nn.utils.parametrizations in place of weight_norm, and keep no files or locks"
        ) from error


def attribute_texts(module: torch.nn.Module) -> dict[str, str]:
    """Returns a text for each attribute of a module and its submodules, by its name, which changes
    with its value. Parameters and buffers are left out.

    >>> attribute_texts(torch.nn.Sequential(torch.nn.Dropout(0.5)))
    {'0.p': '0.5', '0.inplace': 'False'}
    """
    text_by_name = {}
    for module_name, submodule in module.named_modules():
        prefix = f"{module_name}." if module_name else ""
        is_torch = type(submodule).__module__.startswith("torch.")
        for name, value in vars(submodule).items():
            is_hooks = name.endswith("_hooks") and bool(value)
            # Private attributes of PyTorch differ from version to version.
            is_private = is_torch and name.startswith("_")
            if is_hooks:
                value = list(value.values())
            elif name in _COMMON_ATTRIBUTES or is_private:
                continue
            if isinstance(value, torch.Tensor):
                value = as_array(value)
            text_by_name[prefix + name] = without_addresses(value_text(value))
    return text_by_name


def without_addresses(text: str) -> str:
    """Returns a text without addresses in memory, which differ from process to process.

    >>> without_addresses("<function relu at 0x7f55f0509310>")
    '<function relu at 0x>'
    """
    return re.sub(r"0x[0-9a-f]+", "0x", text)


# Types of values that never change.
_IMMUTABLE = (
    str, bytes, int, float, complex, type(None), type, np.generic, torch.dtype, torch.device,
    torch.Size, slice, range, enum.Enum, types.ModuleType,
)  # fmt: skip


def state_texts(module: torch.nn.Module) -> dict[str, str]:
    """Returns a text for each attribute of a module and its submodules, by its name, which changes
    if the attribute or anything that it refers to changes. Parameters and buffers are left out.

    Raises:
      ValueError: an attribute is of a type whose changes cannot be seen.
    """
    text_by_name = {}
    for module_name, submodule in module.named_modules():
        is_torch = type(submodule).__module__.startswith("torch.")
        for name, value in vars(submodule).items():
            is_private = is_torch and name.startswith("_")
            if name not in _COMMON_ATTRIBUTES and not is_private:
                text_by_name[f"{module_name}.{name}"] = _state_text(value, frozenset())
    return text_by_name


def _state_text(value: Any, outer_ids: frozenset[int]) -> str:
    """Returns a text that changes with a value and all that it refers to.

    Args:
      value: the value.
      outer_ids: ids of the values that refer to it, which end a circle.
    """
    if isinstance(value, _IMMUTABLE):
        return repr(value)
    if id(value) in outer_ids:
        return "circle"
    outer_ids = outer_ids | {id(value)}
    if isinstance(value, torch.Tensor | np.ndarray):
        array = as_array(value) if isinstance(value, torch.Tensor) else value
        return digest([array])
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        texts = [_state_text(entry, outer_ids) for entry in value]
        if isinstance(value, set | frozenset):
            texts.sort()
        return f"[{', '.join(texts)}]"
    if not hasattr(value, "__dict__"):
        raise ValueError(f"an attribute refers to a {type(value).__name__}, which may change")
    if isinstance(value, torch.nn.Module):
        tensors = [*value.parameters(), *value.buffers()]
        return f"{state_texts(value)} {_state_text(tensors, outer_ids)}"
    return f"{function_text(value)} {_state_text(vars(value), outer_ids)}"
