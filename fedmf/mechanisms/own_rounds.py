"""What clients cost whose rounds are known: the sensitivity to one of them,
whatever its vectors are.

Rounds S of one client move C x by at most the root of the sum over s, t in S of |X_st|, X = C^T C
(banded paper, Prop. E.1). That is exact where X >= 0 on S; elsewhere it
is sharpened (`fedmf.participation.sharpening`).
"""

from collections.abc import Sequence

import numpy as np

from fedmf import checks
from fedmf.mechanisms.banded.recursion import columns_of_rows
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.clients import ClientRounds
from fedmf.participation.schema import Participation
from fedmf.participation.sharpening import (
    ROUNDING,
    SHARPENING_BUDGET,
    Sensitivity,
    largest_sharpened,
)

# Entries of X that a Toeplitz encoder may have here, 1 GB; other encoders of as many rounds take
# more themselves.
_MAX_TOEPLITZ_ENTRIES = 2**27
# Banded encoders of so many rounds are multiplied as dense matrices.
_MAX_DENSE_ROUNDS = 4096
# A client whose pairs of rounds are more than this share of all is counted by a product of
# matrices, so many clients at once.
_PAIRS_OF_A_PRODUCT = 1 / 36
_CLIENTS_AT_ONCE = 256
# Sets of rounds whose bounds may be sharpened; multiplications that it may cost for one
# of them by itself.
_MOST_SETS, _SHARPENING_OF_ONE = 64, 1e9
_SUM = "sum of {} over a client's own rounds (banded paper, Prop. E.1): {}"
_COUNTS = (
    "each client's own number of rounds and smallest separation (McMahan et al. 2024): upper bound"
)


def gram_diagonals(mechanism: Mechanism) -> np.ndarray:
    """The diagonals of X = C^T C up to the last that is not 0: float64 (diagonals, rounds), [d, t]
    = X[t, t + d], 0 beyond the end.

    Raises:
      ValueError: they would take too much memory.

    >>> from fedmf.mechanisms import ToeplitzMechanism
    >>> gram_diagonals(ToeplitzMechanism(rounds=3, coefficients=[1.0, 0.5]))
    array([[1.25, 1.25, 1.  ],
           [0.5 , 0.5 , 0.  ]])
    """
    n = mechanism.rounds
    c = mechanism.toeplitz_coefficients()
    rows = mechanism.banded_rows()
    gram = mechanism.toeplitz_gram()
    bands = n if c is None and rows is None else mechanism.bands
    checks.fits_in_memory("what pairs of rounds cost", (bands, n))
    diagonals = np.zeros((bands, n))
    if c is not None:
        for d in range(bands):
            # X[t, t + d] is the sum of the c_s c_(s + d) that end before row n.
            sums = np.cumsum(c[: bands - d] * c[d:])
            diagonals[d, : n - d] = sums[np.minimum(np.arange(n - d, 0, -1), bands - d) - 1]
    elif gram is not None:
        for d in range(n):
            diagonals[d, : n - d] = gram[d]
    elif rows is not None and n > _MAX_DENSE_ROUNDS:
        columns = columns_of_rows(rows)
        for d in range(bands):
            diagonals[d, : n - d] = np.einsum(
                "ts,ts->t", columns[: n - d, d:], columns[d:, : bands - d]
            )
    else:
        C = mechanism.encoder()
        X = C.T @ C
        for d in range(bands):
            diagonals[d, : n - d] = np.diagonal(X, d)
    used = int(np.flatnonzero(diagonals.any(axis=1)).max(initial=0)) + 1
    return diagonals[:used]


def spent_squared(diagonals: np.ndarray, clients: ClientRounds) -> np.ndarray:
    """What the rounds of each client cost together: the sum of |X_st|, float64 (clients,).

    Args:
      diagonals: of |X|, as `gram_diagonals` has those of X.
      clients: with rounds below those of the encoder.

    >>> spent_squared(
    ...     np.array([[1.0, 1.0], [0.5, 0.0]]),
    ...     ClientRounds(rounds=np.array([0, 1, 1]), starts=np.array([0, 2]))
    ... )
    array([3., 1.])
    """
    bands, n = diagonals.shape
    spent = np.zeros(len(clients))
    if not len(clients):
        return spent
    by_count = np.argsort(clients.counts, kind="stable")
    different, begins = np.unique(clients.counts[by_count], return_index=True)
    for k, alike in zip(different.tolist(), np.split(by_count, begins[1:]), strict=True):
        # (k, clients)
        t = clients.rounds[clients.starts[alike] + np.arange(k)[:, None]].astype(np.intp)
        dense = n <= _MAX_DENSE_ROUNDS and k * min(k, bands) > _PAIRS_OF_A_PRODUCT * n * n
        spent[alike] = _by_products(diagonals, t) if dense else _by_pairs(diagonals, t)
    return spent


