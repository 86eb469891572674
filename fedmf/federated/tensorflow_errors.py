"""Extraction of the informative sentence from the long error messages of TensorFlow and Keras."""

import re

import tensorflow as tf


def error_reason(error: Exception) -> str:
    """Returns the line of an error message that says what is wrong.

    Keras names the layer in the line before, and lists the layer's arguments in the lines after.
    """
    message_lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for number, line in reversed(list(enumerate(message_lines[:-1]))):
        layer_match = re.search(
            r"when calling layer ['\"](?P<name>.+)['\"] \(type (?P<type>\w+)\)", line
        )
        if layer_match is not None:
            first_sentence = message_lines[number + 1].partition(". ")[0].rstrip(".")
            return f"{layer_match['type']} {layer_match['name']!r}: {first_sentence}"
    return message_lines[-1] if message_lines else type(error).__name__


def misfit_reason(error: tf.errors.InvalidArgumentError) -> str:
    """Returns the message of an error about inputs, without graph node names and lines of code."""
    message_lines = [
        line for line in error.message.splitlines() if line.strip() and "[[" not in line
    ]
    return message_lines[-1].rpartition("}} ")[2].strip()
