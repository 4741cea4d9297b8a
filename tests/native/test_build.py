import os
from pathlib import Path

import pytest

from sdgmnet.errors import InputError
from sdgmnet.native import build


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sdgmnet"


@pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")
def test_built_once_and_kept(empty_cache: Path) -> None:
    built = build.build()
    assert built.parent == empty_cache
    stamp = built.stat().st_mtime_ns
    assert build.build() == built
    assert built.stat().st_mtime_ns == stamp
    assert list(empty_cache.iterdir()) == [built]


@pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")
def test_code_that_others_could_have_written_is_not_loaded(empty_cache: Path) -> None:
    built = build.build()
    built.write_bytes(b"not ours")
    built.chmod(0o777)
    assert build.build() == built
    assert built.stat().st_size > 1000
    assert not built.stat().st_mode & 0o022


def test_without_a_compiler_it_is_said(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(InputError, match="install g\\+\\+ or clang\\+\\+"):
        build.build()


@pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")
def test_a_compiler_that_fails_is_quoted(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken++"
    broken.write_text("#!/bin/sh\necho 'no such instruction' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(InputError, match="no such instruction"):
        build.build()
    assert not any(empty_cache.iterdir())


@pytest.mark.skipif(build.compiler() is None or os.getuid() != 0, reason="shows the second place by a file in the way")
def test_a_cache_that_cannot_be_written_is_gone_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    assert (tmp_path / "elsewhere") in build.build().parents
