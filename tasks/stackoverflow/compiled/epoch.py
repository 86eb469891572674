"""Compiled local training epoch (`Task.compiled_epoch`) of the next-word model, from
`next_word.c`.
"""

import ctypes
import dataclasses
import functools
import pathlib
import threading
from collections.abc import Callable, Sequence

import numpy as np

from fedmf.federated.client_training.in_threads import aligned_buffer
from fedmf.federated.task import CompiledEpoch
from fedmf.tasks.stackoverflow.compiled.c_library import library, pointer

_SOURCE = pathlib.Path(__file__).with_name("next_word.c")
_LONG = ctypes.c_long
_POINTER = ctypes.c_void_p
_Sizes = ctypes.c_long * 5
_Tensors = ctypes.c_void_p * 8
_thread = threading.local()


@functools.cache
def _functions() -> ctypes.CDLL | None:
    """Returns the compiled C functions with their argument types, or None without a compiler."""
    c_functions = library(_SOURCE)
    if c_functions is not None:
        c_functions.next_word_arena.restype = _LONG
        c_functions.next_word_arena.argtypes = (_LONG,) * 5
        c_functions.next_word_epoch.restype = ctypes.c_double
        c_functions.next_word_epoch.argtypes = (
            *(_POINTER,) * 4, _LONG, _POINTER, ctypes.c_int, ctypes.c_int, ctypes.c_float, _POINTER,
        )  # fmt: skip
    return c_functions


def compiled_epoch(
    *,
    vocabulary_size: int,
    embedding_size: int,
    lstm_size: int,
    form: str = "plain",
    loss: str,
    batch_size: int,
) -> Callable[[], CompiledEpoch | None]:
    """Returns the compiled epoch for a model of `model.build_model` and its loss.

    The sum of the loss and the update agree with the Keras model's to float32 rounding, not to the
    bit. Without a C compiler there is no compiled epoch.
    """
    model_sizes = (vocabulary_size + 4, embedding_size, lstm_size)
    epoch = _Epoch(
        sizes=model_sizes, batch_size=batch_size, stays=form == "published", masked=loss == "masked"
    )
    return functools.partial(_if_compiled, epoch)


def _if_compiled(epoch: "_Epoch") -> CompiledEpoch | None:
    """Returns the compiled epoch, or None if this machine cannot compile it."""
    return None if _functions() is None else epoch


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Epoch:
    """Compiled epoch that can be sent to other machines, which compile the C code themselves."""

    sizes: tuple[int, int, int]
    batch_size: int
    stays: bool
    masked: bool

    def __call__(
        self,
        weights: Sequence[np.ndarray],
        x: np.ndarray,
        y: np.ndarray,
        learning_rate: float,
        update: Sequence[np.ndarray],
        /,
    ) -> float:
        c_functions = _functions()
        assert c_functions is not None
        weight_shapes = tensor_shapes(*self.sizes)
        num_classes = self.sizes[0]
        for name, arrays in (("weights", weights), ("update", update)):
            if [array.shape for array in arrays] != weight_shapes:
                raise ValueError(
                    f"{name} must have the shapes {weight_shapes}: found "
                    f"{[array.shape for array in arrays]}"
                )
        if x.shape != y.shape:
            raise ValueError(f"x and y must have one shape: found {x.shape} and {y.shape}")
        for ids in (x, y):
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < num_classes:
                id_range = f"{ids.min()} .. {ids.max()}"
                raise ValueError(
                    f"ids of words must be in 0 .. {num_classes - 1}: found {id_range}"
                )
        all_sizes = (*self.sizes, x.shape[1], self.batch_size)
        working_memory = _arena(int(c_functions.next_word_arena(*all_sizes)))
        return float(
            c_functions.next_word_epoch(
                _Tensors(*(pointer(w) for w in weights)),
                _Tensors(*(pointer(u, written=True) for u in update)),
                pointer(x, np.int32),
                pointer(y, np.int32),
                len(x),
                _Sizes(*all_sizes),
                self.stays,
                self.masked,
                learning_rate,
                pointer(working_memory, written=True),
            )
        )


def tensor_shapes(classes: int, width: int, units: int) -> list[tuple[int, ...]]:
    """Returns the shapes of the trainable weights of `model.build_model`, in the model's order."""
    lstm_shapes = [(width, 4 * units), (units, 4 * units), (4 * units,)]
    return [(classes, width), *lstm_shapes, (units, width), (width,), (width, classes), (classes,)]


def _arena(floats: int) -> np.ndarray:
    """Returns an array that the C code uses as working memory, one for each calling thread."""
    if not hasattr(_thread, "arena") or _thread.arena.size < floats:
        _thread.arena = aligned_buffer(floats)
    arena: np.ndarray = _thread.arena
    return arena
