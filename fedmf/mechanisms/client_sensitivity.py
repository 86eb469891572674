"""The sensitivity of an encoder to single clients whose rounds are known, whatever updates of norm
at most 1 they contribute in these rounds.

Rounds S of one client move C x by at most the root of the sum over s, t in S of |X_st|, X = C^T C
(banded paper, Prop. E.1). That bound is exact where X >= 0 on S; elsewhere it is sharpened
(`fedmf.participation.sharpening`).
"""

from collections.abc import Sequence
from typing import NamedTuple

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
from fedmf.participation.tree_sensitivity import shared_counts, squared_counts

# Largest number of entries of X = C^T C that are stored for a Toeplitz encoder C, which take 1 GB.
# Encoders of other types need more memory than X, so they have no such limit.
_MAX_TOEPLITZ_ENTRIES = 2**27
# For runs of at most this many rounds, banded encoders are multiplied as dense matrices.
_MAX_DENSE_ROUNDS = 4096
# If each client of a group has more than this fraction of all pairs of rounds, the costs are added
# up by matrix products, for _BLOCK_CLIENTS clients at a time.
_DENSE_PAIRS_FRACTION = 1 / 36
_BLOCK_CLIENTS = 256
# Largest number of sets of rounds for which a smaller upper bound on the sensitivity is searched.
_MAX_SETS = 64
# Largest number of multiplications that are spent on tightening the upper bound on the sensitivity
# of a single client.
_CLIENT_SHARPENING_BUDGET = 1e9
_PAIRS_METHOD = "sum of {} over a client's own rounds (banded paper, Prop. E.1): {}"
_COUNTS_METHOD = (
    "each client's own number of rounds and smallest separation (McMahan et al. 2024): upper bound"
)


def gram_diagonals(mechanism: Mechanism) -> np.ndarray:
    """Returns the diagonals of X = C^T C up to the last non-zero one, where C is the encoder,
    float64 (diagonals, rounds). Entry [d, t] is X[t, t + d], or 0 if t + d is beyond the last
    round.

    Raises:
      ValueError: the diagonals do not fit into memory.

    >>> from fedmf.mechanisms import ToeplitzMechanism
    >>> gram_diagonals(ToeplitzMechanism(rounds=3, coefficients=[1.0, 0.5]))
    array([[1.25, 1.25, 1.  ],
           [0.5 , 0.5 , 0.  ]])
    """
    n = mechanism.rounds
    c = mechanism.toeplitz_coefficients()
    banded_rows = mechanism.banded_rows()
    toeplitz_gram = mechanism.toeplitz_gram()
    bands = mechanism.bands
    if c is None and banded_rows is None:
        bands = n
    checks.fits_in_memory("the costs of pairs of rounds", (bands, n))
    diagonals = np.zeros((bands, n))
    if c is not None:
        for d in range(bands):
            # X[t, t + d] is the sum of c_s c_(s + d) over s from 0 to n - 1 - t - d.
            cumulative_sums = np.cumsum(c[: bands - d] * c[d:])
            num_terms = np.minimum(np.arange(n - d, 0, -1), bands - d)
            diagonals[d, : n - d] = cumulative_sums[num_terms - 1]
    elif toeplitz_gram is not None:
        for d in range(n):
            diagonals[d, : n - d] = toeplitz_gram[d]
    elif banded_rows is not None and n > _MAX_DENSE_ROUNDS:
        encoder_columns = columns_of_rows(banded_rows)
        for d in range(bands):
            diagonals[d, : n - d] = np.einsum(
                "ts,ts->t", encoder_columns[: n - d, d:], encoder_columns[d:, : bands - d]
            )
    else:
        C = mechanism.encoder()
        X = C.T @ C
        for d in range(bands):
            diagonals[d, : n - d] = np.diagonal(X, d)
    num_diagonals = int(np.flatnonzero(diagonals.any(axis=1)).max(initial=0)) + 1
    return diagonals[:num_diagonals]


