"""The symbols of TensorFlow Federated 0.87 and TensorFlow Privacy that fedmf uses: no other module
imports either of them.
"""

import tensorflow_federated as tff
import tensorflow_privacy as tfp
from tensorflow_federated.python.core.impl.compiler import building_blocks, transformations

__all__ = [
    "building_blocks",
    "tff",
    "tfp",
    "transformations",
]
