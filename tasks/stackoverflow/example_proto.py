"""tf.train.Example written and read as bytes, so that making and describing a data file needs no TensorFlow.

Only what the StackOverflow file holds is covered: features that are one byte string or one int64. The layout follows
tensorflow/core/example/{example,feature}.proto: Example.features (1) is a map (1) of key (1) to Feature (2), which
holds a bytes_list (1) or an int64_list (3), each a repeated field 1.
"""

from collections.abc import Iterator

_BYTES_LIST = b"\x0a"
_INT64_LIST = b"\x1a"


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF  # protobuf writes a negative int64 as its two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Lengths below this make up nearly all of a file; the table halves the time of writing one.
_SHORT = [_varint(i) for i in range(1 << 12)]


def _field(tag: bytes, payload: bytes) -> bytes:
    size = len(payload)
    return tag + (_SHORT[size] if size < 4096 else _varint(size)) + payload


def encode_feature(key: bytes, value: bytes | int) -> bytes:
    """One entry of the feature map: `key` with one byte string or one int64; entries are joined by concatenation."""
    if isinstance(value, int):
        feature = _field(_INT64_LIST, _field(b"\x0a", _varint(value)))
    else:
        feature = _field(_BYTES_LIST, _field(b"\x0a", value))
    return _field(b"\x0a", _field(b"\x0a", key) + _field(b"\x12", feature))


def encode_example(entries: bytes) -> bytes:
    """A serialized tf.train.Example from entries made by `encode_feature`."""
    return _field(b"\x0a", entries)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        if tag & 7 == 2:
            size, at = _read_varint(data, at)
            if at + size > len(data):
                raise ValueError("the record ends in the middle of a field")
            yield tag >> 3, data[at : at + size]
            at += size
        elif tag & 7 == 0:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
        else:
            raise ValueError(f"wire type {tag & 7} does not occur in the features of this file")


def _first(data: bytes, number: int) -> bytes | int | None:
    return next((value for field, value in _fields(data) if field == number), None)


def _single_value(feature: bytes) -> bytes | int | None:
    for kind, payload in _fields(feature):
        if not isinstance(payload, bytes):
            continue
        value = _first(payload, 1)
        if kind == 3 and value is not None:
            number = _read_varint(value, 0)[0] if isinstance(value, bytes) else value
            return number - (1 << 64) if number >> 63 else number
        return value
    return None


def decode_example(serialized: bytes) -> dict[str, bytes | int]:
    """The single-valued bytes and int64 features of a serialized tf.train.Example.

    Args:
      serialized: the record, as in the column serialized_example_proto.

    Returns:
      feature name -> bytes or int; features of other kinds or without a value are left out.

    Raises:
      ValueError: the bytes are not a tf.train.Example.
    """
    try:
        features = _first(serialized, 1)
        result: dict[str, bytes | int] = {}
        for number, entry in _fields(features) if isinstance(features, bytes) else ():
            if number != 1 or not isinstance(entry, bytes):
                continue
            key, feature = _first(entry, 1), _first(entry, 2)
            value = _single_value(feature) if isinstance(feature, bytes) else None
            if isinstance(key, bytes) and value is not None:
                result[key.decode()] = value
        return result
    except (IndexError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"a record of {len(serialized)} bytes is not a serialized tf.train.Example: {error}") from None


def decode_bytes(serialized: bytes, key: bytes) -> bytes | None:
    """One byte-string feature of a serialized tf.train.Example, skipping the others: for passes over many records.

    Returns:
      `decode_example(serialized).get(key)` for a feature of bytes, None where there is none.

    Raises:
      ValueError: the bytes are not a tf.train.Example.
    """
    try:
        at = _read_varint(serialized, 1)[1]
        size = len(serialized)
        usual = serialized[:1] == b"\x0a"
        while usual and at < size:
            length, start = _read_varint(serialized, at + 1)
            # An entry in the order that every writer uses: the key's field, then the value's.
            usual = serialized[at] == 0x0A == serialized[start]
            at = start + length
            if usual and serialized.startswith(key, start + 2) and serialized[start + 1] == len(key):
                feature = _first(serialized[start:at], 2)
                value = _single_value(feature) if isinstance(feature, bytes) else None
                if isinstance(value, bytes) and at <= size:
                    return value
                usual = False
    except (IndexError, ValueError):
        pass  # decode_example says what is wrong
    other = decode_example(serialized).get(key.decode())
    return other if isinstance(other, bytes) else None
