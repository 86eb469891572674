"""The bound on the weights of patterns that are drawn together, against an enumeration of all
patterns.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.privacy.sampling.min_sep_bound import largest_log_factor
from fedmf.privacy.sampling.min_sep_losses import MinSepLosses


def patterns(rounds, b, p):
    """Yields (ineligible rounds at the start, 0 or 1 for each round, probability of the pattern
    with that start) of one client.
    """
    for first_wait in range(b):
        for x in itertools.product((0, 1), repeat=rounds):
            wait = first_wait
            probability = 1.0
            for takes_part in x:
                if wait:
                    probability *= 1.0 - takes_part
                else:
                    probability *= p if takes_part else 1 - p
                wait = b - 1 if takes_part else max(wait - 1, 0)
            if probability:
                yield first_wait, np.array(x), probability


def log_weight(together, C, b, p, advance):
    """Computes the log of p(x_1) .. p(x_K) exp(sum over i < l of <C x_i, C x_l>) / h(x_1, .., x_K),
    with the distribution h that `MinSepLosses.sample` describes.
    """
    sums = [C @ x for _, x, _ in together]
    log = sum(math.log(probability) for *_, probability in together)
    log += sum(float(u @ v) for u, v in itertools.combinations(sums, 2))
    waits = [wait for wait, *_ in together]
    for t in range(len(C)):
        e = sum(wait == 0 for wait in waits)
        m = sum(x[t] for _, x, _ in together)
        h = sum(float(C[:, t] @ C[:, s]) * x[s] for _, x, _ in together for s in range(t))
        weights = [
            math.comb(e, k)
            * p**k
            * (1 - p) ** (e - k)
            * math.exp(k * (k - 1) / 2 * float(C[:, t] @ C[:, t]) + k * (h + advance))
            for k in range(e + 1)
        ]
        log -= math.log(weights[m] / sum(weights) / math.comb(e, m))
        waits = [
            b - 1 if x[t] else max(wait - 1, 0)
            for wait, (_, x, _) in zip(waits, together, strict=True)
        ]
    return log


@settings(max_examples=50)
@given(st.data())
def test_the_bound_is_the_largest_weight_of_all_patterns(data):
    b = data.draw(st.integers(2, 3), "b")
    K = data.draw(st.integers(2, 3), "K")
    rounds = data.draw(st.integers(1, {2: 5, 3: 4}[K]), "rounds")
    bands = data.draw(st.integers(1, min(b, rounds)), "bands")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    columns = rng.uniform(0.0, 1.5, (rounds, bands)) * (rng.random((rounds, bands)) < 0.8)
    C = np.zeros((rounds, rounds))
    for t in range(rounds):
        reach = min(bands, rounds - t)
        columns[t, reach:] = 0
        C[t : t + reach, t] = columns[t, :reach]
    p = data.draw(st.floats(0.05, 0.95), "p")
    advance = data.draw(st.floats(-1.0, 1.0), "advance")
    largest_weight = max(
        log_weight(patterns_together, C, b, p, advance)
        for patterns_together in itertools.combinations_with_replacement(
            list(patterns(rounds, b, p)), K
        )
    )
    products = MinSepLosses(columns, b, p).products
    bound = largest_log_factor(products, b, p, order=K, advance=advance)
    assert largest_weight == pytest.approx(bound, abs=1e-7)
