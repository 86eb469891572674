"""Client work of the fast execution: a local epoch for each client, whose clipped updates are
summed group by group.
"""

import abc
import collections
import concurrent.futures
import contextlib
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedmf.federated.examples import Epochs, count
from fedmf.federated.execution.client_data import Steps, batches, end_to_end, steps
from fedmf.federated.execution.groups import GroupSum
from fedmf.federated.execution.records import QuerySample, Records, SampleParams
from fedmf.federated.execution.stateless_model import check_apart, dense_rows, stateless_model
from fedmf.federated.execution.steps import client_optimizer, scaling_of
from fedmf.federated.loss import batch_loss, minimised
from fedmf.federated.task import CompiledEpoch, Task
from fedmf.runs.config import TrainConfig
from fedmf.terminal import interrupts

# Examples times parameters of clients that train one after the other: some tenths of a second on
# one core.
GROUP_PRODUCTS = 10**8
# The same of clients side by side, which bounds their weights and inputs: 128 MiB.
SIDE_BY_SIDE_PRODUCTS = 2**25
# Up to here a step costs its dispatch and not its arithmetic. Larger models are slower with filters
# and kernels for each client.
SMALL_MODEL = 10_000  # parameters


class Broadcast(NamedTuple):
    """What the server sends to the clients of a round.

    Attributes:
      weights: of the global model.
      params: of the round, by which updates are scaled, zeroed and clipped.
    """

    weights: Sequence[Any]
    params: SampleParams


