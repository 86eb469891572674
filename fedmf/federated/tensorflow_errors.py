"""Extraction of the informative sentence from the long error messages of TensorFlow and Keras."""

import re

import tensorflow as tf


def error_reason(error: Exception) -> str:
    """Returns the line of an error message that says what is wrong.

    Keras names the layer in the line before, and lists the layer's arguments in the lines after.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for number, line in reversed(list(enumerate(lines[:-1]))):
        layer = re.search(r"when calling layer ['\"](?P<name>.+)['\"] \(type (?P<type>\w+)\)", line)
        if layer is not None:
            sentence = lines[number + 1].partition(". ")[0].rstrip(".")
            return f"{layer['type']} {layer['name']!r}: {sentence}"
    return lines[-1] if lines else type(error).__name__


def misfit_reason(error: tf.errors.InvalidArgumentError) -> str:
    """Returns the message of an error about inputs, without graph node names and lines of code."""
    lines = [line for line in error.message.splitlines() if line.strip() and "[[" not in line]
    return lines[-1].rpartition("}} ")[2].strip()
