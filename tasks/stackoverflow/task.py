"""StackOverflow next-word prediction as a training task."""

import collections
import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedmf.runs.vocabulary import RunVocabulary
from fedmf.tasks.data_file import SYNTHETIC
from fedmf.tasks.stackoverflow import data, vocabulary
from fedmf.tasks.stackoverflow.options import StackOverflowOptions
from fedmf.tasks.stackoverflow.preprocessing import Preprocessor
from fedmf.terminal import progress_bar
from fedmf.training.examples import Examples
from fedmf.training.task import Task
from fedmf.training.task_checks import validation_clients_of

# The papers' code takes the validation sentences of `create_tf_dataset_from_all_clients(seed=0)` of
# TFF 0.87, which shuffles the sorted client ids with this seed.
_EVALUATION_SEED = 0
# Largest memory for a cache of clients' examples. A few hundred clients of a demo fit easily, but
# the 342,477 clients of the real data would take 14 GB.
MAX_CACHE_BYTES = 256 << 20


class _Cache:
    """Cache of the most recently read clients' examples, up to MAX_CACHE_BYTES, in a small integer
    type.
    """

    def __init__(self, read: Callable[[str], Examples], classes: int) -> None:
        self._read = read
        self._dtype = np.int16 if classes <= np.iinfo(np.int16).max else np.int32
        self._size = 0
        self._examples_by_client: collections.OrderedDict[str, Examples] = collections.OrderedDict()

    def __call__(self, client_id: str) -> Examples:
        if client_id in self._examples_by_client:
            self._examples_by_client.move_to_end(client_id)
        else:
            x, y = self._read(client_id)
            self._examples_by_client[client_id] = x.astype(self._dtype), y.astype(self._dtype)
            self._size += sum(array.nbytes for array in self._examples_by_client[client_id])
            while self._size > MAX_CACHE_BYTES and len(self._examples_by_client) > 1:
                _, oldest = self._examples_by_client.popitem(last=False)
                self._size -= sum(array.nbytes for array in oldest)
        x, y = self._examples_by_client[client_id]
        # The caller gets copies of the cached arrays, because it may change them.
        return x.astype(np.int32), y.astype(np.int32)


