"""Words by the number of train users who use them, and the cache beside the data file.

No TensorFlow here.
"""

import collections
import os
import pathlib
import shutil
import sqlite3

import pytest

from fedmf.tasks import example_proto
from fedmf.tasks.data_file import SYNTHETIC
from fedmf.tasks.stackoverflow import data, vocabulary
from fedmf.tasks.stackoverflow.vocabulary import load_vocabulary


@pytest.fixture
def tiny(tmp_path):
    """Three train users; only the number of users who have a word may count."""
    path = tmp_path / "tiny.sqlite"
    sentences = {
        ("train", "1"): ["b b b b", "b a"],
        ("train", "2"): ["a c"],
        ("train", "3"): ["c d"],
        ("test", "3"): ["e a", "e"],
    }
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
        )
        connection.execute(
            "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)"
        )
        for (split, client), texts in sentences.items():
            connection.execute(
                "INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, len(texts))
            )
            for text in texts:
                record = example_proto.encode_example({"tokens": text.encode()})
                connection.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, client, record))
    return path


def load(path, size=10):
    return load_vocabulary(data.open_corpus(path), size, progress=False)


def test_words_are_ordered_by_train_users_then_by_name(tiny):
    found = load(tiny)
    assert found.words == ("a", "c", "b", "d")
    assert found.source == "counted over all 3 train clients"
    assert load(tiny, 2).words == ("a", "c")


def test_agrees_with_a_plain_count(corpus_file, tmp_path):
    path = pathlib.Path(shutil.copy(corpus_file, tmp_path / "copy.sqlite"))
    users = collections.defaultdict(set)
    with sqlite3.connect(path) as connection:
        for client, record in connection.execute(
            "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = 'train'"
        ):
            for word in example_proto.decode_example(record)["tokens"].decode().split():
                users[word].add(client)
    expected = sorted(users, key=lambda word: (-len(users[word]), word))
    assert load(path, 100).words == tuple(expected[:100])


def test_the_count_is_kept_until_the_file_changes(tiny, monkeypatch):
    first = load(tiny)
    cache = tiny.with_name("tiny.sqlite.word_count")
    assert cache.read_text().splitlines()[1:] == ["a 2", "c 2", "b 1", "d 1"]
    monkeypatch.setattr(vocabulary, "_count", lambda *_: pytest.fail("counted again"))
    assert load(tiny) == first
    monkeypatch.undo()
    with sqlite3.connect(tiny) as connection:
        connection.execute("DELETE FROM examples WHERE client_id = '2'")
    os.utime(tiny, ns=(1, 1))
    assert load(tiny).words == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    "content", ["", "# something else\na 1\n", "\x00\xff", "{stamp}\nbroken line here\n"]
)
def test_a_damaged_cache_is_counted_anew(tiny, content):
    first = load(tiny)
    cache = tiny.with_name("tiny.sqlite.word_count")
    stamp = cache.read_text().splitlines()[0]
    cache.write_text(content.replace("{stamp}", stamp))
    assert load(tiny) == first


def test_a_cache_that_cannot_be_written_is_done_without(tiny, monkeypatch):
    def read_only(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "replace", read_only)
    assert load(tiny).words == ("a", "c", "b", "d")
    assert os.listdir(tiny.parent) == ["tiny.sqlite"]


def test_huge_files_are_sampled_and_say_so(corpus_file, tmp_path, monkeypatch):
    path = pathlib.Path(shutil.copy(corpus_file, tmp_path / "copy.sqlite"))
    everyone = load(path, 20)
    monkeypatch.setattr(vocabulary, "MAX_COUNTED_CLIENTS", 10)
    sampled = load(path, 20)
    assert sampled.source == "counted over a sample of 10 of 40 train clients"
    assert len(set(sampled.words) & set(everyone.words)) > 12
    path.with_name("copy.sqlite.word_count").unlink()
    assert load(path, 20) == sampled


def test_tff_s_word_count_is_used_for_the_real_file_only(tiny):
    real = tiny.rename(tiny.with_name(data.FILE_NAME))
    (real.parent / "stackoverflow.word_count").write_text("the 9\nof 5\nto 5\n")
    assert load(real, 2) == vocabulary.Vocabulary(("the", "of"), "TFF's stackoverflow.word_count")
    with sqlite3.connect(real) as connection:
        connection.execute(f"PRAGMA application_id = {SYNTHETIC}")
    assert load(real, 2).words == ("a", "c")


def test_the_version_is_of_the_words_in_their_order():
    def version(*words, source="here"):
        return vocabulary.Vocabulary(words, source).version

    assert version("a", "b", "c") == version("a", "b", "c", source="there")
    assert (
        len(
            {
                version("a", "b", "c"),
                version("c", "b", "a"),
                version("a", "b"),
                version("ab", "c"),
                version(),
            }
        )
        == 5
    )


def test_bad_word_count_file(tiny):
    real = tiny.rename(tiny.with_name(data.FILE_NAME))
    (real.parent / "stackoverflow.word_count").write_text("the 9\nof\n")
    with pytest.raises(ValueError, match=r"stackoverflow\.word_count, line 2"):
        load(real)
