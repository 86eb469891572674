"""The import of TensorFlow, in processes of their own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow

# By its file: importing the package would import TensorFlow at once.
PROGRAM = """
import gc, importlib.util, pathlib, sys, fedmf

path = pathlib.Path(fedmf.__file__).parent / "federated" / "tensorflow_import.py"
spec = importlib.util.spec_from_file_location("quiet", path)
quiet = importlib.util.module_from_spec(spec)
spec.loader.exec_module(quiet)
{before}
seen = []
gc.callbacks.append(lambda phase, info: seen.append(phase) if phase == "start" else None)
quiet.import_tensorflow()
assert "tensorflow_federated" in sys.modules
gc.callbacks.clear()
print(gc.isenabled(), len(seen))
"""


# Once it is on again, it collects: that is one. In the import it would be hundreds.
@pytest.mark.parametrize(("before", "enabled", "most"), [("", True, 1), ("gc.disable()", False, 0)])
def test_nothing_is_collected_in_the_import_and_the_collector_is_left_as_it_was(before, enabled, most):
    """A collection runs jax's Python, which would swallow a Ctrl-C."""
    program = PROGRAM.format(before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    on, collections = done.stdout.split()
    assert on == str(enabled)
    assert int(collections) <= most
