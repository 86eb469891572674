"""The made-up language of the synthetic corpus: a lexicon, clause templates, and topics that decide
the content words.

What there is to learn, from easy to hard:
  1. which words are frequent (the unigram guess);
  2. fixed runs of function words inside a clause ("i am trying to", "is there a way to"): a bigram
     model gets them;
  3. which clause one is in and where ("do i" is followed by a verb, "the" by a noun of the topic, a
     clause by its
    joint);
  4. the topic of the sentence, from any content word so far: it decides the frequent nouns, verbs
     and the technology's
    name;
  5. collocations (each verb and adjective has a favourite noun, each noun a favourite verb) and
     nouns that come back.

The language is a pure function of its two sizes: corpora made from different seeds speak the same
language through different users.
"""

import dataclasses
import functools

import numpy as np

# One weight and one clause a line. Content words: N noun, V verb, A adjective, T technology (the
# topic's own name). Small words: D determiner, M modal, P preposition, R adverb (mostly left out).
# The rest stands for itself.
_QUESTION_CLAUSES = """
5 i am R trying to V D N
4 how do i V D N P D N ?
3 how M i V D N in T ?
3 is there R a way to V D N ?
2 i have D A N and i want to V it
3 when i V D N i R get an error
2 this is D N :
1 it R works in T but not in T
3 i want to V D N P D N
2 what is the best way to V D A N ?
1 M someone tell me why D N is A ?
2 i get the following N P D N :
1 any help would be appreciated
2 thanks in advance
1 i am R new to T
1 what am i doing wrong ?
1 i do not R understand how T M V D N
2 D N M V D N P T ?
2 should i R V D N or V D N ?
"""
_ANSWER_CLAUSES = """
5 you M R use D N to V D N
4 you need to V D N P D N
3 if you V D N , D N M be A
2 you M not V D N
2 D A N is R used to V D N
2 R V D N
1 try to V D N before you V D N
3 the problem is that D N is not A
2 that is because D N does not V D N
2 i think you are looking for D A N
1 hope this helps
1 have a look at D N
1 here is an example of D A N :
1 as far as i know , T M not V D N
2 in T , D N is R A
2 make sure that D N is A
1 you M also V it P D A N
2 it M V D N P D N
2 D N and D N M be A
"""
_COMMON_CLAUSES = """
4 D N is R A
2 it is R the same as D N
2 there is no N P D N
1 edit :
1 see D N P D A N
2 note that D N is A
2 this M V D N
1 one of D N has to be A
2 D N does not V
2 D N P D N M V D N
1 <URL>
"""
_CHOICES = {  # weights fall off as in Zipf's law; every user has a taste of their own
    "D": "the a this my your that each some",
    "M": "can will should could would might must",
    "P": "in with from on for of into at",
    "R": "just also really simply only actually probably then",
}
_ADVERB_SHARE = 0.3
_JOINTS = (
    (".", 5.0),
    (", but", 2.0),
    ("and", 4.0),
    ("because", 2.0),
    (", so", 2.0),
    ("when", 1.0),
    ("so that", 1.0),
)
_ENDS = ((".", 8.0), ("?", 1.0), ("!", 0.5), ("", 1.0))
_TOPIC_NAMES = (
    "python sql css java git android excel linux perl ruby regex swift docker matlab vim bash"
)
_SHARED_NOUNS = (
    "code file data value function list name line error example time string type number user"
)
_ONSETS, _VOWELS = "b d f g k l m n p r s t v z st tr pl gr", "aeiou"

_NOTHING = -1
NOUN, VERB, ADJECTIVE, TECHNOLOGY = -2, -3, -4, -5
DETERMINER, MODAL, PREPOSITION, ADVERB = -6, -7, -8, -9
_SLOTS = dict(zip("NVATDMPR", range(NOUN, ADVERB - 1, -1), strict=True))
MAX_TOPICS = len(_TOPIC_NAMES.split())
MAX_CLAUSES = 3


def zipf(size: int, shift: float = 1.5) -> np.ndarray:
    """Zipf-Mandelbrot probabilities of ranks 0 .. size - 1, float64 (size,)."""
    weights = (np.arange(size) + shift) ** -1.1
    return weights / weights.sum()


def _parse(text: str) -> tuple[np.ndarray, list[list[str]]]:
    lines = [line.split() for line in text.strip().splitlines()]
    return np.array([float(line[0]) for line in lines]), [line[1:] for line in lines]


