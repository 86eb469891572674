"""The Task, read through TFF's own loader; and that its model learns."""

import pathlib
import shutil
import sqlite3

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")
tff = pytest.importorskip("tensorflow_federated")

from fedmf.federated.training.run_setup import _task_summary  # noqa: E402
from fedmf.tasks import example_proto  # noqa: E402
from fedmf.tasks.stackoverflow import StackOverflowOptions, data, write_synthetic_corpus  # noqa: E402
from fedmf.tasks.stackoverflow.preprocessing import Preprocessor  # noqa: E402
from fedmf.tasks.stackoverflow.task import build_task  # noqa: E402
from fedmf.tasks.stackoverflow.vocabulary import load_vocabulary  # noqa: E402

SMALL = {"vocabulary_size": 200, "embedding_size": 8, "lstm_size": 16}


def made(path, **options):
    return build_task(StackOverflowOptions(data=path, **options), progress=False)


@pytest.fixture(scope="module")
def task(corpus_file):
    return made(corpus_file, validation_sentences=100, **SMALL)


def plain_sentences(path, split):
    """client -> sentences, by plain SQL: what every loader must find."""
    result = {}
    with sqlite3.connect(path) as connection:
        query = (
            "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? ORDER "
            "BY rowid"
        )
        for client, record in connection.execute(query, (split,)):
            result.setdefault(client, []).append(example_proto.decode_example(record)["tokens"])
    return result


def test_our_records_are_tensorflow_s(corpus_file):
    with sqlite3.connect(corpus_file) as connection:
        records = [
            row[0]
            for row in connection.execute("SELECT serialized_example_proto FROM examples LIMIT 50")
        ]
    for record in records:
        example = tf.train.Example.FromString(record)
        ours = example_proto.decode_example(record)
        assert example.ByteSize() == len(record)
        for key, feature in example.features.feature.items():
            kind = "int64_list" if key == "score" else "bytes_list"
            assert feature.WhichOneof("kind") == kind
            assert list(getattr(feature, kind).value) == [ours[key]]


def test_tff_s_load_data_reads_the_corpus_from_a_cache_folder(corpus_file):
    loaded = tff.simulation.datasets.stackoverflow.load_data(cache_dir=str(corpus_file.parent))
    for split, clients in zip(data.SPLITS, loaded, strict=True):
        expected = plain_sentences(corpus_file, split)
        assert clients.client_ids == sorted(expected)
        client = clients.client_ids[1]
        rows = list(clients.create_tf_dataset_for_client(client).as_numpy_iterator())
        assert [row["tokens"] for row in rows] == expected[client]
        assert list(rows[0]) == ["creation_date", "score", "tags", "title", "tokens", "type"]
        assert rows[0]["score"].dtype == np.int64


@pytest.mark.parametrize("split", data.SPLITS)
def test_the_corpus_reads_what_is_in_the_file(corpus_file, split):
    corpus, expected = data.open_corpus(corpus_file), plain_sentences(corpus_file, split)
    assert list(corpus.client_sizes(split)) == sorted(expected)
    for client in expected:
        assert corpus.sentences(split, client) == expected[client]
        assert corpus.sentences(split, client, 3) == expected[client][:3]
    assert corpus.sentences(split, "nobody", 3) == []


def test_client_examples_are_the_preprocessed_first_sentences(corpus_file):
    task = made(
        corpus_file, max_sentences=7, validation_sentences=10, sequence_length=12, **SMALL
    )
    words = load_vocabulary(data.open_corpus(corpus_file), 200, progress=False).words
    expected = plain_sentences(corpus_file, "train")
    assert list(task.client_ids) == sorted(expected)
    for client in [*task.client_ids[:5], task.client_ids[0]]:  # the last one again, from memory
        x, y = task.client_examples(client)
        wanted_x, wanted_y = Preprocessor(words, 200, 12).encode(expected[client][:7])
        np.testing.assert_array_equal(x, wanted_x)
        np.testing.assert_array_equal(y, wanted_y)
        assert x.dtype == y.dtype == np.int32
        x[:] = -1  # must not reach the task's own copy


def test_validation_is_the_beginning_of_the_test_split_and_test_the_rest(corpus_file, task):
    validation, test = (task.evaluation_examples(split) for split in ("validation", "test"))
    by_client = plain_sentences(corpus_file, "test")
    everything = [sentence for client in sorted(by_client) for sentence in by_client[client]]
    words = load_vocabulary(data.open_corpus(corpus_file), 200, progress=False).words
    x, y = Preprocessor(words, 200).encode(everything)
    np.testing.assert_array_equal(np.concatenate([validation[0], test[0]]), x)
    np.testing.assert_array_equal(np.concatenate([validation[1], test[1]]), y)
    assert len(validation[0]) == 100
    assert "100 validation sentences" in task.description


def test_a_small_test_split_is_halved_and_says_so(corpus_file):
    task = made(corpus_file, test_sentences=11, max_clients=3, **SMALL)
    total = sum(data.open_corpus(corpus_file).client_sizes("test").values())
    assert len(task.evaluation_examples("validation")[0]) == total // 2
    assert len(task.evaluation_examples("test")[0]) == 11
    assert "half of the test split: fewer than 2 x 10000" in task.description
    assert len(task.client_ids) == 3


def test_what_the_task_says_of_itself(task):
    assert task.name == "stackoverflow_nwp"
    assert task.headline == "accuracy"
    assert task.batch_size == 16
    assert "synthetic corpus" in task.description
    assert "published loss" in task.description
    assert "\n" not in task.description
    assert task.build_model(0).output_shape == (None, 20, 204)


