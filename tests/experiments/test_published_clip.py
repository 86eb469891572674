"""The clip of the published experiments makes NaN of a huge update and of the model.

Zeroing prevents it; the library's clip does too.
"""

import numpy as np
import pytest

from fedmf.experiments.papers import published_clip

pytestmark = pytest.mark.tensorflow

HUGE = 1e25  # its square is beyond float32


def test_records_are_clipped_as_by_tensorflow_privacy():
    import tensorflow as tf
    import tensorflow_privacy as tfp

    from fedmf.federated.aggregation.clipping import zero_and_clip

    query = tfp.GaussianSumQuery(l2_norm_clip=1.0, stddev=0.0)
    params = query.derive_sample_params(query.initial_global_state())
    for scale in (1e-3, 1.0, 1e3, HUGE):
        record = [
            tf.constant(scale * np.random.default_rng(0).normal(size=shape), tf.float32)
            for shape in ((3, 4), (5,))
        ]
        theirs = [leaf.numpy() for leaf in query.preprocess_record(params, record)]
        found, ours = (
            clip(
                record,
                clip_norm=tf.constant(1.0, tf.float64),
                zeroing_norm=tf.constant(np.inf, tf.float64),
            )
            for clip in (published_clip.zero_and_clip, zero_and_clip)
        )
        for a, b, c in zip(theirs, found.record, ours.record, strict=True):
            np.testing.assert_array_equal(a, b.numpy())
            assert np.isnan(a).all() == (scale == HUGE)
            assert np.isfinite(c.numpy()).all()


@pytest.mark.parametrize("entry", [HUGE, np.inf, np.nan])
def test_what_is_zeroed_first_does_no_harm(entry):
    import tensorflow as tf

    record = [tf.constant([0.5, entry], tf.float32)]
    clip, limit = (tf.constant(x, tf.float64) for x in (1.0, 100.0))
    found = published_clip.zero_and_clip(record, clip_norm=clip, zeroing_norm=limit)
    assert (found.record[0].numpy().tolist(), int(found.zeroed), int(found.clipped)) == (
        [0.0, 0.0],
        1,
        0,
    )


def test_a_run_has_the_clip_and_no_guarantee(tmp_path, monkeypatch):
    from fedmf import federated
    from tests.federated.run_small import config
    from tests.federated.small_task import small_task

    def weights(name, zeroing_norm):
        settings = config(client_learning_rate=HUGE, zeroing_norm=zeroing_norm)
        run = federated.train(
            small_task(), settings, folder=tmp_path / name, noise_seed=9, progress=False
        )
        assert ("there is no guarantee" in (run.path / "statement.md").read_text()) == (
            name != "library"
        )
        assert (run.path / "final_statement.md").exists() == (name == "library")
        return np.concatenate([w.ravel() for w in run.weights])

    assert np.isfinite(weights("library", None)).all()
    published_clip.install(monkeypatch.setattr)
    assert np.isnan(weights("published", None)).any()
    assert np.isfinite(weights("zeroing", 100.0)).all()
