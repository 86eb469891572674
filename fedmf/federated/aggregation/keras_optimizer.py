"""`keras_optimizer`: TensorFlow Privacy's Keras DP optimiser with the noise of a plan, for training on data in one place.

TensorFlow Privacy's optimiser holds its query's state in a Python attribute. Under model.fit the training step is traced once, so that
the state of the first step would be a constant of the graph and every step would add the same row of noise; the query refuses that.
Here the same attribute is a property over tf.Variables.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from fedmf import checks
from fedmf.federated.aggregation.query import MatrixFactorizationQuery, QueryState
from fedmf.federated.tff import dp_optimizer_keras
from fedmf.privacy.plan import Plan


class _StateInVariables:
    """Mixed in before TensorFlow Privacy's optimiser class."""

    _variables_of_state: QueryState | None = None
    _dp_sum_query: MatrixFactorizationQuery

    @property
    def _global_state(self) -> QueryState:
        assert self._variables_of_state is not None
        state: QueryState = tf.nest.map_structure(tf.convert_to_tensor, self._variables_of_state)
        return state

    @_global_state.setter
    def _global_state(self, state: QueryState) -> None:
        if self._variables_of_state is not None:
            # In a graph these are operations, which tf.function runs in the order they were written in.
            tf.nest.map_structure(lambda variable, value: variable.assign(value), self._variables_of_state, state)
            return
        self._variables_of_state = tf.nest.map_structure(lambda value: tf.Variable(value, trainable=False), state)
        for number, variable in enumerate(tf.nest.flatten(self._variables_of_state)):
            # A checkpoint of the model or of the optimiser holds the noise: training goes on with the next row.
            self._track_trackable(variable, name=f"noise_state_{number}")  # type: ignore[attr-defined]

    def metrics(self) -> dict[str, float]:
        """The query's metrics after the last step; see `MatrixFactorizationQuery.derive_metrics`."""
        return {
            name: value.numpy().item() for name, value in self._dp_sum_query.derive_metrics(self._global_state).items()
        }

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Any:
        # Keras's wrapper says so to what it wraps.
        if getattr(self, "_is_wrapped_by_loss_scale_optimizer", False):
            raise ValueError(
                "loss scaling, as of the mixed_float16 policy, is not supported: Keras multiplies the loss by 32768 and divides the "
                "gradient by that after it was clipped and noised, so that the model would stand still; use mixed_bfloat16 or float32"
            )
        if tf.is_tensor(loss) and loss.shape.rank == 0:
            raise ValueError(
                "the loss is one number for the whole batch, but each example is clipped on its own: compile the model with a loss of "
                "reduction=tf.keras.losses.Reduction.NONE"
            )
        parent: Any = super()
        gradients = parent._compute_gradients(loss, var_list, grad_loss, tape)
        # TensorFlow Privacy divides by the number of examples in this batch, the query by the planned one: the latter alone is right,
        # because the noise was planned for a fixed divisor.
        examples, planned = self._global_state.clients, int(self._dp_sum_query.divisor)
        check = tf.debugging.assert_less_equal(
            examples,
            planned,
            message=f"the batch has more examples than batch_size={planned}, so that each comes back sooner than planned: pass fit the "
            "same batch_size, or make the plan and the optimiser for the larger one",
        )
        with tf.control_dependencies([] if check is None else [check]):
            examples = tf.identity(examples)
        return [(gradient * tf.cast(examples, gradient.dtype), variable) for gradient, variable in gradients]

    def get_gradients(self, loss: Any, params: Any) -> Any:
        """Refused: TensorFlow 1 graphs."""
        raise NotImplementedError(
            "federated.keras_optimizer works in TensorFlow 2 only: use model.fit or optimizer.minimize"
        )

    def get_config(self) -> Any:
        """Refused: the configuration would hold the secret key of the noise."""
        raise NotImplementedError(
            "the configuration of this optimiser would hold the key of its noise: to publish the model use "
            "model.save_weights('model.h5') or model.save('model.h5', include_optimizer=False); to go on training use "
            "tf.train.Checkpoint, and keep it secret"
        )


