"""TensorProto files as TensorFlow itself writes them."""

import numpy as np
import pytest
import tensorflow as tf

from fedmf.mechanisms.interop import parse_tensor
from tests.refusals import refusal


def written_tensor(values):
    return parse_tensor(tf.io.serialize_tensor(tf.constant(values)).numpy())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1,), (20, 30), ()])
def test_tensors_are_read_as_they_were_written(dtype, shape):
    drawn_array = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    for values in (drawn_array, np.full(shape, 0.5, dtype)):
        np.testing.assert_array_equal(written_tensor(values), values)


@pytest.mark.parametrize("value", [[1, 2], [1j]])
def test_other_kinds_of_tensors_are_refused(value):
    with refusal("only float"):
        written_tensor(value)
