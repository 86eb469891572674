"""Synthetic language of the synthetic corpus, made of a lexicon, clause templates, and topics that
decide the content words.

A model can learn, from easy to hard:
  1. which words are frequent (the unigram guess);
  2. fixed runs of function words inside a clause ("i am trying to", "is there a way to"): a bigram
     model gets them;
  3. the clause and the position in it ("do i" is followed by a verb, "the" by a noun of the topic,
     a clause by its joint);
  4. the topic of the sentence, from any content word so far: it decides the frequent nouns, verbs
     and the name of the technology;
  5. collocations (each verb and adjective has a favourite noun, each noun a favourite verb) and
     nouns that are repeated.

The language is a pure function of its two sizes: corpora made from different seeds speak the same
language through different users.
"""

import dataclasses
import functools

import numpy as np

from fedmf.tasks.stackoverflow.lexicon import NOTHING, Lexicon

# Each line has a weight and a clause template. In a template, the letters N, V, A and T stand for a
# noun, verb, adjective or technology (the topic's name), and D, M, P and R for a determiner, modal,
# preposition or adverb.
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
# The function words of each kind, from frequent to rare. Their weights decrease as in Zipf's law,
# and differ between users.
_CHOICES = {
    "D": "the a this my your that each some",
    "M": "can will should could would might must",
    "P": "in with from on for of into at",
    "R": "just also really simply only actually probably then",
}
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
NOUN, VERB, ADJECTIVE, TECHNOLOGY = -2, -3, -4, -5
DETERMINER, MODAL, PREPOSITION, ADVERB = -6, -7, -8, -9
_SLOTS = dict(zip("NVATDMPR", range(NOUN, ADVERB - 1, -1), strict=True))
MAX_TOPICS = len(_TOPIC_NAMES.split())
MAX_CLAUSES = 3


def zipf(size: int, shift: float = 1.5) -> np.ndarray:
    """Returns the Zipf-Mandelbrot probabilities of the ranks 0 to size - 1, float64 of shape
    (size,).
    """
    rank_weights = (np.arange(size) + shift) ** -1.1
    return rank_weights / rank_weights.sum()


def _parse_clauses(text: str) -> tuple[np.ndarray, list[list[str]]]:
    """Parses a table of clauses into their weights and their words."""
    split_lines = [line.split() for line in text.strip().splitlines()]
    return np.array([float(line[0]) for line in split_lines]), [line[1:] for line in split_lines]


