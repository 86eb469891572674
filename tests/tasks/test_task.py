"""The Task, read through TFF's own loader; and that its model learns."""

import pathlib
import shutil

import numpy as np
import pytest
from numpy.testing import assert_array_equal

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from fedmf.tasks.stackoverflow import StackOverflowOptions, data  # noqa: E402
from fedmf.tasks.stackoverflow.preprocessing import Preprocessor  # noqa: E402
from fedmf.tasks.stackoverflow.task import build_task  # noqa: E402
from fedmf.tasks.stackoverflow.vocabulary import load_vocabulary  # noqa: E402
from tests.refusals import refusal  # noqa: E402
from tests.tasks.data_files import execute, sentences  # noqa: E402

SMALL = {"vocabulary_size": 200, "embedding_size": 8, "lstm_size": 16}


def make_task(path, **options):
    return build_task(StackOverflowOptions(data=path, **options), progress=False)


@pytest.fixture(scope="module")
def task(corpus_file):
    return make_task(corpus_file, validation_sentences=100, **SMALL)


def of_clients(path, split):
    """Returns client -> sentences, read independently of the loaders."""
    return {client: texts for (of, client), texts in sentences(path).items() if of == split}


def test_tff_s_load_data_reads_the_corpus_from_a_cache_folder(corpus_file, tff):
    tff_splits = tff.simulation.datasets.stackoverflow.load_data(cache_dir=str(corpus_file.parent))
    for split, clients in zip(data.SPLITS, tff_splits, strict=True):
        expected = of_clients(corpus_file, split)
        assert clients.client_ids == sorted(expected)
        client = clients.client_ids[1]
        rows = list(clients.create_tf_dataset_for_client(client).as_numpy_iterator())
        assert [row["tokens"].decode() for row in rows] == expected[client]
        assert list(rows[0]) == ["creation_date", "score", "tags", "title", "tokens", "type"]
        assert rows[0]["score"].dtype == np.int64


def test_client_examples_are_the_preprocessed_first_sentences(corpus_file):
    task = make_task(
        corpus_file, max_sentences=7, validation_sentences=10, sequence_length=12, **SMALL
    )
    words = load_vocabulary(data.open_corpus(corpus_file), 200, progress=False).words
    expected = of_clients(corpus_file, "train")
    assert list(task.client_ids) == sorted(expected)
    # The last client is read again, from memory.
    for client in [*task.client_ids[:2], task.client_ids[0]]:
        x, y = task.client_examples(client)
        wanted_x, wanted_y = Preprocessor(words, 200, 12).encode(expected[client][:7])
        assert_array_equal(x, wanted_x)
        assert_array_equal(y, wanted_y)
        x[:] = -1  # The change must not reach the task's own copy.


def test_validation_and_test_follow_one_another_in_the_order_of_the_papers_code(
    corpus_file, task, tff
):
    """The papers' code takes .take(10000) and .skip(10000) of this data set of TFF's."""
    folder = str(corpus_file.parent)
    _, _, test_clients = tff.simulation.datasets.stackoverflow.load_data(cache_dir=folder)
    rows = test_clients.create_tf_dataset_from_all_clients(seed=0).as_numpy_iterator()
    all_sentences = [row["tokens"].decode() for row in rows]
    by_client = of_clients(corpus_file, "test")
    assert all_sentences[: len(by_client[min(by_client)])] != by_client[min(by_client)]
    words = load_vocabulary(data.open_corpus(corpus_file), 200, progress=False).words
    splits = [task.evaluation_examples(split) for split in ("validation", "test")]
    for *split_arrays, whole_array in zip(
        *splits, Preprocessor(words, 200).encode(all_sentences), strict=True
    ):
        assert_array_equal(np.concatenate(split_arrays), whole_array)
        assert len(split_arrays[0]) == 100
    assert "100 validation sentences" in task.description


def test_a_small_test_split_is_halved_and_says_so(corpus_file, task):
    halved = make_task(corpus_file, test_sentences=11, max_clients=3, **SMALL)
    total = sum(data.open_corpus(corpus_file).client_sizes("test").values())
    assert len(halved.evaluation_examples("validation")[0]) == total // 2
    assert len(halved.evaluation_examples("test")[0]) == 11
    assert "half of the test split: fewer than 2 x 10000" in halved.description
    assert len(halved.client_ids) == 3
    with refusal("client_id='nobody'"):
        task.client_examples("nobody")
    with refusal("split='train'"):
        task.evaluation_examples("train")
    with refusal("max_clients=0"):
        make_task(corpus_file, max_clients=0, **SMALL)


def test_a_vocabulary_larger_than_the_corpus_keeps_the_model_s_size(corpus_file):
    task = make_task(corpus_file, **(SMALL | {"vocabulary_size": 5_000}))
    assert task.build_model(0).output_shape == (None, 20, 5_004)
    assert "5000 words, only 3" in task.description
    assert task.client_examples(task.client_ids[0])[0][0, 0] == 5_002


def test_missing_examples_are_refused(corpus_copy):
    def changed(statement):
        execute(corpus_copy, statement)
        return make_task(corpus_copy, **SMALL)

    task = changed("DELETE FROM examples WHERE client_id = '2' AND split_name = 'train'")
    assert [array.shape for array in task.client_examples("2")] == [(0, 20)] * 2
    task = changed("DELETE FROM examples WHERE split_name = 'test' AND rowid % 2")
    with refusal("client_metadata lists"):
        task.evaluation_examples("validation")
    with refusal("test split of 0 sentences"):
        changed("DELETE FROM client_metadata WHERE split_name = 'test'")


@pytest.mark.parametrize("published", [False, True])
def test_another_vocabulary_has_another_data_version(corpus_file, tmp_path, published):
    """The ids of all examples change with it, and nothing else of what a resume compares."""
    path = pathlib.Path(shutil.copy(corpus_file, tmp_path / data.FILE_NAME))
    task_before = make_task(path, **SMALL)
    words = path.with_name(f"{data.FILE_NAME}.word_count")
    head, *counts = words.read_text().splitlines(keepends=True)
    if published:  # TFF's own list is read beside a file that is not synthetic.
        execute(path, "PRAGMA application_id = 0")
        words = path.with_suffix(".word_count")
        head = ""
        words.write_text("".join(counts))
        task_before = make_task(path, **SMALL)
    assert make_task(path, **SMALL).data_version == task_before.data_version
    words.write_text("".join([head, *counts[::-1]]))
    task_after = make_task(path, **SMALL)
    client = task_before.client_ids[0]
    assert (task_after.client_examples(client)[0] != task_before.client_examples(client)[0]).any()
    assert task_after.data_version != task_before.data_version
    # Neither the data file nor its description has changed.
    assert task_after.data_version.partition("-")[0] == task_before.data_version.partition("-")[0]
    assert task_after.description == task_before.description


def test_a_copy_of_the_data_has_the_same_version(corpus_copy, task):
    copied_task = make_task(corpus_copy, validation_sentences=100, **SMALL)
    assert (copied_task.data_version, copied_task.description) == (
        task.data_version,
        task.description,
    )
