"""Client work that trains clients one after the other by a user's function."""

import dataclasses
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.server.clipping import UpdateSum, clip_update
from fedmf.server.means import in_shapes
from fedmf.server.messages import ClippedSum
from fedmf.terminal import interrupts
from fedmf.training.client_work import Broadcast, ClientWork, group_sum
from fedmf.training.examples import ClientData, Epochs, errors_of
from fedmf.training.learner import ClientSettings

Weights = list[np.ndarray]
# A function (weights, epochs, settings) -> (update, loss). The update is the weights after training
# minus those before, and the loss is a sum over all examples.
ClientUpdate = Callable[[Weights, Epochs, ClientSettings], tuple[Sequence[Any], float]]

# The margin of clipping (see `clip_margin`) is computed for at least this many clients. Workers of
# a cluster see only some of the clients, and all need the same margin.
_MIN_CLIENTS_OF_MARGIN = 2**16


class SequentialClients(ClientWork):
    """Client work that trains clients one after the other.

    Args:
      client_update: function that trains a client, as of `FunctionLearner`.
      settings: settings of the run.
    """

    def __init__(self, client_update: ClientUpdate, settings: ClientSettings) -> None:
        self._client_update = client_update
        self._settings = settings
        self._max_clients = max(_MIN_CLIENTS_OF_MARGIN, 2 * settings.cohort_size)
        self._sum: UpdateSum | None = None

    def explain(self) -> str:
        """Returns a sentence that says how clients are trained."""
        return "clients train one after the other, each by the task's client_update"

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Trains the clients of each group, and yields the sum of their clipped updates."""
        weights = list(sent.weights)
        clip_params = sent.params
        shapes = [weight.shape for weight in weights]
        if self._sum is None:
            self._sum = UpdateSum(sum(weight.size for weight in weights), self._max_clients)
        for group in groups:
            self._sum.clear()
            loss_sum = 0.0
            for client in group:
                if not client.epochs:
                    continue
                interrupts.check()
                update, loss = self._train(weights, client)
                self._sum.add(
                    [-array for array in update],
                    clip_norm=clip_params.clip_norm,
                    zeroing_norm=clip_params.zeroing_norm,
                    scales=clip_params.scales,
                )
                loss_sum += loss
            yield group_sum(
                group,
                in_shapes(self._sum.total.copy(), shapes),
                clipped=self._sum.clipped,
                zeroed=self._sum.zeroed,
                loss_sum=loss_sum,
            )

    def _train(self, weights: Weights, client: ClientData) -> tuple[Weights, float]:
        """Trains a client, and returns its update and its loss. No step is longer than
        `max_step_norm`.
        """
        settings = self._settings
        if math.isinf(settings.max_step_norm):
            return checked_update(self._client_update, settings, weights, client)
        current_weights = [weight.copy() for weight in weights]
        loss_sum = 0.0
        for number, batch in enumerate(settings.batches(client.epochs)):
            batch_client = ClientData([batch], (*client.seed, number))
            clipped_step, loss = checked_update(
                self._client_update, settings, current_weights, batch_client
            )
            clipped_update = clip_update(
                clipped_step, clip_norm=settings.max_step_norm, zeroing_norm=math.inf
            )
            # A step with NaN or infinity is not clipped, so that the weights become NaN or infinite
            # as well, and the update is zeroed later.
            if not clipped_update.is_zeroed:
                clipped_step = clipped_update.values
            current_weights = [
                (weight + array).astype(weight.dtype)
                for weight, array in zip(current_weights, clipped_step, strict=True)
            ]
            loss_sum += loss
        update = [
            trained_weight - weight
            for trained_weight, weight in zip(current_weights, weights, strict=True)
        ]
        return update, loss_sum


def checked_update(
    client_update: ClientUpdate, settings: ClientSettings, weights: Weights, client: ClientData
) -> tuple[Weights, float]:
    """Calls `client_update` for a client, and returns the checked update and loss. The update has
    the weights' dtypes.

    The function gets copies of the weights, so that it may overwrite them.

    Raises:
      TypeError, ValueError: the function does not return an update of the weights' shapes and a
        loss.
    """
    origin = f"client_update of task {settings.task!r}"
    client_settings = dataclasses.replace(settings, client_seed=client.seed)
    with errors_of(origin):
        copied_weights = [weight.copy() for weight in weights]
        returned_update = client_update(copied_weights, client.epochs, client_settings)
    if not isinstance(returned_update, tuple) or len(returned_update) != 2:
        raise TypeError(
            f"{origin} returns a {type(returned_update).__name__}: return (update, loss)"
        )
    update, loss = returned_update
    if not isinstance(update, list | tuple):
        raise TypeError(
            f"{origin} returns an update that is a {type(update).__name__}: return a list of "
            "arrays, one for each weight"
        )
    update_arrays = [np.asarray(array) for array in update]
    update_shapes = [array.shape for array in update_arrays]
    weight_shapes = [weight.shape for weight in weights]
    if update_shapes != weight_shapes:
        raise ValueError(
            f"{origin} returns an update of shapes {update_shapes} where the weights have "
            f"{weight_shapes}: return the weights after training minus those before"
        )
    is_masked = any(map(np.ma.isMaskedArray, update))
    if is_masked or any(array.dtype.kind not in "fiu" for array in update_arrays):
        raise TypeError(
            f"{origin} returns an update that is not all real numbers: return arrays of floats, "
            "none of them masked"
        )
    loss_sum = checks.real_number(loss)
    if loss_sum is None:
        raise TypeError(
            f"{origin} returns the loss {reprlib.repr(loss)}: return one number, the loss before "
            "each step summed over examples"
        )
    # The update may overflow here. An update with infinite entries is zeroed later.
    with np.errstate(over="ignore"):
        converted_update = [
            array.astype(weight.dtype, copy=False)
            for array, weight in zip(update_arrays, weights, strict=True)
        ]
    return converted_update, loss_sum
