"""A callback that writes the metrics of a run for TensorBoard."""

import tensorflow as tf

from fedmf.files import make_folder
from fedmf.training.callbacks import Callback, Row
from fedmf.training.under_way import Training

_EVENTS = "events.out.tfevents.*"
# tf.summary.scalar, which newer releases of TensorFlow lack, writes this metadata with each scalar.
_SCALAR_METADATA = tf.compat.v1.SummaryMetadata(data_class="DATA_CLASS_SCALAR")
_SCALAR_METADATA.plugin_data.plugin_name = "scalars"


class TensorBoard(Callback):
    """A callback that writes the metrics of each round as scalars into the folder RUN/tensorboard.

    Only the owner can read the folder, as with metrics.jsonl. The guarantee covers the scalars
    under "covered".

    Event files can only grow, so that a resumed run removes them and writes the finished rounds
    again.
    """

    def on_start(self, training: Training) -> None:
        """Opens the folder, and writes the rounds that the run has already finished."""
        self._folder = training.folder.path / "tensorboard"
        make_folder(self._folder)
        for event_file in self._folder.glob(_EVENTS):
            event_file.unlink()
        self._writer = tf.summary.create_file_writer(str(self._folder))
        for row in training.recorded.metrics:
            self.on_round(training, row)

    def on_round(self, training: Training, row: Row) -> None:
        """Writes the metrics of a round."""
        with self._writer.as_default():
            for name, value in training.scalars(row).items():
                tf.summary.write(name, tf.cast(value, tf.float32), row["round"], _SCALAR_METADATA)
        self._writer.flush()
        for event_file in self._folder.glob(_EVENTS):
            event_file.chmod(0o600)

    def on_end(self, training: Training) -> None:
        """Closes the event file."""
        self._writer.close()
