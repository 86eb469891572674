"""Matrix-factorization mechanisms, which add noise that is correlated across training rounds. The
package has their classes, and functions that load, register and combine them.
"""

from fedmf.mechanisms.banded.fit import BandedMechanism
from fedmf.mechanisms.base import Certificate, Mechanism
from fedmf.mechanisms.blt import BLTMechanism
from fedmf.mechanisms.dense.fit import DenseMechanism
from fedmf.mechanisms.family import FAMILIES, Family, register
from fedmf.mechanisms.fft import FFTMechanism
from fedmf.mechanisms.identity import IdentityMechanism
from fedmf.mechanisms.interop import ExplicitMechanism, load_factorization
from fedmf.mechanisms.low_rank import LowRankMechanism
from fedmf.mechanisms.stamped import StampedMechanism, stamp
from fedmf.mechanisms.storage import load_mechanism
from fedmf.mechanisms.toeplitz import ToeplitzMechanism
from fedmf.mechanisms.tree import TreeMechanism
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream

__all__ = [
    "FAMILIES",
    "BLTMechanism",
    "BandedMechanism",
    "Buffers",
    "Certificate",
    "DenseMechanism",
    "ExplicitMechanism",
    "FFTMechanism",
    "Family",
    "IdentityMechanism",
    "LowRankMechanism",
    "Mechanism",
    "NoiseStream",
    "StampedMechanism",
    "ToeplitzMechanism",
    "TreeMechanism",
    "load_factorization",
    "load_mechanism",
    "register",
    "stamp",
]
