"""The metrics of a run as scalars for TensorBoard, in RUN/tensorboard."""

import tensorflow as tf

from fedmf.files import make_folder
from fedmf.training.callbacks import Callback, Row
from fedmf.training.under_way import Training

_EVENTS = "events.out.tfevents.*"
# What TensorBoard's own tf.summary.scalar writes; newer releases of TensorFlow come without it.
_SCALAR = tf.compat.v1.SummaryMetadata(data_class="DATA_CLASS_SCALAR")
_SCALAR.plugin_data.plugin_name = "scalars"


class TensorBoard(Callback):
    """A scalar for each number of a row, at the row's round, in RUN/tensorboard, which its owner
    alone can read, as metrics.jsonl. The guarantee covers those under "covered".

    Event files can only grow, and a resume does rounds again: earlier ones are removed, and the
    rounds that are done are written first.
    """

    def on_start(self, training: Training) -> None:
        """See `Callback`."""
        self._folder = training.folder.path / "tensorboard"
        make_folder(self._folder)
        for old in self._folder.glob(_EVENTS):
            old.unlink()
        self._writer = tf.summary.create_file_writer(str(self._folder))
        for row in training.recorded.metrics:
            self.on_round(training, row)

    def on_round(self, training: Training, row: Row) -> None:
        """See `Callback`."""
        with self._writer.as_default():
            for name, value in training.scalars(row).items():
                tf.summary.write(name, tf.cast(value, tf.float32), row["round"], _SCALAR)
        self._writer.flush()
        for file in self._folder.glob(_EVENTS):
            file.chmod(0o600)

    def on_end(self, training: Training) -> None:
        """See `Callback`."""
        self._writer.close()
