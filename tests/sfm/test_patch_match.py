"""When COLMAP's stereo is chosen, and that its maps never mix with ours. Not run on a GPU: the process is replaced."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sdgmnet.errors import InputError
from sdgmnet.sfm import depth as dense
from sdgmnet.sfm import depth as patch_match
from sdgmnet.sfm.depth import (
    DenseOptions,
    colmap_can_run,
    colmap_has_cuda,
    estimate_depths,
    estimate_depths_with_colmap,
    make_depths,
)
from sdgmnet.sfm.workspace import map_path, noted_options
from tests.sfm.rendered import OPTIONS, Rendered, write_workspace

QUICK = DenseOptions(size=60, coarsest=60, rounds=(1,))


def pretend(monkeypatch: pytest.MonkeyPatch, *, built: bool, gpu: bool) -> list[str]:
    """A pycolmap and a machine with CUDA or without; returns the steps that are run from now on."""
    steps: list[str] = []

    def run_alone(step: str, log: Path, **arguments: Any) -> bool:
        steps.append(step.split(":")[1])
        return built

    monkeypatch.setattr(patch_match, "run_alone", run_alone)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    return steps


def test_without_cuda_colmap_says_what_to_use(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
    if colmap_has_cuda(tmp_path):
        pytest.skip("this pycolmap has CUDA")
    with pytest.raises(InputError, match="built without CUDA: use estimate_depths"):
        estimate_depths_with_colmap(tmp_path)


@pytest.mark.parametrize(("built", "gpu"), [(True, True), (True, False), (False, True), (False, False)])
def test_colmap_needs_a_build_with_cuda_and_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, built: bool, gpu: bool
) -> None:
    steps = pretend(monkeypatch, built=built, gpu=gpu)
    assert colmap_can_run(tmp_path) == (built and gpu)
    assert steps == (["_has_cuda"] if gpu else [])  # nothing is started where there is no GPU


def test_the_maker_is_chosen_and_noted(monkeypatch: pytest.MonkeyPatch, rendered: Rendered, tmp_path: Path) -> None:
    write_workspace(rendered, tmp_path / "space")
    steps = pretend(monkeypatch, built=True, gpu=True)
    assert make_depths(tmp_path / "space", QUICK) == "colmap"
    assert steps[-1] == "_patch_match"
    note = noted_options(tmp_path / "space")
    assert note is not None
    assert (note["maker"], note["size"]) == ("colmap", 60)
    ours: list[bool] = []
    monkeypatch.setattr(dense, "estimate_depths", lambda *_, remake, **__: ours.append(remake))
    pretend(monkeypatch, built=True, gpu=False)
    assert make_depths(tmp_path / "space", QUICK, remake=True) == "sdgmnet"
    assert ours == [True]


def test_maps_of_the_two_makers_never_mix(
    monkeypatch: pytest.MonkeyPatch, rendered: Rendered, workspace: Path, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    shutil.copytree(workspace, ours)
    write_workspace(rendered, theirs)
    pretend(monkeypatch, built=True, gpu=True)
    with pytest.raises(InputError, match="made with another maker"):
        estimate_depths_with_colmap(ours, OPTIONS)
    assert map_path(ours, "depth", "0.png", "geometric").exists()
    estimate_depths_with_colmap(ours, OPTIONS, remake=True)
    assert not list((ours / "stereo").rglob("*.bin"))
    estimate_depths_with_colmap(theirs, QUICK)
    with pytest.raises(InputError, match="made with another maker"):
        estimate_depths(theirs, QUICK)
