"""A family is one file: once a user's module registers it, fits, files and reports support it."""

import json
import subprocess
import sys

import pytest

FAMILY = '''
import dataclasses
from typing import ClassVar

import numpy as np

from fedmf.mechanisms import Family, Mechanism, NoiseStream, register


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ScaledMechanism(Mechanism):
    """C = scale I."""

    family: ClassVar[str] = "scaled"
    rounds: int
    scale: float

    def encoder(self):
        return self.scale * np.eye(self.rounds)

    def noising(self):
        return np.eye(self.rounds) / self.scale

    def stream(self):
        return NoiseStream(rounds=self.rounds, sources=self.rounds, contraction=self.noising())


def fit_scaled(workload, participation, stopping, *, scale: float = 2.0):
    """The identity, scaled."""
    return ScaledMechanism(rounds=workload.rounds, scale=scale)


register(
    Family(
        mechanism=ScaledMechanism,
        fit=fit_scaled,
        label="Scaled ({bands})",
        color="#123456",
        help={"scale": "the entries"},
    )
)
'''

PROGRAM = """
import json, types
import scaled
import fedmf
from fedmf.reports import labels

from fedmf.mechanisms.fitting import cache

cache.MIN_SECONDS = 0.0
participation = fedmf.Participation(rounds=6, schema="min_sep", min_sep=3)
options = {"family": "scaled", "scale": 4.0, "cache": "fits"}
fedmf.fit(fedmf.prefix_sum(6), participation, **options).save("m.npz")
mechanism = fedmf.load_mechanism("m.npz")
plan = fedmf.calibrate(mechanism, participation, epsilon=2.0, delta=1e-6)
config = fedmf.TrainConfig(family="scaled", rounds=6, min_sep=3, cohort_size=2, epsilon=2.0)
run = types.SimpleNamespace(config=config, plan={"bands": 6})
print(json.dumps({
    "mechanism": [mechanism.family, mechanism.scale, mechanism.certificate_reason],
    "sensitivity": fedmf.sensitivity(mechanism, participation).value,
    "noise": [plan.noise_multiplier, config.plan().noise_multiplier],
    "label": [labels.mechanism_label(run), labels.family_color("scaled")],
}))
"""


@pytest.fixture
def run_program(tmp_path):
    """Runs a program in a folder that holds the family's module, and returns what it printed."""
    (tmp_path / "scaled.py").write_text(FAMILY)

    def call(program):
        result = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return result.stdout

    return call


@pytest.mark.slow
def test_a_registered_family_is_fitted_stored_and_labelled(run_program, tmp_path):
    printed_values = json.loads(run_program(PROGRAM))
    # Its fits are not cached, since another version of the module would read them.
    assert not (tmp_path / "fits").exists()
    assert printed_values["mechanism"] == ["scaled", 4.0, "built from given numbers, not optimised"]
    assert printed_values["sensitivity"] == pytest.approx(4.0 * 2**0.5)
    assert printed_values["noise"][0] == printed_values["noise"][1] > 0.0
    assert printed_values["label"] == ["Scaled (6 bands)", "#123456"]


def test_a_registered_family_has_options_on_the_command_line(run_program):
    command = "import scaled; from fedmf.cli import main; main({})"
    assert "scaled: the entries" in " ".join(
        run_program(command.format('["fit", "--help"]')).split()
    )
    arguments = "fit --rounds 6 --min-sep 3 --family scaled --scale 3 --out m.npz --json".split()
    printed_values = json.loads(run_program(command.format(arguments)))
    assert printed_values["family"] == "scaled"
    assert printed_values["sensitivity"] == pytest.approx(3.0 * 2**0.5)
