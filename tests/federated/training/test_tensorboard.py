"""Scalars for TensorBoard: those of the metric rows, each once, also after a resume."""

import pytest
import tensorflow as tf

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("clients_in_turn")]

from fedmf import federated  # noqa: E402
from fedmf.fields import flat  # noqa: E402
from tests.federated.run_small import config  # noqa: E402
from tests.federated.small_task import small_task  # noqa: E402


def points(folder):
    """(round, name, value) of every event, sorted."""
    found = []
    for path in (folder / "tensorboard").glob("*"):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            found += [
                (event.step, each.tag, float(tf.make_ndarray(each.tensor)))
                for each in event.summary.value
            ]
    return sorted(found)


def expected(run):
    rows = [flat(row, "/") for row in run.metrics]
    named = [
        (row["round"], name, value)
        for row in rows
        for name, value in row.items()
        if name != "round"
    ]
    return sorted(named)


def assert_same(found, wanted):
    assert [point[:2] for point in found] == [point[:2] for point in wanted]
    assert [point[2] for point in found] == pytest.approx(
        [point[2] for point in wanted], rel=1e-6
    )  # float32


def test_each_point_once_also_after_a_resume(tmp_path):
    def stop(t):
        if t == 2:
            raise RuntimeError

    shared = {"folder": tmp_path / "run", "progress": False}
    settings = config(checkpoint_every=2)
    with pytest.raises(RuntimeError):
        federated.train(
            small_task(), settings, noise_seed=9, on_round=stop, tensorboard=True, **shared
        )
    assert {t for t, _, _ in points(tmp_path / "run")} == {0, 1, 2}
    run = federated.train(small_task(), settings, resume=True, tensorboard=True, **shared)
    assert_same(points(tmp_path / "run"), expected(run))
    assert {"train_loss", "clip_fraction", "validation/accuracy"} <= {
        name for _, name, _ in points(tmp_path / "run")
    }
    assert (tmp_path / "run" / "tensorboard").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_resume_may_begin_to_write(tmp_path):
    def stop(t):
        if t == 3:
            raise RuntimeError

    shared = {"folder": tmp_path / "run", "progress": False}
    with pytest.raises(RuntimeError):
        federated.train(small_task(), config(), noise_seed=9, on_round=stop, **shared)
    assert not (tmp_path / "run" / "tensorboard").exists()
    run = federated.train(small_task(), config(), resume=True, tensorboard=True, **shared)
    assert_same(points(tmp_path / "run"), expected(run))
