"""Four lines of a TFF pipeline: a plan, an aggregator, the process that takes it, and a controller
that draws the cohorts which the plan allows.

python examples/tff_pipeline.py
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedmf
from fedmf import federated

ROUNDS, POPULATION, COHORT = 40, 200, 20
rng = np.random.default_rng(0)
truth = np.float32([[2.0], [-1.0]])


def client_data(client):
    x = rng.normal(size=(8, 2)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x @ truth)).batch(8)


data = [client_data(client) for client in range(POPULATION)]

# Three of the four lines; the fourth is the argument `model_aggregator`.
plan = fedmf.TrainConfig(
    rounds=ROUNDS, min_sep=8, family="banded", epsilon=8.0, clip_norm=0.5
).plan()
aggregator = federated.dp_aggregator(plan, clients_per_round=COHORT, noise_seed="os")
controller = fedmf.ParticipationController(
    plan.participation, population=POPULATION, cohort_size=COHORT, seed=1
)


def model_fn():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, input_shape=[2])])
    return tff.learning.models.from_keras_model(
        model, loss=tf.keras.losses.MeanSquaredError(), input_spec=data[0].element_spec
    )


process = tff.learning.algorithms.build_unweighted_fed_avg(
    model_fn=model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    model_aggregator=aggregator,
)
state = process.initialize()
for t in range(ROUNDS):
    output = process.next(state, [data[client] for client in controller.cohort(t)])
    state = output.state
    if (t + 1) % 10 == 0:
        print(
            t + 1, "rounds: loss", round(float(output.metrics["client_work"]["train"]["loss"]), 4)
        )

weights = process.get_model_weights(state).trainable[0]
print("learned", weights.ravel().round(2), "truth", truth.ravel())
audit = controller.audit(plan)
print(f"epsilon planned {plan.epsilon:.3f}, achieved {audit.epsilon:.3f} at delta {plan.delta:g}")
