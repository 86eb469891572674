"""Data of linear and logistic regression whose features have a chosen spectrum. Clients are
generated in memory when they are read.

The setting is that of Choquette-Choo et al. 2024, "Correlated noise provably beats independent
noise for differentially private learning": x ~ Normal(0, H) with eigenvalues i^-decay, and a
well-specified model. Noisy SGD's error grows with the dimension, that of correlated noise with the
effective dimension Tr(H) / ||H||.
"""

import dataclasses

import numpy as np

from fedmf import fields

KINDS = ("linear", "logistic")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionOptions(fields.Checked):
    """Options of the generated regression data.

    Raises:
      TypeError, ValueError: naming the option, its value and what to do instead.
    """

    kind: str = fields.choice(
        "linear", "linear: squared error; logistic: two classes.", lambda: KINDS
    )
    clients: int = fields.whole_number(1_000, "Clients that train.")
    examples: int = fields.whole_number(20, "Examples of each client.")
    features: int = fields.whole_number(50, "Features of an example, and parameters of the model.")
    decay: float = fields.positive_float(
        1.0, "Eigenvalue i of the features' covariance is i^-decay; 0: all are 1.", allow_zero=True
    )
    shift: float = fields.positive_float(
        0.3,
        "How far a client's mean lies from zero, in standard deviations.",
        allow_zero=True,
        below=1,
    )
    noise: float = fields.positive_float(
        0.5, "Standard deviation of the label's noise, or scale of the logit's; the signal's is 1."
    )
    evaluation_clients: int = fields.whole_number(
        100, "Clients of the validation split, and as many of the test split."
    )
    seed: int = fields.seed(0, "Draws the data.")
    batch_size: int = fields.whole_number(10, "Examples in a client's batch.")


def eigenvalues(o: RegressionOptions) -> np.ndarray:
    """Returns the variances of the uncorrelated features, float64 (features,). The first is 1."""
    return np.arange(1, o.features + 1, dtype=np.float64) ** -o.decay


def effective_dimension(o: RegressionOptions) -> float:
    """Returns the effective dimension Tr(H) / ||H||, where H is the covariance matrix of the
    features.

    It lies between 1 and the number of features.
    """
    return float(eigenvalues(o).sum())


def true_weights(o: RegressionOptions) -> np.ndarray:
    """Returns the true weights of the regression, from which labels are drawn, float64 of shape
    (features,).

    The inner product of features and weights has variance 1.
    """
    weight_direction = np.random.default_rng([o.seed, 0]).normal(size=o.features)
    return weight_direction / np.sqrt(eigenvalues(o) @ weight_direction**2)


def client_examples(o: RegressionOptions, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws a client's features, float32 (examples, features), and labels, float32 (examples, 1).

    A client's features have a mean of their own. Over all clients they have mean 0 and covariance
    H. A linear label is <x, weights> + noise * Normal(0, 1); a logistic one is 1 with probability 1
    / (1 + exp(-<x, weights> / noise)).

    Args:
      o: the data.
      client: its number. Clients do not depend on how many there are.
    """
    rng = np.random.default_rng([o.seed, 1 + client])
    client_mean = rng.normal(size=o.features)
    example_deviations = rng.normal(size=(o.examples, o.features))
    standard_features = o.shift * client_mean + np.sqrt(1 - o.shift**2) * example_deviations
    x = np.sqrt(eigenvalues(o)) * standard_features
    noiseless_outputs = x @ true_weights(o)
    if o.kind == "linear":
        y = noiseless_outputs + o.noise * rng.normal(size=o.examples)
    else:
        y = noiseless_outputs + o.noise * rng.logistic(size=o.examples) > 0
    return x.astype(np.float32), y.astype(np.float32)[:, None]


def split_examples(o: RegressionOptions, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the examples of all clients of the "validation" or "test" split.

    None of these clients trains.
    """
    first_client = o.clients
    if split == "test":
        first_client += o.evaluation_clients
    client_range = range(first_client, first_client + o.evaluation_clients)
    examples = [client_examples(o, client) for client in client_range]
    return np.concatenate([x for x, _ in examples]), np.concatenate([y for _, y in examples])


def version(o: RegressionOptions) -> str:
    """Returns a text that identifies the generated data. It differs between options with other
    data.
    """
    data_options = dataclasses.asdict(o)
    del data_options["batch_size"]
    return repr(data_options)
