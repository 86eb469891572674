"""Every task that ships exports a model that plain Keras loads."""

import json
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

from fedmf import TrainConfig, tasks  # noqa: E402
from fedmf.tasks import cifar10, emnist  # noqa: E402
from fedmf.tasks.classification import import_rows  # noqa: E402
from fedmf.tasks.row_table import ImportOptions  # noqa: E402
from fedmf.training.examples import take  # noqa: E402

LOADS = """
import json, sys
sys.modules["fedmf"] = None  # importing it fails
import numpy as np, tensorflow as tf
for name in json.loads(sys.argv[1]):
    for form in (f"{name}.keras", f"{name}_saved"):
        model = tf.keras.models.load_model(form)
        np.save(f"{form}.npy", model(np.load(f"{name}.in.npy"), training=False))
try:
    tf.keras.models.load_model("with_our_layer.keras")
except Exception as error:
    print("refused", error)
"""


def options_of(name, corpus_file, folder):
    """Returns options with small data of a task that ships."""
    if name == "stackoverflow_nwp":
        sizes = {"vocabulary_size": 100, "embedding_size": 8, "lstm_size": 6, "sequence_length": 4}
        return {"data": str(corpus_file), "task_options": sizes}
    if name == "emnist":
        data = emnist.write_synthetic(folder / "emnist.sqlite", clients=4, progress=False)
    elif name == "cifar10":
        data = cifar10.write_synthetic(
            folder / "shapes.tar.gz", examples=100, test_examples=20, progress=False
        )
    elif name == "classification":
        lines = ["user,label,size"] + [f"{i % 40},{i % 2},{i % 7}" for i in range(200)]
        (folder / "rows.csv").write_text("\n".join(lines))
        columns = ImportOptions(label_column="label", number_columns="size")
        data = folder / "rows.sqlite"
        import_rows(folder / "rows.csv", data, columns, progress=False)
        return {"data": str(data)}
    else:
        return {}
    return {"data": str(data), "task_options": {"model": "small"}}


@pytest.mark.slow
def test_every_task_s_model_loads_where_fedmf_cannot_be_imported(corpus_file, tmp_path):
    expected = {}
    for name in tasks.TASKS:
        config = TrainConfig(
            task=name, family="none", min_sep=1, **options_of(name, corpus_file, tmp_path)
        )
        task = tasks.task_from_config(config, progress=False)
        x, _ = take(task.split("test"), slice(5))
        model = task.build_model(3)
        model.set_weights([weight + 0.1 for weight in model.get_weights()])  # not all zeros
        if task.export_model is not None:
            model.save(tmp_path / "with_our_layer.keras")
        exported = model if task.export_model is None else task.export_model(model)
        exported.save(tmp_path / f"{name}.keras")
        exported.save(tmp_path / f"{name}_saved", save_format="tf")
        np.save(tmp_path / f"{name}.in.npy", x)
        expected[name] = model(x, training=False).numpy()
        assert np.ptp(expected[name]) > 0.01
    command = [sys.executable, "-c", LOADS, json.dumps(list(expected))]
    finished_process = subprocess.run(
        command, cwd=tmp_path, check=True, timeout=300, capture_output=True, text=True
    )
    assert "refused" in finished_process.stdout  # export_model is for this case.
    for name, outputs in expected.items():
        for form in (f"{name}.keras", f"{name}_saved"):
            np.testing.assert_allclose(
                np.load(tmp_path / f"{form}.npy"), outputs, rtol=1e-5, atol=1e-6
            )