def test_a_vocabulary_larger_than_the_corpus_keeps_the_model_s_size(corpus_file):
    task = made(corpus_file, **(SMALL | {"vocabulary_size": 5_000}))
    assert task.build_model(0).output_shape == (None, 20, 5_004)
    assert "5000 words, only 3" in task.description
    assert task.client_examples(task.client_ids[0])[0][0, 0] == 5_002


def test_a_client_whose_examples_are_gone_has_none(corpus_file, tmp_path):
    path = pathlib.Path(shutil.copy(corpus_file, tmp_path / "copy.sqlite"))
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM examples WHERE client_id = '2' AND split_name = 'train'")
    x, y = made(path, **SMALL).client_examples("2")
    assert x.shape == y.shape == (0, 20)


def test_examples_that_are_fewer_than_promised_are_noticed(corpus_file, tmp_path):
    path = pathlib.Path(shutil.copy(corpus_file, tmp_path / "copy.sqlite"))
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM examples WHERE split_name = 'test' AND rowid % 2")
    with pytest.raises(ValueError, match="client_metadata promises"):
        made(path, **SMALL).evaluation_examples("validation")
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM client_metadata WHERE split_name = 'test'")
    with pytest.raises(ValueError, match="test split of 0 sentences"):
        made(path, **SMALL)


def reversed_words(path, first):
    """Reverses the words of a word count file after its first lines."""
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:first], *reversed(lines[first:])]) + "\n")


@pytest.mark.parametrize("published", [False, True])
def test_another_vocabulary_is_other_data(corpus_file, tmp_path, published):
    """The ids of all examples change with it, and nothing else of what a resume compares."""
    path = pathlib.Path(shutil.copy(corpus_file, tmp_path / data.FILE_NAME))
    words = path.with_name(f"{data.FILE_NAME}.word_count")
    if published:  # TFF's own, which is read beside a file that is not synthetic
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA application_id = 0")
        made(path, **SMALL)
        counts = words.read_text().splitlines(keepends=True)[1:]
        words = path.with_suffix(".word_count")
        words.write_text("".join(counts))
    before = made(path, **SMALL)
    assert made(path, **SMALL).data_version == before.data_version
    reversed_words(words, first=0 if published else 1)
    after = made(path, **SMALL)
    assert after.description == before.description
    client = before.client_ids[0]
    assert (after.client_examples(client)[0] != before.client_examples(client)[0]).any()
    assert _task_summary(after) != _task_summary(before)
    # The data file has not changed, nor has what is said of it.
    assert after.data_version.partition("-")[0] == before.data_version.partition("-")[0]


def test_the_same_data_elsewhere_are_the_same(corpus_file, tmp_path, task):
    for name in (corpus_file.name, "renamed.sqlite"):
        path = pathlib.Path(shutil.copy(corpus_file, tmp_path / name))
        assert _task_summary(
            made(path, validation_sentences=100, **SMALL)
        ) == _task_summary(task)


def test_unknown_names(task):
    with pytest.raises(ValueError, match="client_id='nobody' is not a train client"):
        task.client_examples("nobody")
    with pytest.raises(ValueError, match="split='train' must be 'validation' or 'test'"):
        task.evaluation_examples("train")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"vocabulary_size": 0}, ValueError, "vocabulary_size=0"),
        ({"sequence_length": 2.0}, TypeError, r"sequence_length=2\.0"),
        ({"max_clients": 0}, ValueError, "max_clients=0"),
    ],
)
def test_bad_arguments_are_named(corpus_file, changes, error, message):
    with pytest.raises(error, match=message):
        made(corpus_file, **(SMALL | changes))


@pytest.mark.slow
def test_training_pays_and_more_training_pays_more(tmp_path):
    """Always the most frequent word is right 6% of the time, the best guess from the last word 26%,
    the model 40%.
    """
    path = tmp_path / "corpus.sqlite"
    write_synthetic_corpus(path, clients=250, seed=11, vocabulary_size=600, progress=False)
    sizes = {"vocabulary_size": 400, "embedding_size": 32, "lstm_size": 64, "max_sentences": 64}
    task = made(path, validation_sentences=800, progress=False, **sizes)
    x, y = (
        np.concatenate(part)
        for part in zip(*map(task.client_examples, task.client_ids), strict=True)
    )
    labels = task.evaluation_examples("validation")[1]
    words = (labels >= 1) & (labels <= 400)
    most_frequent = np.bincount(y[(y >= 1) & (y <= 400)]).argmax()
    unigram = float((labels[words] == most_frequent).mean())
    model = task.build_model(0)
    adam = tf.keras.optimizers.legacy.Adam(6e-3)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = task.loss(y, model(x), tf.ones(64))
        adam.apply_gradients(
            zip(
                tape.gradient(loss, model.trainable_variables),
                model.trainable_variables,
                strict=True,
            )
        )

    def accuracy():
        x, y = task.evaluation_examples("validation")
        metric = task.metrics()[0]
        metric.update_state(y, model(x))
        return float(metric.result())

    rng = np.random.default_rng(0)
    found = []
    for index in range(601):
        if index in (0, 200, 600):
            found.append(accuracy())
        chosen = rng.integers(0, len(x), 64)
        step(tf.constant(x[chosen]), tf.constant(y[chosen]))
    print(f"unigram {unigram:.3f}, untrained, 200 and 600 steps:", found)
    untrained, short, longer = found
    assert 0.04 < unigram < 0.10
    assert untrained < unigram
    assert short > unigram + 0.05
    assert longer > short + 0.05
    assert longer > unigram + 0.25
