"""Vocabulary of the most frequent words of a data file. As in TFF's word counts, a word's frequency
is the number of train users who use it.
"""

import contextlib
import dataclasses
import hashlib
import pathlib
import random
import warnings
from collections import Counter

from fedmf.files import write_atomically
from fedmf.tasks.stackoverflow import data
from fedmf.terminal import progress_bar

# Words are counted over at most this many users. Counting all 342,477 train users of the real file
# would take an hour, and would hardly change the order of frequent words.
MAX_COUNTED_CLIENTS = 20_000
_SAMPLE_SEED = 1


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Most frequent words of a data file, in order of frequency.

    Attributes:
      words: most frequent first; ties in the words' byte order.
      source: where the counts come from, a phrase for reports.
    """

    words: tuple[str, ...]
    source: str

    @property
    def version(self) -> str:
        """Digest of the words in their order, which decides the ids in all examples."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]


def load_vocabulary(corpus: data.Corpus, size: int, *, progress: bool = True) -> Vocabulary:
    """Returns the `size` most frequent words of a data file's train split, or all words if there
    are fewer.

    For the real `stackoverflow.sqlite`, TFF's own `stackoverflow.word_count` is used if it is one
    of the `count_files`. Otherwise the words are counted, in a huge file over a seeded sample of
    clients, and the counts are cached in `<file>.word_count` until the file changes. A warning says
    if the real file's words were sampled, since the published experiments use TFF's counts.

    Args:
      corpus: the data file.
      size: number of words, positive.
      progress: show a progress bar while counting.

    Returns:
      The vocabulary.

    Raises:
      ValueError: `size` is not positive, or TFF's word count file is not in its format.
    """
    corpus_path = corpus.path
    is_real = corpus_path.name == data.FILE_NAME and corpus.origin == data.TFF_FILE
    if is_real:
        for count_file in count_files(corpus_path):
            if count_file.is_file():
                return Vocabulary(_read_counts(count_file, size), f"TFF's {count_file.name}")
    cache_path = corpus_path.with_name(corpus_path.name + ".word_count")
    size_by_client = corpus.client_sizes("train")
    counted_clients = list(size_by_client)
    count_phrase = f"counted over all {len(counted_clients)} train clients"
    if len(counted_clients) > MAX_COUNTED_CLIENTS:
        counted_clients = sorted(
            random.Random(_SAMPLE_SEED).sample(counted_clients, MAX_COUNTED_CLIENTS)
        )
        count_phrase = (
            f"counted over a sample of {len(counted_clients)} of {len(size_by_client)} train "
            "clients"
        )
        if is_real:
            warnings.warn(
                f"the vocabulary is {count_phrase}, and not that of the published experiments: "
                "tff.simulation.datasets.stackoverflow.load_word_counts() fetches theirs, or put "
                f"it at {count_files(corpus_path)[0]}",
                stacklevel=2,
            )
    file_stat = corpus_path.stat()
    # The first line of the cache identifies the data file. It cannot be taken for the line of a
    # word, which has exactly two fields, the word and its count.
    cache_stamp = (
        f"# fedmf word counts of {file_stat.st_size} bytes at {file_stat.st_mtime_ns} ns over "
        f"{len(counted_clients)} clients"
    )
    frequent_words = _read_cache(cache_path, cache_stamp)
    if frequent_words is None:
        frequent_words = _count_words(corpus, counted_clients, progress)
        _write_cache(cache_path, cache_stamp, frequent_words)
    return Vocabulary(tuple(word for word, _ in frequent_words[:size]), count_phrase)


def count_files(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns the paths where the file of TFF's word counts for the data file at `path` may be.

    TFF 0.87 keeps the data file in ~/.tff, or in the cache_dir that it is given. Keras keeps the
    counts for it, in ~/.keras/datasets or in the folder datasets of the cache_dir.
    """
    count_folders = (path.parent, path.parent / "datasets", pathlib.Path("~/.keras/datasets"))
    return [folder.expanduser() / "stackoverflow.word_count" for folder in count_folders]


def _read_counts(path: pathlib.Path, size: int) -> tuple[str, ...]:
    """Reads the first words from TFF's file of word counts."""
    frequent_words = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            line_fields = line.split()
            if len(line_fields) != 2 or not line_fields[1].isdigit():
                raise ValueError(
                    f"{path}, line {number}, is not `word count`: replace or remove the file"
                )
            frequent_words.append(line_fields[0])
            if len(frequent_words) == size:
                break
    return tuple(frequent_words)


def _read_cache(cache: pathlib.Path, stamp: str) -> list[tuple[str, int]] | None:
    """Reads cached counts, or returns None if they belong to another version of the data file."""
    try:
        first_line, *lines = cache.read_text(encoding="utf-8").splitlines()
        if first_line != stamp:
            return None
        word_counts = [line.split() for line in lines]
        return [(word, int(count)) for word, count in word_counts]
    except (OSError, ValueError):
        # The cached vocabulary is written again if it is absent, unreadable or damaged.
        return None


def _count_words(corpus: data.Corpus, clients: list[str], progress: bool) -> list[tuple[str, int]]:
    """Counts for each word the users who use it, and returns the words by descending count."""
    users: Counter[bytes] = Counter()
    count_bar = progress_bar.bar(
        total=len(clients), desc="counting words", unit="client", disable=not progress
    )
    with count_bar:
        for client_id in clients:
            sentences = corpus.sentences("train", client_id)
            users.update({word for sentence in sentences for word in sentence.split()})
            count_bar.update()
    ordered_words = sorted(users.items(), key=lambda item: (-item[1], item[0]))
    # The counts are stored as text, as in TFF's file, which is valid UTF-8.
    return [(word.decode("utf-8", errors="replace"), count) for word, count in ordered_words]


def _write_cache(cache: pathlib.Path, stamp: str, words: list[tuple[str, int]]) -> None:
    """Writes the counts into a file beside the data file, unless the folder is read-only."""
    count_lines = "".join(f"{word} {count}\n" for word, count in words)
    with contextlib.suppress(OSError):
        write_atomically(cache, f"{stamp}\n{count_lines}", mode=0o600)
