import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sdgmnet.native import build, trunk

SANITIZED = os.environ.get("SDGMNET_SANITIZE") == "1"  # make sanitize
if SANITIZED:
    checked = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    build.FLAGS = (*(flag for flag in build.FLAGS if flag != "-O3"), *checked)


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(params=[pytest.param("x86-64", marks=pytest.mark.slow), "haswell"])
def older_processor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same source for processors with shorter vectors, compiled once for all tests."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if platform.machine() != "x86_64" or (request.param == "haswell" and not (" avx2 " in flags and " fma " in flags)):
        pytest.skip(f"this machine cannot run code for {request.param}")
    monkeypatch.setattr(build, "FLAGS", tuple(flag.replace("native", request.param) for flag in build.FLAGS))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp().parent / "older_processors"))
    loaded = build._open(build.build())
    monkeypatch.setattr(trunk, "library", lambda: loaded)
    assert loaded.sdgmnet_lanes() == {"x86-64": 4, "haswell": 8}[request.param]
