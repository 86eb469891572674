"""tf.train.Example by protobuf alone, so that making and describing a data file needs no TensorFlow.

Only what the StackOverflow file holds is covered: features that are one byte string or one int64.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

# tensorflow/core/example/{example,feature}.proto, without lists of floats.
_DESCRIPTOR = """
name: "example.proto" package: "fedmf" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature"
  field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".fedmf.BytesList" }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".fedmf.Int64List" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".fedmf.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".fedmf.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".fedmf.Features" } }
"""
_POOL = descriptor_pool.DescriptorPool()  # of our own: TensorFlow fills the default one
_POOL.Add(text_format.Parse(_DESCRIPTOR, descriptor_pb2.FileDescriptorProto()))
_Example: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("fedmf.Example"))


def encode_example(features: dict[str, bytes | int]) -> bytes:
    """A serialized tf.train.Example; the same features give the same bytes."""
    example = _Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        (feature.int64_list if isinstance(value, int) else feature.bytes_list).value.append(value)
    return bytes(example.SerializeToString(deterministic=True))


def decode_example(serialized: bytes) -> dict[str, bytes | int]:
    """The first value of each bytes and int64 feature of a serialized tf.train.Example.

    Raises:
      ValueError: the bytes are not a tf.train.Example.
    """
    try:
        features = _Example.FromString(serialized).features.feature
    except (message.DecodeError, TypeError) as error:
        raise ValueError(f"a record of {len(serialized)} bytes is not a serialized tf.train.Example: {error}") from None
    values = {name: (*feature.bytes_list.value, *feature.int64_list.value) for name, feature in features.items()}
    return {name: value[0] for name, value in values.items() if value}
