"""StackOverflow next-word prediction as a Task."""

import collections
import functools
from collections.abc import Callable

import numpy as np

from fedmf.federated.task import Task
from fedmf.runs.vocabulary import RunVocabulary
from fedmf.tasks.stackoverflow import data, model, vocabulary
from fedmf.tasks.stackoverflow.compiled import compiled_epoch
from fedmf.tasks.stackoverflow.lstm import with_keras_lstm
from fedmf.tasks.stackoverflow.options import StackOverflowOptions
from fedmf.tasks.stackoverflow.preprocessing import Preprocessor
from fedmf.terminal import progress_bar
from fedmf.training.examples import Examples

# 342,477 clients of 256 sentences would be 14 GB; a demo's few hundred clients come back every
# epoch and fit easily.
MAX_CACHE_BYTES = 256 << 20


class _Cache:
    """Clients read last, up to MAX_CACHE_BYTES; ids of the smallest integer type that fits."""

    def __init__(self, read: Callable[[str], Examples], classes: int) -> None:
        self._read = read
        self._dtype = np.int16 if classes <= np.iinfo(np.int16).max else np.int32
        self._size = 0
        self._held: collections.OrderedDict[str, Examples] = collections.OrderedDict()

    def __call__(self, client_id: str) -> Examples:
        if client_id in self._held:
            self._held.move_to_end(client_id)
        else:
            x, y = self._read(client_id)
            self._held[client_id] = x.astype(self._dtype), y.astype(self._dtype)
            self._size += sum(part.nbytes for part in self._held[client_id])
            while self._size > MAX_CACHE_BYTES and len(self._held) > 1:
                _, dropped = self._held.popitem(last=False)
                self._size -= sum(part.nbytes for part in dropped)
        x, y = self._held[client_id]
        return x.astype(np.int32), y.astype(np.int32)  # copies: a caller may write into them


def build_task(o: StackOverflowOptions, *, progress: bool = True) -> Task:
    """The StackOverflow next-word task.

    Validation is the first `validation_sentences` sentences of the test split, clients in TFF's
    order and all sentences of each; test is the rest. A test split with fewer than twice as many
    sentences is cut in half, and the description says so. The held-out split is not used.

    Args:
      o: `data` is TFF's stackoverflow.sqlite, a synthetic corpus or imported text; None for TFF's
        cache. Nothing is downloaded.
      progress: show progress bars.

    Raises:
      FileNotFoundError: no data file; the message says what to put where.
      ValueError: a damaged file, or an empty test split.
    """
    loss = model.make_loss(o.loss)
    sizes = {name: getattr(o, name) for name in ("vocabulary_size", "embedding_size", "lstm_size")}
    corpus = data.open_corpus(o.data)
    counted = corpus if o.vocabulary_data is None else data.open_corpus(o.vocabulary_data)
    words = vocabulary.load_vocabulary(counted, o.vocabulary_size, progress=progress)
    preprocessor = Preprocessor(words.words, o.vocabulary_size, o.sequence_length)
    client_ids = tuple(corpus.client_sizes("train"))[: o.max_clients]
    known = frozenset(client_ids)

    total = sum(corpus.client_sizes("test").values())
    if total < 2:
        raise ValueError(
            f"{corpus.path} has a test split of {total} sentences: validation and test "
            "need at least one each"
        )
    first = min(o.validation_sentences, total // 2)
    last = total if o.test_sentences is None else min(total, first + o.test_sentences)

    def read(client_id: str) -> Examples:
        if client_id not in known:
            raise ValueError(
                f"client_id={client_id!r} is not a train client of this task: "
                "take one of client_ids"
            )
        return preprocessor.encode(corpus.sentences("train", client_id, o.max_sentences))

    @functools.cache
    def evaluation_examples(split: str) -> Examples:
        if split not in ("validation", "test"):
            raise ValueError(f"split={split!r} must be 'validation' or 'test'")
        start, stop = (0, first) if split == "validation" else (first, last)
        return _encode_slice(corpus, preprocessor, start, stop, progress)

    halved = (
        f" (half of the test split: fewer than 2 x {o.validation_sentences})"
        if first < o.validation_sentences
        else ""
    )
    missing = (
        f", only {len(words.words)} of them occur" if len(words.words) < o.vocabulary_size else ""
    )
    # Without the file's name: a run may be resumed on the same data under another.
    description = (
        f"StackOverflow next-word prediction on the {corpus.origin}: {len(client_ids)} train "
        f"clients of at most {o.max_sentences} sentences, {o.vocabulary_size} words{missing}, "
        f"{words.source}; sequences of {o.sequence_length}; embedding {o.embedding_size}, "
        f"LSTM {o.lstm_size}{', published form' * (o.model == 'published')}; {o.loss} loss; "
        f"{first} validation sentences{halved}, {last - first} test sentences"
    )
    return Task(
        name="stackoverflow_nwp",
        description=description,
        # The words come from a file of their own, which can change while the data file does not.
        data_version=f"{corpus.version}-{words.version}",
        client_ids=client_ids,
        client_examples=_Cache(read, preprocessor.ids.classes),
        evaluation_examples=evaluation_examples,
        build_model=functools.partial(
            model.build_model, sequence_length=o.sequence_length, form=o.model, **sizes
        ),
        loss=loss,
        metric_note="leaves out padding, unknown words and sentence ends",
        metrics=functools.partial(model.make_metrics, o.loss, preprocessor.ids),
        batch_size=o.batch_size,
        export_model=with_keras_lstm,
        vocabulary=RunVocabulary(
            words=words.words,
            vocabulary_size=o.vocabulary_size,
            sequence_length=o.sequence_length,
            source=words.source,
        ),
        compiled_epoch=compiled_epoch(**sizes, form=o.model, loss=o.loss, batch_size=o.batch_size),
    )


def _encode_slice(
    corpus: data.Corpus, preprocessor: Preprocessor, start: int, stop: int, progress: bool
) -> Examples:
    """Sentences start .. stop - 1 of the test split in TFF's client order, as read-only arrays."""
    x = np.empty((stop - start, preprocessor.length), np.int32)
    y = np.empty_like(x)
    # Client by client into place: the real test split has 16 million sentences.
    hidden = not progress or stop - start < 100_000
    with progress_bar.bar(
        total=stop - start, desc="reading the test split", unit="sentence", disable=hidden
    ) as bar:
        seen = 0
        for client_id, size in corpus.client_sizes("test").items():
            begin, end = max(seen, start), min(seen + size, stop)
            if begin < end:
                sentences = corpus.sentences("test", client_id, size + 1)
                if len(sentences) != size:
                    number = "more" if len(sentences) > size else f"only {len(sentences)}"
                    raise ValueError(
                        f"{corpus.path}: client_metadata promises {size} test examples of client "
                        f"{client_id!r}, but there are {number}: fetch or write the file again"
                    )
                place = slice(begin - start, end - start)
                x[place], y[place] = preprocessor.encode(sentences[begin - seen : end - seen])
                bar.update(end - begin)
            seen += size
    x.flags.writeable = y.flags.writeable = False
    return x, y
