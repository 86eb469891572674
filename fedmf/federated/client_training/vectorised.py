"""Training of many clients in one call of a tf.function, by tf.vectorized_map.

This is faster for two kinds of clients. For small models the dispatch of operations takes more time
than their arithmetic. For clients with one gradient each, which occur if single examples are
protected, one call computes all gradients.

A client's update must have the same bits whatever the other clients of its call are: training can
amplify a difference in the last bit of a step to more than the clip norm, and then the data of one
client would move the updates of others. Kernels round by the shapes of their arguments and, at the
end of an array, by the position in it. Therefore each call has the same number of slots for
clients, a multiple of what a processor computes at once, and a step computes all of them, whichever
have a batch in it. A check before round 0 moves clients to other slots and beside others; a model
whose updates change by that is not vectorised.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedmf.federated.client_training.agreement import check_agreement
from fedmf.federated.client_training.client_work import (
    TensorBroadcast,
    broadcast_spec,
    client_optimizer,
    gradients,
)
from fedmf.federated.client_training.records import QuerySample, Records, specs_of
from fedmf.federated.client_training.stateless_model import (
    check_clients_stay_separate,
    dense_rows,
    stateless_model,
)
from fedmf.federated.loss import batch_loss, minimised
from fedmf.federated.model_functions import ModelFunctions, tensor_specs
from fedmf.server.messages import ClippedSum
from fedmf.server.update_rules import OptimizerState
from fedmf.terminal import interrupts
from fedmf.training import vectorised_sizes
from fedmf.training.batching import Steps, concatenated_epochs, list_batches, order_steps
from fedmf.training.client_work import (
    Broadcast,
    ClientWork,
    group_sum,
    merge_sums,
    with_finite_examples,
)
from fedmf.training.examples import ClientData, Epochs, has_one_example
from fedmf.training.independence import Slots, check_independent, positive_batch
from fedmf.training.learner import ClientSettings


class _ClientsState(NamedTuple):
    """The optimizer states and weights of all clients of a call.

    The first axis of each tensor counts clients.

    Attributes:
      optimizer: see `OptimizerState`.
      weights: of the clients' models.
    """

    optimizer: OptimizerState
    weights: list[tf.Tensor]


class VectorisedClients(ClientWork):
    """Client work that trains many clients in each call.

    The model is small, or clients have one gradient each. If the model is larger, clients with
    several steps go to the fallback.

    Args:
      functions: the task's functions.
      settings: the run's settings.
      records: clipped sums of the updates.
      make_fallback: () -> the client work of clients that are not vectorised.

    Raises:
      Exception: the model cannot be built in a graph, an operation has no vectorised form that is
        safe and runs here, or a client's gradients depend on other clients by rounding.
    """

    def __init__(
        self,
        functions: ModelFunctions,
        settings: ClientSettings,
        records: Records,
        make_fallback: Callable[[], ClientWork],
    ) -> None:
        self._batch_size = settings.batch_size
        self._records = records
        self._loss = batch_loss(functions)
        self._optimizer = client_optimizer(settings)
        self._learning_rate = settings.learning_rate
        self._batch_specs = tensor_specs(settings.spec)
        self._is_small = vectorised_sizes.is_small(records.size)
        self._num_slots = vectorised_sizes.slots_per_call(settings, records.size)
        self._fallback = functools.cache(make_fallback)
        self._stateless = stateless_model(functions, settings.seed)

        sent_spec = broadcast_spec(records, settings)
        loss_and_gradients = tf.function(
            self._loss_and_gradients, input_signature=[sent_spec.weights, *self._batch_specs]
        )
        check_clients_stay_separate(loss_and_gradients)
        examples = positive_batch(np.random.default_rng(0), settings.spec, min(2, self._batch_size))
        x, y = tf.nest.map_structure(tf.constant, examples)
        initial_model = functions.build_model(settings.seed)
        initial_weights = [variable.read_value() for variable in initial_model.trainable_variables]
        check_agreement(initial_model, self._loss, loss_and_gradients, (x, y))
        self._train = self._traced_training(sent_spec)
        unit_params = tf.nest.map_structure(
            lambda spec: tf.ones(spec.shape, spec.dtype), sent_spec.params
        )
        sent_tensors = TensorBroadcast(initial_weights, unit_params)
        checked_slots = Slots(
            number=self._num_slots,
            weights=[np.asarray(weight) for weight in initial_weights],
            spec=settings.spec,
            share_weights=not self._is_small,
        )
        check_independent(self._traced_gradients(sent_tensors), checked_slots, self._batch_sizes())
        # One call runs here, because an operation that this machine cannot compute fails only when
        # it runs. An example is the gradient of a grouped convolution where TensorFlow does not use
        # oneDNN.
        accepted_epochs = [examples]
        if not self._is_small:
            accepted_epochs = [tf.nest.map_structure(lambda leaf: leaf[:1], accepted_epochs[0])]
        self._train_chunk(sent_tensors, self._records.zero(), [accepted_epochs, accepted_epochs])

    def _traced_training(self, sent_spec: TensorBroadcast) -> Any:
        """Returns a tf.function that trains up to one client per slot and adds up their updates."""
        input_signature = [sent_spec, specs_of(self._records.zero())]
        num_clients_spec = tf.TensorSpec([], tf.int32)
        if self._is_small:
            steps_spec = Steps(
                start=tf.TensorSpec([None, self._num_slots], tf.int32),
                has_batch=tf.TensorSpec([None, self._num_slots], tf.bool),
                size=tf.TensorSpec([None], tf.int32),
            )
            input_signature += [*self._batch_specs, num_clients_spec, steps_spec]
            return tf.function(self._train_in_steps, input_signature=input_signature)
        input_signature += tf.nest.map_structure(
            lambda spec: tf.TensorSpec([self._num_slots, 1, *spec.shape[1:]], spec.dtype),
            self._batch_specs,
        )
        return tf.function(
            self._train_one_step, input_signature=[*input_signature, num_clients_spec]
        )

    def _traced_gradients(self, sent: TensorBroadcast) -> Any:
        """Returns the tf.function that computes the losses and gradients of all slots, as in a
        training step.

        It takes a stack of weights, inputs and labels, one entry for each slot.
        """
        batch_size = None if self._is_small else 1

        def stacked_spec(leaf: Any) -> tf.TensorSpec:
            return tf.TensorSpec([self._num_slots, *leaf.shape], leaf.dtype)

        def batch_spec(spec: tf.TensorSpec) -> tf.TensorSpec:
            return tf.TensorSpec([self._num_slots, batch_size, *spec.shape[1:]], spec.dtype)

        x_specs, y_specs = tf.nest.map_structure(batch_spec, self._batch_specs)

        def gradients_of_slots(weights: Any, xs: Any, ys: Any) -> Any:
            if self._is_small:
                return tf.vectorized_map(self._gradients_of_client, (weights, xs, ys))
            # In a call that makes a single training step, all clients start from the weights of the
            # server.
            return tf.vectorized_map(
                lambda batch: self._gradients_of_client(
                    ([weight[0] for weight in weights], *batch)
                ),
                (xs, ys),
            )

        return tf.function(
            gradients_of_slots,
            input_signature=[[stacked_spec(weight) for weight in sent.weights], x_specs, y_specs],
        )

    def _gradients_of_client(self, arguments: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Computes the loss and the gradients of one slot's weights, inputs and labels."""
        weights, x, y = arguments
        loss, gradient_list = self._loss_and_gradients(weights, x, y)
        # A result of tf.vectorized_map that is one of the function's arguments must be copied by
        # tf.identity.
        return loss, [tf.identity(dense_rows(gradient)) for gradient in gradient_list]

    def _batch_sizes(self) -> list[int]:
        """Returns the batch sizes to check, which are all sizes up to 32, and the run's batch "
        "size."""
        if not self._is_small:
            return [1]
        return sorted({*range(1, min(self._batch_size, 32) + 1), self._batch_size})

    def explain(self) -> str:
        """Returns a sentence that says why the training of clients is vectorised."""
        if not self._is_small:
            return "vectorised: clients of one example each train together in one call"
        return (
            f"vectorised: many clients of a model of {self._records.size} parameters, at most "
            f"{vectorised_sizes.SMALL_MODEL}, train in one call"
        )

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Yields the sum of the clipped updates of each group of clients."""
        sent_tensors = TensorBroadcast.of(sent)
        for group in groups:
            # Whether a client is vectorised depends only on the client's own data.
            vectorised_clients = [client for client in group if self._is_vectorised(client)]
            single_clients = [client for client in group if not self._is_vectorised(client)]
            total, loss_sum = self._sum_updates(
                sent_tensors, with_finite_examples(vectorised_clients)
            )
            clipped_sum = group_sum(
                vectorised_clients,
                [np.asarray(leaf) for leaf in total.record],
                clipped=int(total.clipped),
                zeroed=int(total.zeroed),
                loss_sum=loss_sum,
            )
            if single_clients:
                for other_sum in self._fallback().sums(sent, [single_clients]):
                    clipped_sum = merge_sums(clipped_sum, other_sum)
            yield clipped_sum

    def _is_vectorised(self, client: ClientData) -> bool:
        """Returns whether a client trains in the vectorised call.

        Clients whose examples are not finite do not train, and are counted here.
        """
        return self._is_small or not client.epochs or has_one_example(client.epochs)

    def _sum_updates(
        self, sent: TensorBroadcast, clients: Sequence[Epochs]
    ) -> tuple[QuerySample, float]:
        """Trains clients in as many calls as are needed, and returns the sum of their clipped
        updates and their losses.
        """
        update_sum = self._records.zero()
        loss_sum = 0.0
        for start in range(0, len(clients), self._num_slots):
            interrupts.check()
            client_chunk = clients[start : start + self._num_slots]
            update_sum, chunk_loss = self._train_chunk(sent, update_sum, client_chunk)
            loss_sum += float(chunk_loss)
        return update_sum, loss_sum

    def _train_chunk(
        self, sent: TensorBroadcast, total: QuerySample, chunk: Sequence[Epochs]
    ) -> tuple[QuerySample, tf.Tensor]:
        """Trains the clients of one call, which has a slot for each of them.

        Returns:
          The sum with their updates, and their loss.
        """
        chunk_leaves = concatenated_epochs(chunk)
        arguments: list[Any] = [np.int32(len(chunk))]
        if self._is_small:
            arguments.append(order_steps(list_batches(chunk, self._batch_size), self._num_slots))
        else:
            # An empty slot (a place in the vectorised call without a client) computes with the
            # first example of all clients, and its result is not used.
            slot_rows = np.arange(self._num_slots)
            slot_rows[len(chunk) :] = 0
            chunk_leaves = [leaf[slot_rows, np.newaxis] for leaf in chunk_leaves]
        examples = tf.nest.pack_sequence_as(self._batch_specs, chunk_leaves)
        result: tuple[QuerySample, tf.Tensor] = self._train(sent, total, *examples, *arguments)
        return result

    def _loss_and_gradients(
        self, weights: Sequence[tf.Tensor], x: Any, y: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor | tf.IndexedSlices]]:
        """Computes the loss of a batch with one client's weights, and the gradients.

        The gradients include the model's own losses. They may be tf.IndexedSlices.
        """
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs, model_losses = self._stateless(weights, x)
            loss = self._loss(y, outputs)
            total_loss = minimised(loss, model_losses)
        return loss, gradients(tape, total_loss, weights)

    def _train_one_step(
        self, sent: TensorBroadcast, total: QuerySample, xs: Any, ys: Any, num_clients: tf.Tensor
    ) -> tuple[QuerySample, tf.Tensor]:
        """Adds the updates of clients that take one step each to a sum.

        Client c has the batch xs[c], ys[c].

        Args:
          sent, total: see `TensorBroadcast` and `QuerySample`.
          xs, ys: inputs and labels of all slots.
          num_clients: number of clients, which are in the first slots.

        Returns:
          The sum, and the loss before each step summed over examples.
        """
        weights, params = sent

        losses, stacked_gradients = tf.vectorized_map(
            lambda batch: self._gradients_of_client((list(weights), *batch)), (xs, ys)
        )
        optimizer_state = self._optimizer.initial(list(weights))
        for c in tf.range(num_clients):
            gradient_list = [gradient[c] for gradient in stacked_gradients]
            _, new_weights = self._optimizer.next(
                optimizer_state, list(weights), gradient_list, self._learning_rate
            )
            update = [old - new for new, old in zip(new_weights, weights, strict=True)]
            total = self._records.added(params, total, update)
        return total, tf.reduce_sum(losses[:num_clients])

    def _train_in_steps(
        self,
        sent: TensorBroadcast,
        total: QuerySample,
        xs: Any,
        ys: Any,
        num_clients: tf.Tensor,
        steps: Steps,
    ) -> tuple[QuerySample, tf.Tensor]:
        """Adds the updates of clients that take several steps to a sum.

        Arguments and results are those of `_train_one_step`; `steps` has the batches of the clients
        step by step.
        """
        global_weights, params = sent

        initial_state = tf.nest.map_structure(
            tf.convert_to_tensor,
            _ClientsState(self._optimizer.initial(list(global_weights)), list(global_weights)),
        )
        clients_state = tf.nest.map_structure(
            lambda leaf: tf.repeat(leaf[tf.newaxis], self._num_slots, axis=0), initial_state
        )
        loss_sum = tf.constant(0.0)
        for s in tf.range(tf.shape(steps.size)[0]):
            rows = steps.start[s][:, tf.newaxis] + tf.range(steps.size[s])
            batch = tf.nest.map_structure(lambda array, rows=rows: tf.gather(array, rows), (xs, ys))
            losses, gradient_list = tf.vectorized_map(
                self._gradients_of_client, (clients_state.weights, *batch)
            )
            clients_state = self._take_step(clients_state, steps.has_batch[s], gradient_list)
            loss_sum += _loss_of_step(losses, steps.has_batch[s], steps.size[s])
        for c in tf.range(num_clients):
            weight_pairs = zip(global_weights, clients_state.weights, strict=True)
            update = [old - client_weights[c] for old, client_weights in weight_pairs]
            total = self._records.added(params, total, update)
        return total, loss_sum

    def _take_step(
        self, state: _ClientsState, has_batch: tf.Tensor, gradient_list: list[tf.Tensor]
    ) -> _ClientsState:
        """Takes a step for each client that has a batch, and returns the state of all clients."""
        next_state = self._optimizer.next(
            state.optimizer, state.weights, gradient_list, self._learning_rate
        )

        def select(old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
            """Returns new values for clients that have a batch, and old values for the others."""
            is_new = tf.reshape(has_batch, [self._num_slots] + [1] * (old.shape.rank - 1))
            return tf.where(is_new, new, old)

        new_state: _ClientsState = tf.nest.map_structure(select, state, _ClientsState(*next_state))
        return new_state


def _loss_of_step(losses: tf.Tensor, has_batch: tf.Tensor, batch_size: tf.Tensor) -> tf.Tensor:
    """Returns the sum of the losses of all examples in a step, for clients that have a batch."""
    losses = tf.where(has_batch, losses, tf.zeros_like(losses))
    return tf.reduce_sum(losses) * tf.cast(batch_size, tf.float32)
