"""Matrix-factorization mechanisms: what noise each round gets."""

from fedmf.mechanisms.banded import BandedMechanism
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.blt import BLTMechanism
from fedmf.mechanisms.buffers import Buffers
from fedmf.mechanisms.certificate import Certificate
from fedmf.mechanisms.dense import DenseMechanism
from fedmf.mechanisms.fft import FFTMechanism
from fedmf.mechanisms.foreign import load_factorization
from fedmf.mechanisms.identity import IdentityMechanism
from fedmf.mechanisms.low_rank import LowRankMechanism
from fedmf.mechanisms.matrices import MatrixMechanism
from fedmf.mechanisms.stamped import StampedMechanism, stamp
from fedmf.mechanisms.storage import load_mechanism
from fedmf.mechanisms.stream import NoiseStream
from fedmf.mechanisms.toeplitz import ToeplitzMechanism
from fedmf.mechanisms.tree import TreeMechanism

__all__ = [
    "BLTMechanism",
    "BandedMechanism",
    "Buffers",
    "Certificate",
    "DenseMechanism",
    "FFTMechanism",
    "IdentityMechanism",
    "LowRankMechanism",
    "MatrixMechanism",
    "Mechanism",
    "NoiseStream",
    "StampedMechanism",
    "ToeplitzMechanism",
    "TreeMechanism",
    "load_factorization",
    "load_mechanism",
    "stamp",
]
