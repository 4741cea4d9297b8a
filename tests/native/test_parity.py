import pytest

from sdgmnet.native.targets import compiler
from tests.native.parity import TOLERANCE, differences

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def test_every_target_is_torch_within_rounding(target: str) -> None:
    assert max(differences(target).values()) <= TOLERANCE
