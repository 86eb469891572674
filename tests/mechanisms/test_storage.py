"""Mechanism files: damaged, foreign and tampered ones are refused."""

import json
import pickle

import numpy as np
import pytest

from fedmf import checks
from fedmf.mechanisms import (
    BandedMechanism,
    Certificate,
    DenseMechanism,
    FFTMechanism,
    load_mechanism,
    storage,
)
from tests.refusals import refusal

BANDED = BandedMechanism(
    diagonals=[[1.0, 0.0], [1.0, 0.5], [1.0, 0.25]],
    certificate=Certificate(loss=3.0, lower_bound=2.5, iterations=4, seconds=0.25),
)


def certificate(**changes):
    """Returns the entry of a certificate with some fields changed."""
    fields = {"loss": 3.0, "lower_bound": 2.0, "iterations": 4, "seconds": 0.25}
    return np.array(json.dumps(fields | changes).replace("Infinity", "1e999"))


def entries_of(path):
    """Returns the arrays in a mechanism file by name."""
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.fixture
def saved_path(tmp_path):
    path = tmp_path / "m.npz"
    BANDED.save(path)
    return path


def refusal_message(path):
    """Returns the message that load_mechanism refuses the file with, in one line."""
    with refusal("does not hold a valid fedmf mechanism") as caught_error:
        load_mechanism(path)
    message = str(caught_error.value)
    assert str(path) in message
    assert "\n" not in message
    assert message.endswith("fit the mechanism and save it again")
    return message


def test_a_whole_file_that_memory_cannot_hold_names_the_way_out(tmp_path, monkeypatch):
    fft_path = tmp_path / "fft.npz"
    dense_path = tmp_path / "dense.npz"
    FFTMechanism(rounds=3000).save(fft_path)
    DenseMechanism(matrix=np.eye(1000)).save(dense_path)
    monkeypatch.setattr(checks, "available_memory", lambda: 2**22)
    monkeypatch.setattr(storage, "available_memory", lambda: 2**22)
    for path, needs in (
        (fft_path, "this FFT mechanism would take"),
        (dense_path, "its arrays take 0.00745 GiB"),
    ):
        with refusal(f"cannot be used: .*{needs}.*a family that") as caught_error:
            load_mechanism(path)
        assert "save it again" not in str(caught_error.value)


def test_a_file_truncated_at_any_length_is_refused(saved_path):
    whole_file = saved_path.read_bytes()
    for length in range(0, len(whole_file), 41):
        saved_path.write_bytes(whole_file[:length])
        refusal_message(saved_path)


def test_a_flipped_bit_is_refused_or_harmless(saved_path):
    whole_file = bytearray(saved_path.read_bytes())
    for position in range(0, len(whole_file), 13):
        damaged_file = bytearray(whole_file)
        damaged_file[position] ^= 0x10
        saved_path.write_bytes(bytes(damaged_file))
        try:
            loaded_mechanism = load_mechanism(saved_path)
        except ValueError:
            refusal_message(saved_path)
        else:  # in a field that nothing reads, such as a date
            assert np.array_equal(loaded_mechanism.encoder(), BANDED.encoder())
            assert loaded_mechanism.certificate == BANDED.certificate


def test_files_of_other_formats_are_refused(tmp_path):
    path = tmp_path / "m.npz"
    for content in (b"", b"hello", b"SQLite format 3\x00" * 100):
        path.write_bytes(content)
        refusal_message(path)
    np.savez(path, matrix=np.eye(3))
    assert "something else" in refusal_message(path)


def test_pickles_are_refused_and_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    path = tmp_path / "m.npz"
    np.savez(path, format=np.array("fedmf mechanism"), version=np.array([Bomb()], dtype=object))
    refusal_message(path)
    path.write_bytes(pickle.dumps(Bomb()))
    refusal_message(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("version", np.array(1), "version 1"),
        ("family", np.array("hadamard"), "family 'hadamard'"),
        ("state_diagonals", np.array([[1.0, 0.0], [-1.0, 0.5]]), r"diagonals[1, 0]=-1.0"),
        ("state_diagonals", np.array([[1.0, 0.0], [np.nan, 0.5]]), "not finite"),
        ("state_diagonals", np.array([[1.0, 9.0], [1.0, 0.5]]), "outside the matrix"),
        ("state_diagonals", np.array([["a"]]), "TypeError"),
        ("state_diagonals", np.array([[1e-300, 0.0], [1e-300, 1e300]]), "not an inverse"),
        ("state_diagonals", None, "diagonals"),
        ("certificate", certificate(lower_bound=4.0), "no certificate"),
        ("certificate", np.array([3.0, 2.0]), "array of size 1"),
        ("certificate", np.array("{"), "truncated"),
        ("certificate", certificate(loss=1e999), "out of range"),
        ("certificate", None, "do not go together"),
    ],
)
def test_tampered_entries_are_refused_with_the_cause(saved_path, name, value, cause):
    entries = entries_of(saved_path)
    entries |= {name: value}
    np.savez(saved_path, **{name: entry for name, entry in entries.items() if entry is not None})
    assert cause in refusal_message(saved_path)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a file: name one"):
        load_mechanism(tmp_path / "none.npz")


def test_saving_into_a_missing_folder_is_refused(tmp_path):
    with refusal("folder that does not exist: create it"):
        BANDED.save(tmp_path / "none" / "m.npz")


@pytest.mark.parametrize("field", [8, 10], ids=["flags", "compression"])
def test_an_archive_directory_that_zipfile_cannot_read_is_refused(saved_path, field):
    """Flips a bit in the archive's directory, so that an entry seems encrypted or of an unknown
    compression.
    """
    content = bytearray(saved_path.read_bytes())
    content[content.index(b"PK\x01\x02") + field] ^= 0x09
    saved_path.write_bytes(bytes(content))
    refusal_message(saved_path)
