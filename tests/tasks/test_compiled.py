"""The compiled epoch of the next-word model against SGD by automatic differentiation
of the Keras model.
"""

import concurrent.futures
import functools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from fedmf.tasks.stackoverflow import model  # noqa: E402
from fedmf.tasks.stackoverflow.compiled.epoch import compiled_epoch, tensor_shapes  # noqa: E402

LENGTH = 5
WIDTH = 3
UNITS = 4
SIZES = ("vocabulary_size", "embedding_size", "lstm_size")


def by_name(sizes):
    return dict(zip(SIZES, sizes, strict=True))


def sgd(kind, sizes, weights, x, y, *, form="plain", batch_size=16, rate=0.3):
    """Returns weights before training minus weights after it, and the loss summed over examples."""
    built = model.build_model(0, **by_name(sizes), sequence_length=x.shape[1], form=form)
    variables = built.trainable_variables
    for variable, weight in zip(variables, weights, strict=True):
        variable.assign(weight)
    loss_of = model.make_loss(kind)
    total = 0.0
    for batch_start in range(0, len(x), batch_size):
        batch_slice = slice(batch_start, batch_start + batch_size)
        with tf.GradientTape() as tape:
            loss = loss_of(
                y[batch_slice], built(x[batch_slice]), np.ones(len(x[batch_slice]), np.float32)
            )
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(rate * tf.convert_to_tensor(gradient))
        total += float(loss) * len(x[batch_slice])
    return [
        start_weight - trained_variable.numpy()
        for start_weight, trained_variable in zip(weights, variables, strict=True)
    ], total


def compiled(kind, sizes, weights, x, y, *, form="plain", batch_size=16, rate=0.3):
    epoch = compiled_epoch(**by_name(sizes), form=form, loss=kind, batch_size=batch_size)
    run = epoch()
    if run is None:
        pytest.skip("no C compiler")
    update = [np.full(weight.shape, np.nan, np.float32) for weight in weights]
    return update, run(weights, x, y, rate, update)


def check_epoch(kind, sizes, drawn, rtol=1e-4, atol=3e-6, **options):
    """Compares an epoch with Keras.

    Keras's update is a difference of weights. It has their rounding, 6e-8 for weights of size 1,
    for each of up to 21 batches.
    """
    expected, loss = sgd(kind, sizes, *drawn, **options)
    update, compiled_loss = compiled(kind, sizes, *drawn, **options)
    assert compiled_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
    for actual_array, expected_array in zip(update, expected, strict=True):
        np.testing.assert_allclose(actual_array, expected_array, rtol=rtol, atol=atol)


def draw_case(seed, sizes, sentences, length, scale=0.5):
    rng = np.random.default_rng(seed)
    shapes = tensor_shapes(sizes[0] + 4, *sizes[1:])
    weights = [(scale * rng.normal(size=shape)).astype(np.float32) for shape in shapes]
    words = rng.integers(1, sizes[0] + 4, (sentences, length + 1)).astype(np.int32)
    sentence_ends = rng.integers(0, length + 2, sentences)
    words[np.arange(length + 1) >= sentence_ends[:, None]] = 0
    return weights, np.ascontiguousarray(words[:, :-1]), np.ascontiguousarray(words[:, 1:])


published = functools.partial(hypothesis.example, kind="published", form="published")


@hypothesis.settings(max_examples=5)
@hypothesis.given(
    kind=st.sampled_from(model.LOSSES),
    form=st.sampled_from(model.MODELS),
    sizes=st.tuples(st.integers(1, 60), st.integers(1, 30), st.integers(1, 60)),
    length=st.integers(1, 6),
    sentences=st.integers(0, 12),
    batch_size=st.integers(2, 9),
    seed=st.integers(0, 99),
)
# There is only the first step, whose state is zero.
@published(sizes=(4, 2, 3), length=1, sentences=3, batch_size=2, seed=1)
# There are more positions than one block of the softmax holds.
@published(sizes=(30, 5, 7), length=12, sentences=40, batch_size=20, seed=2)
@pytest.mark.slow
def test_the_compiled_epoch_equals_keras_for_any_shape(
    kind, form, sizes, length, sentences, batch_size, seed
):
    drawn_case = draw_case(seed, sizes, sentences, length)
    check_epoch(kind, sizes, drawn_case, form=form, batch_size=batch_size)


