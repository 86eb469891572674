"""Sentences that a user of the synthetic corpus writes. Each user has a writing style."""

import dataclasses
import functools

import numpy as np

from fedmf.tasks.stackoverflow.language import (
    ADJECTIVE,
    ADVERB,
    MAX_CLAUSES,
    NOUN,
    PREPOSITION,
    VERB,
    Language,
    zipf,
)
from fedmf.tasks.stackoverflow.lexicon import NOTHING

_ADVERB_PROBABILITY = 0.3


@dataclasses.dataclass(frozen=True)
class Style:
    """Writing style of one user.

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
    """Draws the writing style of a user, which has weights of topics and clauses, the length of
    sentences, and four preferred nouns.
    """
    num_topics = len(language.topics)
    topic_weights = rng.dirichlet(np.maximum(0.35 * num_topics * zipf(num_topics, 3.0), 0.05))
    clause_taste = rng.gamma(2.0, 0.5, size=len(language.clauses))
    question_weights = language.question_weights * clause_taste
    answer_weights = language.answer_weights * clause_taste
    main_topic = int(np.argmax(topic_weights))
    return Style(
        topic_weights=topic_weights,
        question_weights=question_weights / question_weights.sum(),
        answer_weights=answer_weights / answer_weights.sum(),
        clause_counts=rng.dirichlet(np.array([6.0, 4.0, 1.0])),
        small={
            slot: rng.dirichlet(8.0 * len(ids) * zipf(len(ids)))
            for slot, ids in language.small.items()
        },
        own_nouns=rng.choice(language.nouns[main_topic], size=4, p=zipf(language.nouns.shape[1])),
    )


def _choose(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Returns the index that each uniform number selects under the given probabilities."""
    return np.searchsorted(np.cumsum(weights)[:-1], uniform)


@functools.cache
def _zipf_borders(size: int) -> np.ndarray:
    """Returns the cumulative Zipf probabilities of the ranks, without the last, which is 1."""
    return np.cumsum(zipf(size))[:-1]


def _zipf_rank(size: int, uniform: np.ndarray) -> np.ndarray:
    """Returns the rank below `size` that each uniform number selects under Zipf's law."""
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
    uniform_numbers = rng.random((len(topics), 2 * MAX_CLAUSES + 1))
    num_clauses = 1 + _choose(style.clause_counts, uniform_numbers[:, 0])
    sentence_pieces = []
    for index in range(MAX_CLAUSES):
        clause_uniform = uniform_numbers[:, 1 + 2 * index]
        join_uniform = uniform_numbers[:, 2 + 2 * index]
        question_clause = _choose(style.question_weights, clause_uniform)
        answer_clause = _choose(style.answer_weights, clause_uniform)
        clause_index = np.where(questions, question_clause, answer_clause)
        is_present = (index < num_clauses)[:, None]
        sentence_pieces.append(np.where(is_present, language.clauses[clause_index], NOTHING))
        is_last = np.equal(index + 1, num_clauses)[:, None]
        is_followed = np.less(index + 1, num_clauses)[:, None]
        joint_codes = language.joints[_choose(language.joint_weights, join_uniform)]
        end_codes = language.ends[_choose(language.end_weights, join_uniform)]
        join_codes = np.where(is_last, end_codes, np.where(is_followed, joint_codes, NOTHING))
        # No punctuation is added after a clause that ends in its own punctuation.
        sentence_pieces.append(
            np.where(language.closed[clause_index][:, None], NOTHING, join_codes)
        )
    word_codes = np.concatenate(sentence_pieces, axis=1)
    has_adverb = rng.random(word_codes.shape) < _ADVERB_PROBABILITY
    is_word = (word_codes != NOTHING) & ((word_codes != ADVERB) | has_adverb)
    lengths = is_word.sum(axis=1)
    word_ids = word_codes[is_word]
    _fill_slots(language, style, topics, word_ids, lengths, rng)
    return word_ids, lengths


def _fill_slots(
    language: Language,
    style: Style,
    topics: np.ndarray,
    codes: np.ndarray,
    lengths: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Replaces the slot codes in `codes` by word ids, in place.

    The first slot of every sentence is filled, then every second one, and so on.
    """
    sentence_of_code = np.repeat(np.arange(len(lengths)), lengths)
    for slot, ids in language.small.items():
        positions = np.flatnonzero(codes == slot)
        codes[positions] = ids[_choose(style.small[slot], rng.random(len(positions)))]
        # Half of the prepositions are chosen by the topic of the sentence.
        if slot == PREPOSITION:
            topical_positions = positions[rng.random(len(positions)) < 0.5]
            codes[topical_positions] = ids[topics[sentence_of_code[topical_positions]] % len(ids)]
    slot_positions = np.flatnonzero(codes < NOTHING)
    sentence_of_slot = sentence_of_code[slot_positions]
    slot_order = np.arange(len(slot_positions)) - np.searchsorted(
        sentence_of_slot, sentence_of_slot
    )
    last_noun = np.full(len(lengths), NOTHING)
    # The last verb or adjective of each sentence that no noun has followed yet.
    last_leader = np.full(len(lengths), NOTHING)
    for step in range(int(slot_order.max(initial=-1)) + 1):
        is_next = slot_order == step
        positions = slot_positions[is_next]
        sentences = sentence_of_slot[is_next]
        word_kind = codes[positions]
        current_leader = last_leader[sentences]
        previous_noun = last_noun[sentences]
        new_words = _content_words(
            language, style, word_kind, topics[sentences], current_leader, previous_noun, rng
        )
        codes[positions] = new_words
        last_noun[sentences] = np.where(word_kind == NOUN, new_words, previous_noun)
        is_leader = (word_kind == VERB) | (word_kind == ADJECTIVE)
        last_leader[sentences] = np.where(
            is_leader, new_words, np.where(word_kind == NOUN, NOTHING, current_leader)
        )


def _content_words(
    language: Language,
    style: Style,
    kind: np.ndarray,
    topic: np.ndarray,
    leader: np.ndarray,
    previous_noun: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draws a content word (noun, verb, adjective or technology) for each slot, given its kind, its
    topic and the words before it.
    """
    choice_uniform = rng.random(len(kind))
    rank_uniform = rng.random(len(kind))

    def topical(table: np.ndarray) -> np.ndarray:
        """Draws a word of each slot's topic, where frequent words are likelier."""
        return table[topic, _zipf_rank(table.shape[1], rank_uniform)]

    def uniformly(word_ids: np.ndarray) -> np.ndarray:
        """Draws one of the words `word_ids` for each slot, with equal probabilities."""
        return word_ids[(rank_uniform * len(word_ids)).astype(np.int64)]

    shared_noun = language.shared[_zipf_rank(len(language.shared), rank_uniform)]
    has_previous = previous_noun >= 0
    noun = np.where(choice_uniform < 0.10, shared_noun, topical(language.nouns))
    noun = np.where(choice_uniform > 0.90, uniformly(style.own_nouns), noun)
    noun = np.where(
        has_previous & (choice_uniform > 0.60) & (choice_uniform <= 0.90), previous_noun, noun
    )
    noun = np.where((leader >= 0) & (choice_uniform > 0.40), language.favourite[leader], noun)
    follows_noun = has_previous & (choice_uniform > 0.50)
    verb = np.where(follows_noun, language.favourite[previous_noun], topical(language.verbs))
    own_technology = language.technology[topic]
    technology = np.where(choice_uniform > 0.15, own_technology, uniformly(language.technology))
    return np.select(
        [kind == NOUN, kind == VERB, kind == ADJECTIVE],
        [noun, verb, topical(language.adjectives)],
        technology,
    )
