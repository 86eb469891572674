"""TensorBoard has each scalar of the metric rows once, also after a resume."""

import functools
import types

import pytest
import tensorflow as tf

from fedmf.federated import TensorBoard
from fedmf.training.under_way import Training
from tests.federated.small_runs import broken_off, config, train


def points(folder):
    """Returns (round, name, value) of every event, sorted."""
    all_points = []
    for path in (folder / "tensorboard").glob("*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            all_points += [
                (event.step, value.tag, float(tf.make_ndarray(value.tensor)))
                for value in event.summary.value
            ]
    return sorted(all_points)


def expected(run):
    scalars = functools.partial(Training.scalars, types.SimpleNamespace(plan=run.config.plan()))
    points = ((row["round"], *item) for row in run.metrics for item in scalars(row).items())
    return sorted(points)


@pytest.mark.slow
def test_each_point_is_written_once_also_after_a_resume(tmp_path):
    """The run begins without the callback, and resumes twice with it."""
    settings = config()
    board = {"callbacks": [TensorBoard()]}
    broken_off(tmp_path, 3, settings)
    assert not (tmp_path / "tensorboard").exists()
    broken_off(tmp_path, 5, settings, resume=True, **board)
    assert {t for t, _, _ in points(tmp_path)} == {*range(5)}
    run = train(tmp_path, settings, resume=True, **board)
    *columns, values = zip(*points(tmp_path), strict=True)
    *expected_columns, exact_values = zip(*expected(run), strict=True)
    assert columns == expected_columns
    assert values == pytest.approx(exact_values, rel=1e-6)  # float32
    assert "covered/noise_stddev" in columns[1]
    assert (tmp_path / "tensorboard").stat().st_mode & 0o077 == 0
