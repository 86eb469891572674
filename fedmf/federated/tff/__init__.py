"""DPQuery, aggregation factory, process checks and execution="tff", on TFF and TF Privacy.

This is the only module that imports TensorFlow Federated 0.87 and TensorFlow Privacy; the modules
of this package take both from here.
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
