"""Matrix-factorization mechanisms: what noise each round gets."""

from fedmf.mechanisms.banded import BandedMechanism
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.buffers import Buffers
from fedmf.mechanisms.certificate import Certificate
from fedmf.mechanisms.dense import DenseMechanism
from fedmf.mechanisms.identity import IdentityMechanism
from fedmf.mechanisms.storage import load_mechanism
from fedmf.mechanisms.stream import NoiseStream
from fedmf.mechanisms.tree import TreeMechanism

__all__ = [
    "BandedMechanism",
    "Buffers",
    "Certificate",
    "DenseMechanism",
    "IdentityMechanism",
    "Mechanism",
    "NoiseStream",
    "TreeMechanism",
    "load_mechanism",
]
