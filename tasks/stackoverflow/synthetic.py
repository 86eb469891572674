"""Writer of a synthetic corpus in the format of TFF's stackoverflow.sqlite, so that offline work
uses the same loader.

The corpus has the two tables and three splits of the real file, and tf.train.Example records of six
features. Users are numeric strings, held-out users divisible by ten. Test clients are mostly train
users at dates after 2018-01-01. Posts have several sentences that share date, title, tags, score
and type. The words are synthetic (tasks/stackoverflow/language.py).
"""

import datetime
import os
import pathlib

import numpy as np

from fedmf import checks
from fedmf.files import expanded
from fedmf.tasks import data_file, example_proto
from fedmf.tasks.stackoverflow import language
from fedmf.tasks.stackoverflow.user_sentences import draw_sentences, draw_style
from fedmf.terminal import progress_bar

_EPOCH = datetime.datetime(2008, 8, 1)
_DAYS_BEFORE_2018 = (datetime.datetime(2018, 1, 1) - _EPOCH).days
_DAYS_AFTER_2018 = 400
_SENTENCES_PER_POST = 4.0
_CLIENTS_PER_TRANSACTION = 200
_TOPICS = 8
# Number of held-out and of test users for each train user, as in the real file. Four in five test
# users are also train users.
_HELDOUT_USERS = 0.11
_TEST_USERS = 0.6


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
    """Writes a synthetic StackOverflow corpus and returns its path.

    Memory is bounded for any number of clients.

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
    seed_hint = "use a whole number"
    checks.integer("clients", clients, low=1, high=100_000_000, hint=seed_hint)
    checks.integer("seed", seed, low=0, high=2**63 - 1, hint=seed_hint)
    checks.integer("vocabulary_size", vocabulary_size, low=1, high=10_000_000, hint=seed_hint)
    mean_sentences = checks.finite_float(
        "sentences_per_client", sentences_per_client, hint="use 4 or more"
    )
    if not 4 <= mean_sentences <= 100_000:
        raise ValueError(f"sentences_per_client={mean_sentences:g} must lie between 4 and 100000")
    synthetic_language = language.make_language(vocabulary_size, _TOPICS)
    path = expanded(path)
    users_by_split = _users(clients)
    num_users = sum(len(numbers) for numbers in users_by_split.values())
    with (
        data_file.create(path, data_file.SYNTHETIC, overwrite=overwrite) as connection,
        progress_bar.bar(
            total=num_users, desc=f"writing {path.name}", unit="client", disable=not progress
        ) as bar,
    ):
        for split in data_file.SPLITS:
            split_mean = mean_sentences / 2 if split == "test" else mean_sentences
            for start in range(0, len(users_by_split[split]), _CLIENTS_PER_TRANSACTION):
                user_block = users_by_split[split][start : start + _CLIENTS_PER_TRANSACTION]
                for number in map(int, user_block):
                    records = _records(synthetic_language, split, number, split_mean, seed)
                    data_file.write_client(connection, str(number), split, records)
                connection.commit()
                bar.update(len(user_block))
    return path


def _users(clients: int) -> dict[str, np.ndarray]:
    """Returns the numbers of the users in each split of the data.

    Multiples of ten are held out. Four in five test users are train users.
    """
    heldout_numbers = 10 * (1 + np.arange(round(clients * _HELDOUT_USERS)))
    num_test = round(clients * _TEST_USERS)
    num_shared = min(clients, num_test * 4 // 5)
    user_index = np.arange(clients + num_test - num_shared)
    # Numbers that are not multiples of ten, in ascending order. The multiples of ten are held-out
    # users.
    user_numbers = 10 * (user_index // 9) + user_index % 9 + 1
    shared_step = clients / max(num_shared, 1)
    shared_numbers = user_numbers[(np.arange(num_shared) * shared_step).astype(np.int64)]
    return {
        "train": user_numbers[:clients],
        "heldout": heldout_numbers,
        "test": np.concatenate([shared_numbers, user_numbers[clients:]]),
    }


def _generator(seed: int, user: int, stream: int) -> np.random.Generator:
    """Returns the random generator of a user for one purpose, which `stream` numbers."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, 4 * user + stream], np.uint64)))


