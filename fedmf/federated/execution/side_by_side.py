"""Clients side by side in one call of a tf.function, as tf.vectorized_map has them: those of small
models, whose steps cost their dispatch and not their arithmetic, and those of one gradient each
(privacy of single examples).
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.execution.client_work import (
    TensorBroadcast,
    broadcast_spec,
    client_optimizer,
    gradients,
)
from fedmf.federated.execution.records import Records, specs_of
from fedmf.federated.execution.stateless_model import check_apart, dense_rows, stateless_model
from fedmf.federated.loss import batch_loss, minimised
from fedmf.federated.model_functions import ModelFunctions, tensor_specs
from fedmf.server.messages import ClippedSum
from fedmf.terminal import interrupts
from fedmf.training.batching import Steps, concatenated_epochs, list_batches, order_steps
from fedmf.training.client_work import Broadcast, ClientWork, group_sum, with_finite_examples
from fedmf.training.examples import ClientData, Epochs, Examples, count
from fedmf.training.learner import ClientSettings

# Examples times parameters of clients in one call, which bounds their weights and inputs: 128 MiB.
PRODUCTS = 2**25
# Up to here a step costs its dispatch and not its arithmetic. Larger models are slower with filters
# and kernels for each client.
SMALL_MODEL = 10_000  # parameters


class ClientsSideBySide(ClientWork):
    """Clients of a small model, or of one gradient each; of a larger model those of more steps are
    left to `others`.

    Args:
      functions: of the task.
      settings: of the run.
      records: of the updates.
      others: makes the client work of groups that are not for this one.

    Raises:
      Exception: a model that cannot be built in a graph, or whose operations have no vectorised
        form that is safe and runs here.
    """

    def __init__(
        self,
        functions: ModelFunctions,
        settings: ClientSettings,
        records: Records,
        others: Callable[[], ClientWork],
    ) -> None:
        self._batch_size, self._records = settings.batch_size, records
        self._loss = batch_loss(functions)
        self._optimizer = client_optimizer(settings)
        self._rate = settings.learning_rate
        sent, self._structure = broadcast_spec(records, settings), tensor_specs(settings.spec)
        self._small, self._others = is_small(records), functools.cache(others)
        self._stateless = stateless_model(functions, settings.seed)

        apart = tf.function(
            self._loss_and_gradients, input_signature=[sent.weights, *self._structure]
        )
        check_apart(apart)
        example, model = self._made_up(), functions.build_model(settings.seed)
        weights = [variable.read_value() for variable in model.trainable_variables]
        self._check_same(model, apart, *example)
        signature = [sent, specs_of(records.zero())]
        if self._small:
            numbers, number = tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32)
            order = Steps(client=numbers, start=numbers, end=numbers, size=numbers, first=number)
            signature += [*self._structure, order, number]
            self._train = tf.function(self._train_in_steps, input_signature=signature)
        else:
            signature += tf.nest.map_structure(
                lambda spec: tf.TensorSpec([None, 1, *spec.shape[1:]], spec.dtype),
                self._structure,
            )
            self._train = tf.function(self._train_single, input_signature=signature)
        # An operation without a kernel here fails when it runs, and not before: a grouped
        # convolution's gradient, say, on processors for which TensorFlow does not use oneDNN.
        params = tf.nest.map_structure(lambda spec: tf.ones(spec.shape, spec.dtype), sent.params)
        epochs = [tf.nest.map_structure(np.asarray, example)]
        self._added(TensorBroadcast(weights, params), [epochs * 2 if self._small else epochs] * 2)

    def _made_up(self) -> Examples:
        """A batch of two, or of one."""
        rng = np.random.default_rng(0)

        def made_up(whole: int, spec: Any) -> Any:
            values = rng.normal(size=(min(2, self._batch_size), *spec.shape[1:]))
            return tf.cast(
                values if spec.dtype.is_floating else np.full_like(values, whole), spec.dtype
            )

        # 0 is padding, which a model may leave out, but every label has it.
        x, y = (
            tf.nest.map_structure(functools.partial(made_up, whole), part)
            for whole, part in zip((1, 0), self._structure, strict=True)
        )
        return x, y

    def _check_same(self, model: Any, apart: Any, x: Any, y: Any) -> None:
        """Checks that the stateless model computes what the model does, whatever weights it has.

        A tensor that a model makes of its weights when it is built is that of the first weights in
        Keras, and would be that of a client's own here.

        Raises:
          ValueError: it does not, on the examples x, y.
        """
        rng = np.random.default_rng(1)
        variables = model.trainable_variables
        for variable in variables:
            variable.assign_add(rng.normal(scale=0.1, size=variable.shape).astype(np.float32))
        loss, found = apart([variable.read_value() for variable in variables], x, y)
        with tf.GradientTape() as tape:
            expected = self._loss(y, model(x, training=True))
            total = minimised(expected, model.losses)
        pairs = [(loss, expected), *zip(found, gradients(tape, total, variables), strict=True)]
        for ours, keras in pairs:
            ours, keras = (np.asarray(tf.convert_to_tensor(value)) for value in (ours, keras))
            scale = np.nanmax(np.abs(keras), initial=1e-6)
            if not np.allclose(ours, keras, rtol=1e-3, atol=1e-3 * scale, equal_nan=True):
                raise ValueError(
                    "the stateless model is another function of the weights than the model"
                )

    def explain(self) -> str:
        """See `ClientWork.explain`."""
        if not self._small:
            return "vectorised: clients of one example each train together in one call"
        return (
            f"vectorised: many clients of a model of {self._records.size} parameters, at most "
            f"{SMALL_MODEL}, train in one call"
        )

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """See `ClientWork.sums`."""
        tensors = TensorBroadcast.of(sent)
        for group in groups:
            clients = with_finite_examples(group)
            if self._small or all(len(e) == 1 and count(e[0]) == 1 for e in clients):
                total, loss_sum = self._added(tensors, clients)
                yield group_sum(
                    group,
                    [np.asarray(leaf) for leaf in total.record],
                    clipped=int(total.clipped),
                    zeroed=int(total.zeroed),
                    loss_sum=loss_sum,
                )
            else:
                yield from self._others().sums(sent, [group])

    def _added(self, sent: TensorBroadcast, clients: Sequence[Epochs]) -> tuple[Any, float]:
        """The sum of their clipped updates, and their loss."""
        total, loss = self._records.zero(), 0.0
        for part in _in_parts(clients, self._records.size):
            interrupts.check()
            leaves, found = concatenated_epochs(part), list_batches(part, self._batch_size)
            more: list[Any] = [order_steps(found), np.int32(len(part))]
            if not self._small:
                leaves, more = [leaf[:, np.newaxis] for leaf in leaves], []
            examples = tf.nest.pack_sequence_as(self._structure, leaves)
            total, losses = self._train(sent, total, *examples, *more)
            loss += float(losses)
        return total, loss

    def _loss_and_gradients(self, weights: Any, x: Any, y: Any) -> Any:
        """The loss of a batch under one client's weights, and the gradients of all that is
        minimised, as the tape gives them.
        """
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs, own = self._stateless(weights, x)
            loss = self._loss(y, outputs)
            total_loss = minimised(loss, own)
        return loss, gradients(tape, total_loss, weights)

    def _train_single(self, sent: TensorBroadcast, total: Any, xs: Any, ys: Any) -> Any:
        """Adds the updates of clients of one gradient each; client c has the batch xs[c], ys[c].

        Args:
          sent, total: see `Broadcast` and `QuerySample`.
          xs, ys: inputs and labels of all clients.

        Returns:
          The sum, and the loss before each step summed over examples.
        """
        weights, params = sent

        def of_one(batch: Any) -> Any:
            loss, found = self._loss_and_gradients(list(weights), *batch)
            return loss, [dense_rows(gradient) for gradient in found]

        losses, found = tf.vectorized_map(of_one, (xs, ys))
        state = self._optimizer.initial(list(weights))
        for c in tf.range(tf.shape(losses)[0]):
            _, after = self._optimizer.next(
                state, list(weights), [gradient[c] for gradient in found], self._rate
            )
            update = [w - v for v, w in zip(after, weights, strict=True)]
            total = self._records.added(params, total, update)
        return total, tf.reduce_sum(losses)

    def _train_in_steps(
        self, sent: TensorBroadcast, total: Any, xs: Any, ys: Any, order: Steps, clients: Any
    ) -> Any:
        """`_train_single` for clients of many steps, in this order; `clients` is their number."""
        broadcast, params = sent

        def gradients_of(weights: Any, x: Any, y: Any) -> Any:
            loss, found = self._loss_and_gradients(weights, x, y)
            # TensorFlow does not vectorise what is returned as it came in.
            return loss, [tf.identity(dense_rows(gradient)) for gradient in found]

        def members(s: Any) -> tuple[Any, Any]:
            """The clients of step s, and their batches."""
            those = slice(tf.where(s > 0, order.end[s - 1], 0), order.end[s])
            rows = order.start[those][:, tf.newaxis] + tf.range(order.size[s])
            return order.client[those][:, tf.newaxis], tf.nest.map_structure(
                lambda a: tf.gather(a, rows), (xs, ys)
            )

        def after_step(
            held: Any, loss_sum: Any, s: Any, those: Any, losses: Any, found: Any
        ) -> tuple[Any, Any]:
            state, weights = tf.nest.map_structure(lambda leaf: tf.gather_nd(leaf, those), held)
            after = self._optimizer.next(state, weights, found, self._rate)
            held = tf.nest.map_structure(
                lambda h, v: tf.tensor_scatter_nd_update(h, those, v), held, after
            )
            return held, loss_sum + tf.reduce_sum(losses) * tf.cast(order.size[s], tf.float32)

        start = tf.nest.map_structure(
            tf.convert_to_tensor, (self._optimizer.initial(list(broadcast)), list(broadcast))
        )
        held = tf.nest.map_structure(
            lambda leaf: tf.repeat(leaf[tf.newaxis], clients, axis=0), start
        )
        loss_sum = tf.constant(0.0)
        for s in tf.range(order.first):  # all with the same weights, which is faster
            those, batch = members(s)
            losses, found = tf.vectorized_map(lambda each: gradients_of(start[1], *each), batch)
            held, loss_sum = after_step(held, loss_sum, s, those, losses, found)
        for s in tf.range(order.first, tf.shape(order.end)[0]):
            those, batch = members(s)
            weights = [tf.gather_nd(leaf, those) for leaf in held[1]]
            losses, found = tf.vectorized_map(
                lambda each: gradients_of(each[0], *each[1]), (weights, batch)
            )
            held, loss_sum = after_step(held, loss_sum, s, those, losses, found)
        for c in tf.range(clients):
            update = [w - each[c] for w, each in zip(broadcast, held[1], strict=True)]
            total = self._records.added(params, total, update)
        return total, loss_sum


@contextlib.contextmanager
def _quiet_tensorflow() -> Iterator[None]:
    """TensorFlow logs a stack for every operation that has no vectorised form; such a model trains
    in turn.
    """
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("CRITICAL")
    try:
        yield
    finally:
        logger.setLevel(level)


def _in_parts(cohort: Sequence[Epochs], parameters: int) -> Iterator[list[Epochs]]:
    """The cohort in parts of at most so many examples, or of one client: all of a part take as much
    room as the largest.
    """
    limit = PRODUCTS // parameters
    group: list[Epochs] = []
    sizes: list[int] = []
    for epochs in cohort:
        size = sum(map(count, epochs))
        with_it = [*sizes, size]
        if group and len(with_it) * max(with_it) > limit:
            yield group
            group, sizes = [], []
        group.append(epochs)
        sizes.append(size)
    if group:
        yield group


def is_small(records: Records) -> bool:
    """Whether a model of these updates is trained side by side whatever its clients' steps."""
    return records.size <= SMALL_MODEL


def side_by_side(
    functions: ModelFunctions,
    settings: ClientSettings,
    records: Records,
    others: Callable[[str], ClientWork],
) -> ClientWork:
    """Returns vectorised client work if the task and its model support it, else `others(reason)`.

    A model that should be vectorised and cannot be is logged once, with the reason.
    """
    if not is_small(records) and settings.batch_size > 1:
        return others(
            f"the model has {records.size} parameters, and vectorised steps are slower from "
            f"{SMALL_MODEL} on"
        )
    # Clients of several examples, among clients of one each.
    of_many_steps = functools.partial(others, "they have several examples each")
    try:
        with _quiet_tensorflow():
            return ClientsSideBySide(functions, settings, records, of_many_steps)
    except Exception as error:  # whatever a model of one's own raises when it is traced
        first_line = next(iter(str(error).splitlines()), "")
        reason = f"the model cannot be vectorised ({type(error).__name__}: {first_line})"
        _log_once(f"task {functions.name!r}: clients train one by one, for {reason}")
        return others(reason)


@functools.cache
def _log_once(sentence: str) -> None:
    """Logs a sentence, once in a process."""
    logging.getLogger("fedmf").warning(sentence)
