"""All that needs TensorFlow Federated 0.87 or TensorFlow Privacy: the DPQuery, the aggregation
factory, checks of processes, execution="tff". No other module imports either of them.

Its symbols of theirs stand here, so that the day they change is one file's work.
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