@dataclasses.dataclass(frozen=True)
class Language:
    """Synthetic language, with its words in the order of their ids, and the tables that sentences
    are drawn from.

    Attributes:
      words: id -> word; function words first.
      topics: names of the technologies, one a topic.
      clauses: (number of clauses, longest clause) int64, word ids or slot codes, -1 beyond the end.
      closed: (number of clauses,) bool, whether the clause ends in punctuation of its own.
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


def _smallest_vocabulary(topics: int) -> int:
    """Returns the smallest vocabulary size that suffices for the clauses and topics of the
    language.
    """
    function_texts = [_QUESTION_CLAUSES, _ANSWER_CLAUSES, _COMMON_CLAUSES, *_CHOICES.values()]
    function_words = set(" ".join(function_texts).split())
    return len(function_words) + len(_SHARED_NOUNS.split()) + 16 * topics


@functools.cache
def make_language(vocabulary_size: int, topics: int) -> Language:
    """Makes the language with `vocabulary_size` words and `topics` topics.

    The same sizes give the same language.

    Raises:
      ValueError: too few words for the clauses and topics, or more topics than have names.
    """
    if not 1 <= topics <= MAX_TOPICS:
        raise ValueError(f"topics={topics} must lie between 1 and {MAX_TOPICS}")
    smallest_vocabulary = _smallest_vocabulary(topics)
    if vocabulary_size < smallest_vocabulary:
        raise ValueError(
            f"vocabulary_size={vocabulary_size} is too small for {topics} topics: use "
            f"{smallest_vocabulary}+"
        )
    lexicon = Lexicon()
    # Words get their ids in the order in which they are added to the lexicon.
    q_weights, questions = _parse_clauses(_QUESTION_CLAUSES)
    a_weights, answers = _parse_clauses(_ANSWER_CLAUSES)
    c_weights, common = _parse_clauses(_COMMON_CLAUSES)
    all_clauses = questions + answers + common
    question_weights = np.concatenate([q_weights, 0.05 * a_weights, c_weights])
    answer_weights = np.concatenate([0.05 * q_weights, a_weights, c_weights])
    clause_table = _clause_table(lexicon, all_clauses)
    small_words = {_SLOTS[slot]: lexicon.word_ids(text) for slot, text in _CHOICES.items()}
    joints, joint_weights = lexicon.weighted_texts(_JOINTS)
    ends, end_weights = lexicon.weighted_texts(_ENDS)
    topic_names = _TOPIC_NAMES.split()[:topics]
    technology = lexicon.word_ids(" ".join(topic_names))
    shared_words = lexicon.word_ids(_SHARED_NOUNS)
    nouns, verbs, adjectives = _topic_words(lexicon, vocabulary_size, topics)
    # The remaining words of the vocabulary are divided equally among the topics. All topics share
    # the rest of this division, so that the language has exactly `vocabulary_size` words.
    num_remaining = vocabulary_size - len(lexicon.words)
    remaining_words = [lexicon.coin_word("et") for _ in range(num_remaining)]
    shared_words = np.concatenate([shared_words, np.array(remaining_words, np.int64)])
    return Language(
        words=lexicon.words,
        topics=topic_names,
        clauses=clause_table,
        closed=np.array([clause[-1] in ("?", ":", "<URL>") for clause in all_clauses]),
        question_weights=question_weights / question_weights.sum(),
        answer_weights=answer_weights / answer_weights.sum(),
        joints=joints,
        joint_weights=joint_weights,
        ends=ends,
        end_weights=end_weights,
        small=small_words,
        technology=technology,
        shared=shared_words,
        nouns=nouns,
        verbs=verbs,
        adjectives=adjectives,
        favourite=_favourites(nouns, verbs, adjectives, shared_words, len(lexicon.words)),
    )


def _clause_table(lexicon: Lexicon, clauses: list[list[str]]) -> np.ndarray:
    """Returns the clauses as rows of word ids and slot codes, padded with NOTHING."""
    clause_rows = np.full((len(clauses), max(map(len, clauses))), NOTHING, np.int64)
    for row, clause in zip(clause_rows, clauses, strict=True):
        for position, word in enumerate(clause):
            row[position] = _SLOTS[word] if word in _SLOTS else lexicon.word_id(word)
    return clause_rows


def _topic_words(
    lexicon: Lexicon, vocabulary_size: int, topics: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Adds new nouns, verbs and adjectives to the lexicon, and returns their ids by topic.

    Each of the three arrays has the shape (topics, words of this kind in a topic).
    """
    words_per_topic = (vocabulary_size - len(lexicon.words)) // topics
    num_nouns = words_per_topic * 5 // 10
    num_verbs = words_per_topic * 3 // 10
    num_adjectives = words_per_topic - num_nouns - num_verbs
    word_tables = []
    for ending, size in (("et", num_nouns), ("", num_verbs), ("ic", num_adjectives)):
        word_ids = [lexicon.coin_word(ending) for _ in range(topics * size)]
        word_tables.append(np.array(word_ids, np.int64).reshape(topics, size))
    nouns, verbs, adjectives = word_tables
    return nouns, verbs, adjectives


def _favourites(
    nouns: np.ndarray,
    verbs: np.ndarray,
    adjectives: np.ndarray,
    shared: np.ndarray,
    num_words: int,
) -> np.ndarray:
    """Draws for each word a favourite companion, which is a noun for a verb or adjective, and a
    verb for a noun.
    """
    favourite_by_word = np.zeros(num_words, np.int64)
    rng = np.random.Generator(np.random.Philox(key=2023))
    for topic in range(len(nouns)):
        for leaders, followers in ((verbs, nouns), (adjectives, nouns), (nouns, verbs)):
            favourite_by_word[leaders[topic]] = rng.choice(
                followers[topic], size=leaders.shape[1], p=zipf(followers.shape[1], 8.0)
            )
    favourite_by_word[shared] = rng.choice(verbs.ravel(), size=len(shared))
    return favourite_by_word
