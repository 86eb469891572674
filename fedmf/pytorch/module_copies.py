"""Copies of modules that share tensors.

Each client trains in a copy, so that no attribute that a module sets in training, such as a counter
or a cache, reaches the next client.
"""

import collections
import contextlib
import copy
import enum
import logging
import pathlib
import re
import types
import weakref
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
                # A sparse tensor or one without values becomes no array, and has its class as text.
                with contextlib.suppress(TypeError, RuntimeError):
                    value = as_array(value)
            text_by_name[prefix + name] = without_addresses(value_text(value))
    return text_by_name


def without_addresses(text: str) -> str:
    """Returns a text without addresses in memory, which differ from process to process.

    >>> without_addresses("<function relu at 0x7f55f0509310>")
    '<function relu at 0x>'
    """
    return re.sub(r"0x[0-9a-f]+", "0x", text)


# Types of values that no training changes.
_IMMUTABLE = (
    str, bytes, int, float, complex, type(None), type, np.generic, torch.dtype, torch.device,
    torch.Size, slice, range, enum.Enum, types.ModuleType, types.BuiltinFunctionType, re.Pattern,
    pathlib.PurePath, weakref.ReferenceType, logging.Logger,
)  # fmt: skip


def state_texts(module: torch.nn.Module) -> dict[str, str]:
    """Returns a text for each attribute of a module and its submodules, by its name, which changes
    if the attribute or anything that it refers to changes. Parameters and buffers are left out.

    Raises:
      ValueError: an attribute is of a type whose changes cannot be seen.
    """
    text_by_name = {}
    # The registered objects of the module itself are not described again where attributes refer to
    # them.
    registered = [*module.modules(), *module.parameters(), *module.buffers()]
    seen_ids = {id(value) for value in registered}
    for module_name, submodule in module.named_modules():
        is_torch = type(submodule).__module__.startswith("torch.")
        for name, value in vars(submodule).items():
            is_private = is_torch and name.startswith("_")
            if name in _COMMON_ATTRIBUTES or is_private:
                continue
            full_name = f"{module_name}.{name}".lstrip(".")
            try:
                text_by_name[full_name] = _state_text(value, seen_ids)
            except (TypeError, ValueError, RuntimeError) as error:
                # A tensor without values or a long chain of objects has no text.
                raise ValueError(
                    f"changes of its attribute {full_name} cannot be seen: {error}"
                ) from error
    return text_by_name


def _state_text(value: Any, seen_ids: set[int]) -> str:
    """Returns a text that changes with a value and all that it refers to.

    Args:
      value: the value.
      seen_ids: ids of the objects that have a text already; the value's is added.
    """
    if isinstance(value, _IMMUTABLE):
        return without_addresses(repr(value))
    if id(value) in seen_ids:
        return "seen"
    seen_ids.add(id(value))
    if isinstance(value, torch.Tensor):
        return digest([as_array(value)])
    if isinstance(value, np.ndarray):
        return digest([value])
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        texts = [_state_text(entry, seen_ids) for entry in value]
        if isinstance(value, set | frozenset):
            texts.sort()
        return f"[{', '.join(texts)}]"
    if not hasattr(value, "__dict__"):
        raise ValueError(f"it refers to a {type(value).__name__}")
    return f"{function_text(value)} {_state_text(vars(value), seen_ids)}"
