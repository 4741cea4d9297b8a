"""COLMAP's own PatchMatch stereo, for a pycolmap with CUDA on a machine with a GPU. Not run on a GPU."""

from pathlib import Path

import torch

from sdgmnet.errors import InputError
from sdgmnet.reconstruction.process import run_alone
from sdgmnet.reconstruction.stereo import DenseOptions
from sdgmnet.reconstruction.workspace import same_options_or_error


def colmap_can_run(workspace: Path | str) -> bool:
    """Whether `estimate_depths_with_colmap` can run here: a build with CUDA alone finds no GPU on a machine without."""
    return torch.cuda.is_available() and colmap_has_cuda(workspace)


def colmap_has_cuda(workspace: Path | str) -> bool:
    """Whether pycolmap is built with CUDA; asked in a process of its own."""
    return bool(run_alone(f"{__name__}:_has_cuda", Path(workspace) / "dense.log"))


def _has_cuda() -> bool:
    import pycolmap

    return bool(pycolmap.has_cuda)


def estimate_depths_with_colmap(
    workspace: Path | str, options: DenseOptions | None = None, *, remake: bool = False, confirm: bool = True
) -> None:
    """COLMAP's PatchMatch instead of ours; of the options it knows the size only. `remake` as in `estimate_depths`.

    confirm: also geometric maps, of what other photos confirm; without, photometric ones alone, as the ETH benchmark has it.
    """
    workspace, options = Path(workspace), options or DenseOptions()
    if not colmap_has_cuda(workspace):
        raise InputError("This pycolmap is built without CUDA: use estimate_depths.")
    same_options_or_error(workspace, options, "colmap", remake=remake)
    run_alone(
        f"{__name__}:_patch_match",
        workspace / "dense.log",
        workspace=str(workspace),
        size=options.size,
        confirm=confirm,
    )


def _patch_match(workspace: str, size: int, confirm: bool) -> None:
    import pycolmap

    options = pycolmap.PatchMatchOptions()
    options.max_image_size, options.geom_consistency, options.filter = size, confirm, True
    pycolmap.patch_match_stereo(workspace, options=options)
