"""Flower with the guarantee of a plan: a strategy around a strategy of Flower's.

Needs flwr 1.42, whose strategies exchange messages; nothing else of fedmf does.
"""

try:
    from fedmf.flower.nodes import tell_partition
    from fedmf.flower.strategy import MatrixFactorizationDP
except ImportError as error:
    raise ImportError(
        f"fedmf.flower needs Flower 1.42 ({error}): pip install 'fedmf[flower]'"
    ) from error

__all__ = ["MatrixFactorizationDP", "tell_partition"]
