"""Sums over time of slowly varying functions, from a few rounds."""

import itertools

import numpy as np

# Rounds that are taken one by one, and the nodes that stand for each later panel, twice as long as the one before.
_ONE_BY_ONE, _NODES = 64, 24


def time_grid(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and weights, both (m,), with sum over t = 0..count-1 of f(t) = sum of weights * f(times).

    The first rounds are taken one by one. Later ones are cut into panels [T, 2 T), each summed through the polynomial of
    degree 23 in its Chebyshev points: exact for those, and to about 1e-13 of the whole sum for exponentials of any
    decay, since what falls by more than e^-30 over a panel has long fallen before it. m is about 64 + 24 log2(count /
    64).

    >>> times, weights = time_grid(10_000)
    >>> len(times) < 300, abs(weights @ 0.99**times - (1 - 0.99**10_000) / 0.01) < 1e-9
    (True, True)
    """
    if count == 0:
        return np.zeros(0), np.zeros(0)
    edges = [0]
    while edges[-1] < count:
        edges.append(min(max(_ONE_BY_ONE, 2 * edges[-1]), count))
    times, weights = [], []
    for begin, end in itertools.pairwise(edges):
        length = end - begin
        if length <= max(_NODES, _ONE_BY_ONE):
            times.append(np.arange(begin, end, dtype=float))
            weights.append(np.ones(length))
            continue
        angles = (np.arange(_NODES) + 0.5) * np.pi / _NODES
        middle, half = begin + (length - 1) / 2, (length - 1) / 2
        times.append(middle + half * np.cos(angles))
        # Sums of the Chebyshev polynomials over the panel's rounds, spread over the nodes by their discrete
        # orthogonality.
        every = np.arccos((np.arange(length) - half) / half)
        sums = np.array([np.cos(degree * every).sum() for degree in range(_NODES)])
        sums[1:] *= 2.0
        weights.append(np.cos(np.outer(angles, np.arange(_NODES))) @ sums / _NODES)
    return np.concatenate(times), np.concatenate(weights)
