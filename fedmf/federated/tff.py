"""The symbols of TensorFlow Federated 0.87 and TensorFlow Privacy that fedmf uses: no other module imports either of them."""

import tensorflow_federated as tff
import tensorflow_privacy as tfp
from tensorflow_federated.python.core.impl.compiler import building_blocks, transformation_utils, transformations
from tensorflow_privacy.privacy.optimizers import dp_optimizer_keras

__all__ = [
    "building_blocks",
    "dp_optimizer_keras",
    "tff",
    "tfp",
    "transformation_utils",
    "transformations",
]
