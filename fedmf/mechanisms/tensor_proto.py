"""Matrices in TensorFlow's serialized TensorProto messages, read without TensorFlow."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

# tensorflow/core/framework/types.proto: the two kinds of numbers that the papers' public code writes.
_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("<f8")}
_DTYPE, _SHAPE, _CONTENT, _FLOATS, _DOUBLES = 1, 2, 4, 5, 6
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def parse_tensor(message: bytes) -> np.ndarray:
    """The array of a serialized TensorProto of floats or doubles, as float64; what tf.io.serialize_tensor writes.

    Raises:
      ValueError: the bytes are no such message, are cut off, or hold another kind of tensor.

    >>> parse_tensor(b"\\x08\\x02\\x12\\x04\\x12\\x02\\x08\\x01\\x22\\x08" + np.float64(0.5).tobytes())
    array([0.5])
    """
    dtype, shape, content = None, None, b""
    values: dict[int, list[bytes]] = {_FLOATS: [], _DOUBLES: []}
    for field, wire, value in _fields(message):
        if field == _DTYPE and wire == _VARINT:
            if value not in _DTYPES:
                raise ValueError(f"a tensor of data type {value}; only float (1) and double (2) are read")
            dtype = _DTYPES[value]
        elif field == _SHAPE and wire == _BYTES:
            shape = _shape(value)
        elif field == _CONTENT and wire == _BYTES:
            content = value
        elif field in values and wire in (_BYTES, _FIXED32, _FIXED64):
            values[field].append(value)
    if dtype is None or shape is None:
        raise ValueError("no serialized tensor")
    if not content:
        content = b"".join(values[_FLOATS if dtype.itemsize == 4 else _DOUBLES])
    size = math.prod(shape)
    if len(content) == dtype.itemsize and size > 1:
        content *= size  # a tensor of one repeated value stores it once
    if len(content) != dtype.itemsize * size:
        raise ValueError(f"a tensor of shape {shape} with {len(content)} bytes of numbers")
    return np.frombuffer(content, dtype).astype(np.float64).reshape(shape)


def _shape(message: bytes) -> tuple[int, ...]:
    """TensorShapeProto: each dimension is a message of field 2, its size a number of field 1."""
    sizes = []
    for field, wire, value in _fields(message):
        if field == 2 and wire == _BYTES:
            sizes.append(next((size for inner, kind, size in _fields(value) if (inner, kind) == (1, _VARINT)), 0))
        elif field == 3:
            raise ValueError("a tensor of unknown rank")
    return tuple(sizes)


def _fields(message: bytes) -> Iterator[tuple[int, int, Any]]:
    """(field number, wire type, value) of each field, as in the protocol-buffer wire format."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        field, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, place = _varint(message, place)
            yield field, wire, value
            continue
        if wire == _BYTES:
            length, place = _varint(message, place)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError("no serialized tensor")
        if place + length > len(message):
            raise ValueError("a serialized tensor that is cut off")
        yield field, wire, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message) and shift < 64:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
    raise ValueError("a serialized tensor that is cut off")
