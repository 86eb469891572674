"""Prediction of the words that follow a text, with the model of a run."""

from typing import Any

import numpy as np

from fedmf.runs.folder import Run
from fedmf.runs.vocabulary import VOCABULARY, RunVocabulary
from fedmf.tasks.stackoverflow.preprocessing import Preprocessor

END_OF_SENTENCE = "(end of the sentence)"


def next_words(run: Run, text: str, count: int = 5) -> dict[str, Any]:
    """Predicts the most likely words after a text.

    It needs no data, since the run's folder has the model and its words.

    Args:
      run: a finished next-word run.
      text: words separated by blanks. A word that the model does not know counts as unknown; of a
        long text the last words count.
      count: largest number of words to return.

    Returns:
      {"words": word -> probability, the most likely first, "unknown": words of the text that the
      model does not know}.

    Raises:
      ValueError: another task's run, one without vocabulary.json, or one that is not finished.
    """
    vocabulary_path = run.path / VOCABULARY
    if not vocabulary_path.exists():
        raise ValueError(
            f"{run.path} has no {VOCABULARY}: name a next-word run, trained by a fedmf that writes "
            "the words into the run folder"
        )
    vocabulary = RunVocabulary.read(vocabulary_path)
    preprocessor = Preprocessor(
        vocabulary.words, vocabulary.vocabulary_size, vocabulary.sequence_length
    )
    text_words = text.split()
    vocabulary_words = set(vocabulary.words)
    # The marker of a sentence's beginning takes one of the positions that the model reads.
    read_words = text_words[-(vocabulary.sequence_length - 1) :]
    if vocabulary.sequence_length == 1:
        read_words = []
    x, _ = preprocessor.encode([" ".join(read_words)])
    logits = _logits(run, vocabulary, x)[0, len(read_words)].astype(np.float64)
    probabilities = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    special_ids = preprocessor.ids
    word_by_id = dict(enumerate(vocabulary.words, 1)) | {special_ids.end: END_OF_SENTENCE}
    likely_indices = [
        index for index in np.argsort(-probabilities, kind="stable").tolist() if index in word_by_id
    ]
    return {
        "words": {
            word_by_id[index]: float(probabilities[index]) for index in likely_indices[:count]
        },
        "unknown": [word for word in text_words if word not in vocabulary_words],
    }


def _logits(run: Run, vocabulary: RunVocabulary, x: np.ndarray) -> np.ndarray:
    """Returns the logits of the model of a run, whose sizes follow from the shapes of its weights.

    The two forms of the model differ in initialisers, and behind padding, which is never read here.
    """
    weights = run.weights
    embedding, recurrent_kernel = weights[0], weights[2]
    sizes: dict[str, Any] = {
        "vocabulary_size": vocabulary.vocabulary_size,
        "embedding_size": embedding.shape[1],
        "lstm_size": recurrent_kernel.shape[0],
    }
    if run.config.task_options.get("framework") == "torch":
        from fedmf.tasks.stackoverflow.torch_model import logits_of_weights

        return logits_of_weights(weights, x, sizes)
    from fedmf.tasks.stackoverflow import model

    run_model = model.build_model(0, sequence_length=vocabulary.sequence_length, **sizes)
    run_model.set_weights(weights)
    logits: np.ndarray = run_model(x).numpy()
    return logits
