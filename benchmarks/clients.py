"""The clients of the benchmarks of training: the published next-word model on sentences of full length."""

from typing import Any

import numpy as np

MODELS: dict[str, dict[str, int]] = {
    "full": {"vocabulary_size": 10_000, "embedding_size": 96, "lstm_size": 670},
    "demo": {"vocabulary_size": 300, "embedding_size": 24, "lstm_size": 48},
}
SENTENCES = {"full": 64, "demo": 16}
LENGTH, BATCH = 20, 16
_SHIFT = 2.7  # Mandelbrot's, for English


def sentences(model: str, count: int, seed: int) -> np.ndarray:
    """Sentences of one client, int32 (count, length + 1): words as frequent as in English (Zipf), behind the mark of the beginning."""
    from fedmf.tasks.stackoverflow import preprocessing

    size = MODELS[model]["vocabulary_size"]
    frequency = 1 / (np.arange(1, size + 1) + _SHIFT)
    rng = np.random.default_rng(seed)
    words = 1 + rng.choice(size, (count, LENGTH + 1), p=frequency / frequency.sum()).astype(np.int32)
    words[:, 0] = preprocessing.SpecialIds(size).begin
    return words


def random_sentences(model: str, clients: int, *, count: int | None = None, keras_lstm: bool = False) -> Any:
    """The task: `count` sentences a client; with Keras's own LSTM layer if so chosen."""
    from fedmf import federated
    from fedmf.tasks.stackoverflow import model as next_word
    from fedmf.tasks.stackoverflow import preprocessing
    from fedmf.tasks.stackoverflow.compiled import compiled_epoch
    from fedmf.tasks.stackoverflow.lstm import with_keras_lstm

    sizes = MODELS[model]

    def build_model(seed: int) -> Any:
        built = next_word.build_model(seed, **sizes)
        return with_keras_lstm(built) if keras_lstm else built

    def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
        words = sentences(model, count or SENTENCES[model], sum(name.encode()))
        return words[:, :-1], words[:, 1:]

    return federated.Task(
        name="random sentences",
        description="the papers' model" if model == "full" else "the demo's model",
        client_ids=[str(i) for i in range(clients)],
        client_examples=examples,
        evaluation_examples=examples,
        build_model=build_model,
        loss=next_word.make_loss("published"),
        metrics=lambda: next_word.make_metrics("published", preprocessing.SpecialIds(sizes["vocabulary_size"])),
        batch_size=BATCH,
        compiled_epoch=compiled_epoch(**sizes, loss="published", batch_size=BATCH),
    )
