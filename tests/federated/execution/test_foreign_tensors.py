"""TensorProto files as TensorFlow itself writes them."""

import numpy as np
import pytest
import tensorflow as tf

from fedmf.mechanisms import TreeMechanism, load_factorization
from fedmf.mechanisms.interop import parse_tensor
from fedmf.workloads import prefix_sum

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1,), (3, 2), (1, 1), (20, 30), ()])
@pytest.mark.parametrize("constant", [False, True])
def test_tensors_are_read_as_they_were_written(dtype, shape, constant):
    values = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    values = np.full(shape, 0.5, dtype) if constant else values
    written = tf.io.serialize_tensor(tf.constant(values)).numpy()
    assert np.array_equal(parse_tensor(written), values.astype(np.float64))


def test_other_kinds_of_tensors_are_refused():
    for value in ([1, 2], ["text"], [True], [1j]):
        with pytest.raises(ValueError, match="only float"):
            parse_tensor(tf.io.serialize_tensor(tf.constant(value)).numpy())


def test_a_folder_as_the_papers_code_writes_it(tmp_path):
    tree = TreeMechanism(rounds=8, decoder="full")
    files = {"h_matrix_tensor_pb": tree.encoder(), "w_matrix_tensor_pb": np.tri(8) @ tree.noising()}
    for name, matrix in files.items():
        tf.io.write_file(str(tmp_path / name), tf.io.serialize_tensor(tf.constant(matrix)))
    loaded = load_factorization(tmp_path, workload=prefix_sum(8))
    np.testing.assert_allclose(loaded.encoder(), tree.encoder())
    np.testing.assert_allclose(loaded.noising(), tree.noising(), atol=1e-12)