def _records(
    words: language.Language, split: str, user: int, mean: float, seed: int
) -> list[bytes]:
    """Draws the serialized examples of one user in one split, oldest post first."""
    # A user who is in two splits writes in the same style in both, so the style's generator does
    # not depend on the split.
    user_style = draw_style(words, _generator(seed, user, 3))
    rng = _generator(seed, user, data_file.SPLITS.index(split))
    length_spread = 0.7
    num_sentences = max(
        4, round(min(mean * rng.lognormal(-(length_spread**2) / 2, length_spread), 50 * mean))
    )
    is_start = rng.random(num_sentences) < 1 / _SENTENCES_PER_POST
    is_start[0] = True
    post_index = np.cumsum(is_start) - 1
    num_posts = int(post_index[-1]) + 1
    is_question = rng.random(num_posts) < 0.4
    post_topic = rng.choice(len(words.topics), size=num_posts, p=user_style.topic_weights)
    # A tenth of the sentences are not on the topic of their post, so that a client's vocabulary is
    # not the word list of a single topic.
    is_stray = rng.random(num_sentences) < 0.1
    stray_topic = rng.choice(len(words.topics), size=num_sentences)
    sentence_topics = np.where(is_stray, stray_topic, post_topic[post_index])
    # Sentences and titles (which read like questions) are drawn in one call, because the time
    # depends most on the number of numpy calls.
    ids, lengths = draw_sentences(
        words,
        user_style,
        np.concatenate([sentence_topics, post_topic]),
        np.concatenate([is_question[post_index], np.ones(num_posts, bool)]),
        rng,
    )
    texts = _texts(words, ids, lengths)
    sentences = texts[:num_sentences]
    post_titles = texts[num_sentences:]
    post_dates = _dates(split, num_posts, rng)
    post_scores = np.floor(rng.exponential(4.0, size=num_posts)).astype(np.int64) - 2
    num_nouns = words.nouns.shape[1]
    second_tag = rng.choice(num_nouns, size=num_posts, p=language.zipf(num_nouns))
    post_features = []
    for i, topic in enumerate(post_topic):
        post_tags = f"{words.topics[topic]}|{words.words[words.nouns[topic, second_tag[i]]]}"
        record_features = {
            "creation_date": post_dates[i].encode(),
            "score": int(post_scores[i]),
            "tags": post_tags.encode(),
            "title": post_titles[i].encode(),
            "type": b"question" if is_question[i] else b"answer",
        }
        post_features.append(record_features)
    return [
        example_proto.encode_example(post_features[i] | {"tokens": sentence.encode()})
        for i, sentence in zip(post_index.tolist(), sentences, strict=True)
    ]


def _texts(words: language.Language, ids: np.ndarray, lengths: np.ndarray) -> list[str]:
    """Returns the sentences as texts, in which blanks separate the words."""
    all_words = [words.words[i] for i in ids.tolist()]
    end_offsets = np.cumsum(lengths).tolist()
    start_offsets = [0, *end_offsets[:-1]]
    return [
        " ".join(all_words[start:end])
        for start, end in zip(start_offsets, end_offsets, strict=True)
    ]


def _dates(split: str, num_posts: int, rng: np.random.Generator) -> list[str]:
    """Draws the dates of a user's posts in ascending order, in the real file's format."""
    first_day = _DAYS_BEFORE_2018
    last_day = _DAYS_BEFORE_2018
    if split != "test":
        first_day = int(rng.integers(0, _DAYS_BEFORE_2018 - 400))
    if split != "train":
        last_day += _DAYS_AFTER_2018
    sorted_tenths = np.sort(
        rng.integers(first_day * 864_000, last_day * 864_000, size=num_posts)
    ).tolist()
    date_texts = []
    for tenth in sorted_tenths:
        moment = _EPOCH + datetime.timedelta(seconds=tenth // 10)
        date_text = moment.strftime("%Y-%m-%d %H:%M:%S")
        if tenth % 10:
            date_text += f".{tenth % 10}"
        date_texts.append(f"{date_text} UTC")
    return date_texts
