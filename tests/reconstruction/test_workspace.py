from pathlib import Path

import pytest

from sdgmnet.errors import InputError
from sdgmnet.reconstruction.dense import DenseOptions, estimate_depths
from tests.reconstruction.rendered import WIDTH


def test_maps_of_other_options_are_not_mixed(workspace: Path) -> None:
    with pytest.raises(InputError, match="made with another seed: use the same"):
        estimate_depths(workspace, DenseOptions(size=WIDTH, coarsest=WIDTH // 2, seed=1))
