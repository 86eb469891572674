"""Generated regression: the covariance has the given spectrum, and labels follow the model."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedmf.tasks.regression import RegressionOptions, data

MANY = RegressionOptions(
    clients=1, examples=10, features=4, decay=1.5, shift=0.6, evaluation_clients=20_000
)


@pytest.fixture(scope="module")
def many_examples():
    """Returns 200,000 examples of 20,000 clients."""
    return data.split_examples(MANY, "validation")


@pytest.mark.slow
def test_the_features_have_the_spectrum(many_examples):
    """Entries of the mean over 20,000 independent clients are within six standard deviations of
    their expectations.
    """
    x = many_examples[0].astype(np.float64).reshape(20_000, 10, 4)
    products = np.einsum("cei,cej->cij", x, x) / 10

    def errors(decay):
        """Returns the errors of the covariance in standard deviations."""
        error = products.mean(0) - np.diag(np.arange(1.0, 5) ** -decay)
        return abs(error) / products.std(0) * np.sqrt(20_000)

    assert errors(1.5).max() < 6
    assert errors(1.4).max() > 6  # the control: another decay is told apart
    means = x.mean(1)  # clients have means of their own
    expected = data.eigenvalues(MANY) * (0.36 + 0.64 / 10)
    assert_allclose(means.var(0), expected, rtol=6 * np.sqrt(2 / 20_000))


@pytest.mark.slow
def test_least_squares_finds_the_weights(many_examples):
    x, y = (array.astype(np.float64) for array in many_examples)
    weights, squares, *_ = np.linalg.lstsq(x, y, rcond=None)
    spread = MANY.noise / np.sqrt(200_000 * data.eigenvalues(MANY))
    assert np.all(abs(weights[:, 0] - data.true_weights(MANY)) < 6 * spread)
    assert squares[0] / 200_000 == pytest.approx(0.25, rel=6 * np.sqrt(2 / 200_000))
    assert data.true_weights(MANY) ** 2 @ data.eigenvalues(MANY) == pytest.approx(1)


@pytest.mark.slow
def test_logistic_labels_follow_the_logits():
    options = dataclasses.replace(MANY, kind="logistic")
    x, y = data.split_examples(options, "validation")
    assert set(y.ravel()) == {0, 1}
    chance = 1 / (1 + np.exp(-(x @ data.true_weights(options)) / options.noise))
    for low in np.arange(0, 1, 0.1):
        among = (low <= chance) & (chance < low + 0.1)
        assert abs(y[among, 0].mean() - chance[among].mean()) < 6 * 0.5 / np.sqrt(among.sum())


def test_clients_are_deterministic_and_differ_from_the_splits():
    options = RegressionOptions(clients=30, evaluation_clients=3)
    more_clients = dataclasses.replace(options, clients=40)
    for array_pair in zip(
        *(data.client_examples(client_options, 29) for client_options in (options, more_clients)),
        strict=True,
    ):
        assert_array_equal(*array_pair)
    splits = [data.split_examples(options, split)[0] for split in ("validation", "test")]
    example_arrays = [*splits, *(data.client_examples(options, client)[0] for client in range(30))]
    assert len(np.unique(np.concatenate(example_arrays), axis=0)) == (30 + 3 + 3) * 20
    other_seed = data.split_examples(dataclasses.replace(options, seed=1), "validation")[0]
    assert not np.array_equal(splits[0], other_seed)


def test_the_version_changes_with_the_data():
    options = RegressionOptions()
    assert data.version(dataclasses.replace(options, batch_size=3)) == data.version(options)
    assert data.version(dataclasses.replace(options, shift=0.0)) != data.version(options)


@pytest.mark.tensorflow
def test_the_logistic_task_is_learnt():
    """The linear task is in test_tasks_doc.py."""
    import tensorflow as tf

    from fedmf.tasks.regression import regression

    task = regression(RegressionOptions(kind="logistic", clients=50, features=5))
    model = task.build_model(3)
    assert not np.any(model.get_weights()[0])
    client_examples = [task.examples_of(client) for client in task.client_ids]
    x, y = (np.concatenate(arrays) for arrays in zip(*client_examples, strict=True))
    model.compile(tf.keras.optimizers.SGD(0.1), task.loss, task.metrics())
    tf.keras.utils.set_random_seed(0)
    model.fit(x, y, batch_size=20, epochs=3, verbose=0)
    assert model.evaluate(*task.split("validation"), verbose=0)[1] > 0.7