def _content_word(index: int, ending: str) -> str:
    # Mixed-radix digits become syllables; multiplying by a number prime to the radix keeps
    # neighbours from looking alike.
    onsets, vowels = _ONSETS.split(), _VOWELS
    radix = len(onsets) * len(vowels)
    count = 2
    while index >= radix**count:
        index, count = index - radix**count, count + 1
    scrambled = index * 7919 % radix**count
    digits = [scrambled // radix**place % radix for place in range(count)]
    return (
        "".join(onsets[digit % len(onsets)] + vowels[digit // len(onsets)] for digit in digits)
        + ending
    )


@dataclasses.dataclass(frozen=True)
class Language:
    """Words by id and the tables that sentences are drawn from.

    Attributes:
      words: id -> word; function words first.
      topics: names of the technologies, one a topic.
      clauses: (number of clauses, longest clause) int64, word ids or slot codes, -1 beyond the end.
      closed: (number of clauses,) bool, whether the clause brings its own punctuation.
      question_weights, answer_weights: float64, probability of each clause in posts of either type.
      joints, ends: int64 (choices, 2), one or two word ids, -1 for none; joint_weights,
        end_weights: their probabilities.
      small: slot code -> word ids of determiners, modals, prepositions and adverbs, the most
        frequent first.
      technology: (topics,) word ids. shared: (nouns,) word ids that every topic uses.
      nouns, verbs, adjectives: (topics, size) word ids, the topic's most frequent first.
      favourite: (words,) int64: the noun that a verb or adjective goes with, the verb that a noun
        goes with.
    """

    words: list[str]
    topics: list[str]
    clauses: np.ndarray
    closed: np.ndarray
    question_weights: np.ndarray
    answer_weights: np.ndarray
    joints: np.ndarray
    joint_weights: np.ndarray
    ends: np.ndarray
    end_weights: np.ndarray
    small: dict[int, np.ndarray]
    technology: np.ndarray
    shared: np.ndarray
    nouns: np.ndarray
    verbs: np.ndarray
    adjectives: np.ndarray
    favourite: np.ndarray


def _smallest(topics: int) -> int:
    function_words = {
        word
        for text in (_QUESTION_CLAUSES, _ANSWER_CLAUSES, _COMMON_CLAUSES)
        for word in text.split()
    }
    function_words.update(word for text in _CHOICES.values() for word in text.split())
    return len(function_words) + len(_SHARED_NOUNS.split()) + 16 * topics


@functools.cache
def make_language(vocabulary_size: int, topics: int) -> Language:
    """The language with `vocabulary_size` words and `topics` topics; the same sizes give
    the same language.

    Raises:
      ValueError: too few words for the clauses and topics, or more topics than have names.
    """
    if not 1 <= topics <= MAX_TOPICS:
        raise ValueError(f"topics={topics} must lie between 1 and {MAX_TOPICS}")
    if vocabulary_size < _smallest(topics):
        raise ValueError(
            f"vocabulary_size={vocabulary_size} is too small for {topics} topics: "
            f"use {_smallest(topics)}+"
        )
    words: list[str] = []
    ids: dict[str, int] = {}

    def intern(word: str) -> int:
        if word not in ids:
            ids[word] = len(words)
            words.append(word)
        return ids[word]

    q_weights, questions = _parse(_QUESTION_CLAUSES)
    a_weights, answers = _parse(_ANSWER_CLAUSES)
    c_weights, common = _parse(_COMMON_CLAUSES)
    clauses = questions + answers + common
    table = np.full((len(clauses), max(map(len, clauses))), _NOTHING, np.int64)
    for row, clause in zip(table, clauses, strict=True):
        row[: len(clause)] = [_SLOTS[word] if word in _SLOTS else intern(word) for word in clause]
    question = np.concatenate([q_weights, 0.05 * a_weights, c_weights])
    answer = np.concatenate([0.05 * q_weights, a_weights, c_weights])

    small = {
        _SLOTS[slot]: np.array([intern(word) for word in text.split()])
        for slot, text in _CHOICES.items()
    }

    def pieces(choices: tuple[tuple[str, float], ...]) -> tuple[np.ndarray, np.ndarray]:
        rows = [[intern(word) for word in text.split()] for text, _ in choices]
        weights = np.array([weight for _, weight in choices])
        table = np.array([row + [_NOTHING] * (2 - len(row)) for row in rows])
        return table, weights / weights.sum()

    (joints, joint_weights), (ends, end_weights) = pieces(_JOINTS), pieces(_ENDS)
    technology = np.array([intern(name) for name in _TOPIC_NAMES.split()[:topics]])
    shared = np.array([intern(noun) for noun in _SHARED_NOUNS.split()], np.int64)

    left = (vocabulary_size - len(words)) // topics
    sizes = {"et": left * 5 // 10, "": left * 3 // 10}
    sizes["ic"] = left - sum(sizes.values())
    tables = {}
    coined = 0
    for ending, size in sizes.items():
        tables[ending] = np.empty((topics, size), np.int64)
        for position in np.ndindex(topics, size):
            word = _content_word(coined, ending)
            while word in ids:
                coined += 1
                word = _content_word(coined, ending)
            tables[ending][position] = intern(word)
            coined += 1
    nouns, verbs, adjectives = tables["et"], tables[""], tables["ic"]
    # Of the division above: every topic shares these, so that the language has exactly the words
    # asked for.
    rest = []
    while len(words) < vocabulary_size:
        rest.append(intern(_content_word(coined, "et")))
        coined += 1
    shared = np.concatenate([shared, np.array(rest, np.int64)])

    favourite = np.zeros(len(words), np.int64)
    rng = np.random.Generator(np.random.Philox(key=2023))
    for topic in range(topics):
        for leaders, likes in ((verbs, nouns), (adjectives, nouns), (nouns, verbs)):
            favourite[leaders[topic]] = rng.choice(
                likes[topic], size=leaders.shape[1], p=zipf(likes.shape[1], 8.0)
            )
    favourite[shared] = rng.choice(verbs.ravel(), size=len(shared))
    return Language(
        words=words,
        topics=_TOPIC_NAMES.split()[:topics],
        clauses=table,
        closed=np.array([clause[-1] in ("?", ":", "<URL>") for clause in clauses]),
        question_weights=question / question.sum(),
        answer_weights=answer / answer.sum(),
        joints=joints,
        joint_weights=joint_weights,
        ends=ends,
        end_weights=end_weights,
        small=small,
        technology=technology,
        shared=shared,
        nouns=nouns,
        verbs=verbs,
        adjectives=adjectives,
        favourite=favourite,
    )


@dataclasses.dataclass(frozen=True)
class Style:
    """How one user writes.

    Attributes:
      topic_weights: float64 (topics,). question_weights, answer_weights: float64 (clauses,).
      clause_counts: float64 (3,), probability of one, two or three clauses in a sentence.
      small: slot code -> float64 probabilities of the small words.
      own_nouns: int64, word ids of the few nouns that this user likes.
    """

    topic_weights: np.ndarray
    question_weights: np.ndarray
    answer_weights: np.ndarray
    clause_counts: np.ndarray
    small: dict[int, np.ndarray]
    own_nouns: np.ndarray


def draw_style(language: Language, rng: np.random.Generator) -> Style:
    """A user's style: few topics out of all, own clause habits, own sentence length, a handful of
    own nouns.
    """
    topics = len(language.topics)
    base = zipf(topics, 3.0)
    topic_weights = rng.dirichlet(np.maximum(0.35 * topics * base, 0.05))
    taste = rng.gamma(2.0, 0.5, size=len(language.clauses))
    question, answer = language.question_weights * taste, language.answer_weights * taste
    main = int(np.argmax(topic_weights))
    return Style(
        topic_weights=topic_weights,
        question_weights=question / question.sum(),
        answer_weights=answer / answer.sum(),
        clause_counts=rng.dirichlet(np.array([6.0, 4.0, 1.0])),
        small={
            slot: rng.dirichlet(8.0 * len(ids) * zipf(len(ids)))
            for slot, ids in language.small.items()
        },
        own_nouns=rng.choice(language.nouns[main], size=4, p=zipf(language.nouns.shape[1])),
    )


def _choose(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(weights)[:-1], uniform)


@functools.cache
def _zipf_borders(size: int) -> np.ndarray:
    return np.cumsum(zipf(size))[:-1]


def _rank(size: int, uniform: np.ndarray) -> np.ndarray:
    return np.searchsorted(_zipf_borders(size), uniform)


def draw_sentences(
    language: Language,
    style: Style,
    topics: np.ndarray,
    questions: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws one sentence for each entry of `topics`.

    Args:
      language: the language. style: the user's.
      topics: int64 (sentences,), topic of each. questions: bool (sentences,),
        whether its post is a question.
      rng: source of randomness.

    Returns:
      (ids, lengths): int64 word ids of all sentences one after the other, and each sentence's
      length >= 1.
    """
    count = len(topics)
    uniform = rng.random((count, 2 * MAX_CLAUSES + 1))
    clause_count = 1 + _choose(style.clause_counts, uniform[:, 0])
    parts = []
    for index in range(MAX_CLAUSES):
        asked, answered = (
            _choose(weights, uniform[:, 1 + 2 * index])
            for weights in (style.question_weights, style.answer_weights)
        )
        pick = np.where(questions, asked, answered)
        parts.append(np.where((index < clause_count)[:, None], language.clauses[pick], _NOTHING))
        last = np.equal(index + 1, clause_count)[:, None]
        place = uniform[:, 2 + 2 * index]
        joint = language.joints[_choose(language.joint_weights, place)]
        end = language.ends[_choose(language.end_weights, place)]
        more = np.less(index + 1, clause_count)[:, None]
        join = np.where(last, end, np.where(more, joint, _NOTHING))
        # After its own punctuation a clause needs no end and no joint.
        parts.append(np.where(language.closed[pick][:, None], _NOTHING, join))
    codes = np.concatenate(parts, axis=1)
    present = (codes != _NOTHING) & ((codes != ADVERB) | (rng.random(codes.shape) < _ADVERB_SHARE))
    lengths = present.sum(axis=1)
    flat = codes[present]
    _fill(language, style, topics, flat, lengths, rng)
    return flat, lengths


def _fill(
    language: Language,
    style: Style,
    topics: np.ndarray,
    flat: np.ndarray,
    lengths: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Replaces the slot codes in `flat` by words: the first slot of every sentence, then every
    second, and so on.
    """
    whose = np.repeat(np.arange(len(lengths)), lengths)
    for slot, ids in language.small.items():
        where = np.flatnonzero(flat == slot)
        flat[where] = ids[_choose(style.small[slot], rng.random(len(where)))]
        if slot == PREPOSITION:  # half of the time the topic decides
            fixed = where[rng.random(len(where)) < 0.5]
            flat[fixed] = ids[topics[whose[fixed]] % len(ids)]
    slots = np.flatnonzero(flat < _NOTHING)
    sentence = whose[slots]
    order = np.arange(len(slots)) - np.searchsorted(sentence, sentence)
    last_noun = np.full(len(lengths), _NOTHING)
    last_leader = np.full(len(lengths), _NOTHING)  # the verb or adjective that waits for its noun
    for step in range(int(order.max(initial=-1)) + 1):
        at = order == step
        where, who = slots[at], sentence[at]
        kind, topic = flat[where], topics[who]
        coin, rank = rng.random(len(where)), rng.random(len(where))

        topical_noun, topical_verb, adjective = (
            table[topic, _rank(table.shape[1], rank)]
            for table in (language.nouns, language.verbs, language.adjectives)
        )
        leader, previous = last_leader[who], last_noun[who]
        shared = language.shared[_rank(len(language.shared), rank)]
        noun = np.where(coin < 0.10, shared, topical_noun)
        own = style.own_nouns[(rank * len(style.own_nouns)).astype(np.int64)]
        noun = np.where(coin > 0.90, own, noun)
        noun = np.where((previous >= 0) & (coin > 0.60) & (coin <= 0.90), previous, noun)
        noun = np.where((leader >= 0) & (coin > 0.40), language.favourite[leader], noun)
        verb = np.where((previous >= 0) & (coin > 0.50), language.favourite[previous], topical_verb)
        other = language.technology[(rank * len(language.technology)).astype(np.int64)]
        technology = np.where(coin > 0.15, language.technology[topic], other)
        word = np.select(
            [kind == NOUN, kind == VERB, kind == ADJECTIVE], [noun, verb, adjective], technology
        )
        flat[where] = word
        last_noun[who] = np.where(kind == NOUN, word, previous)
        last_leader[who] = np.where(
            (kind == VERB) | (kind == ADJECTIVE), word, np.where(kind == NOUN, _NOTHING, leader)
        )