@pytest.fixture(scope="module")
def training_case():
    """Returns sizes, weights and sentences of all lengths in two batches, of which the second is
    short.
    """
    sizes = (7, WIDTH, UNITS)
    return sizes, *draw_case(4, sizes, 22, LENGTH)


@pytest.mark.parametrize("kind", model.LOSSES)
def test_a_wrong_gradient_fails_the_comparison(kind, training_case):
    """Negative control: the comparison fails for another loss, another rate, another order and one
    sentence less.
    """
    sizes, weights, x, y = training_case
    expected, _ = sgd(kind, sizes, weights, x, y)

    def agrees(kind=kind, x=x, y=y, **options):
        update, _ = compiled(kind, sizes, weights, x, y, **options)
        return [
            np.allclose(actual_array, expected_array, rtol=1e-4, atol=3e-6)
            for actual_array, expected_array in zip(update, expected, strict=True)
        ]

    assert all(agrees())
    assert not any(
        agrees(
            kind=next(expected_array for expected_array in model.LOSSES if expected_array != kind)
        )
    )
    assert not any(agrees(rate=0.301))
    # Padding is behind the words: a loss that leaves it out is the same in either form.
    assert all(agrees(form="published")) == (kind == "masked")
    assert not any(agrees(x=x[::-1].copy(), y=y[::-1].copy()))
    assert not any(agrees(x=x[:-1], y=y[:-1]))


def test_updates_are_bitwise_identical_on_another_thread(training_case):
    first_update, loss = compiled("published", *training_case)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(compiled, "published", *training_case) for _ in range(8)]
    for job in jobs:
        update, thread_loss = job.result()
        assert thread_loss == loss
        assert all(map(np.array_equal, update, first_update))


def test_the_update_of_a_diverging_client_is_not_finite(training_case):
    """An update that is not finite counts as zero, on both paths: it must not come
    back as a number.
    """
    sizes, weights, x, y = training_case
    weights = [*weights[:2], np.full_like(weights[2], np.nan), *weights[3:]]
    update, loss = compiled("published", sizes, weights, x, y)
    assert np.isnan(loss)
    assert not all(np.isfinite(update_array).all() for update_array in update)


# The array that is changed, the change, and the words of the error.
READ_PAST = {
    "beyond": ("x", lambda x: x + 11 * (x == x.max()), ValueError),
    "negative": ("y", np.negative, ValueError),
    "shapes": ("weights", lambda weights: weights[::-1], ValueError),
    "lengths": ("x", lambda x: x[:-1], ValueError),
    "int64": ("x", np.int64, TypeError),
    "float64": ("weights", lambda weights: [*map(np.float64, weights)], TypeError),
    "order": ("x", np.asfortranarray, ValueError),
}


@pytest.mark.parametrize("name", READ_PAST)
def test_arrays_that_c_would_read_past_are_refused(training_case, name):
    changed_name, change, error = READ_PAST[name]
    sizes, *arrays = training_case
    array_by_name = dict(zip(("weights", "x", "y"), arrays, strict=True))
    compiled("masked", sizes, **array_by_name)
    with pytest.raises(error):
        compiled(
            "masked", sizes, **array_by_name | {changed_name: change(array_by_name[changed_name])}
        )


def test_extreme_numbers_match_tensorflow():
    """Large weights make exp overflow and close gates; their roundings are 8e-6."""
    sizes = (7, WIDTH, UNITS)
    drawn_case = draw_case(5, sizes, 3, LENGTH, scale=30.0)
    check_epoch("published", sizes, drawn_case, rtol=1e-3, atol=2e-5, rate=1e-3)
