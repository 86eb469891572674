import errno
import os
import pathlib
import stat
import zipfile

import numpy as np
import pytest

from fedmf.files import (
    append_privately,
    cache_folder,
    check_archive,
    expanded,
    lock,
    make_folder,
    write_atomically,
)
from tests.refusals import refusal

BYTES = "größe".encode()


def contents(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_folder_and_those_above_it_are_their_owner_s_alone(tmp_path):
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    before = os.umask(0)
    try:
        for word in ("one", " two"):
            make_folder(there / "a" / "b")
            with append_privately(there / "a" / "b" / "log") as log:
                log.write(word)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (there, there / "a", there / "a" / "b")]
    assert modes == [0o755, 0o700, 0o700]
    assert stat.S_IMODE((there / "a" / "b" / "log").stat().st_mode) == 0o600
    assert (there / "a" / "b" / "log").read_text() == "one two"


class TestWriteAtomically:
    @pytest.mark.parametrize("content", ["größe", BYTES, lambda out: out.write(BYTES)])
    def test_replaces(self, tmp_path, content):
        (tmp_path / "a").write_text("old")
        write_atomically(tmp_path / "a", content)
        assert contents(tmp_path) == {pathlib.Path("a"): BYTES}

    def test_a_secret_is_on_disk_and_its_owner_s_alone_before_it_has_its_name(
        self, tmp_path, monkeypatch
    ):
        calls, replace = [], os.replace

        def fsync(handle):
            state = os.fstat(handle)
            calls.append((stat.S_IMODE(state.st_mode), state.st_size))

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", lambda *a: (calls.append("replace"), replace(*a)))
        before = os.umask(0o027)
        try:
            write_atomically(tmp_path / "secret", "12345", mode=0o600)
            write_atomically(tmp_path / "open", "")
        finally:
            os.umask(before)
        assert calls == [(0o600, 5), "replace", (0o640, 0), "replace"]

    @pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
    @pytest.mark.parametrize(
        "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
    )
    def test_a_full_disk_or_ctrl_c_leaves_the_old_file_and_nothing_else(
        self, tmp_path, monkeypatch, call, error
    ):
        path = tmp_path / "a"
        write_atomically(path, "old")

        def fails(*args, **kwargs):
            raise error

        def half_written(out):
            out.write(b"ne")
            raise error

        if call != "write":
            monkeypatch.setattr(os, call, fails)
        with pytest.raises(type(error)) as caught:
            write_atomically(path, half_written if call == "write" else "new and longer")
        monkeypatch.undo()
        assert contents(tmp_path) == {pathlib.Path("a"): b"old"}
        if isinstance(error, OSError):
            assert caught.value.filename == str(path)


def test_a_folder_is_locked_for_one_at_a_time(tmp_path):
    first = lock(tmp_path)
    assert lock(tmp_path) is None
    first.release()
    first.release()
    second = lock(tmp_path)
    assert lock(tmp_path) is None
    second.release()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        lock(tmp_path / "file")


def test_a_lock_ends_with_its_release_whatever_was_forked_meanwhile(tmp_path):
    """A child by Python closes its copy; one of a C library keeps it, as `dup` does here."""
    held = lock(tmp_path)
    copy = os.dup(held.descriptor)
    held.release()
    lock(tmp_path).release()
    os.close(copy)

    held = lock(tmp_path)
    child = os.fork()
    if child == 0:
        held.release()  # not its own
        os._exit(int(held.descriptor is not None))
    assert os.waitpid(child, 0)[1] == 0
    assert lock(tmp_path) is None
    held.release()


@pytest.mark.parametrize(
    ("path", "parts"),
    [("~", ()), ("~/a/b", ("a", "b")), (pathlib.Path("~/a"), ("a",))],
)
def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch, path, parts):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded(path) == tmp_path.joinpath(*parts)


def test_other_paths_stay_and_a_tilde_of_nobody_is_refused(tmp_path, monkeypatch):
    for path in ("a/~", "/a", "a", "../a"):
        assert expanded(path) == pathlib.Path(path)
    monkeypatch.chdir(tmp_path)
    assert expanded(expanded("./~")) == tmp_path / "~"
    with refusal("begins with the home folder of a user that this machine does not have"):
        expanded("~nobody of this name/a")


def test_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMF_CACHE", "")
    assert cache_folder() is None
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv("FEDMF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fedmf"


def test_an_entry_whose_header_claims_fewer_numbers_is_noticed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(9000))
    check_archive(path)
    path.write_bytes(path.read_bytes().replace(b"(9000,)", b"(1000,)"))
    assert np.load(path)["x"].shape == (1000,)  # which is why
    with pytest.raises((ValueError, zipfile.BadZipFile)):
        check_archive(path)
