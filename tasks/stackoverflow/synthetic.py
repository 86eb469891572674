"""Writes a synthetic corpus in the format of TFF's stackoverflow.sqlite: offline work goes through
the same loader.

What is copied from the real file: the two tables, the three splits, tf.train.Example records of six
features, users as numeric strings with held-out users divisible by ten, test clients that are
mostly train users at dates after 2018-01-01, posts with several sentences that share date, title,
tags, score and type. The words are made up (tasks/stackoverflow/language.py).
"""

import datetime
import os
import pathlib

import numpy as np

from fedmf import checks
from fedmf.files import expanded
from fedmf.tasks import data_file, example_proto
from fedmf.tasks.stackoverflow import language
from fedmf.terminal import progress_bar

_EPOCH = datetime.datetime(2008, 8, 1)
_DAYS_BEFORE_2018 = (datetime.datetime(2018, 1, 1) - _EPOCH).days
_DAYS_AFTER_2018 = 400
_SENTENCES_PER_POST = 4.0
_CLIENTS_PER_TRANSACTION = 200
_TOPICS = 8
# For each train user: of the real file. Four in five test users are train users too.
_HELDOUT_USERS, _TEST_USERS = 0.11, 0.6


def write_synthetic_corpus(
    path: str | os.PathLike[str],
    *,
    clients: int = 1_000,
    seed: int = 0,
    sentences_per_client: float = 64.0,
    vocabulary_size: int = 1_000,
    overwrite: bool = False,
    progress: bool = True,
) -> pathlib.Path:
    """Writes a synthetic StackOverflow corpus, any number of clients in bounded memory, and returns
    its path.

    The same arguments give the same rows in the same order. A user's sentences depend on (seed,
    user, vocabulary_size, sentences_per_client) only. The file appears under its name when it is
    complete; a killed writer leaves a hidden `.<name>.<process id>.partial`, which the next writer
    of the same name removes.

    Args:
      path: file to write, such as "stackoverflow.sqlite"; its folder must exist.
      clients: number of users in the train split.
      seed: draws users and sentences.
      sentences_per_client: mean number of train sentences of a user (log-normal, at least 4); half
        of it in the test split.
      vocabulary_size: number of words of the language, function words included.
      overwrite: replace an existing file.
      progress: show a progress bar.

    Raises:
      TypeError: an argument of the wrong kind.
      ValueError: an argument out of range, an existing file without `overwrite`, or a folder that
        cannot be written.
    """
    hint = "use a whole number"
    checks.integer("clients", clients, low=1, high=100_000_000, hint=hint)
    checks.integer("seed", seed, low=0, high=2**63 - 1, hint=hint)
    checks.integer("vocabulary_size", vocabulary_size, low=1, high=10_000_000, hint=hint)
    mean = checks.finite_float("sentences_per_client", sentences_per_client, hint="use 4 or more")
    if not 4 <= mean <= 100_000:
        raise ValueError(f"sentences_per_client={mean:g} must lie between 4 and 100000")
    words = language.make_language(vocabulary_size, _TOPICS)
    path = expanded(path)
    users = _users(clients)
    total = sum(len(numbers) for numbers in users.values())
    with (
        data_file.create(path, data_file.SYNTHETIC, overwrite=overwrite) as connection,
        progress_bar.bar(
            total=total, desc=f"writing {path.name}", unit="client", disable=not progress
        ) as bar,
    ):
        for split in data_file.SPLITS:
            of_split = mean / 2 if split == "test" else mean
            for start in range(0, len(users[split]), _CLIENTS_PER_TRANSACTION):
                block = users[split][start : start + _CLIENTS_PER_TRANSACTION]
                for number in map(int, block):
                    records = _records(words, split, number, of_split, seed)
                    data_file.write_client(connection, str(number), split, records)
                connection.commit()
                bar.update(len(block))
    return path


