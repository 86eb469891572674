"""Every snippet of the README runs as printed. Exceptions, stated here: `make`, and the full-size training commands, which get sizes
appended that a test can afford, and a synthetic corpus under the file name that they expect."""

import pathlib
import re
import shlex

import pytest

from fedmf.cli import main

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.S)
SHELL = re.findall(r"```sh\n(.*?)```", README, re.S)
AFFORDABLE = (
    "--rounds 2 --min-sep 1 --cohort-size 2 --claimed-cohort 4 -o vocabulary-size=60 -o embedding-size=8 -o lstm-size=8 "
    "-o max-sentences=8 -o validation-sentences=50 -o test-sentences=50 --quiet"
).split()
AT_FULL_SIZE = {
    1: "--rounds 4 --min-sep 2 --cohort-size 4 --evaluate-every 4 --quiet".split(),
    3: AFFORDABLE,
    4: [*AFFORDABLE, "--jobs", "2"],
}


def test_the_snippets_are_found():
    assert len(PYTHON) == 8
    assert len(SHELL) == 7


@pytest.mark.tensorflow
@pytest.mark.parametrize("number", range(8))
@pytest.mark.slow
def test_python_snippet(number, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    exec(compile(PYTHON[number], f"README python snippet {number}", "exec"), {"__name__": "readme"})
    # capfd, not capsys: TFF hands its worker the real file descriptor of standard output.
    printed = capfd.readouterr().out
    if number == 0:
        assert "Certificate" in printed
        assert "# Privacy statement" in printed


@pytest.mark.tensorflow
@pytest.mark.parametrize("number", range(7))
@pytest.mark.slow
def test_shell_snippet(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if number in (3, 4):
        main("data synth --clients 12 --sentences-per-client 12 --out stackoverflow.sqlite --quiet".split())
    for line in SHELL[number].replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "fedmf"
        main(arguments + (AT_FULL_SIZE.get(number, []) if arguments[0] in ("train", "sweep") else []))
    assert (
        tmp_path / ["statement.md", "runs", "bands.png", "runs", "sweeps", "dense.png", "banded.npz"][number]
    ).exists()


def test_names_in_the_readme_exist():
    import fedmf

    for name in set(re.findall(r"`fedmf\.([a-zA-Z_]+)`", README)):
        assert hasattr(fedmf, name), name
    # The public API is what __init__ exports and the README or the design's section 8 names.
    assert set(fedmf.__all__) <= set(dir(fedmf))


def test_linked_documents_exist():
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (pathlib.Path(__file__).parents[1] / link).exists(), link
