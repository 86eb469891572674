"""The optimizers that a config names, of clients and server, and how updates are scaled."""

import tensorflow as tf

from fedmf.runs.config import SCALED, TrainConfig
from fedmf.server.following import Scaling
from fedmf.server.optimizers import Optimizer


def client_optimizer(config: TrainConfig) -> Optimizer:
    """The clients' optimizer, on tensors; it begins anew with every client and round.

    The adaptive ones have TFF's defaults.
    """
    rule = config.client_optimizer
    return Optimizer(
        rule=rule,
        momentum=config.client_momentum if rule == "sgd" else 0.9,
        epsilon=1e-3 if rule == "yogi" else 1e-7,
        proximal=config.proximal_strength,
        xp=tf,
    )


def server_optimizer(config: TrainConfig) -> Optimizer:
    """The server's optimizer, on arrays; its rate in round t is that of `server_schedule`."""
    return Optimizer(
        rule=config.server_optimizer.removeprefix(SCALED),
        momentum=config.server_momentum,
        epsilon=config.server_epsilon,
    )


def scaling_of(config: TrainConfig) -> Scaling | None:
    """How updates are scaled before they are clipped, for the server's optimizer; None for one that
    takes the mean as it is.
    """
    if not config.server_optimizer.startswith(SCALED):
        return None
    rule = config.server_optimizer.removeprefix(SCALED)
    return Scaling(rule=rule, epsilon=config.server_epsilon, every=config.scale_every)
