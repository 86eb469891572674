"""The synthetic corpus: its format, its determinism, and complete files or none."""

import collections
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmf.tasks import example_proto
from fedmf.tasks.stackoverflow import data, describe_file, synthetic, write_synthetic_corpus
from tests.refusals import refusal
from tests.tasks.data_files import execute, records, sentences


def write_corpus(path, **changes):
    sizes = {"clients": 5, "seed": 1, "sentences_per_client": 8, "vocabulary_size": 400}
    return write_synthetic_corpus(path, **sizes | changes, progress=False)


def test_a_client_is_found_by_an_index(corpus_file):
    """Without the index each client costs a scan of the whole file. test_task.py reads the file
    with TFF's loader.
    """
    plan = execute(
        corpus_file,
        "EXPLAIN QUERY PLAN SELECT serialized_example_proto FROM examples "
        "WHERE client_id = '1' and split_name ='train'",
    )
    assert "USING INDEX" in plan[0][3]


def test_metadata_counts_the_examples(corpus_file):
    stated = execute(corpus_file, "SELECT split_name, client_id, num_examples FROM client_metadata")
    num_sentences = {
        split_and_client: len(texts) for split_and_client, texts in sentences(corpus_file).items()
    }
    assert {row[:2]: row[2] for row in stated} == num_sentences
    users = {
        name: {client for split, client in num_sentences if split == name} for name in data.SPLITS
    }
    assert {name: len(split_and_client) for name, split_and_client in users.items()} == {
        "train": 40,
        "heldout": 4,
        "test": 24,
    }
    # Test users are mostly train users; held-out users are neither.
    assert len(users["test"] & users["train"]) == 19
    assert not users["heldout"] & (users["train"] | users["test"])


def test_words_follow_a_zipf_like_law_and_users_differ(tmp_path):
    path = write_corpus(
        tmp_path / "file", clients=60, sentences_per_client=60, vocabulary_size=1_000
    )
    users = collections.defaultdict(collections.Counter)
    for (split, client), texts in sentences(path).items():
        if split == "train":
            users[client].update(" ".join(texts).split())
    total = sum(users.values(), collections.Counter())
    counts = np.array(sorted(total.values(), reverse=True))
    assert 0.04 < counts[0] / counts.sum() < 0.12
    slope = np.polyfit(np.log(np.arange(10, 500)), np.log(counts[9:499]), 1)[0]
    assert -1.8 < slope < -0.7
    content = [word for word, _ in total.most_common(300) if word.endswith(("et", "ic"))]
    profile = np.array([[counter[word] for word in content] for counter in users.values()], float)
    profile /= profile.sum(1, keepdims=True)
    distance = np.abs(profile[:, None] - profile[None]).sum(-1)[np.triu_indices(len(users), 1)] / 2
    assert np.median(distance) > 0.3  # total variation between two users' content words


@given(
    features=st.dictionaries(
        st.sampled_from(["tokens", "title", "score", "x"]),
        st.one_of(st.binary(max_size=9_000), st.integers(-(2**63), 2**63 - 1)),
    )
)
def test_examples_survive_the_round_trip(features):
    assert example_proto.decode_example(example_proto.encode_example(features)) == features


def test_an_existing_file_is_not_overwritten_without_the_option(tmp_path):
    path = write_corpus(tmp_path / "file")
    first_records = records(path)
    with refusal(r"file exists already: .*overwrite"):
        write_corpus(path, seed=2)
    assert records(path) == first_records
    assert records(write_corpus(path, seed=2, overwrite=True)) != first_records
    assert (
        records(write_corpus(path, overwrite=True)) == first_records
    )  # the same seed, the same rows
    assert os.listdir(tmp_path) == ["file"]
    with refusal(r"cannot write .*missing/file.*choose a folder"):
        write_corpus(tmp_path / "missing" / "file")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"clients": 0}, ValueError),
        ({"clients": 2.5}, TypeError),
        ({"seed": -1}, ValueError),
        ({"sentences_per_client": float("nan")}, ValueError),
        ({"sentences_per_client": "9"}, TypeError),
        ({"vocabulary_size": 50}, ValueError),
    ],
)
def test_bad_arguments_are_named(tmp_path, changes, error):
    ((name, value),) = changes.items()
    with refusal(f"{name}={value!r}", error):
        write_corpus(tmp_path / "file", **changes)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_writer_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(synthetic, "draw_sentences", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_corpus(tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_describe_file_describes_the_synthetic_corpus(corpus_file):
    description = describe_file(corpus_file)
    assert description["origin"] == "synthetic corpus"
    train = description["splits"]["train"]
    assert train["clients"] == train["sample"]["clients"] == 40
    assert train["examples"] == sum(split == "train" for split, *_ in records(corpus_file))
    assert 8 < train["sample"]["mean_sentence_length"] < 18
    assert set(train["sample"]["top_words"][:2]) == {"the", "."}
    assert (
        train["sample"]["last_date"]
        < "2018"
        <= description["splits"]["test"]["sample"]["first_date"]
    )
