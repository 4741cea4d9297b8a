from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.data.patchset import PatchSet
from sdgmnet.errors import InputError
from sdgmnet.plots import draw_easy_and_hard, draw_fig2, draw_patches, draw_training, likeness
from sdgmnet.training.angles import Angles
from sdgmnet.training.log import RunLog


def is_picture(path: Path) -> bool:
    picture = cv2.imread(str(path))
    return picture is not None and len(np.unique(picture)) > 20


def test_fig2(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    moments = np.array([[0.83, 0.2], [1.17, 0.08], [-0.34, 0.22]])
    Angles(rng.normal(0.83, 0.2, 500), rng.normal(1.17, 0.08, 500), moments).save(tmp_path / "angles.npz")
    draw_fig2(tmp_path / "angles.npz", tmp_path / "fig2.png")
    assert is_picture(tmp_path / "fig2.png")
    (tmp_path / "angles.npz").write_bytes(b"")
    with pytest.raises(InputError, match="angles"):
        draw_fig2(tmp_path / "angles.npz", tmp_path / "fig2.png")


@pytest.mark.parametrize("evaluated", [True, False])
def test_training_curves(tmp_path: Path, evaluated: bool) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    names = ["theta_pos_mean", "theta_pos_std", "theta_neg_mean", "theta_neg_std", "power_pos", "power_neg"]
    for step in (1, 2, 3):
        log.write("epoch", step, **dict.fromkeys(names, 0.5), **{f"running_{name}": 0.6 for name in names})
        if evaluated:
            log.write("evaluation", step, fpr95={"nd": 0.1 / step, "mean": 0.1 / step})
    draw_training(log.path, tmp_path / "training.png", {"SIFT": 0.2})
    assert is_picture(tmp_path / "training.png")


def test_contact_sheet(tmp_path: Path, blobs: PatchSet) -> None:
    draw_patches(blobs, tmp_path / "patches.png")
    assert is_picture(tmp_path / "patches.png")


def test_easy_and_hard_points(tmp_path: Path, blobs: PatchSet) -> None:
    draw_easy_and_hard(blobs, tmp_path / "sheet.png")
    assert is_picture(tmp_path / "sheet.png")
    same = np.repeat(np.random.default_rng(0).integers(0, 255, (1, 64, 64)), 3, axis=0)
    assert likeness(same) == pytest.approx(1)
    assert likeness(np.stack([same[0], 255 - same[0]])) == pytest.approx(-1)