class ClientWork(abc.ABC):
    """The clients of a round. The same broadcast and groups give the same sums, bit for bit."""

    @abc.abstractmethod
    def sums(self, sent: Broadcast, groups: Iterable[Sequence[Epochs]]) -> Iterator[GroupSum]:
        """Yields the sum of the clipped updates of each group's clients, added in their order.

        Args:
          sent: to the clients.
          groups: of the cohort, with each client's epochs.
        """


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class AutodiffClients(ClientWork):
    """For any Keras model: a tf.function that trains a group of clients and adds their updates.

    A group is as many clients as are worth a call: of small models a call costs more than its
    arithmetic. Clients of one gradient each (privacy of single examples) and those of small models
    train side by side, others one after the other.
    """

    def __init__(self, task: Task, config: TrainConfig, records: Records) -> None:
        self._batch_size, self._records, self._loss = task.batch_size, records, batch_loss(task)
        self._optimizer, self._rate = client_optimizer(config), config.client_learning_rate
        specs, self._structure = records.flat_specs, task.spec
        self._model = task.build_model(config.seed)
        self._parameters = sum(spec.shape.num_elements() for spec in specs)

        def signature(*axes: int | None) -> list[Any]:
            """Broadcast, sum, inputs and labels, with these axes in place of the batch's."""
            examples = tf.nest.map_structure(
                lambda spec: tf.TensorSpec([*axes, *spec.shape[1:]], spec.dtype), task.spec
            )
            sent = Broadcast(list(specs), params_spec(records, config))
            return [sent, _specs_of(records.zero()), *examples]

        numbers, number = tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32)
        self._in_turn = tf.function(
            self._train_in_turn, input_signature=[*signature(None), numbers, numbers]
        )
        self._single = tf.function(self._train_single, input_signature=signature(None, 1))
        order = Steps(client=numbers, start=numbers, end=numbers, size=numbers, first=number)
        self._side_by_side = tf.function(
            self._train_side_by_side, input_signature=[*signature(None), order, number]
        )
        self._small = self._parameters <= SMALL_MODEL
        self._can_side_by_side = False
        if self._small or self._batch_size == 1:
            # Models that cannot be built in a graph, or whose operations have no vectorised form
            # that is safe, train in turn.
            with contextlib.suppress(Exception), _quiet_tensorflow():
                self._stateless = stateless_model(task, config.seed)
                sent, _, *batch = signature(None)
                apart = tf.function(
                    self._loss_and_gradients, input_signature=[sent.weights, *batch]
                )
                check_apart(apart)
                self._check_same(apart)
                (self._side_by_side if self._small else self._single).get_concrete_function()
                self._can_side_by_side = True

    def _check_same(self, apart: Any) -> None:
        """Checks that the stateless model computes what the model does, whatever weights it has.

        A tensor that a model makes of its weights when it is built is that of the first weights in
        Keras, and would be that of a client's own here.

        Raises:
          ValueError: it does not, on made-up examples.
        """
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
        variables = self._model.trainable_variables
        for variable in variables:
            variable.assign_add(rng.normal(scale=0.1, size=variable.shape).astype(np.float32))
        loss, gradients = apart([variable.read_value() for variable in variables], x, y)
        with tf.GradientTape() as tape:
            expected = self._loss(y, self._model(x, training=True))
            total = minimised(expected, self._model.losses)
        pairs = [(loss, expected), *zip(gradients, _gradients(tape, total, variables), strict=True)]
        for ours, keras in pairs:
            ours, keras = (np.asarray(tf.convert_to_tensor(value)) for value in (ours, keras))
            scale = np.nanmax(np.abs(keras), initial=1e-6)
            if not np.allclose(ours, keras, rtol=1e-3, atol=1e-3 * scale, equal_nan=True):
                raise ValueError(
                    "the stateless model is another function of the weights than the model"
                )

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[Epochs]]) -> Iterator[GroupSum]:
        """See `ClientWork.sums`."""
        sent = sent._replace(weights=list(sent.weights))
        for group in groups:
            total, loss = self._add(sent, self._records.zero(), trained(group))
            yield group_sum(group, total, loss)

    def _add(self, sent: Broadcast, total: Any, cohort: Sequence[Epochs]) -> tuple[Any, float]:
        single = self._batch_size == 1 and all(
            len(epochs) == 1 and count(epochs[0]) == 1 for epochs in cohort
        )
        side_by_side = self._can_side_by_side and (single or self._small)
        loss = 0.0
        for group in _groups(cohort, self._parameters, side_by_side):
            interrupts.check()
            leaves, found = end_to_end(group), batches(group, self._batch_size)
            if side_by_side and not self._small:
                leaves = [leaf[:, np.newaxis] for leaf in leaves]
            examples = tf.nest.pack_sequence_as(self._structure, leaves)
            if not side_by_side:
                ends = np.searchsorted(found.client, np.arange(len(group)), side="right").astype(
                    np.int32
                )
                total, losses = self._in_turn(
                    sent, total, *examples, found.start + found.size, ends
                )
            elif self._small:
                total, losses = self._side_by_side(
                    sent, total, *examples, steps(found), np.int32(len(group))
                )
            else:
                total, losses = self._single(sent, total, *examples)
            loss += float(losses)
        return total, loss

    def _train_in_turn(
        self, sent: Broadcast, total: Any, xs: Any, ys: Any, row_ends: Any, ends: Any
    ) -> Any:
        """Trains one client after the other. Adds the clipped updates to `total`.

        Args:
          sent, total: see `Broadcast` and `GroupSum`.
          xs, ys: inputs and labels of all clients.
          row_ends: the row at which each batch ends.
          ends: client c has the batches before ends[c].

        Returns:
          The sum, and the loss before each step summed over examples.
        """
        weights, params = sent
        loss_sum, batch, row = tf.constant(0.0), tf.constant(0), tf.constant(0)
        variables = self._model.trainable_variables
        for end in ends:
            for variable, weight in zip(variables, weights, strict=True):
                variable.assign(weight)
            state = self._optimizer.initial(list(weights))
            while batch < end:
                rows = slice(row, row_ends[batch])
                x, y = tf.nest.map_structure(lambda array, rows=rows: array[rows], (xs, ys))
                with tf.GradientTape() as tape:
                    loss = self._loss(y, self._model(x, training=True))
                    total_loss = minimised(loss, self._model.losses)
                gradients = [
                    tf.convert_to_tensor(gradient)
                    for gradient in _gradients(tape, total_loss, variables)
                ]
                state, after = self._optimizer.next(
                    state,
                    [variable.read_value() for variable in variables],
                    gradients,
                    self._rate,
                )
                for variable, weight in zip(variables, after, strict=True):
                    variable.assign(weight)
                loss_sum += loss * tf.cast(row_ends[batch] - row, tf.float32)
                row = row_ends[batch]
                batch += 1
            # TFF's sign: the "gradient" the server descends is weights before minus weights after.
            update = [w - v for v, w in zip(variables, weights, strict=True)]
            total = self._records.added(params, total, update)
        return total, loss_sum

    def _loss_and_gradients(self, weights: Any, x: Any, y: Any) -> Any:
        """The loss of a batch under one client's weights, and the gradients of all that is
        minimised, as the tape gives them.
        """
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs, own = self._stateless(weights, x)
            loss = self._loss(y, outputs)
            total_loss = minimised(loss, own)
        return loss, _gradients(tape, total_loss, weights)

    def _train_single(self, sent: Broadcast, total: Any, xs: Any, ys: Any) -> Any:
        """`_train_in_turn` with the gradients of all clients at once; client c has the one batch
        xs[c], ys[c].
        """
        weights, params = sent

        def of_one(batch: Any) -> Any:
            loss, gradients = self._loss_and_gradients(list(weights), *batch)
            return loss, [dense_rows(gradient) for gradient in gradients]

        losses, gradients = tf.vectorized_map(of_one, (xs, ys))
        state = self._optimizer.initial(list(weights))
        for c in tf.range(tf.shape(losses)[0]):
            _, after = self._optimizer.next(
                state, list(weights), [gradient[c] for gradient in gradients], self._rate
            )
            update = [w - v for v, w in zip(after, weights, strict=True)]
            total = self._records.added(params, total, update)
        return total, tf.reduce_sum(losses)

    def _train_side_by_side(
        self, sent: Broadcast, total: Any, xs: Any, ys: Any, order: Steps, clients: Any
    ) -> Any:
        """`_train_in_turn` with many clients' steps at once, in this order;
        `clients` is their number.
        """
        broadcast, params = sent

        def step(weights: Any, state: Any, x: Any, y: Any) -> Any:
            loss, gradients = self._loss_and_gradients(weights, x, y)
            after = self._optimizer.next(
                state, weights, [dense_rows(gradient) for gradient in gradients], self._rate
            )
            # TensorFlow does not vectorise what is returned as it came in.
            return tf.nest.map_structure(tf.identity, after), loss

        def members(s: Any) -> tuple[Any, Any]:
            """The clients of step s, and their batches."""
            those = slice(tf.where(s > 0, order.end[s - 1], 0), order.end[s])
            rows = order.start[those][:, tf.newaxis] + tf.range(order.size[s])
            return order.client[those][:, tf.newaxis], tf.nest.map_structure(
                lambda a: tf.gather(a, rows), (xs, ys)
            )

        def written(held: Any, those: Any, values: Any) -> Any:
            return tf.nest.map_structure(
                lambda h, v: tf.tensor_scatter_nd_update(h, those, v), held, values
            )

        start = tf.nest.map_structure(
            tf.convert_to_tensor, (self._optimizer.initial(list(broadcast)), list(broadcast))
        )
        held = tf.nest.map_structure(
            lambda leaf: tf.repeat(leaf[tf.newaxis], clients, axis=0), start
        )
        loss_sum = tf.constant(0.0)
        for s in tf.range(order.first):  # all with the same weights, which is faster
            those, batch = members(s)
            after, losses = tf.vectorized_map(lambda each: step(start[1], start[0], *each), batch)
            held = written(held, those, after)
            loss_sum += tf.reduce_sum(losses) * tf.cast(order.size[s], tf.float32)
        for s in tf.range(order.first, tf.shape(order.end)[0]):
            those, batch = members(s)
            before = tf.nest.map_structure(
                lambda leaf, those=those: tf.gather_nd(leaf, those), held
            )
            after, losses = tf.vectorized_map(
                lambda each: step(each[0][1], each[0][0], *each[1]), (before, batch)
            )
            held = written(held, those, after)
            loss_sum += tf.reduce_sum(losses) * tf.cast(order.size[s], tf.float32)
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