def spent_squared(diagonals: np.ndarray, clients: ClientRounds) -> np.ndarray:
    """Returns the joint cost of the rounds of each client, float64 (clients,). It is the sum of
    |X_st| over all pairs of the client's rounds s and t.

    Args:
      diagonals: diagonals of |X|, in the form of `gram_diagonals`.
      clients: clients whose rounds are below those of the encoder.

    >>> spent_squared(
    ...     np.array([[1.0, 1.0], [0.5, 0.0]]),
    ...     ClientRounds(rounds=np.array([0, 1, 1]), starts=np.array([0, 2]))
    ... )
    array([3., 1.])
    """
    bands, n = diagonals.shape
    spent_by_client = np.zeros(len(clients))
    if not len(clients):
        return spent_by_client
    count_order = np.argsort(clients.counts, kind="stable")
    distinct_counts, first_clients = np.unique(clients.counts[count_order], return_index=True)
    clients_by_count = np.split(count_order, first_clients[1:])
    for k, client_indices in zip(distinct_counts.tolist(), clients_by_count, strict=True):
        # The array t has shape (k, clients). Its column i has the k rounds of client i of this
        # group.
        entry_indices = clients.starts[client_indices] + np.arange(k)[:, None]
        t = clients.rounds[entry_indices].astype(np.intp)
        if n <= _MAX_DENSE_ROUNDS and k * min(k, bands) > _DENSE_PAIRS_FRACTION * n * n:
            spent_by_client[client_indices] = _sum_by_products(diagonals, t)
        else:
            spent_by_client[client_indices] = _sum_by_pairs(diagonals, t)
    return spent_by_client


