"""Differential privacy for the Flower framework. The class `MatrixFactorizationDP` wraps a Flower
strategy and adds the noise and the guarantee of a plan.

It needs flwr 1.42, whose strategies exchange messages; no other package of fedmf does.
"""

try:
    from fedmf.flower.nodes import tell_partition
    from fedmf.flower.strategy import MatrixFactorizationDP
except ImportError as error:
    raise ImportError(
        f"fedmf.flower needs Flower 1.42 ({error}): pip install 'fedmf[flower]'"
    ) from error

__all__ = ["MatrixFactorizationDP", "tell_partition"]
