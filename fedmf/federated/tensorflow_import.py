"""Imports TensorFlow without its start-up chatter, and with its errors."""

import contextlib
import functools
import os
import pathlib
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any

from fedmf.terminal import interrupts

_TFF_PYTHON = (3, 11)  # the only one that TensorFlow Federated 0.87 runs on


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Keeps file descriptor 2 quiet; what was written comes out after all if the block fails."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except Exception:
            os.dup2(saved, 2)
            held.seek(0)
            os.write(2, held.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def import_tensorflow() -> None:
    """Imports TensorFlow once, with Keras 2, which comes with it or as tf-keras.

    TensorFlow's C++ libraries report missing GPU drivers on import and where devices are looked
    for, some of it as errors; those lines are dropped. From then on its information and warnings
    are off and its errors are shown. With an environment variable TF_CPP_MIN_LOG_LEVEL of 0 or 1
    all is shown; processes that this one starts have 2.

    Raises:
      ImportError: saying how to install the missing packages.
    """
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # models here are those of Keras 2
    with _quietly("tensorflow", "fedmf.federated needs TensorFlow", _how_to_train):
        import tensorflow as tf

        _ = tf.keras.Model  # Keras is imported when it is used; without tf-keras that fails
        tf.config.list_physical_devices()  # complains of a missing GPU; else training would
    version = getattr(tf.keras, "__version__", "2")  # TensorFlow's own Keras 2 names none here
    if version.startswith("3."):
        raise ImportError(
            f"tf.keras is Keras {version} here, and fedmf trains models of Keras 2 "
            "(the package tf-keras): import fedmf.federated before tf.keras is used, or set the "
            "environment variable TF_USE_LEGACY_KERAS=1 before Python starts"
        )
    _leave_our_code_as_it_is()


@functools.cache
def _leave_our_code_as_it_is() -> None:
    """AutoGraph, which rewrites Python's `if` and `for` on tensors, has nothing to do in what our
    traced functions call, and took a seventh of a small run.
    """
    with contextlib.suppress(ImportError):  # TensorFlow documents no such rules
        from tensorflow.python.autograph.core import config

        config.CONVERSION_RULES = (config.DoNotConvert("fedmf"), *config.CONVERSION_RULES)


_KERAS3_NOTE = (
    " of Keras 3 (`import keras`), where fedmf takes those of Keras 2 (the package tf-keras): "
    "make it with tf.keras, after `from fedmf import federated`"
)


def _has_keras3() -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and getattr(keras, "__version__", "").startswith("3.")


def keras3_note(thing: Any) -> str:
    """Returns a clause for an error about an object or a class of Keras 3; empty for any other."""
    if not _has_keras3():
        return ""
    kind = thing if isinstance(thing, type) else type(thing)
    modules = [base.__module__ for base in kind.__mro__]
    if isinstance(thing, types.FunctionType):
        modules.append(thing.__module__)
    if not any(module.split(".")[0] == "keras" for module in modules):
        return ""
    return _KERAS3_NOTE


def keras3_error_note(error: Exception) -> str:
    """Returns a clause on an error of Keras 2 that names a class of Keras 3, such as that of a
    layer in a model; empty for any other error.
    """
    names_class = re.search(r"<class 'keras\.", str(error)) is not None
    return _KERAS3_NOTE if names_class and _has_keras3() else ""


def check_eager() -> None:
    """Refuses switches under which TensorFlow gives no values.

    Raises:
      RuntimeError: eager execution is off, a graph is the default, or the scope of a
        tf.distribute.Strategy is open.
    """
    import tensorflow as tf

    if not tf.executing_eagerly():
        raise RuntimeError(
            "fedmf.federated needs eager execution, which is off here: leave out "
            "tf.compat.v1.disable_eager_execution(), and call it outside of a default graph "
            "(tf.Graph().as_default(), tf.function)"
        )
    if tf.distribute.has_strategy():
        raise RuntimeError(
            "fedmf.federated trains each client on one device: call it outside of the scope of a "
            "tf.distribute.Strategy"
        )


def rewritten(function: Callable[..., Any]) -> Callable[..., Any]:
    """A user's function in a graph, with its `if` and `for` on tensors as AutoGraph has them.

    Keras itself asks for it where it calls a user's layers, losses and metrics.
    """
    import tensorflow as tf

    autograph = tf.__internal__.autograph
    converted: Callable[..., Any] = autograph.tf_convert(function, autograph.control_status_ctx())
    return converted


@contextlib.contextmanager
def importing_tff() -> Iterator[None]:
    """For the import of TensorFlow Federated and TensorFlow Privacy: quiet, with an error that says
    how to install them.
    """
    import_tensorflow()
    need = "this needs TensorFlow Federated 0.87 and TensorFlow Privacy"
    with _quietly("tensorflow_federated", need, _how_to_have_tff):
        yield


@contextlib.contextmanager
def _quietly(package: str, need: str, way_out: Callable[[], str]) -> Iterator[None]:
    shown = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1")
    quiet = contextlib.nullcontext() if shown or package in sys.modules else _stderr_held_back()
    try:
        with quiet:
            yield
        interrupts.check()
    except ImportError as error:
        interrupts.check()
        raise ImportError(f"{need} ({error}): {way_out()}") from error


def _how_to_train() -> str:
    if sys.version_info[:2] == _TFF_PYTHON:
        return _how_to_have_tff()
    return "install them with `pip install 'fedmf[train]'`, on Python 3.11 to 3.13"


def _how_to_have_tff() -> str:
    """The list of versions that work lies in the package: a resolver finds none, because of a
    version that is gone from the index.
    """
    command = f"`pip install --no-deps -r {pathlib.Path(__file__).parents[1] / 'training.lock'}`"
    if sys.version_info[:2] == _TFF_PYTHON:
        return f"install them with {command}"
    here = ".".join(map(str, sys.version_info[:2]))
    return (
        f"they run on Python 3.11, and this is {here}: in an environment of Python 3.11 install "
        f"fedmf and then {command}"
    )
