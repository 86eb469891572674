"""CPU time of a row of correlated noise added to a gradient of 4 million coordinates."""

import functools
from typing import Any

from benchmarks.compare.sitting import Case, Side
from benchmarks.compare.worker import Work

SIZE = 4_050_000
_ROUNDS, _BUFFERS, _BANDS, _SEED = 2052, 4, 32, 1
# Rows of a turn; fedmf's, which are made in blocks, at least one whole block.
_ROWS = 8


def fedmf_rows(name: str, size: int, rounds: int = _ROUNDS) -> Work:
    """fedmf: rows made ahead by the host, as its training loops take them."""
    import numpy as np

    from benchmarks.noise import plan_of
    from fedmf.server.host_noise import HostNoise

    strategy = None if size == SIZE else "recurrent"  # toy noise fits into memory
    noise = HostNoise(plan_of(name, rounds), size, noise_seed=_SEED, strategy=strategy)
    gradient = np.zeros(size, np.float32)
    length, following = noise.strategy.length, 0

    def work(_: dict[str, Any]) -> dict[str, Any]:
        nonlocal following
        rows = length * -(-_ROWS // length)
        for t in range(following, following + rows):
            gradient + noise.row(t)
        following += rows
        return {"units": rows}

    return work


def tfp_tree_rows(size: int) -> Work:
    """TensorFlow Privacy's TreeResidualSumQuery with Honaker's estimator, in a tf.function."""
    from benchmarks.noise import tfp_tree

    made = tfp_tree("", _ROUNDS, size)[1]()
    following = 0

    def work(_: dict[str, Any]) -> dict[str, Any]:
        nonlocal following
        made.run(range(following, following + _ROWS))
        following += _ROWS
        return {"units": _ROWS}

    return work


def jax_rows(name: str, size: int) -> Work:
    """jax_privacy's privatizer, jitted, with its state donated."""
    import jax
    import jax.numpy as jnp
    from jax_privacy import noise_addition
    from jax_privacy.matrix_factorization import buffered_toeplitz, streaming_matrix, toeplitz

    matrix = streaming_matrix.identity()
    if name == "blt":
        blt = buffered_toeplitz.optimize(n=_ROUNDS, min_buffers=_BUFFERS, max_buffers=_BUFFERS)
        # As its own warning advises: else the noise is float64.
        matrix = jax.tree_util.tree_map(jnp.float32, blt).inverse_as_streaming_matrix()
    elif name == "toeplitz":
        coefficients = toeplitz.optimal_max_error_strategy_coefs(_BANDS)
        matrix = toeplitz.inverse_as_streaming_matrix(coefficients)
    privatizer = noise_addition.matrix_factorization_privatizer(matrix, stddev=1.0, prng_key=_SEED)
    gradient = jnp.zeros(size, jnp.float32)
    update = jax.jit(privatizer.update, donate_argnums=1)
    state = privatizer.init(gradient)

    def work(_: dict[str, Any]) -> dict[str, Any]:
        nonlocal state
        for _row in range(_ROWS):
            noisy, state = update(gradient, state)
            noisy.block_until_ready()
        return {"units": _ROWS}

    return work


def correlated_noise_rows(size: int) -> Work:
    """correlated-noise-mechanism's optimizer; its decays and weights do not change the cost."""
    import torch
    from correlated_noise_mechanism.optimizers.optimizer import CNMOptimizer

    parameter = torch.nn.Parameter(torch.zeros(size))
    optimizer = CNMOptimizer(
        torch.optim.SGD([parameter], lr=1.0),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        mode="BLT",
        a=torch.full((_BUFFERS,), 0.05),
        lamda=torch.tensor([0.99, 0.9, 0.7, 0.4]),
        steps=_ROUNDS,
        expected_batch_size=1,
    )
    gradient = torch.zeros(size)

    def work(_: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            for _row in range(_ROWS):
                parameter.summed_grad = gradient.detach()
                optimizer.add_noise()
        return {"units": _ROWS}

    return work


_TOY = {"size": 1000}
_jax = functools.partial(
    Side, label="jax_privacy", function="noise:jax_rows", distribution="jax-privacy", small=_TOY
)


def _case(work: str, ours: str, *others: Side) -> Case:
    """Turns of rows: after one that is not counted, in which graphs are compiled and all rows that
    are kept come to be there.
    """
    fedmf = Side(
        label="fedmf",
        environment="fedmf",
        function="noise:fedmf_rows",
        arguments={"name": ours, "size": SIZE},
        small=_TOY | {"rounds": 48},
    )
    return Case(
        work=f"a noise vector, {work}",
        value="",
        sides=(fedmf, *others),
        cost="CPU ms",
        passes=3,
        unsaid=1,
        fresh=False,
        lower=None,
    )


CASES = (
    _case("independent", "identity", _jax(arguments={"name": "identity", "size": SIZE})),
    _case(
        "BLT, 4 buffers",
        "blt, 4 buffers",
        _jax(arguments={"name": "blt", "size": SIZE}),
        Side(
            label="correlated-noise-mechanism",
            function="noise:correlated_noise_rows",
            arguments={"size": SIZE},
            small=_TOY,
            distribution="correlated-noise-mechanism",
        ),
    ),
    _case("32 bands", "banded, 32 bands", _jax(arguments={"name": "toeplitz", "size": SIZE})),
    _case(
        "tree, online",
        "tree, online",
        Side(
            label="TensorFlow Privacy",
            function="noise:tfp_tree_rows",
            arguments={"size": SIZE},
            small=_TOY,
            environment="fedmf",
            distribution="tensorflow-privacy",
        ),
    ),
)
