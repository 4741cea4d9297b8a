import pytest

from sdgmnet.native.targets import compiler
from tests.native import aarch64
from tests.native.parity import TOLERANCE, differences


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
def test_every_target_is_torch_within_rounding(target: str) -> None:
    assert max(differences(target).values()) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.skipif(bool(aarch64.missing_tools()), reason="needs a cross-compiler and qemu: tests/native/aarch64.py")
def test_aarch64_is_torch_within_rounding() -> None:
    found = aarch64.differences()
    assert found.pop("distances") < 1e-14 and found.pop("neighbours") == 0
    assert all(value < aarch64.TOLERANCES[name.split()[1]] for name, value in found.items()), found
