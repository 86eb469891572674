"""Check the sensitivity and the epsilon of a privacy statement with numpy and scipy. No TensorFlow.

A statement (JSON) has the mechanism, the limits of participation, the noise and epsilon. Together
with the file of the mechanism, a few lines compute the sensitivity and delta again without fedmf's
accounting. fedmf only reads the file. The check says nothing about the run: whether updates were
clipped, whether the noise was added, and who took part.

python examples/check_statement.py                                 makes a statement and checks it
python examples/check_statement.py statement.json mechanism.npz    checks yours

Yours is of a banded mechanism, with bands <= min_sep and without sampling.
"""

import json
import pathlib
import sys

import numpy as np
from scipy.stats import norm

import fedmf
from fedmf.privacy.describe import statement_values


def example():
    participation = fedmf.Participation(rounds=200, schema="min_sep", min_sep=40)
    mechanism = fedmf.fit(fedmf.prefix_sum(200), participation, family="banded")
    plan = fedmf.calibrate(mechanism, participation, epsilon=3.0, delta=1e-7, clip_norm=0.5)
    mechanism.save("mechanism.npz")
    pathlib.Path("statement.json").write_text(json.dumps(statement_values(plan)))
    return "statement.json", "mechanism.npz"


statement_file, mechanism_file = sys.argv[1:] or example()
statement = json.loads(pathlib.Path(statement_file).read_text())
claim = statement["guarantee"]
limits = statement["participation"]
if statement["sampling"] is not None or statement["mechanism"]["bands"] > limits["min_sep"]:
    sys.exit("this check covers banded mechanisms of at most min_sep bands, without sampling")

# A client's rounds are min_sep or more apart, and columns that far apart do not overlap: their
# norms add in squares (banded paper, Thm. 2).
C = fedmf.load_mechanism(mechanism_file).encoder()
i, j = np.nonzero(C)
assert (i - j).max() < limits["min_sep"], "the encoder has more bands than the statement says"
norms_squared = np.sort((C**2).sum(axis=0))[::-1]
sensitivity = float(np.sqrt(norms_squared[: limits["max_participations"]].sum()))

# One Gaussian of sensitivity `sensitivity * clip_norm` and standard deviation `stddev`: Balle and
# Wang 2018, Theorem 8.
mu = sensitivity * statement["clip_norm"] / statement["stddev"]


def delta(epsilon):
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


computed_delta = delta(claim["epsilon"])
print(f"sensitivity: stated {claim['sensitivity']:.6f}, computed at most {sensitivity:.6f}")
print(
    f"delta at epsilon {claim['epsilon']:.6f}: stated {claim['delta']:.3e}, "
    f"computed {computed_delta:.3e}"
)
is_confirmed = sensitivity <= claim["sensitivity"] * (1 + 1e-9) and computed_delta <= claim[
    "delta"
] * (1 + 1e-9)
if not is_confirmed:
    print("The stated guarantee is TOO STRONG for this mechanism and this noise.")
    sys.exit(1)
print("Sensitivity and epsilon are confirmed for this mechanism and this noise.")
