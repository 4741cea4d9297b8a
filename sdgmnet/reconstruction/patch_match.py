"""COLMAP's own PatchMatch stereo, for a pycolmap with CUDA. Not run on a GPU."""

from pathlib import Path

from sdgmnet.errors import InputError
from sdgmnet.reconstruction.process import run_alone
from sdgmnet.reconstruction.stereo import DenseOptions


def colmap_has_cuda(workspace: Path | str) -> bool:
    """Whether `estimate_depths_with_colmap` can run here; asked in a process of its own."""
    return bool(run_alone(f"{__name__}:_has_cuda", Path(workspace) / "dense.log"))


def _has_cuda() -> bool:
    import pycolmap

    return bool(pycolmap.has_cuda)


def estimate_depths_with_colmap(workspace: Path | str, options: DenseOptions | None = None) -> None:
    """COLMAP's PatchMatch instead of ours, for a pycolmap with CUDA (`has_cuda`). Not run on a GPU."""
    size = (options or DenseOptions()).size
    run_alone(f"{__name__}:_patch_match", Path(workspace) / "dense.log", workspace=str(workspace), size=size)


def _patch_match(workspace: str, size: int) -> None:
    import pycolmap

    if not pycolmap.has_cuda:
        raise InputError("This pycolmap is built without CUDA: use estimate_depths.")
    options = pycolmap.PatchMatchOptions()
    options.max_image_size, options.geom_consistency, options.filter = size, True, True
    pycolmap.patch_match_stereo(workspace, options=options)
