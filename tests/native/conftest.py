import contextlib
import os
from collections.abc import Iterator

import pytest
import torch

from sdgmnet.native import build, trunk
from sdgmnet.native.targets import TARGETS, missing_features

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


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] if name == "x86-64" else []) for name in TARGETS])
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The kernels for a named kind of processor, compiled once for all tests."""
    name: str = request.param
    if missing := missing_features(name):
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp().parent / "targets"))
    monkeypatch.setenv(build.VARIABLE, name)
    assert trunk.needed_library().sdgmnet_lanes() == {"x86-64-v4": 16, "x86-64-v3": 8}.get(name, 4)
    return name
