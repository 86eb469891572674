"""TensorProto files as TensorFlow itself writes them."""

import numpy as np
import pytest
import tensorflow as tf

from fedmf.mechanisms import TreeMechanism, load_factorization
from fedmf.mechanisms.interop import parse_tensor
from fedmf.workloads import prefix_sum


def written(values):
    return parse_tensor(tf.io.serialize_tensor(tf.constant(values)).numpy())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tensors_are_read_as_they_were_written(dtype):
    for shape in ((1,), (3, 2), (20, 30), ()):
        drawn = np.random.default_rng(0).standard_normal(shape).astype(dtype)
        for values in (drawn, np.full(shape, 0.5, dtype)):
            np.testing.assert_array_equal(written(values), values)


@pytest.mark.parametrize("value", [[1, 2], ["text"], [True], [1j]])
def test_other_kinds_of_tensors_are_refused(value):
    with pytest.raises(ValueError, match="only float"):
        written(value)


def test_a_folder_as_the_papers_code_writes_it(tmp_path):
    tree = TreeMechanism(rounds=8, decoder="full")
    files = {"h_matrix_tensor_pb": tree.encoder(), "w_matrix_tensor_pb": np.tri(8) @ tree.noising()}
    for name, matrix in files.items():
        tf.io.write_file(str(tmp_path / name), tf.io.serialize_tensor(tf.constant(matrix)))
    loaded = load_factorization(tmp_path, workload=prefix_sum(8))
    np.testing.assert_allclose(loaded.encoder(), tree.encoder())
    np.testing.assert_allclose(loaded.noising(), tree.noising(), atol=1e-12)
