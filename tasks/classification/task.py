"""Classification of a user's own rows as a training task, with numbers or texts."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.tasks.classification.data import ImportRecord, LabelledRows, open_file
from fedmf.tasks.classification.options import ClassificationOptions
from fedmf.training.examples import Examples
from fedmf.training.task_checks import validation_clients_of


def build_task(o: ClassificationOptions) -> Task:
    """Returns the classification task.

    The rows of every other user of the test split are the validation split, the others' are the
    test split.

    Raises:
      FileNotFoundError, ValueError: no such data file, a damaged one, one with other columns or
        classes than `classes_data`, or a model for other columns.
    """
    file = open_file(o.data)
    record = ImportRecord.read(file)
    default_model = "pooled-text" if record.is_text else "logistic"
    model = o.model or default_model
    if record.is_text != (model == "pooled-text"):
        kind_text = (
            "a text: use pooled-text" if record.is_text else "numbers: use logistic or dense"
        )
        raise ValueError(f"model={model!r} does not suit {file.path}, whose rows have {kind_text}")
    data_version = file.version
    if o.classes_data is not None:
        classes_file = open_file(o.classes_data)
        _check_same_columns(file, record, classes_file, ImportRecord.read(classes_file))
        record = ImportRecord.read(classes_file)
        data_version = f"{file.version}-{classes_file.version}"
    rows = LabelledRows(
        file=file, record=record, hashed_words=o.hashed_words, text_words=o.text_words
    )
    users = list(file.client_sizes("test"))
    # Neighbours in the sorted order alternate between validation and test.
    users_by_split = {"validation": users[::2], "test": users[1::2]}

    @functools.cache
    def evaluation_examples(split: str) -> Examples:
        """Reads the examples of all users of a split."""
        parts = [rows.examples("test", user) for user in users_by_split[split]]
        return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])

    client_ids = tuple(file.client_sizes("train"))
    return Task(
        name="classification",
        description=_description(record, len(client_ids), model),
        data_version=data_version,
        validation_clients=validation_clients_of(client_ids, users_by_split["validation"]),
        client_ids=client_ids,
        client_examples=functools.partial(rows.examples, "train"),
        evaluation_examples=evaluation_examples,
        build_model=functools.partial(build_model, o=o, kind=model, record=record),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
        batch_size=o.batch_size,
    )


def _check_same_columns(
    file: Any, record: ImportRecord, classes_file: Any, classes_record: ImportRecord
) -> None:
    """Raises an error if a file has other columns or further classes than that of the classes."""
    if record.columns != classes_record.columns or record.is_text != classes_record.is_text:
        raise ValueError(
            f"{file.path} has the columns {record.columns}, and {classes_file.path} has "
            f"{classes_record.columns}: import both with the same columns in the same order"
        )
    further_classes = sorted({*record.classes} - {*classes_record.classes})
    if further_classes:
        raise ValueError(
            f"{file.path} has the class {further_classes[0]!r}, which {classes_file.path} has not: "
            "leave its rows out"
        )


def _description(record: ImportRecord, num_users: int, model: str) -> str:
    """Describes the data and the model in one line. It says what was computed without noise."""
    if record.is_text:
        values = f"the hashed words of {record.columns[0]!r}; the classes are"
    else:
        values = (
            f"{len(record.columns)} numbers, standardised; the means, standard deviations and "
            "classes are"
        )
    split_text = "their last rows for" if record.is_split_in_time else "other users in"
    return (
        f"classification of {len(record.classes)} classes of {record.label_column!r}: {num_users} "
        f"users train, {split_text} validation and test; {model} of {values} those of the training "
        "rows, computed without noise"
    )


def build_model(seed: int, *, o: ClassificationOptions, kind: str, record: ImportRecord) -> Any:
    """Builds an untrained tf.keras.Model from rows to logits (batch, classes).

    Args:
      seed: draws the initial weights of dense and pooled-text; those of logistic are 0.
      o: the sizes.
      kind: "logistic", "dense" or "pooled-text".
      record: columns and classes of the rows.
    """
    layers = tf.keras.layers
    layer_seeds = np.random.SeedSequence(seed).generate_state(2).astype(np.int64).tolist()
    output_kernel: Any = "zeros"
    if kind == "dense":
        hidden_kernel = tf.keras.initializers.GlorotUniform(seed=layer_seeds[0])
        layer_stack = [
            tf.keras.Input((len(record.columns),)),
            layers.Dense(o.hidden_units, activation="relu", kernel_initializer=hidden_kernel),
        ]
    elif kind == "pooled-text":
        embeddings = tf.keras.initializers.RandomUniform(-0.05, 0.05, seed=layer_seeds[0])
        layer_stack = [
            tf.keras.Input((o.text_words,), dtype=tf.int32),
            layers.Embedding(
                o.hashed_words + 1,
                o.embedding_size,
                embeddings_initializer=embeddings,
                mask_zero=True,
            ),
            layers.GlobalAveragePooling1D(),
        ]
    else:
        layer_stack = [tf.keras.Input((len(record.columns),))]
    if kind != "logistic":
        output_kernel = tf.keras.initializers.GlorotUniform(seed=layer_seeds[1])
    layer_stack.append(layers.Dense(len(record.classes), kernel_initializer=output_kernel))
    return tf.keras.Sequential(layer_stack, name=f"classification_{kind.replace('-', '_')}")