def _by_pairs(diagonals: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The sums of |X_st| for the rounds of clients, increasing, ints (k, clients)."""
    bands, n = diagonals.shape
    spent = diagonals[0][t].sum(axis=0)
    entries = diagonals.ravel()
    for places in range(1, len(t)):
        earlier = t[:-places]
        apart = t[places:] - earlier
        near = apart < bands
        if near.all():
            spent += 2.0 * entries.take(apart * n + earlier).sum(axis=0)
        elif near.any():
            spent += 2.0 * np.where(
                near, entries.take(np.minimum(apart, bands - 1) * n + earlier), 0.0
            ).sum(axis=0)
        else:
            break
    return spent


def _by_products(diagonals: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The same by products of matrices: for clients with many rounds."""
    bands, n = diagonals.shape
    spent = np.zeros(t.shape[1])
    X = np.zeros((n, n))
    for d in range(bands):
        places = np.arange(n - d)
        X[places, places + d] = X[places + d, places] = diagonals[d, : n - d]
    for begin in range(0, t.shape[1], _CLIENTS_AT_ONCE):
        some = t[:, begin : begin + _CLIENTS_AT_ONCE]
        taken = np.zeros((some.shape[1], n))
        taken[np.arange(some.shape[1]), some] = 1.0
        spent[begin : begin + _CLIENTS_AT_ONCE] = np.einsum("ct,ct->c", taken @ X, taken)
    return spent


class OwnRounds:
    """The sensitivity of an encoder to single clients whose rounds are known.

    Args:
      mechanism: with the encoder.
      besides: later rounds, increasing, that every client may be counted in as well.
      by_counts: where a Toeplitz X, or X of a Toeplitz encoder, would take more than a gigabyte,
        bound a client by how often and how far apart it takes part.
    """

    def __init__(
        self, mechanism: Mechanism, besides: Sequence[int] = (), *, by_counts: bool = True
    ) -> None:
        self._mechanism = mechanism
        self._besides = np.asarray(besides, np.int64)
        n = mechanism.rounds
        self._bounds: dict[tuple[int, int], float] = {}
        large = (
            mechanism.toeplitz_coefficients() is not None or mechanism.toeplitz_gram() is not None
        ) and n * mechanism.bands > _MAX_TOEPLITZ_ENTRIES
        self._by_counts = by_counts and large
        self._signed = False
        if self._by_counts:
            return
        self._diagonals = gram_diagonals(mechanism)
        self._signed = bool((self._diagonals < 0).any())
        self._sizes = np.abs(self._diagonals) if self._signed else self._diagonals
        # What a round costs together with the rounds besides.
        self._with_besides = np.zeros(n)
        for later in self._besides:
            earlier = np.arange(max(0, later - len(self._sizes) + 1), later)
            self._with_besides[earlier] += 2.0 * self._sizes[later - earlier, earlier]

    @property
    def exact(self) -> bool:
        """Whether the bound of every client is its sensitivity, since X >= 0."""
        return not (self._by_counts or self._signed)

    @property
    def sharpened(self) -> bool:
        """Whether bounds can be sharpened."""
        return self._signed

    def squared(self, clients: ClientRounds) -> np.ndarray:
        """A bound on the squared sensitivity to each client, float64 (clients,)."""
        if self._by_counts:
            return self._by(clients.counts, clients.smallest_gaps(self._mechanism.rounds))
        return spent_squared(self._sizes, clients)

    def squared_with_besides(self, clients: ClientRounds, squared: np.ndarray) -> np.ndarray:
        """The same where every client is counted in the rounds besides as well, from `squared`."""
        if not len(self._besides) or not len(clients):
            return squared
        if self._by_counts:
            return self._by(clients.counts + len(self._besides), np.ones_like(clients.counts))
        together = np.add.reduceat(self._with_besides[clients.rounds], clients.starts)
        return squared + together + self.least_squared

    @property
    def least_squared(self) -> float:
        """The bound for a client that is counted in the rounds besides alone;
        0 where there are none.
        """
        if not len(self._besides):
            return 0.0
        return float(
            self.squared(ClientRounds(rounds=self._besides, starts=np.zeros(1, np.int64)))[0]
        )

    def _by(self, counts: np.ndarray, gaps: np.ndarray) -> np.ndarray:
        pairs, which = np.unique(np.stack([counts, gaps], axis=1), axis=0, return_inverse=True)
        return np.array([self._bound_by_counts(*pair) for pair in pairs.tolist()])[which.ravel()]

    def _bound_by_counts(self, most: int, min_sep: int) -> float:
        if (most, min_sep) not in self._bounds:
            n = self._mechanism.rounds
            apart = Participation(
                rounds=n, schema="min_sep", min_sep=min_sep, max_participations=most
            )
            self._bounds[most, min_sep] = sensitivity(self._mechanism, apart).value ** 2
        return self._bounds[most, min_sep]

    def of(self, rounds: np.ndarray) -> Sensitivity:
        """The sensitivity to a client with these rounds, increasing, and those besides."""
        largest = Largest(self)
        client = ClientRounds(rounds=rounds, starts=np.zeros(1, np.int64))
        largest.add(
            client, self.squared_with_besides(client, self.squared(client)), np.ones(1, bool)
        )
        return largest.sensitivity(_SHARPENING_OF_ONE)

    def gram(self, rounds: np.ndarray) -> np.ndarray:
        """X of a client's rounds and of those besides, float64 (k, k)."""
        t = np.concatenate([rounds, self._besides])
        apart = np.abs(np.subtract.outer(t, t))
        X = self._diagonals[np.minimum(apart, len(self._diagonals) - 1), np.minimum.outer(t, t)]
        return np.where(apart < len(self._diagonals), X, 0.0)


class Largest:
    """The largest sensitivity to any of many clients, who are added block by block."""

    def __init__(self, own: OwnRounds) -> None:
        self._own = own
        self._sets: dict[
            bytes, tuple[float, np.ndarray]
        ] = {}  # the sets of rounds with the largest bounds
        self._others = -np.inf  # the largest bound of all others
        self.squared = -np.inf  # and of all: a bound on the squared sensitivity

    def add(self, clients: ClientRounds, squared: np.ndarray, chosen: np.ndarray) -> None:
        """Adds the chosen clients, bool (clients,), with their bounds, of `OwnRounds.squared`."""
        self.squared = max(self.squared, float(squared[chosen].max(initial=-np.inf)))
        if not self._own.sharpened:
            return
        above = np.flatnonzero(chosen & (squared > self._others))
        for client in above[np.argsort(-squared[above], kind="stable")].tolist():
            if squared[client] <= self._others:
                break
            rounds = clients.of(client)
            self._sets.setdefault(rounds.tobytes(), (float(squared[client]), rounds.copy()))
            if len(self._sets) > _MOST_SETS:
                least = min(self._sets, key=lambda key: self._sets[key][0])
                self._others = max(self._others, self._sets.pop(least)[0])

    def sensitivity(self, multiplications: float = SHARPENING_BUDGET) -> Sensitivity:
        """The largest sensitivity: exact, or an upper bound; there must be a client.

        Args:
          multiplications: how many sharpening the bounds may cost.
        """
        value = float(np.sqrt(self.squared))
        if not self._sets:
            how = _SUM.format("X", "exact") if self._own.exact else _COUNTS
            return Sensitivity(value=value, exact=self._own.exact, method=how)
        bounds = []
        for key, (squared, rounds) in self._sets.items():
            X = self._own.gram(rounds)
            bounds.append(
                (squared, len(X) <= 2 or squared - float(X.sum()) <= ROUNDING * squared, key)
            )
        result = largest_sharpened(
            bounds, lambda key: self._own.gram(self._sets[key][1]), multiplications
        )
        rest = float(np.sqrt(max(self._others, 0.0)))
        return max(
            result,
            Sensitivity(value=rest, exact=False, method=_SUM.format("|X|", "upper bound")),
            key=lambda bound: bound.value,
        )
