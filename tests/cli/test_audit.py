"""`fedmf audit`: of a run by default, and of the noise that a mechanism makes."""

import dataclasses
import json

import pytest

from tests.cli.test_commands import fedmf, refused

SMALL = ["--rounds", 12, "--min-sep", 4, "--quiet"]


@pytest.fixture(scope="module")
def banded(tmp_path_factory):
    path = tmp_path_factory.mktemp("mechanisms") / "banded.npz"
    fedmf("fit", "--rounds", 12, "--min-sep", 4, "--out", path)
    return path


@pytest.mark.parametrize("words", [["audit"], ["audit", "run"], ["audit", "mechanism"], ["audit", "-h"]])
def test_help_has_an_example(words):
    text = fedmf(*words, *([] if "-h" in words else ["--help"])).stdout
    assert "Usage: fedmf audit" in text
    assert "Example:\n" in text


def test_a_folder_is_audited_as_a_run(tmp_path):
    for words in (["audit", tmp_path], ["audit", "run", tmp_path], ["audit", "--json", tmp_path]):
        refused(*words, words=["holds no run"])
    assert "Missing argument 'RUN'" in fedmf("audit", status=2).stderr


@pytest.mark.tensorflow
def test_noise_of_a_mechanism_is_audited(banded):
    options = [banded, *SMALL, "--epsilon", 8, "--trials", 1000]
    result = json.loads(fedmf("audit", "mechanism", *options, "--json").stdout)
    assert result["consistent"] is True
    assert len(result["findings"]) > 40
    assert all(finding["p_value"] >= result["threshold"] for finding in result["findings"])
    assert result["game"]["epsilon_lower"] <= result["game"]["epsilon_claimed"] <= 8
    text = fedmf("audit", "mechanism", *options).stdout
    assert "consistent with the claim" in text
    assert "proved at 95%" in text


@pytest.mark.tensorflow
def test_a_contradiction_is_exit_status_1(banded, monkeypatch):
    from fedmf.federated import audit

    honest = audit.mean_query

    def weak(plan, *args, **kwargs):
        return honest(dataclasses.replace(plan, noise_multiplier=0.9 * plan.noise_multiplier), *args, **kwargs)

    monkeypatch.setattr(audit, "mean_query", weak)
    text = fedmf("audit", "mechanism", banded, *SMALL, "--epsilon", 8, "--trials", 0, status=1).stdout
    assert "NOT WHAT THE PLAN CLAIMS" in text
    assert "CONTRADICTS THE CLAIM" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--noise-multiplier", 0], "without noise"),
        (["--epsilon", 8, "--coordinates", 3], "coordinates=3"),
        (["--epsilon", 8, "--false-positive-rate", 2], "false_positive_rate=2"),
    ],
    ids=lambda v: "" if isinstance(v, str) else " ".join(map(str, v)),
)
@pytest.mark.tensorflow
def test_refusals_are_one_sentence(banded, options, words):
    said = refused("audit", "mechanism", banded, *SMALL, *options, words=[words])
    # Nor is a bar drawn of an audit that is not made.
    assert refused("audit", "mechanism", banded, *SMALL[:-1], *options, words=[words]) == said


def test_a_missing_file_is_refused(tmp_path):
    refused("audit", "mechanism", tmp_path / "none.npz", *SMALL, "--epsilon", 8, words=["none.npz"])
