"""Options of the regression task."""

import dataclasses

from fedmf import fields

KINDS = ("linear", "logistic")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionOptions(fields.Checked):
    """The generated data of the task.

    Raises:
      TypeError, ValueError: naming the option, its value and what to do instead.
    """

    kind: str = fields.choice(
        "linear", "linear: squared error; logistic: two classes.", lambda: KINDS
    )
    clients: int = fields.whole(1_000, "Clients that train.")
    examples: int = fields.whole(20, "Examples of each client.")
    features: int = fields.whole(50, "Features of an example, and parameters of the model.")
    decay: float = fields.real(
        1.0, "Eigenvalue i of the features' covariance is i^-decay; 0: all are 1.", zero=True
    )
    shift: float = fields.real(
        0.3, "How far a client's mean lies from zero, in standard deviations.", zero=True, below=1
    )
    noise: float = fields.real(
        0.5, "Standard deviation of the label's noise, or scale of the logit's; the signal's is 1."
    )
    evaluation_clients: int = fields.whole(
        100, "Clients of the validation split, and as many of the test split."
    )
    seed: int = fields.whole(0, "Draws the data.", low=0)
    batch_size: int = fields.whole(10, "Examples in a client's batch.")