def keras_optimizer(
    plan: Plan,
    variables: Iterable[Any],
    *,
    batch_size: int,
    noise_seed: int | str,
    zeroing_norm: float | None = None,
    noise_strategy: str | None = None,
    optimizer_class: type | None = None,
    **options: Any,
) -> Any:
    """A Keras optimiser that clips every example's gradient and adds row t of the plan's noise in step t, under model.fit too.

    A step is a round of the plan, an example is a client, and the update is (sum of clipped gradients + noise) / batch_size, also in a
    last batch that is smaller. The plan's participation is about steps: with the data in the same order in every epoch
    (model.fit(shuffle=False), after one shuffle before training) and batches that divide them, an example comes back after exactly
    len(data) / batch_size steps, as `fixed_epoch` and `min_sep` want it. Keras' own shuffle between epochs breaks them.

    Models with batch normalisation mix examples and cannot be trained this way. One device only.

    Args:
      plan: what to run; the number of rounds is that of steps, at least those of the training.
      variables: the model's trainable_variables, in their order.
      batch_size: the fixed divisor.
      noise_seed: non-negative int, or "os"; see `MatrixFactorizationQuery`. Checkpoints hold the noise's key: keep them secret.
      zeroing_norm: an example whose gradient has an entry above it counts as zero; None for no limit.
      noise_strategy: see `fedmf.federated.noise`; "precomputed" is not available here.
      optimizer_class: one of tf.keras.optimizers.legacy; None for SGD.
      **options: of that class, such as learning_rate and momentum.

    Returns:
      An instance of TensorFlow Privacy's DP optimiser. Compile the model with it and with a loss of one number for each example.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    Example:
      >>> import fedmf, numpy as np, tensorflow as tf
      >>> from fedmf import federated
      >>> epochs = fedmf.Participation(rounds=8, schema="fixed_epoch", min_sep=4, max_participations=2)
      >>> plan = fedmf.calibrate(fedmf.fit(fedmf.prefix_sum(8), epochs, family="banded"), epochs, epsilon=8.0, delta=1e-6)
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[3])])
      >>> optimizer = federated.keras_optimizer(plan, model.trainable_variables, batch_size=5, noise_seed=3, learning_rate=0.1)
      >>> model.compile(optimizer, tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE))
      >>> _ = model.fit(np.ones([20, 3]), np.ones([20, 1]), batch_size=5, epochs=2, shuffle=False, verbose=0)
      >>> optimizer.metrics()["rounds_done"]
      8
    """
    checks.integer("batch_size", batch_size, low=1, hint="it is the fixed divisor of the mean gradient")
    parent = tf.keras.optimizers.legacy.SGD if optimizer_class is None else optimizer_class
    if not (isinstance(parent, type) and issubclass(parent, tf.keras.optimizers.legacy.Optimizer)):
        raise TypeError(
            f"optimizer_class={optimizer_class!r} must be a class of tf.keras.optimizers.legacy, which TensorFlow Privacy builds on"
        )
    for name in ("num_microbatches", "gradient_accumulation_steps"):
        if name in options:
            raise TypeError(
                f"{name}={options[name]!r}: every example is clipped on its own, and every step is a round; leave it out"
            )
    if noise_strategy == "precomputed":
        raise ValueError(
            "noise_strategy='precomputed' needs a host between the steps: leave it out, or use 'carried' or 'redrawn'"
        )
    if tf.distribute.has_strategy():
        raise ValueError(
            "tf.distribute strategies are not supported: every device would add the noise of the whole step"
        )
    query = MatrixFactorizationQuery(
        plan,
        [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables],
        noise_seed=noise_seed,
        zeroing_norm=zeroing_norm,
        noise_strategy=noise_strategy,
        divisor=batch_size,
    )
    private = dp_optimizer_keras.make_keras_generic_optimizer_class(parent)
    return type(f"CorrelatedNoise{parent.__name__}", (_StateInVariables, private), {})(query, **options)
