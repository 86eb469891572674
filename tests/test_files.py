"""Paths, atomic writes, private folders, locks, the cache folder and archives."""

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
    return {
        file_path.relative_to(path): file_path.read_bytes()
        for file_path in path.rglob("*")
        if file_path.is_file()
    }


def test_new_folders_and_files_are_accessible_by_their_owner_only(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o755)
    old_umask = os.umask(0)
    try:
        for word in ("one", " two"):
            make_folder(folder / "a" / "b")
            with append_privately(folder / "a" / "b" / "log") as log:
                log.write(word)
    finally:
        os.umask(old_umask)
    modes = [
        stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "a", folder / "a" / "b")
    ]
    assert modes == [0o755, 0o700, 0o700]
    assert stat.S_IMODE((folder / "a" / "b" / "log").stat().st_mode) == 0o600
    assert (folder / "a" / "b" / "log").read_text() == "one two"


class TestWriteAtomically:
    @pytest.mark.parametrize("content", ["größe", BYTES, lambda out: out.write(BYTES)])
    def test_write_atomically_replaces_the_file(self, tmp_path, content):
        (tmp_path / "a").write_text("old")
        write_atomically(tmp_path / "a", content)
        assert contents(tmp_path) == {pathlib.Path("a"): BYTES}

    def test_content_is_synced_with_its_mode_before_the_file_is_replaced(
        self, tmp_path, monkeypatch
    ):
        calls = []
        replace = os.replace

        def fsync(handle):
            state = os.fstat(handle)
            calls.append((stat.S_IMODE(state.st_mode), state.st_size))

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(
            os, "replace", lambda *arguments: (calls.append("replace"), replace(*arguments))
        )
        old_umask = os.umask(0o027)
        try:
            write_atomically(tmp_path / "secret", "12345", mode=0o600)
            write_atomically(tmp_path / "open", "")
        finally:
            os.umask(old_umask)
        assert calls == [(0o600, 5), "replace", (0o640, 0), "replace"]

    @pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
    @pytest.mark.parametrize(
        "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
    )
    def test_a_full_disk_or_ctrl_c_leaves_the_old_file_only(
        self, tmp_path, monkeypatch, call, error
    ):
        path = tmp_path / "a"
        write_atomically(path, "old")

        def failing_call(*args, **kwargs):
            raise error

        def half_written(out):
            out.write(b"ne")
            raise error

        if call != "write":
            monkeypatch.setattr(os, call, failing_call)
        content = half_written if call == "write" else "new and longer"
        with pytest.raises(type(error)) as caught:
            write_atomically(path, content)
        monkeypatch.undo()
        assert contents(tmp_path) == {pathlib.Path("a"): b"old"}
        if isinstance(error, OSError):
            assert caught.value.filename == str(path)


def test_a_folder_has_one_lock_at_a_time(tmp_path):
    first_lock = lock(tmp_path)
    assert lock(tmp_path) is None
    first_lock.release()
    first_lock.release()
    second_lock = lock(tmp_path)
    assert lock(tmp_path) is None
    second_lock.release()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        lock(tmp_path / "file")


def test_release_ends_a_lock_although_processes_were_forked(tmp_path):
    """Tests a child of Python, which closes its copy, and `dup`, a copy that stays open."""
    folder_lock = lock(tmp_path)
    copy = os.dup(folder_lock.descriptor)
    folder_lock.release()
    lock(tmp_path).release()
    os.close(copy)

    folder_lock = lock(tmp_path)
    child = os.fork()
    if child == 0:
        folder_lock.release()  # The lock is that of the parent.
        os._exit(int(folder_lock.descriptor is not None))
    assert os.waitpid(child, 0)[1] == 0
    assert lock(tmp_path) is None
    folder_lock.release()


@pytest.mark.parametrize(
    ("path", "path_parts"),
    [("~", ()), ("~/a/b", ("a", "b")), (pathlib.Path("~/a"), ("a",))],
)
def test_expanded_replaces_a_tilde_with_the_home_folder(tmp_path, monkeypatch, path, path_parts):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded(path) == tmp_path.joinpath(*path_parts)


def test_expanded_keeps_other_paths_and_refuses_an_unknown_user(tmp_path, monkeypatch):
    for path in ("a/~", "/a", "a", "../a"):
        assert expanded(path) == pathlib.Path(path)
    monkeypatch.chdir(tmp_path)
    assert expanded(expanded("./~")) == tmp_path / "~"
    with refusal("begins with the home folder of a user that this machine does not have"):
        expanded("~nobody of this name/a")


def test_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMF_CACHE", "")
    assert cache_folder() is None
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv("FEDMF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fedmf"


def test_check_archive_detects_a_header_with_fewer_numbers(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(9000))
    check_archive(path)
    path.write_bytes(path.read_bytes().replace(b"(9000,)", b"(1000,)"))
    assert np.load(path)["x"].shape == (1000,)  # numpy does not notice.
    with pytest.raises((ValueError, zipfile.BadZipFile)):
        check_archive(path)
