"""`keras_optimizer`: TensorFlow Privacy's Keras DP optimiser with the noise of a plan, for training on data in one place.

TensorFlow Privacy's optimiser holds its query's state in a Python attribute. Under model.fit the training step is traced once, so that
the state of the first step would be a constant of the graph and every step would add the same row of noise; the query refuses that.
Here the same attribute is a property over tf.Variables.
"""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf import checks
from fedmf.federated.aggregation.query import MatrixFactorizationQuery, QueryState
from fedmf.federated.tff import dp_optimizer_keras
from fedmf.privacy.plan import Plan

# In names of its variables, and of the operations that update its moving averages.
_BATCH_NORMALIZATION = re.compile(r"batch_?norm|moving_(mean|variance)|AssignMovingAvg", re.IGNORECASE)


def _refuse_batch_normalization(parts: Iterable[Any]) -> None:
    for part in parts:
        if _BATCH_NORMALIZATION.search(part.name):
            raise ValueError(
                f"{part.name!r} is a part of batch normalisation, which mixes the examples of a batch, so that clipping each "
                "one bounds nothing: use LayerNormalization or GroupNormalization"
            )


class _StateInVariables:
    """Mixed in before TensorFlow Privacy's optimiser class."""

    _variables_of_state: QueryState | None = None
    _dp_sum_query: MatrixFactorizationQuery
    _private: tuple[Any, ...] = ()  # the gradients that were clipped and noised and not applied yet

    @property
    def _global_state(self) -> QueryState:
        assert self._variables_of_state is not None
        state: QueryState = tf.nest.map_structure(tf.convert_to_tensor, self._variables_of_state)
        return state

    @_global_state.setter
    def _global_state(self, state: QueryState) -> None:
        if self._variables_of_state is not None:
            tf.nest.map_structure(lambda variable, value: variable.assign(value), self._variables_of_state, state)
            return
        self._variables_of_state = tf.nest.map_structure(lambda value: tf.Variable(value, trainable=False), state)
        for number, variable in enumerate(tf.nest.flatten(self._variables_of_state)):
            # A checkpoint of the model or of the optimiser holds the noise: training goes on with the next row.
            self._track_trackable(variable, name=f"noise_state_{number}")  # type: ignore[attr-defined]

    def metrics(self) -> dict[str, float]:
        """The query's metrics after the last step; see `MatrixFactorizationQuery.derive_metrics`."""
        metrics = self._dp_sum_query.derive_metrics(self._global_state)
        return {name: value.numpy().item() for name, value in metrics.items()}

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
        if not tf.executing_eagerly():
            operations = tf.compat.v1.get_default_graph().get_operations()
            _refuse_batch_normalization(step for step in operations if "AssignMovingAvg" in step.name)
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
            # XLA drops the check (jit_compile=True): there the gradient is NaN.
            factor = tf.where(examples <= planned, tf.cast(examples, tf.float32), float("nan"))
        gradients = [(gradient * tf.cast(factor, gradient.dtype), variable) for gradient, variable in gradients]
        self._private = tuple(gradient for gradient, _ in gradients)
        return gradients

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **options: Any) -> Any:
        """Applies the gradients that `minimize` has just clipped and noised, once; Keras calls it.

        Raises:
          ValueError: for any other gradients.
        """
        pairs = list(grads_and_vars)
        private, self._private = self._private, ()
        if not private or [id(gradient) for gradient, _ in pairs] != [id(gradient) for gradient in private]:
            raise ValueError(
                "apply_gradients was called with gradients that are neither clipped nor noised: call optimizer.minimize(losses, variables, "
                "tape=tape) with one loss for each example, or model.fit"
            )
        return super().apply_gradients(pairs, *args, **options)  # type: ignore[misc]

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
    optimizer_class: type | None = None,
    **options: Any,
) -> Any:
    """A Keras optimiser that clips every example's gradient and adds row t of the plan's noise in step t, under model.fit too.

    A step is a round of the plan, an example is a client, and the update is (sum of clipped gradients + noise) / batch_size, also in a
    last batch that is smaller. The plan's participation is about steps. `keras_fit` trains as it says, and refuses data, epochs and layers
    that do not follow it. Under model.fit and in a loop of one's own nobody checks which examples a step has and when they come back
    (Keras shuffles them anew in each epoch unless it is told shuffle=False), or whether the loss of an example depends on others.

    Refused in any use: more steps than rounds, a larger batch, gradients of one's own, and batch normalisation where its variables are seen
    (by their names here, and when a step is traced). One device only.

    Args:
      plan: what to run; the number of rounds is that of steps, at least those of the training.
      variables: the model's trainable_variables, in their order.
      batch_size: the fixed divisor.
      noise_seed: non-negative int, or "os"; see `MatrixFactorizationQuery`. Checkpoints hold the noise's key: keep them secret.
      zeroing_norm: an example whose gradient has an entry above it counts as zero; None for no limit.
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
      >>> _ = federated.keras_fit(model, np.ones([20, 3]), np.ones([20, 1]), epochs=2, shuffle_seed=1, verbose=0)
      >>> optimizer.metrics()["rounds_done"]
      8
    """
    checks.integer("batch_size", batch_size, low=1, hint="it is the fixed divisor of the mean gradient")
    parent = tf.keras.optimizers.legacy.SGD if optimizer_class is None else optimizer_class
    if not (isinstance(parent, type) and issubclass(parent, tf.keras.optimizers.legacy.Optimizer)):
        raise TypeError(
            f"optimizer_class={optimizer_class!r} must be a class of tf.keras.optimizers.legacy, which TensorFlow Privacy builds on"
        )
    for name in ("num_microbatches", "gradient_accumulation_steps", "noise_strategy"):
        if name in options:
            raise TypeError(
                f"{name}={options[name]!r}: every example is clipped on its own and every step is a round; leave it out"
            )
    if tf.distribute.has_strategy():
        raise ValueError(
            "tf.distribute strategies are not supported: every device would add the noise of the whole step"
        )
    variables = list(variables)
    _refuse_batch_normalization(variables)
    query = MatrixFactorizationQuery(
        plan,
        [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables],
        noise_seed=noise_seed,
        zeroing_norm=zeroing_norm,
        divisor=batch_size,
    )
    private = dp_optimizer_keras.make_keras_generic_optimizer_class(parent)
    return type(f"CorrelatedNoise{parent.__name__}", (_StateInVariables, private), {})(query, **options)


