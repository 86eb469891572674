"""Integration with TensorFlow Federated (TFF) and TensorFlow Privacy.

The package has a DPQuery, an aggregation factory, a process that enforces its plan, a check of TFF
processes, and the rounds of execution="tff".

This module is the only one that imports TensorFlow Federated 0.87 and TensorFlow Privacy; the
modules of this package take both from here.
"""

from fedmf.federated.tensorflow_import import importing_tff

with importing_tff():
    import tensorflow_federated as tff
    import tensorflow_privacy as tfp
    from tensorflow_federated.python.core.impl.compiler import building_blocks, transformations

__all__ = [
    "building_blocks",
    "tff",
    "tfp",
    "transformations",
]
