"""The library that is compiled from C source on this machine, and its cache."""

import os
import shutil

import pytest

pytestmark = pytest.mark.tensorflow

from fedmf.tasks.stackoverflow.compiled import c_library  # noqa: E402


@pytest.fixture
def source(tmp_path):
    if c_library.compiler() is None:
        pytest.skip("no C compiler")
    path = tmp_path / "source" / "number.c"
    path.parent.mkdir()
    path.write_text("int number(void) { return 1; }\n")
    return path


def test_a_library_is_compiled_once_for_each_content(monkeypatch, tmp_path, source):
    cache = tmp_path / "cache"
    monkeypatch.setenv("FEDMF_CACHE", str(cache))
    assert c_library.library(source).number() == 1
    other_source = source.with_name("other.c")
    shutil.copy(source, other_source)
    (source.parent / "number.h").write_text("")
    assert c_library.library(other_source).number() == 1
    assert len(list(cache.iterdir())) == 2
    broken_source = tmp_path / "broken.c"
    broken_source.write_text("this is not C\n")
    assert c_library.library(broken_source) is None
    assert len(list(cache.iterdir())) == 2


def test_there_is_no_library_without_a_compiler(monkeypatch, source):
    monkeypatch.setenv(c_library.COMPILER_VARIABLE, "")
    assert c_library.library(source) is None


@pytest.mark.parametrize("cache", ["", "file/cache"])
def test_there_is_a_library_if_the_cache_cannot_be_written(cache, monkeypatch, tmp_path, source):
    """A home folder that is not writable does not mean that a compiler is missing."""
    (tmp_path / "file").write_text("")  # nobody makes a folder in it, not even root
    monkeypatch.setenv("FEDMF_CACHE", cache and os.path.join(tmp_path, cache))
    assert c_library.library(source).number() == 1