def keras_fit(model: Any, x: Any, y: Any, *, epochs: int, shuffle_seed: int, **options: Any) -> Any:
    """Trains a compiled model as the plan of its `keras_optimizer` says: one shuffle, then every epoch in that order.

    Training goes on in the optimiser's next round. A run that is continued needs the same data and shuffle_seed as before; nobody checks.

    Args:
      model: compiled with `keras_optimizer` and a loss of one number for each example.
      x, y: arrays or structures of arrays; their first axis counts examples.
      epochs: how often each example takes part from now on.
      shuffle_seed: non-negative int that decides the order; it need not be secret.
      **options: of model.fit, such as callbacks, verbose and validation_data.

    Returns:
      The history of model.fit.

    Raises:
      TypeError, ValueError: another optimiser; layers that mix examples; a plan with sampling; steps or participations that the plan does
        not allow; options that change the order.
    """
    optimizer = model.optimizer
    if not isinstance(optimizer, _StateInVariables):
        raise TypeError(f"model is compiled with {optimizer!r}: compile it with federated.keras_optimizer(...)")
    for name in ("batch_size", "shuffle", "steps_per_epoch", "initial_epoch", "validation_split"):
        if name in options:
            raise TypeError(f"{name}={options[name]!r}: the plan decides the order and size of batches; leave it out")
    if "sample_weight" in options:
        raise TypeError("sample_weight is not shuffled with the examples: put the weights into y and the loss")
    _refuse_batch_normalization(model.variables)
    checks.integer("epochs", epochs, low=1, hint="it is how often each example takes part")
    plan, batch_size = optimizer._dp_sum_query.plan, int(optimizer._dp_sum_query.divisor)
    if plan.sampling is not None:
        raise ValueError(
            "plan.sampling is not None, but keras_fit trains on all examples in a fixed order: use a plan without sampling"
        )
    x, y = tf.nest.map_structure(np.asarray, (x, y))
    counts = {len(leaf) for leaf in tf.nest.flatten((x, y))}
    if len(counts) != 1:
        raise ValueError(f"x and y have {sorted(counts)} examples: give arrays of equal length")
    examples = counts.pop()
    steps, done = -(-examples // batch_size), int(optimizer._global_state.noise.next_round)
    end = done + epochs * steps
    if done % steps or any(not plan.participation.allows(range(first, end, steps)) for first in (0, steps - 1)):
        raise ValueError(
            f"epochs={epochs} of {examples} examples in batches of {batch_size} after {done} steps: an example takes part every {steps} "
            f"steps, {end // steps} times, which the plan does not allow: it is for {plan.participation}"
        )
    seed = checks.integer("shuffle_seed", shuffle_seed, low=0, hint="it decides the order of the examples")
    order = np.random.default_rng(seed).permutation(examples)
    x, y = tf.nest.map_structure(lambda leaf: leaf[order], (x, y))
    return model.fit(x, y, batch_size=batch_size, epochs=epochs, shuffle=False, **options)