def build_task(o: StackOverflowOptions, *, progress: bool = True) -> Task:
    """Returns the StackOverflow next-word task, whose model is of the framework of the options.

    Validation is the first `validation_sentences` sentences of the test split, with all sentences
    of a client after another and clients in the order of `evaluation_order`, as in the papers'
    code; test is the rest. A test split with fewer than twice as many sentences is cut in half, and
    the description says so. The held-out split is not used.

    Args:
      o: `data` is TFF's stackoverflow.sqlite, a synthetic corpus or imported text; None for TFF's
        cache. Nothing is downloaded.
      progress: show progress bars.

    Raises:
      FileNotFoundError: no data file; the message says what to put where.
      ValueError: a damaged file, or an empty test split.
    """
    corpus = data.open_corpus(o.data)
    word_corpus = corpus if o.vocabulary_data is None else data.open_corpus(o.vocabulary_data)
    loaded = vocabulary.load_vocabulary(word_corpus, o.vocabulary_size, progress=progress)
    preprocessor = Preprocessor(loaded.words, o.vocabulary_size, o.sequence_length)
    client_ids = tuple(corpus.client_sizes("train"))[: o.max_clients]
    train_clients = frozenset(client_ids)

    num_sentences = sum(corpus.client_sizes("test").values())
    if num_sentences < 2:
        raise ValueError(
            f"{corpus.path} has a test split of {num_sentences} sentences: validation and test "
            "need at least one each"
        )
    num_validation = min(o.validation_sentences, num_sentences // 2)
    test_stop = num_sentences
    if o.test_sentences is not None:
        test_stop = min(num_sentences, num_validation + o.test_sentences)

    def read_client(client_id: str) -> Examples:
        """Reads a client's examples."""
        if client_id not in train_clients:
            raise ValueError(
                f"client_id={client_id!r} is not a train client of this task: "
                "take one of client_ids"
            )
        return preprocessor.encode(corpus.sentences("train", client_id, o.max_sentences))

    @functools.cache
    def evaluation_examples(split: str) -> Examples:
        """Reads the examples of the "validation" or the "test" split."""
        if split == "validation":
            return _encode_slice(corpus, preprocessor, 0, num_validation, progress)
        if split == "test":
            return _encode_slice(corpus, preprocessor, num_validation, test_stop, progress)
        raise ValueError(f"split={split!r} must be 'validation' or 'test'")

    # The description leaves out the file's name, because a run may be resumed on the same data
    # under another name.
    description = (
        f"StackOverflow next-word prediction on the {corpus.origin}: {len(client_ids)} train "
        f"clients of at most {o.max_sentences} sentences, "
        + _model_description(o, loaded)
        + f"; {num_validation} validation sentences"
    )
    if num_validation < o.validation_sentences:
        description += f" (half of the test split: fewer than 2 x {o.validation_sentences})"
    description += f", {test_stop - num_validation} test sentences"
    synthetic_clients = ""
    if corpus.application_id == SYNTHETIC:
        synthetic_clients = f"{len(client_ids)} clients of a synthetic corpus, which fedmf wrote"
    attributes: dict[str, Any] = {
        "name": "stackoverflow_nwp",
        "description": description,
        "synthetic_clients": synthetic_clients,
        # The vocabulary may come from a separate file, which can change while the data file does
        # not. The order of clients decides which sentences are for validation, so a run that was
        # validated on other sentences is not resumed.
        "data_version": f"{corpus.version}-{loaded.version}-shuffle{_EVALUATION_SEED}",
        # Most users of the test split of StackOverflow are users of the train split too.
        "validation_clients": validation_clients_of(train_clients, corpus.client_sizes("test")),
        "client_ids": client_ids,
        "client_examples": _Cache(read_client, preprocessor.ids.classes),
        "evaluation_examples": evaluation_examples,
        "metric_note": "leaves out padding, unknown words and sentence ends",
        "batch_size": o.batch_size,
        "vocabulary": RunVocabulary(
            words=loaded.words,
            vocabulary_size=o.vocabulary_size,
            sequence_length=o.sequence_length,
            source=loaded.source,
        ),
    }
    if o.framework == "torch":
        from fedmf.tasks.stackoverflow.torch_task import torch_task

        return torch_task(o, attributes)
    from fedmf.tasks.stackoverflow.keras_task import keras_task

    return keras_task(o, attributes)


def _model_description(o: StackOverflowOptions, words: vocabulary.Vocabulary) -> str:
    """Describes vocabulary, model and loss in words, for reports."""
    words_text = f"{o.vocabulary_size} words"
    if len(words.words) < o.vocabulary_size:
        words_text += f", only {len(words.words)} of them occur"
    words_text += f", {words.source}; sequences of {o.sequence_length}; "
    words_text += f"embedding {o.embedding_size}, LSTM {o.lstm_size}"
    if o.model == "published":
        words_text += ", published form"
    if o.framework == "torch":
        words_text += ", in PyTorch"
    return f"{words_text}; {o.loss} loss"


def evaluation_order(client_ids: Iterable[str]) -> list[str]:
    """Returns the ids of test clients in the order in which the papers' code evaluates them.

    It is the order of TFF 0.87's `create_tf_dataset_from_all_clients(seed=0)`: the sorted ids,
    shuffled by numpy's legacy generator with seed 0.
    """
    shuffled_ids = sorted(client_ids)
    np.random.RandomState(_EVALUATION_SEED).shuffle(shuffled_ids)
    return shuffled_ids


def _encode_slice(
    corpus: data.Corpus, preprocessor: Preprocessor, start: int, stop: int, progress: bool
) -> Examples:
    """Encodes the sentences from number `start` to `stop` - 1 of the test split, with clients in
    the order of `evaluation_order`.

    The arrays that are returned are read-only.
    """
    sizes = corpus.client_sizes("test")
    num_sentences = stop - start
    x = np.empty((num_sentences, preprocessor.length), np.int32)
    y = np.empty_like(x)
    is_short = num_sentences < 100_000
    with progress_bar.bar(
        total=num_sentences,
        desc="reading the test split",
        unit="sentence",
        disable=is_short or not progress,
    ) as bar:
        # Clients are encoded one after the other, because the real test split has 16 million
        # sentences.
        client_start = 0
        for client_id in evaluation_order(sizes):
            size = sizes[client_id]
            client_stop = client_start + size
            first_row = max(client_start, start)
            end_row = min(client_stop, stop)
            if first_row < end_row:
                sentences = _all_sentences(corpus, client_id, size)
                row_slice = slice(first_row - start, end_row - start)
                x[row_slice], y[row_slice] = preprocessor.encode(
                    sentences[first_row - client_start : end_row - client_start]
                )
                bar.update(end_row - first_row)
            client_start = client_stop
    x.flags.writeable = False
    y.flags.writeable = False
    return x, y


def _all_sentences(corpus: data.Corpus, client_id: str, size: int) -> list[bytes]:
    """Returns the sentences of a test client, or raises an error if there are not exactly
    `size`.
    """
    sentences = corpus.sentences("test", client_id, size + 1)
    if len(sentences) != size:
        count_phrase = "more" if len(sentences) > size else f"only {len(sentences)}"
        raise ValueError(
            f"{corpus.path}: client_metadata lists {size} test examples of client "
            f"{client_id!r}, but there are {count_phrase}: fetch or write the file again"
        )
    return sentences
