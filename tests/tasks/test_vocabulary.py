"""Words by the number of train users who use them, and the cache beside the data file.

No TensorFlow here.
"""

import os

import pytest

from fedmf.tasks import example_proto
from fedmf.tasks.data_file import SYNTHETIC
from fedmf.tasks.stackoverflow import data, vocabulary
from fedmf.tasks.stackoverflow.vocabulary import load_vocabulary
from tests.refusals import refusal
from tests.tasks.data_files import execute


@pytest.fixture
def tiny_corpus(tmp_path):
    """Writes a file of three train users; only the number of users of a word may count."""
    path = tmp_path / "tiny.sqlite"
    texts = [
        ("train", "1", "b b b b"),
        ("train", "1", "b a"),
        ("train", "2", "a c"),
        ("train", "3", "c d"),
        ("test", "3", "e a"),
    ]
    execute(
        path,
        "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)",
    )
    for *of, text in texts:
        record = example_proto.encode_example({"tokens": text.encode()})
        execute(path, "INSERT INTO examples VALUES (?, ?, ?)", *of, record)
    execute(
        path,
        "CREATE TABLE client_metadata AS SELECT client_id, split_name, COUNT(*) num_examples "
        "FROM examples GROUP BY client_id, split_name",
    )
    return path


def load_words(path, size=10):
    return load_vocabulary(data.open_corpus(path), size, progress=False)


def test_words_are_ordered_by_train_users_then_by_name(tiny_corpus):
    vocabulary = load_words(tiny_corpus)
    assert vocabulary.words == ("a", "c", "b", "d")
    assert vocabulary.source == "counted over all 3 train clients"
    assert load_words(tiny_corpus, 2).words == ("a", "c")


def test_the_count_is_cached_until_the_file_changes(tiny_corpus):
    load_words(tiny_corpus)
    cache = tiny_corpus.with_name("tiny.sqlite.word_count")
    stamp, *counts = cache.read_text().splitlines()
    assert counts == ["a 2", "c 2", "b 1", "d 1"]
    cache.write_text("\n".join([stamp, *counts[::-1]]) + "\n")
    assert load_words(tiny_corpus).words == ("d", "b", "c", "a")  # not counted again
    execute(tiny_corpus, "DELETE FROM examples WHERE client_id = '2'")
    os.utime(tiny_corpus, ns=(1, 1))
    assert load_words(tiny_corpus).words == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    "content", ["", "# something else\na 1\n", "\x00\xff", "{stamp}\nbroken line here\n"]
)
def test_a_damaged_cache_is_counted_anew(tiny_corpus, content):
    first_vocabulary = load_words(tiny_corpus)
    cache = tiny_corpus.with_name("tiny.sqlite.word_count")
    stamp = cache.read_text().splitlines()[0]
    cache.write_text(content.replace("{stamp}", stamp))
    assert load_words(tiny_corpus) == first_vocabulary


def test_words_are_counted_without_a_writable_cache(tiny_corpus, monkeypatch):
    def read_only(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "replace", read_only)
    assert load_words(tiny_corpus).words == ("a", "c", "b", "d")
    assert os.listdir(tiny_corpus.parent) == ["tiny.sqlite"]


def test_huge_files_are_sampled_and_say_so(corpus_copy, monkeypatch):
    monkeypatch.setattr(vocabulary, "MAX_COUNTED_CLIENTS", 10)
    sampled_vocabulary = load_words(corpus_copy, 20)
    assert sampled_vocabulary.source == "counted over a sample of 10 of 40 train clients"
    corpus_copy.with_name("copy.sqlite.word_count").unlink()
    assert load_words(corpus_copy, 20) == sampled_vocabulary


def test_tff_s_word_count_is_used_for_the_real_file_only(tiny_corpus):
    real = tiny_corpus.rename(tiny_corpus.with_name(data.FILE_NAME))
    count = real.with_suffix(".word_count")
    count.write_text("the 9\nof 5\nto 5\n")
    assert load_words(real, 2) == vocabulary.Vocabulary(
        ("the", "of"), "TFF's stackoverflow.word_count"
    )
    count.write_text("the 9\nof\n")
    with refusal(r"stackoverflow\.word_count, line 2"):
        load_words(real)
    execute(real, f"PRAGMA application_id = {SYNTHETIC}")
    assert load_words(real, 2).words == ("a", "c")


def test_tff_s_word_count_is_read_from_the_cache_folder_of_tff(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    real = tiny_corpus.rename(tiny_corpus.with_name(data.FILE_NAME))
    beside, of_cache_dir, of_keras = vocabulary.count_files(real)
    assert of_keras.parts[-3:-1] == (".keras", "datasets")
    for words, count_path in (("the of", of_keras), ("of to", of_cache_dir), ("to a", beside)):
        count_path.parent.mkdir(parents=True, exist_ok=True)
        count_path.write_text("".join(f"{word} 9\n" for word in words.split()))
        assert load_words(real).words == tuple(words.split())


def test_a_sample_of_the_real_file_warns(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(vocabulary, "MAX_COUNTED_CLIENTS", 2)
    load_words(tiny_corpus)
    real = tiny_corpus.rename(tiny_corpus.with_name(data.FILE_NAME))
    with pytest.warns(UserWarning, match=r"sample of 2 of 3 train clients.*load_word_counts"):
        load_words(real)


def test_the_version_changes_with_the_order_of_the_words():
    def version(words, source="here"):
        return vocabulary.Vocabulary(words.split(), source).version

    assert version("a b c") == version("a b c", source="there")
    assert len({version(words) for words in ("a b c", "c b a", "ab c")}) == 3
