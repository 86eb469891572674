"""Generated regression: the covariance has the spectrum asked for, and the labels follow the model."""

import dataclasses

import numpy as np
import pytest

from fedmf.tasks.regression import RegressionOptions, data

MANY = RegressionOptions(
    clients=1, examples=10, features=4, decay=1.5, shift=0.6, evaluation_clients=20_000
)


@pytest.fixture(scope="module")
def many():
    """200,000 examples of 20,000 clients."""
    return data.split_examples(MANY, "validation")


def test_the_features_have_the_spectrum(many):
    """Entries of the mean over 20,000 independent clients are within six standard deviations of
    what they should be.
    """
    x = many[0].astype(np.float64).reshape(20_000, 10, 4)
    products = np.einsum("cei,cej->cij", x, x) / 10
    error = products.mean(0) - np.diag(np.arange(1.0, 5) ** -1.5)
    assert np.all(abs(error) < 6 * products.std(0) / np.sqrt(20_000))
    # The control: another decay is told apart.
    assert np.any(
        abs(products.mean(0) - np.diag(np.arange(1.0, 5) ** -1.4))
        > 6 * products.std(0) / np.sqrt(20_000)
    )


def test_clients_have_means_of_their_own(many):
    means = many[0].astype(np.float64).reshape(20_000, 10, 4).mean(1)
    expected = data.eigenvalues(MANY) * (0.36 + 0.64 / 10)
    np.testing.assert_allclose(means.var(0), expected, rtol=6 * np.sqrt(2 / 20_000))


def test_least_squares_finds_the_weights(many):
    x, y = (part.astype(np.float64) for part in many)
    weights, squares, *_ = np.linalg.lstsq(x, y, rcond=None)
    spread = MANY.noise / np.sqrt(200_000 * data.eigenvalues(MANY))
    assert np.all(abs(weights[:, 0] - data.true_weights(MANY)) < 6 * spread)
    assert squares[0] / 200_000 == pytest.approx(0.25, rel=6 * np.sqrt(2 / 200_000))
    assert data.true_weights(MANY) ** 2 @ data.eigenvalues(MANY) == pytest.approx(1)


def test_logistic_labels_follow_the_logits():
    o = dataclasses.replace(MANY, kind="logistic")
    x, y = data.split_examples(o, "validation")
    assert set(y.ravel()) == {0, 1}
    chance = 1 / (1 + np.exp(-(x @ data.true_weights(o)) / o.noise))
    for low in np.arange(0, 1, 0.1):
        among = (low <= chance) & (chance < low + 0.1)
        assert abs(y[among, 0].mean() - chance[among].mean()) < 6 * 0.5 / np.sqrt(among.sum())


def test_clients_are_pure_and_splits_are_others():
    o = RegressionOptions(clients=30, evaluation_clients=3)
    more = dataclasses.replace(o, clients=40, decay=o.decay)
    for client in (0, 29, 30):
        for left, right in zip(
            data.client_examples(o, client), data.client_examples(more, client), strict=True
        ):
            np.testing.assert_array_equal(left, right)
    splits = [data.split_examples(o, split)[0] for split in ("validation", "test")]
    rows = [row.tobytes() for client in range(30) for row in data.client_examples(o, client)[0]]
    rows += [row.tobytes() for split in splits for row in split]
    assert len(set(rows)) == len(rows) == (30 + 3 + 3) * 20
    assert not np.array_equal(
        splits[0], data.split_examples(dataclasses.replace(o, seed=1), "validation")[0]
    )


def test_the_version_is_the_data_s():
    o = RegressionOptions()
    assert data.version(dataclasses.replace(o, batch_size=3)) == data.version(o)
    assert data.version(dataclasses.replace(o, shift=0.0)) != data.version(o)


def test_effective_dimension():
    assert data.effective_dimension(RegressionOptions(features=7, decay=0)) == 7
    assert data.effective_dimension(RegressionOptions(features=2, decay=1)) == 1.5


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", ["linear", "logistic"])
def test_the_task_is_learnt(kind):
    import tensorflow as tf

    from fedmf.tasks.regression import RegressionOptions, regression

    task = regression(RegressionOptions(kind=kind, clients=50, features=5))
    model = task.build_model(3)
    assert [weight.shape for weight in model.get_weights()] == [(5, 1)]
    assert not np.any(model.get_weights()[0])
    parts = [task.examples_of(client) for client in task.client_ids]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    model.compile(tf.keras.optimizers.SGD(0.1), task.loss, task.metrics())
    tf.keras.utils.set_random_seed(0)
    model.fit(x, y, batch_size=20, epochs=3, verbose=0)
    found = model.evaluate(*task.split("validation"), verbose=0)[1]
    if kind == "linear":
        assert 0.2 < found < 0.4  # the noise's variance is 0.25, and the label's 1.25
    else:
        assert found > 0.7
