"""Reading and writing of .keras files with vocabularies in a form that every Python can read.

Keras alternates between reading words and weights of such a file. Python 3.13.0 and 3.13.1 then
read uncompressed members of the archive at a wrong position (gh-127847 of CPython), and deflated
members correctly.
"""

import os
import pathlib
import tempfile
import zipfile
from typing import Any

import tensorflow as tf

# Name of the folder in a .keras file that holds the vocabularies of lookup layers.
_WORDS_FOLDER = "assets/"


def deflate_words(path: pathlib.Path) -> None:
    """Compresses the members of a .keras file that has words; leaves a file without words alone."""
    if _holds_words(path):
        deflated_path = path.with_name(f"deflated-{path.name}")
        _write_deflated(path, deflated_path)
        os.replace(deflated_path, path)


def load_keras_file(path: pathlib.Path) -> Any:
    """Loads the model of a .keras file, without its optimizer and loss.

    Raises:
      Exception: Keras raises errors of many kinds.
    """
    if not _holds_words(path):
        return tf.keras.models.load_model(path, compile=False)
    with tempfile.TemporaryDirectory() as folder:
        deflated_path = pathlib.Path(folder) / path.name
        _write_deflated(path, deflated_path)
        return tf.keras.models.load_model(deflated_path, compile=False)


def _holds_words(path: pathlib.Path) -> bool:
    """Returns whether a file is a zip archive that has the words of lookup layers."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.startswith(_WORDS_FOLDER) for name in archive.namelist())


def _write_deflated(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies the members of a zip archive to a new archive, where they are compressed."""
    with (
        zipfile.ZipFile(source) as archive,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as deflated,
    ):
        for name in archive.namelist():
            deflated.writestr(name, archive.read(name))
