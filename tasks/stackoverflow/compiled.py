"""The next-word model's local epoch in compiled C: `next_word.c`, which a C compiler of the machine makes at first use."""

import ctypes
import functools
import pathlib
import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from fedmf.federated.execution.c_library import library, pointer, room
from fedmf.federated.task import ClientEpoch, LocalEpoch

_SOURCE = pathlib.Path(__file__).with_name("next_word.c")
_LONG, _POINTER = ctypes.c_long, ctypes.c_void_p


@functools.cache
def _functions() -> ctypes.CDLL | None:
    found = library(_SOURCE)
    if found is not None:
        found.next_word_room.restype = _LONG
        found.next_word_room.argtypes = (_LONG,) * 3
        found.next_word_weights.restype = None
        found.next_word_weights.argtypes = (_POINTER, *(_LONG,) * 3, _POINTER)
        found.next_word_arena.restype = _LONG
        found.next_word_arena.argtypes = (_LONG,) * 5
        found.next_word_epoch.restype = ctypes.c_double
        found.next_word_epoch.argtypes = (
            *(_POINTER,) * 5,
            *(_LONG,) * 6,
            ctypes.c_int,
            ctypes.c_float,
            _POINTER,
            _POINTER,
        )
    return found


def compiled_epoch(
    *, vocabulary_size: int, embedding_size: int, lstm_size: int, loss: str, batch_size: int
) -> Callable[[], LocalEpoch | None]:
    """The `Task.local_epoch` of a task with `model.build_model` of these sizes and `model.make_loss(loss)`.

    The sum of the loss and the update agree with the Keras model's to float32 rounding, not to the bit. Where there is no C compiler,
    there is no such epoch.
    """
    sizes = (vocabulary_size + 4, embedding_size, lstm_size)
    shapes = _shapes(*sizes)
    rooms: list[np.ndarray] = []  # of rounds that are over: the system would zero new ones

    def of_round(weights: Sequence[np.ndarray]) -> ClientEpoch:
        functions = _functions()
        assert functions is not None
        if [w.shape for w in weights] != shapes:
            raise ValueError(f"weights must have the shapes {shapes}: found {[w.shape for w in weights]}")

        def tensors() -> ctypes.Array[ctypes.c_void_p]:
            return (ctypes.c_void_p * 8)(*(pointer(w) for w in weights))

        try:
            rearranged = rooms.pop()
        except IndexError:
            rearranged = room(int(functions.next_word_room(*sizes)))
        functions.next_word_weights(tensors(), *sizes, pointer(rearranged, written=True))

        def epoch(
            x: np.ndarray, y: np.ndarray, *, learning_rate: float, update: Sequence[np.ndarray], stop: np.ndarray
        ) -> float:
            if [u.shape for u in update] != shapes or x.shape != y.shape:
                raise ValueError(f"update must have the shapes {shapes}, and x and y one shape, {x.shape}, {y.shape}")
            for ids in (x, y):
                if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < sizes[0]:
                    raise ValueError(f"ids of words must be in 0 .. {sizes[0] - 1}: found {ids.min()} .. {ids.max()}")
            length = x.shape[1]
            arena = _arena(int(functions.next_word_arena(*sizes, length, batch_size)))
            return float(
                functions.next_word_epoch(
                    tensors(),
                    pointer(rearranged),
                    (ctypes.c_void_p * 8)(*(pointer(u, written=True) for u in update)),
                    pointer(x, np.int32),
                    pointer(y, np.int32),
                    len(x),
                    *sizes,
                    length,
                    batch_size,
                    loss == "masked",
                    learning_rate,
                    pointer(arena, written=True),
                    pointer(stop, np.int32),
                )
            )

        weakref.finalize(epoch, rooms.append, rearranged)
        return epoch

    return lambda: None if _functions() is None else of_round


def _shapes(classes: int, width: int, units: int) -> list[tuple[int, ...]]:
    """Of the trainable weights of `model.build_model`, in its order."""
    return [
        (classes, width),
        (width, 4 * units),
        (units, 4 * units),
        (4 * units,),
        (units, width),
        (width,),
        (width, classes),
        (classes,),
    ]


_held = threading.local()


def _arena(floats: int) -> np.ndarray:
    """Room to work in, one for each thread."""
    if not hasattr(_held, "arena") or _held.arena.size < floats:
        _held.arena = room(floats)
    return _held.arena
