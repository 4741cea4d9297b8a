import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdgmnet.errors import InputError
from sdgmnet.native import build, targets

needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def quick_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled here is not timed."""
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


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(build.VARIABLE, raising=False)
    build._load.cache_clear()
    yield
    build._load.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of prebuilt libraries in a wheel; empty."""
    folder = tmp_path / "package" / targets.PREBUILT
    folder.mkdir(parents=True)
    monkeypatch.setattr(build, "HERE", folder.parent)
    return folder


def has_features(monkeypatch: pytest.MonkeyPatch, machine: str, names: str) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(targets, "processor_features", lambda: frozenset(names.split()))


def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)


@needs_compiler
@pytest.mark.usefixtures("nothing_loaded")
def test_a_damaged_library_is_built_again(empty_cache: Path) -> None:
    build.build().write_bytes(b"cut off")
    assert build.library() is not None


@needs_compiler
@pytest.mark.usefixtures("nothing_loaded", "empty_cache")
def test_the_fastest_library_that_the_processor_runs_is_loaded(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = build.build()
    for name in targets.TARGETS:
        shutil.copy(library, package / f"{name}.so")
    no_compiler(monkeypatch)
    for machine, features, expected in [
        ("x86_64", targets.V4, "x86-64-v4"),
        ("x86_64", targets.V4.replace("avx512vl", ""), "x86-64-v3"),
        ("x86_64", f"{targets.V3} avx512f", "x86-64-v3"),
        ("x86_64", targets.V3.replace("fma", ""), "x86-64"),
        ("x86_64", "", "x86-64"),  # /proc/cpuinfo cannot be read
        ("aarch64", "fp asimd", "armv8-a"),
    ]:
        has_features(monkeypatch, machine, features)
        build._load.cache_clear()
        assert build.library() is not None
        assert build.kernels().origin.startswith(f"{expected}, prebuilt")
    has_features(monkeypatch, "riscv64", "")
    build._load.cache_clear()
    assert build.library() is None
    assert "no prebuilt kernels" in build.why_not()


@pytest.mark.usefixtures("nothing_loaded", "empty_cache")
def test_a_prebuilt_library_that_cannot_be_loaded_is_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_features(monkeypatch, "x86_64", "")
    (package / "x86-64.so").write_bytes(b"cut off")
    assert build.library() is None
    assert str(package / "x86-64.so") in build.why_not()
    assert "SDGMNET_KERNELS=compile" in build.why_not()
    monkeypatch.setenv(build.VARIABLE, "x86-64")
    with pytest.raises(InputError, match="SDGMNET_KERNELS=x86-64"):
        build.library()


@pytest.mark.usefixtures("nothing_loaded", "package", "empty_cache")
def test_without_libraries_and_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    no_compiler(monkeypatch)
    assert build.library() is None
    assert "install the wheel, or g++ or clang++" in build.why_not()


@needs_compiler
@pytest.mark.usefixtures("nothing_loaded")
def test_the_variable_decides(package: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """compile compiles although there is a prebuilt library; none turns both off."""
    monkeypatch.setenv(build.VARIABLE, "none")
    assert build.library() is None
    assert "SDGMNET_KERNELS=none" in build.why_not()
    assert not empty_cache.exists()
    (package / "x86-64.so").write_bytes(b"not read")
    monkeypatch.setenv(build.VARIABLE, "compile")
    assert build.library() is not None
    assert build.why_not() == ""
    assert len(list(empty_cache.iterdir())) == 1
    has_features(monkeypatch, "x86_64", targets.V3)
    for asked, message in [("avx2", "must be one of x86-64-v4, "), ("x86-64-v4", "has no avx512bw, avx512cd")]:
        monkeypatch.setenv(build.VARIABLE, asked)
        with pytest.raises(InputError, match=message):
            build.library()
