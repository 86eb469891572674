"""Encoder and decoder of tf.train.Example with protobuf alone, so that data files need no
TensorFlow.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

Feature = bytes | int | np.ndarray

# The messages of tensorflow/core/example/{example,feature}.proto. A packed list of floats is
# declared here as bytes, little-endian float32, so that no number becomes a Python object.
_DESCRIPTOR = """
name: "example.proto" package: "fedmf.tasks" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_OPTIONAL type: TYPE_BYTES } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature"
  field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE
    type_name: ".fedmf.tasks.BytesList" }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE
    type_name: ".fedmf.tasks.FloatList" }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE
    type_name: ".fedmf.tasks.Int64List" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
    type_name: ".fedmf.tasks.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE
      type_name: ".fedmf.tasks.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE
    type_name: ".fedmf.tasks.Features" } }
"""
# TensorFlow fills the default pool, so these messages have a separate pool.
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_DESCRIPTOR, descriptor_pb2.FileDescriptorProto()))
_Example: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("fedmf.tasks.Example"))


def encode_example(features: Mapping[str, Feature]) -> bytes:
    """Serializes byte strings, ints and arrays of floats as a tf.train.Example.

    The same features give the same bytes.
    """
    example_message = _Example()
    for name, value in features.items():
        feature_message = example_message.features.feature[name]
        if isinstance(value, np.ndarray):
            feature_message.float_list.value = np.ascontiguousarray(value, "<f4").tobytes()
        elif isinstance(value, int):
            feature_message.int64_list.value.append(value)
        else:
            feature_message.bytes_list.value.append(value)
    return bytes(example_message.SerializeToString(deterministic=True))


def text_of(serialized: bytes, name: str) -> bytes:
    """Returns the first byte string of a feature of a serialized tf.train.Example, or b"" if it has
    none.

    Raises:
      ValueError: the bytes are not a tf.train.Example.
    """
    try:
        return next(
            iter(_Example.FromString(serialized).features.feature[name].bytes_list.value), b""
        )
    except message.DecodeError as error:
        raise ValueError(_broken(serialized, error)) from None


def decode_example(serialized: bytes) -> dict[str, Feature]:
    """Decodes the features of a serialized tf.train.Example.

    Floats come as a float32 array; of byte strings and ints only the first value is returned.

    Raises:
      ValueError: the bytes are not a tf.train.Example.
    """
    try:
        feature_messages = _Example.FromString(serialized).features.feature
        decoded: dict[str, Feature] = {}
        for name, feature in feature_messages.items():
            if feature.float_list.value:
                decoded[name] = np.frombuffer(feature.float_list.value, "<f4")
                continue
            feature_values = (*feature.bytes_list.value, *feature.int64_list.value)
            if feature_values:
                decoded[name] = feature_values[0]
    except (message.DecodeError, TypeError, ValueError) as error:
        raise ValueError(_broken(serialized, error)) from None
    return decoded


def _broken(serialized: bytes, error: Exception) -> str:
    """Returns the error message for bytes that are not a tf.train.Example."""
    return f"a record of {len(serialized)} bytes is not a serialized tf.train.Example: {error}"
