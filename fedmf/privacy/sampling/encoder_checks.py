"""Checks of the properties of a mechanism's encoder that amplification by sampling needs."""

import numpy as np

from fedmf.mechanisms.base import Mechanism


def proven_bands(mechanism: Mechanism) -> int:
    """Returns the number of bands of a lower-triangular encoder, counted from its entries. The
    attribute `bands` of a mechanism is not trusted, because the guarantee rests on the number.

    Raises:
      ValueError: the encoder is not square and lower-triangular.
    """
    banded_rows = mechanism.banded_rows()
    if banded_rows is not None:
        return int(banded_rows.shape[1])
    toeplitz_column = mechanism.toeplitz_coefficients()
    if toeplitz_column is not None:
        return int(np.flatnonzero(toeplitz_column).max(initial=0)) + 1
    no_square_error = ValueError(
        f"family={mechanism.family} has no square lower-triangular encoder, which "
        "amplification by sampling needs: use banded, "
        "identity, toeplitz or dense, or leave sampling out"
    )
    trees = mechanism.binary_trees()
    if trees is not None and trees.num_nodes > trees.rounds:
        raise no_square_error
    C = mechanism.encoder()
    n = mechanism.rounds
    if C.shape != (n, n) or np.triu(C, 1).any():
        raise no_square_error
    is_nonzero = C != 0
    lags_by_row = np.arange(n) - is_nonzero.argmax(axis=1)
    return int(lags_by_row[is_nonzero.any(axis=1)].max(initial=0)) + 1


def check_no_negative_entry(mechanism: Mechanism, scheme_name: str) -> None:
    """Raises ValueError if the encoder has a negative entry. For such encoders there is no proof
    that the pair of distributions whose privacy losses are simulated is the worst case.
    """
    encoder_entries = mechanism.toeplitz_coefficients()
    if encoder_entries is None:
        encoder_entries = mechanism.banded_rows()
    if encoder_entries is None:
        encoder_entries = mechanism.encoder()
    smallest_entry = float(encoder_entries.min())
    if smallest_entry < 0:
        raise ValueError(
            f"the {mechanism.family} encoder has a negative entry, {smallest_entry:.3g}, and for "
            f"those no pair of distributions is proven to be the worst for {scheme_name} "
            "(Choquette-Choo et al. 2024, Lemma 3.2): use banded, toeplitz or blt"
        )
