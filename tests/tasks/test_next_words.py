"""The kept results of the Keras model, with which tests/pytorch compares the PyTorch model, are
those of this code.
"""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from tests.tasks import next_words

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("form", next_words.FORMS)
def test_the_kept_results_are_those_of_the_keras_model(form):
    kept = np.load(next_words.KEPT)
    found = next_words.results(form, "tensorflow")
    for name, distance in next_words.distances(kept, found).items():
        assert distance < 1e-5, name
