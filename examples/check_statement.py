"""Read a privacy statement, and check it with nothing but numpy and scipy. No TensorFlow.

A statement (JSON) says the mechanism, how often a client takes part, the noise and the epsilon.
Given the mechanism file as well, the sensitivity and the epsilon follow in a few lines that do not
trust fedmf's accounting.

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
said = json.loads(pathlib.Path(statement_file).read_text())
claim, pattern = said["guarantee"], said["participation"]
if said["sampling"] is not None or said["mechanism"]["bands"] > pattern["min_sep"]:
    sys.exit("this check covers banded mechanisms of at most min_sep bands, without sampling")

# A client's rounds are min_sep or more apart, and columns that far apart do not overlap: their
# norms add in squares (banded paper, Thm. 2).
C = fedmf.load_mechanism(mechanism_file).encoder()
i, j = np.nonzero(C)
assert (i - j).max() < pattern["min_sep"], "the encoder has more bands than it says"
norms_squared = np.sort((C**2).sum(axis=0))[::-1]
sensitivity = float(np.sqrt(norms_squared[: pattern["max_participations"]].sum()))

# One Gaussian of sensitivity `sensitivity * clip_norm` and standard deviation `stddev`: Balle and
# Wang 2018, Theorem 8.
mu = sensitivity * said["clip_norm"] / said["stddev"]


def delta(epsilon):
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


print(f"sensitivity  said {claim['sensitivity']:.6f}   found at most {sensitivity:.6f}")
print(
    f"delta at epsilon {claim['epsilon']:.6f}   said {claim['delta']:.3e}   found "
    f"{delta(claim['epsilon']):.3e}"
)
true = sensitivity <= claim["sensitivity"] * (1 + 1e-9) and delta(claim["epsilon"]) <= claim[
    "delta"
] * (1 + 1e-9)
print("The statement is true." if true else "THE STATEMENT IS NOT TRUE.")
sys.exit(0 if true else 1)
