"""The metrics of a run as scalars for TensorBoard, in RUN/tensorboard."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fedmf.fields import flat
from fedmf.files import make_folder

_EVENTS = "events.out.tfevents.*"
# What TensorBoard's own tf.summary.scalar writes; newer releases of TensorFlow come without it.
_SCALAR = tf.compat.v1.SummaryMetadata(data_class="DATA_CLASS_SCALAR")
_SCALAR.plugin_data.plugin_name = "scalars"
Row = Mapping[str, Any]


@contextlib.contextmanager
def scalars(folder: pathlib.Path, rows: Sequence[Row]) -> Iterator[Callable[[Row], None]]:
    """Writes a scalar for each number of a row, at the row's round; yields the function that writes
    one more row.

    Event files can only grow, and a resume does rounds again: earlier ones are removed, and `rows`
    are written first.

    Args:
      folder: made if it is not there, readable by its owner alone, as metrics.jsonl is.
      rows: of the rounds that are done.
    """
    make_folder(folder)
    for old in folder.glob(_EVENTS):
        old.unlink()
    writer = tf.summary.create_file_writer(str(folder))

    def write(row: Row) -> None:
        numbers = flat(row, "/")
        step = numbers.pop("round")
        with writer.as_default():
            for name, value in numbers.items():
                tf.summary.write(name, tf.cast(value, tf.float32), step, _SCALAR)
        writer.flush()
        for file in folder.glob(_EVENTS):
            file.chmod(0o600)

    try:
        for row in rows:
            write(row)
        yield write
    finally:
        writer.close()
