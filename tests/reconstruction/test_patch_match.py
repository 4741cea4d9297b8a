from pathlib import Path

import pytest

from sdgmnet.errors import InputError
from sdgmnet.reconstruction.patch_match import colmap_has_cuda, estimate_depths_with_colmap


def test_without_cuda_colmap_says_what_to_use(tmp_path: Path) -> None:
    if colmap_has_cuda(tmp_path):
        pytest.skip("this pycolmap has CUDA")
    with pytest.raises(InputError, match="built without CUDA: use estimate_depths"):
        estimate_depths_with_colmap(tmp_path)
