"""A TFF pipeline with a plan, an aggregator, and a process that enforces the plan. The folder
tff_pipeline/ holds state and ledger: after a crash, the same command resumes the run.

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
training = federated.PlannedProcess(
    process,
    aggregator=aggregator,
    controller=controller,
    client_data=lambda client: data[client],
    folder="tff_pipeline",
)
while training.round < ROUNDS:
    output = training.next()
    if training.round % 10 == 0:
        loss = float(output.metrics["client_work"]["train"]["loss"])
        print(training.round, "rounds: loss", round(loss, 4))

weights = process.get_model_weights(training.state).trainable[0]
print("learned", weights.ravel().round(2), "truth", truth.ravel())
audit = training.audit()
print(f"epsilon planned {plan.epsilon:.3f}, achieved {audit.epsilon:.3f} at delta {plan.delta:g}")
