"""The demo's first part; its training has the tests of training."""

from pathlib import Path

import cv2
import pytest
import torch

from sdgmnet import pretrained
from sdgmnet.commands.demo import match_motorcycle
from sdgmnet.encoders import SDGMNet


def test_the_motorcycle_is_matched_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    pretrained.save_encoder(SDGMNet(), tmp_path / "weights" / f"{pretrained.BEST}.safetensors", {})
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path / "weights")
    match_motorcycle(tmp_path / "demo")
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("SIFT", "RootSIFT", "SDGMNet"))
    for name in ("matches.png", "matches_sift.png"):
        assert cv2.imread(str(tmp_path / "demo" / name)).shape[1] > 1000
