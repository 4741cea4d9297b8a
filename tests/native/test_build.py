import os
from pathlib import Path

import pytest

from sdgmnet.errors import InputError
from sdgmnet.native import build

needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def _quick_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled here is not timed."""
    monkeypatch.setattr(build, "FLAGS", tuple(flag.replace("-O3", "-O0") for flag in build.FLAGS))


@pytest.fixture(autouse=True)
def quick_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FLAGS", tuple(flag.replace("-O3", "-O0") for flag in build.FLAGS))


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sdgmnet"


@needs_compiler
def test_compiled_once(empty_cache: Path) -> None:
    built = build.build()
    assert built.parent == empty_cache
    stamp = built.stat().st_mtime_ns
    assert build.build() == built
    assert built.stat().st_mtime_ns == stamp
    assert list(empty_cache.iterdir()) == [built]


def test_no_compiler(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(InputError, match="install g\\+\\+ or clang\\+\\+"):
        build.build()


@pytest.mark.parametrize("end", ["exit 1", "exit 0"])
def test_a_compiler_that_fails_is_quoted(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    broken = tmp_path / "broken++"
    broken.write_bytes(b"#!/bin/sh\necho 'no such instruction \xff' >&2\n" + end.encode() + b"\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(InputError, match="no such instruction"):
        build.build()
    assert not any(empty_cache.iterdir())


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    return tmp_path / "elsewhere"


@needs_compiler
def test_a_cache_that_cannot_be_used_is_skipped(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in its place, or a user without a home."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert elsewhere in build.build().parents

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert elsewhere in build.build().parents


@needs_compiler
def test_code_that_others_could_have_written_is_not_loaded(empty_cache: Path, elsewhere: Path) -> None:
    """The library or its folder can be written by others."""
    build.build().chmod(0o777)
    assert elsewhere in build.build().parents
    empty_cache.chmod(0o777)
    assert elsewhere in build.build().parents
    (elsewhere / f"sdgmnet-{os.getuid()}").chmod(0o777)
    with pytest.raises(InputError, match="elsewhere"):
        build.build()


@needs_compiler
def test_a_damaged_library_is_built_again(empty_cache: Path) -> None:
    build.build().write_bytes(b"cut off")
    build._load.cache_clear()
    try:
        assert build.library() is not None
    finally:
        build._load.cache_clear()