def _gradients(tape: Any, loss: Any, weights: Any) -> Any:
    return tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def _groups(
    cohort: Sequence[Epochs], parameters: int, side_by_side: bool
) -> Iterator[list[Epochs]]:
    """The cohort in groups of at most so many examples, or of one client.

    Side by side all clients take as much room as the largest.
    """
    limit = (SIDE_BY_SIDE_PRODUCTS if side_by_side else GROUP_PRODUCTS) // parameters
    group: list[Epochs] = []
    sizes: list[int] = []
    for epochs in cohort:
        size = sum(map(count, epochs))
        with_it = [*sizes, size]
        if group and (len(with_it) * max(with_it) if side_by_side else sum(with_it)) > limit:
            yield group
            group, sizes = [], []
        group.append(epochs)
        sizes.append(size)
    if group:
        yield group


class CompiledClients(ClientWork):
    """For a task with a `compiled_epoch`: clients train side by side, each on one thread; updates
    are added in the cohort's order.
    """

    def __init__(
        self,
        epoch: CompiledEpoch,
        config: TrainConfig,
        records: Records,
        threads: int | None,
    ) -> None:
        self._epoch, self._rate = epoch, config.client_learning_rate
        self._threads = cores() if threads is None else threads
        self._pool = concurrent.futures.ThreadPoolExecutor(self._threads, "client")
        # One update for each client in training, and one that waits for its turn.
        self._updates = [_Update(records.flat_specs) for _ in range(self._threads + 1)]
        self._zero, specs = records.zero(), records.flat_specs
        self._sum = tf.function(
            records.added,
            input_signature=[params_spec(records, config), _specs_of(self._zero), list(specs)],
        )

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[Epochs]]) -> Iterator[GroupSum]:
        """See `ClientWork.sums`. Clients of the next groups begin where threads are free."""
        weights = [np.ascontiguousarray(w) for w in sent.weights]
        free, waiting = list(self._updates), collections.deque[tuple[Any, _Update]]()
        groups = list(groups)
        clients = itertools.chain.from_iterable(map(trained, groups))
        try:
            for group in groups:
                total, loss = self._zero, 0.0
                for _ in trained(group):
                    while free and (epochs := next(clients, None)) is not None:
                        x, y = (np.ascontiguousarray(part) for part in epochs[0])
                        update = free.pop()
                        job = self._pool.submit(
                            self._epoch, weights, x, y, self._rate, update.arrays
                        )
                        waiting.append((job, update))
                    job, update = waiting.popleft()
                    loss += job.result()
                    total = self._sum(sent.params, total, update.tensors)
                    free.append(update)
                    interrupts.check()
                yield group_sum(group, total, loss)
        finally:
            # After an error: no client of this round writes into an update of the next.
            concurrent.futures.wait([job for job, _ in waiting if not job.cancel()])


