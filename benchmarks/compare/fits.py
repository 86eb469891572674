"""Encoders for prefix sums, fitted by fedmf and by jax_privacy to the same accuracy.

fedmf goes first, and stops by its own certificate, often better than it was asked for. The other
stops as soon as its squared error is within that accuracy of fedmf's, or after its most steps.
Compiling is part of a fit: who fits does it once.
"""

import functools
import os
from typing import Any

from benchmarks.compare.sitting import Case, Side
from benchmarks.compare.worker import Work

# Relative, of the squared error, over the optimum.
_ACCURACY = 1e-3


def fedmf_fit(family: str, rounds: int, worst: bool = False, **options: Any) -> Work:
    """fedmf, for clients that come once; the largest error of a round if `worst`, else the rmse."""
    os.environ["FEDMF_CACHE"] = ""
    import fedmf

    workload = fedmf.prefix_sum(rounds)
    once = fedmf.Participation(rounds=rounds, schema="single")

    def work(_: dict[str, Any]) -> dict[str, Any]:
        found = fedmf.fit(workload, once, family=family, cache=False, **options)
        error = (
            float(fedmf.per_round_error(found, workload, once).max())
            if worst
            else fedmf.rmse(found, workload, once)
        )
        return {"value": error, "target": error}

    return work


def _as_low(told: dict[str, Any]) -> Any:
    """Whether a step's loss, a square, is fedmf's but for the accuracy that fedmf was asked for."""
    limit = told["target"] ** 2 * (1 + _ACCURACY) if "target" in told else 0.0
    return lambda step: bool(step.loss <= limit)


def jax_banded(rounds: int, bands: int) -> Work:
    """jax_privacy's banded fit, with as many steps as it takes up to 2000."""
    import jax.numpy as jnp
    from jax_privacy.matrix_factorization import banded, optimization

    @optimization.jax_enable_x64
    def rmse(encoder: Any) -> float:
        return float(jnp.sqrt(jnp.mean(banded.per_query_error(encoder))))

    def work(told: dict[str, Any]) -> dict[str, Any]:
        found = banded.optimize(
            rounds, bands=bands, max_optimizer_steps=2000, callback=_as_low(told)
        )
        return {"value": rmse(found)}

    return work


def jax_dense(rounds: int) -> Work:
    """jax_privacy's dense fit, with as many steps as it takes: where its own rule stops, its error
    was above fedmf's.
    """
    import jax.numpy as jnp
    from jax_privacy.matrix_factorization import dense

    def work(told: dict[str, Any]) -> dict[str, Any]:
        found = dense.optimize(rounds, callback=_as_low(told))
        return {"value": float(jnp.sqrt(jnp.mean(dense.per_query_error(strategy_matrix=found))))}

    return work


def jax_blt(rounds: int, buffers: int) -> Work:
    """jax_privacy's BLT with a fixed number of buffers, for the largest error of a round."""
    from jax_privacy.matrix_factorization import buffered_toeplitz, optimization

    loss_of = optimization.jax_enable_x64(
        lambda found: float(buffered_toeplitz.max_loss(found, rounds))
    )

    def work(told: dict[str, Any]) -> dict[str, Any]:
        found = buffered_toeplitz.optimize(
            n=rounds,
            min_buffers=buffers,
            max_buffers=buffers,
            callback=_as_low(told),
        )
        return {"value": loss_of(found) ** 0.5}

    return work


_jax = functools.partial(Side, label="jax_privacy", distribution="jax-privacy")


def _case(work: str, value: str, ours: Side, theirs: Side) -> Case:
    return Case(work=work, value=value, sides=(ours, theirs), passes=2, digits=5)


def _fedmf(small: dict[str, Any], **arguments: Any) -> Side:
    return Side(
        label="fedmf",
        environment="fedmf",
        function="fits:fedmf_fit",
        arguments=arguments,
        small=small,
    )


CASES = (
    _case(
        "fit, banded, 1024 rounds, 32 bands",
        "rmse",
        _fedmf(
            {"rounds": 32, "bands": 4}, family="banded", rounds=1024, bands=32, tolerance=_ACCURACY
        ),
        _jax(
            function="fits:jax_banded",
            arguments={"rounds": 1024, "bands": 32},
            small={"rounds": 32, "bands": 4},
        ),
    ),
    _case(
        "fit, dense, 256 rounds",
        "rmse",
        _fedmf({"rounds": 32}, family="dense", rounds=256, tolerance=_ACCURACY),
        _jax(function="fits:jax_dense", arguments={"rounds": 256}, small={"rounds": 32}),
    ),
    _case(
        "fit, BLT, 2048 rounds, 4 buffers",
        "largest error",
        _fedmf(
            {"rounds": 64, "buffers": 2},
            family="blt",
            rounds=2048,
            buffers=4,
            objective="max",
            worst=True,
        ),
        _jax(
            function="fits:jax_blt",
            arguments={"rounds": 2048, "buffers": 4},
            small={"rounds": 64, "buffers": 2},
        ),
    ),
)