def _users(clients: int) -> dict[str, np.ndarray]:
    """split -> user numbers: multiples of ten are held out, a test user is a train user four times
    in five.
    """
    heldout = 10 * (1 + np.arange(round(clients * _HELDOUT_USERS)))
    test = round(clients * _TEST_USERS)
    known = min(clients, test * 4 // 5)
    others = np.arange(clients + test - known)
    others = 10 * (others // 9) + others % 9 + 1  # the numbers not divisible by ten, in order
    step = clients / max(known, 1)
    return {
        "train": others[:clients],
        "heldout": heldout,
        "test": np.concatenate(
            [others[(np.arange(known) * step).astype(np.int64)], others[clients:]]
        ),
    }


def _generator(seed: int, user: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array([seed, 4 * user + stream], np.uint64)))


def _records(
    words: language.Language, split: str, user: int, mean: float, seed: int
) -> list[bytes]:
    """The serialized examples of one user in one split, oldest post first."""
    # The same in train and test: the same person
    style = language.draw_style(words, _generator(seed, user, 3))
    rng = _generator(seed, user, data_file.SPLITS.index(split))
    spread = 0.7
    count = max(4, round(min(mean * rng.lognormal(-(spread**2) / 2, spread), 50 * mean)))
    starts = rng.random(count) < 1 / _SENTENCES_PER_POST
    starts[0] = True
    post = np.cumsum(starts) - 1
    posts = int(post[-1]) + 1
    question = rng.random(posts) < 0.4
    topic = rng.choice(len(words.topics), size=posts, p=style.topic_weights)
    # Posts wander: a sentence of another topic now and then keeps a client's vocabulary from being
    # a single list.
    strays = rng.random(count) < 0.1
    topics = np.where(strays, rng.choice(len(words.topics), size=count), topic[post])
    # Sentences and the posts' titles, which read like questions, in one draw:
    # the cost is the numpy calls.
    asking = np.concatenate([question[post], np.ones(posts, bool)])
    drawn = language.draw_sentences(words, style, np.concatenate([topics, topic]), asking, rng)
    texts = _texts(words, *drawn)
    sentences, titles = texts[:count], texts[count:]
    dates = _dates(split, posts, rng)
    scores = np.floor(rng.exponential(4.0, size=posts)).astype(np.int64) - 2
    second_tag = rng.choice(words.nouns.shape[1], size=posts, p=language.zipf(words.nouns.shape[1]))
    posts_features = [
        {
            "creation_date": dates[i].encode(),
            "score": int(scores[i]),
            "tags": "|".join(
                (words.topics[topic[i]], words.words[words.nouns[topic[i], second_tag[i]]])
            ).encode(),
            "title": titles[i].encode(),
            "type": b"question" if question[i] else b"answer",
        }
        for i in range(posts)
    ]
    return [
        example_proto.encode_example(posts_features[i] | {"tokens": text.encode()})
        for i, text in zip(post.tolist(), sentences, strict=True)
    ]


def _texts(words: language.Language, ids: np.ndarray, lengths: np.ndarray) -> list[str]:
    flat = [words.words[i] for i in ids.tolist()]
    ends = np.cumsum(lengths).tolist()
    return [" ".join(flat[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _dates(split: str, posts: int, rng: np.random.Generator) -> list[str]:
    if split == "train":
        low, high = rng.integers(0, _DAYS_BEFORE_2018 - 400), _DAYS_BEFORE_2018
    elif split == "heldout":
        low, high = rng.integers(0, _DAYS_BEFORE_2018 - 400), _DAYS_BEFORE_2018 + _DAYS_AFTER_2018
    else:
        low, high = _DAYS_BEFORE_2018, _DAYS_BEFORE_2018 + _DAYS_AFTER_2018
    tenths = np.sort(rng.integers(int(low) * 864_000, high * 864_000, size=posts)).tolist()
    dates = []
    for tenth in tenths:
        moment = _EPOCH + datetime.timedelta(seconds=tenth // 10)
        dates.append(
            moment.strftime("%Y-%m-%d %H:%M:%S") + (f".{tenth % 10} UTC" if tenth % 10 else " UTC")
        )
    return dates
