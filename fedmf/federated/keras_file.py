"""Files of Keras that hold words as well as weights, in the form that every Python reads.

Keras reads the words and the weights in turns. Python 3.13.0 and 3.13.1 then read members that are
stored uncompressed at a wrong position (gh-127847 of CPython); members that are deflated they read
right.
"""

import os
import pathlib
import tempfile
import zipfile
from typing import Any

import tensorflow as tf

_WORDS = "assets/"  # where a .keras file has the words of lookup layers


def deflate_words(path: pathlib.Path) -> None:
    """Deflates the members of a .keras file that holds words; leaves any other as it is."""
    if _holds_words(path):
        deflated = path.with_name(f"deflated-{path.name}")
        _write_deflated(path, deflated)
        os.replace(deflated, path)


def load_keras_file(path: pathlib.Path) -> Any:
    """Loads the model of a .keras file.

    Raises:
      Exception: of the many kinds that Keras raises.
    """
    if not _holds_words(path):
        return tf.keras.models.load_model(path, compile=False)
    with tempfile.TemporaryDirectory() as folder:
        deflated = pathlib.Path(folder) / path.name
        _write_deflated(path, deflated)
        return tf.keras.models.load_model(deflated, compile=False)


def _holds_words(path: pathlib.Path) -> bool:
    """Returns whether the file is an archive with words of lookup layers."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.startswith(_WORDS) for name in archive.namelist())


def _write_deflated(source: pathlib.Path, target: pathlib.Path) -> None:
    """Writes the members of one archive to another, deflated."""
    with (
        zipfile.ZipFile(source) as archive,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as deflated,
    ):
        for name in archive.namelist():
            deflated.writestr(name, archive.read(name))