def _sum_by_pairs(diagonals: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Returns the sum of |X_st| over each client's pairs of rounds, computed pair by pair. Column i
    of t, ints (k, clients), has the increasing rounds of client i.
    """
    bands, n = diagonals.shape
    spent_by_client = diagonals[0][t].sum(axis=0)
    flat_diagonals = diagonals.ravel()
    for offset in range(1, len(t)):
        earlier_rounds = t[:-offset]
        lags = t[offset:] - earlier_rounds
        is_in_band = lags < bands
        if is_in_band.all():
            spent_by_client += 2.0 * flat_diagonals.take(lags * n + earlier_rounds).sum(axis=0)
        elif is_in_band.any():
            lag_entries = flat_diagonals.take(np.minimum(lags, bands - 1) * n + earlier_rounds)
            spent_by_client += 2.0 * np.where(is_in_band, lag_entries, 0.0).sum(axis=0)
        else:
            break
    return spent_by_client


def _sum_by_products(diagonals: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Returns the sum of |X_st| over each client's pairs of rounds, as `_sum_by_pairs` does, by
    matrix products, which are faster for clients with many rounds.
    """
    bands, n = diagonals.shape
    num_clients = t.shape[1]
    spent_by_client = np.zeros(num_clients)
    X = np.zeros((n, n))
    for d in range(bands):
        row_indices = np.arange(n - d)
        X[row_indices, row_indices + d] = diagonals[d, : n - d]
        X[row_indices + d, row_indices] = diagonals[d, : n - d]
    for first_client in range(0, num_clients, _BLOCK_CLIENTS):
        client_rounds = t[:, first_client : first_client + _BLOCK_CLIENTS]
        participates = np.zeros((client_rounds.shape[1], n))
        participates[np.arange(client_rounds.shape[1]), client_rounds] = 1.0
        group_costs = np.einsum("ct,ct->c", participates @ X, participates)
        spent_by_client[first_client : first_client + _BLOCK_CLIENTS] = group_costs
    return spent_by_client


class ClientSensitivity:
    """The sensitivity of one encoder to single clients whose rounds are known.

    Args:
      mechanism: the mechanism with the encoder.
      extra_rounds: later rounds, increasing, that every client may be counted in as well.
      by_counts: where a Toeplitz X, or X of a Toeplitz encoder, would take more than a gigabyte,
        bound a client by its number of rounds and their smallest separation.
    """

    def __init__(
        self, mechanism: Mechanism, extra_rounds: Sequence[int] = (), *, by_counts: bool = True
    ) -> None:
        self._mechanism = mechanism
        self._extra_rounds = np.asarray(extra_rounds, np.int64)
        n = mechanism.rounds
        self._bounds: dict[tuple[int, int], float] = {}
        has_toeplitz_gram = (
            mechanism.toeplitz_coefficients() is not None or mechanism.toeplitz_gram() is not None
        )
        is_large = has_toeplitz_gram and n * mechanism.bands > _MAX_TOEPLITZ_ENTRIES
        self._by_counts = by_counts and is_large
        self._has_negative_entries = False
        self._trees = mechanism.binary_trees()
        if self._by_counts:
            return
        if self._trees is not None:
            self._extra_costs = 2.0 * shared_counts(self._trees, self._extra_rounds)
            return
        self._diagonals = gram_diagonals(mechanism)
        self._has_negative_entries = bool((self._diagonals < 0).any())
        self._magnitudes = self._diagonals
        if self._has_negative_entries:
            self._magnitudes = np.abs(self._diagonals)
        # Entry t is the sum of 2 |X_st| over all later rounds s in `_extra_rounds`, the rounds that
        # are added to every client, where X = C^T C for the encoder C.
        self._extra_costs = np.zeros(n)
        for later in self._extra_rounds:
            earlier_rounds = np.arange(max(0, later - len(self._magnitudes) + 1), later)
            self._extra_costs[earlier_rounds] += (
                2.0 * self._magnitudes[later - earlier_rounds, earlier_rounds]
            )

    @property
    def exact(self) -> bool:
        """Whether the bound of every client equals its sensitivity, which holds if X = C^T C has no
        negative entries.
        """
        return not (self._by_counts or self._has_negative_entries)

    @property
    def can_be_sharpened(self) -> bool:
        """Whether bounds can be sharpened, which is possible if X = C^T C has negative entries."""
        return self._has_negative_entries

    def squared(self, clients: ClientRounds) -> np.ndarray:
        """Returns an upper bound on the squared sensitivity to each client, float64 (clients,)."""
        if self._by_counts:
            smallest_gaps = clients.smallest_gaps(self._mechanism.rounds)
            return self._bounds_by_counts(clients.counts, smallest_gaps)
        if self._trees is not None:
            return squared_counts(self._trees, clients)
        return spent_squared(self._magnitudes, clients)

    def squared_with_extra_rounds(self, clients: ClientRounds, squared: np.ndarray) -> np.ndarray:
        """Returns upper bounds on the squared sensitivity to clients that take part in the extra
        rounds as well. `squared` has the bounds without the extra rounds.
        """
        if not len(self._extra_rounds) or not len(clients):
            return squared
        if self._by_counts:
            counts_with_extra = clients.counts + len(self._extra_rounds)
            return self._bounds_by_counts(counts_with_extra, np.ones_like(clients.counts))
        joint_costs = np.add.reduceat(self._extra_costs[clients.rounds], clients.starts)
        return squared + joint_costs + self.min_squared

    @property
    def min_squared(self) -> float:
        """An upper bound on the squared sensitivity to a client that is counted in the extra rounds
        only, or 0 if there are none.
        """
        if not len(self._extra_rounds):
            return 0.0
        extra_client = ClientRounds(rounds=self._extra_rounds, starts=np.zeros(1, np.int64))
        return float(self.squared(extra_client)[0])

    def _bounds_by_counts(self, counts: np.ndarray, gaps: np.ndarray) -> np.ndarray:
        """Returns upper bounds on the squared sensitivity to clients, from each client's number of
        rounds and smallest separation.
        """
        count_gap_rows = np.stack([counts, gaps], axis=1)
        pairs, pair_of_client = np.unique(count_gap_rows, axis=0, return_inverse=True)
        pair_bounds = np.array([self._bound_by_count(count, gap) for count, gap in pairs.tolist()])
        return pair_bounds[pair_of_client.ravel()]

    def _bound_by_count(self, count: int, min_sep: int) -> float:
        """Returns an upper bound on the squared sensitivity to a client with `count` rounds that
        are at least `min_sep` apart.
        """
        if (count, min_sep) not in self._bounds:
            n = self._mechanism.rounds
            participation = Participation(
                rounds=n, schema="min_sep", min_sep=min_sep, max_participations=count
            )
            self._bounds[count, min_sep] = sensitivity(self._mechanism, participation).value ** 2
        return self._bounds[count, min_sep]

    def of(self, rounds: np.ndarray) -> Sensitivity:
        """Returns the sensitivity to a client that takes part in these increasing rounds and in the
        extra rounds.
        """
        largest_sensitivity = LargestSensitivity(self)
        client_rounds = ClientRounds(rounds=rounds, starts=np.zeros(1, np.int64))
        squared = self.squared_with_extra_rounds(client_rounds, self.squared(client_rounds))
        largest_sensitivity.add(client_rounds, squared, np.ones(1, bool))
        return largest_sensitivity.sensitivity(_CLIENT_SHARPENING_BUDGET)

    def gram(self, rounds: np.ndarray) -> np.ndarray:
        """Returns the entries of X = C^T C between a client's rounds, with the extra rounds
        appended, float64 (k, k). C is the encoder.
        """
        t = np.concatenate([rounds, self._extra_rounds])
        lags = np.abs(np.subtract.outer(t, t))
        X = self._diagonals[np.minimum(lags, len(self._diagonals) - 1), np.minimum.outer(t, t)]
        return np.where(lags < len(self._diagonals), X, 0.0)


class _RoundSet(NamedTuple):
    """The rounds of one client, and an upper bound on its squared sensitivity."""

    squared: float
    rounds: np.ndarray


class LargestSensitivity:
    """The largest sensitivity to any of many clients, which are added in blocks."""

    def __init__(self, client_sensitivity: ClientSensitivity) -> None:
        self._client_sensitivity = client_sensitivity
        # The sets of rounds of single clients with the largest sensitivity bounds. The key of each
        # set is the bytes of its array of rounds.
        self._round_sets: dict[bytes, _RoundSet] = {}
        # The largest squared bound of any set of rounds that was dropped from `_round_sets`, which
        # has at most _MAX_SETS sets.
        self._dropped_squared = -np.inf
        # The square of the largest sensitivity bound among all clients.
        self.squared = -np.inf

    def add(self, clients: ClientRounds, squared: np.ndarray, chosen: np.ndarray) -> None:
        """Adds the clients whose entry in `chosen`, bool (clients,), is True. `squared` holds their
        bounds from `ClientSensitivity`.
        """
        self.squared = max(self.squared, float(squared[chosen].max(initial=-np.inf)))
        if not self._client_sensitivity.can_be_sharpened:
            return
        candidate_clients = np.flatnonzero(chosen & (squared > self._dropped_squared))
        descending_order = np.argsort(-squared[candidate_clients], kind="stable")
        for client in candidate_clients[descending_order].tolist():
            if squared[client] <= self._dropped_squared:
                break
            client_rounds = clients.of(client)
            round_set = _RoundSet(float(squared[client]), client_rounds.copy())
            self._round_sets.setdefault(client_rounds.tobytes(), round_set)
            if len(self._round_sets) > _MAX_SETS:
                smallest_key = min(self._round_sets, key=lambda key: self._round_sets[key].squared)
                dropped_set = self._round_sets.pop(smallest_key)
                self._dropped_squared = max(self._dropped_squared, dropped_set.squared)

    def sensitivity(self, multiplications: float = SHARPENING_BUDGET) -> Sensitivity:
        """Returns the largest sensitivity to any client so far, exact or an upper bound. At least
        one client must have been added.

        Args:
          multiplications: how many multiplications it may take to sharpen the bounds.
        """
        bound_value = float(np.sqrt(self.squared))
        is_exact = self._client_sensitivity.exact
        if not self._round_sets:
            method = _COUNTS_METHOD
            if is_exact:
                method = _PAIRS_METHOD.format("X", "exact")
            return Sensitivity(value=bound_value, exact=is_exact, method=method)
        set_bounds = []
        for key, (squared, rounds) in self._round_sets.items():
            X = self._client_sensitivity.gram(rounds)
            is_tight = len(X) <= 2 or squared - float(X.sum()) <= ROUNDING * squared
            set_bounds.append((squared, is_tight, key))
        sharpened_sensitivity = largest_sharpened(
            set_bounds,
            lambda key: self._client_sensitivity.gram(self._round_sets[key].rounds),
            multiplications,
        )
        dropped_sensitivity = Sensitivity(
            value=float(np.sqrt(max(self._dropped_squared, 0.0))),
            exact=False,
            method=_PAIRS_METHOD.format("|X|", "upper bound"),
        )
        return max(sharpened_sensitivity, dropped_sensitivity, key=lambda bound: bound.value)