class _Update:
    """One client's update as arrays to be written, and the same memory as tensors."""

    def __init__(self, specs: Sequence[Any]) -> None:
        # TensorFlow shares memory that begins on a cache line.
        self.arrays = [
            aligned_buffer(spec.shape.num_elements()).reshape(spec.shape) for spec in specs
        ]
        self.tensors = [
            tf.experimental.dlpack.from_dlpack(array.__dlpack__()) for array in self.arrays
        ]


def aligned_buffer(floats: int) -> np.ndarray:
    """Zeros, float32 (floats,), that begin on a cache line."""
    line = 64
    buffer = np.zeros(floats + line // 4, np.float32)
    start = -buffer.ctypes.data % line // 4
    return buffer[start : start + floats]


def trained(group: Sequence[Epochs]) -> list[Epochs]:
    """The clients whose examples are finite."""
    return [epochs for epochs in group if epochs]


def group_sum(group: Sequence[Epochs], total: QuerySample, loss: float) -> GroupSum:
    """The group's sum, of the sum and the loss of its clients whose examples are finite.

    The others count as zeroed.
    """
    zeroed = len(group) - len(trained(group))
    total = total._replace(clients=total.clients + zeroed, zeroed=total.zeroed + zeroed)
    examples = sum(count(epoch) for epochs in group for epoch in epochs)
    return GroupSum(total, loss, examples, zeroed)


def params_spec(records: Records, config: TrainConfig) -> SampleParams:
    """Of `SampleParams`, for a run's clients."""
    number = tf.TensorSpec([], tf.float64)
    scales = [tf.TensorSpec(spec.shape, tf.float32) for spec in records.flat_specs]
    return SampleParams(number, number, () if scaling_of(config) is None else scales)


def _specs_of(structure: Any) -> Any:
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), structure)
