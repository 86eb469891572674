"""Import of TensorFlow and TensorFlow Federated, without their start-up log messages."""

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

# TensorFlow Federated 0.87 runs on this version of Python only.
_TFF_PYTHON = (3, 11)


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Hides what the `with` block writes to standard error, and shows it if the block fails."""
    sys.stderr.flush()
    saved_stderr = os.dup(2)
    with tempfile.TemporaryFile() as buffer:
        os.dup2(buffer.fileno(), 2)
        try:
            yield
        except Exception:
            os.dup2(saved_stderr, 2)
            buffer.seek(0)
            os.write(2, buffer.read())
            raise
        finally:
            os.dup2(saved_stderr, 2)
            os.close(saved_stderr)


def import_tensorflow() -> None:
    """Imports TensorFlow with Keras 2, which is part of it or is the package tf-keras.

    TensorFlow's C++ libraries report missing GPU drivers on import and when they look for devices,
    some of it as errors; those lines are dropped. Afterwards only TensorFlow's errors are shown, no
    information and no warnings. With an environment variable TF_CPP_MIN_LOG_LEVEL of 0 or 1
    everything is shown; processes that this one starts have 2.

    Raises:
      ImportError: saying how to install the missing packages.
    """
    # With this variable set, tf.keras is Keras 2, which fedmf needs.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    with _quietly("tensorflow", "fedmf.federated needs TensorFlow", _how_to_train):
        import tensorflow as tf

        # TensorFlow imports Keras when Keras is first used, and this first use fails if tf-keras is
        # missing.
        _ = tf.keras.Model
        # This call makes TensorFlow look for GPUs now, while its messages about missing GPUs are
        # hidden.
        tf.config.list_physical_devices()
    # Keras 2 has no version attribute if it is part of TensorFlow.
    keras_version = getattr(tf.keras, "__version__", "2")
    if keras_version.startswith("3."):
        raise ImportError(
            f"tf.keras is Keras {keras_version} here, and fedmf trains models of Keras 2 "
            "(the package tf-keras): import fedmf.federated before tf.keras is used, or set the "
            "environment variable TF_USE_LEGACY_KERAS=1 before Python starts"
        )
    _exclude_fedmf_from_autograph()


@functools.cache
def _exclude_fedmf_from_autograph() -> None:
    """Tells AutoGraph, which rewrites Python's `if` and `for` on tensors, to skip fedmf's code.

    fedmf's traced functions need no such rewriting, which took a seventh of a small run.
    """
    # TensorFlow does not document this module, so other releases may lack it.
    with contextlib.suppress(ImportError):
        from tensorflow.python.autograph.core import config

        config.CONVERSION_RULES = (config.DoNotConvert("fedmf"), *config.CONVERSION_RULES)


_KERAS3_NOTE = (
    " of Keras 3 (`import keras`), where fedmf takes those of Keras 2 (the package tf-keras): "
    "make it with tf.keras, after `from fedmf import federated`"
)


def _has_keras3() -> bool:
    """Returns whether Keras 3 is imported in this process."""
    keras_module = sys.modules.get("keras")
    return keras_module is not None and getattr(keras_module, "__version__", "").startswith("3.")


def keras3_note(value: Any) -> str:
    """Returns the end of an error message if a value is of Keras 3, else an empty text."""
    if not _has_keras3():
        return ""
    value_class = value if isinstance(value, type) else type(value)
    base_modules = [base.__module__ for base in value_class.__mro__]
    if isinstance(value, types.FunctionType):
        base_modules.append(value.__module__)
    if not any(module.split(".")[0] == "keras" for module in base_modules):
        return ""
    return _KERAS3_NOTE


def keras3_error_note(error: Exception) -> str:
    """Returns the end of an error message if Keras 2 has refused a class of Keras 3.

    The class may be that of a layer in a model. For any other error the text is empty.
    """
    names_class = re.search(r"<class 'keras\.", str(error)) is not None
    return _KERAS3_NOTE if names_class and _has_keras3() else ""


def check_eager() -> None:
    """Checks that TensorFlow executes operations eagerly, and does not build a graph.

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
    """Returns a user's function in a form in which its `if` and `for` work on tensors.

    AutoGraph rewrites the function, as it does where Keras calls layers, losses and metrics.
    """
    import tensorflow as tf

    autograph = tf.__internal__.autograph
    converted: Callable[..., Any] = autograph.tf_convert(function, autograph.control_status_ctx())
    return converted


@contextlib.contextmanager
def importing_tff() -> Iterator[None]:
    """Hides log messages while the block imports TensorFlow Federated and TensorFlow Privacy.

    Raises:
      ImportError: saying how to install them.
    """
    import_tensorflow()
    need_text = "this needs TensorFlow Federated 0.87 and TensorFlow Privacy"
    with _quietly("tensorflow_federated", need_text, _how_to_have_tff):
        yield


@contextlib.contextmanager
def _quietly(package: str, need: str, way_out: Callable[[], str]) -> Iterator[None]:
    """Hides log messages while the block imports a package, and adds a hint to an ImportError."""
    is_verbose = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1")
    is_loud = is_verbose or package in sys.modules
    stderr_context = contextlib.nullcontext() if is_loud else _stderr_held_back()
    try:
        with stderr_context:
            yield
        interrupts.check()
    except ImportError as error:
        interrupts.check()
        raise ImportError(f"{need} ({error}): {way_out()}") from error


def _how_to_train() -> str:
    """Returns a sentence on how to install the packages that training needs."""
    if sys.version_info[:2] == _TFF_PYTHON:
        return _how_to_have_tff()
    return "install them with `pip install 'fedmf[train]'`, on Python 3.11 to 3.13"


def _how_to_have_tff() -> str:
    """Returns a sentence on how to install TensorFlow Federated from the file training.lock.

    The file lists all versions, because pip cannot resolve them: one is gone from the index.
    """
    install_command = (
        f"`pip install --no-deps -r {pathlib.Path(__file__).parents[1] / 'training.lock'}`"
    )
    if sys.version_info[:2] == _TFF_PYTHON:
        return f"install them with {install_command}"
    python_version = ".".join(map(str, sys.version_info[:2]))
    return (
        f"they run on Python 3.11, and this is {python_version}: in an environment of Python 3.11 "
        f"install fedmf and then {install_command}"
    )
