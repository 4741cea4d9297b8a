"""The extractor in hloc itself, which is not on PyPI: PYTHONPATH=CLONE_OF_HLOC. Without a clone those tests are skipped, and
only a minimal base class with hloc's interface is used, which shows the arrays but not that hloc accepts them."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from sdgmnet.descriptors import describe
from sdgmnet.errors import InputError
from sdgmnet.features.h5 import read_features
from sdgmnet.features.hloc import CONFIGURATION, MODULE, register
from tests.features.samples import noise_image, write_image

needs_hloc = pytest.mark.skipif(find_spec("hloc") is None, reason="hloc is not installed: set PYTHONPATH=CLONE_OF_HLOC")


class MinimalBaseModel(torch.nn.Module):
    """The interface of hloc 1.5's BaseModel: a subclass has `_init(conf)` and `_forward(data)`. Not hloc's code."""

    default_conf: dict[str, Any]

    def __init__(self, conf: dict[str, Any]) -> None:
        super().__init__()
        self.conf = {**self.default_conf, **conf}
        self._init(self.conf)

    def forward(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self._forward(data)


def fake_module(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(members)
    return module


def test_without_hloc_the_registered_class_returns_its_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    features = fake_module("hloc.extract_features", confs={})
    modules = {
        "hloc": fake_module("hloc", extract_features=features),
        "hloc.extract_features": features,
        "hloc.utils": fake_module("hloc.utils"),
        "hloc.utils.base_model": fake_module("hloc.utils.base_model", BaseModel=MinimalBaseModel),
        MODULE: fake_module(MODULE),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert register() == features.confs["sdgmnet"] == CONFIGURATION
    [model] = [one for one in vars(sys.modules[MODULE]).values() if getattr(one, "__module__", "") == MODULE]
    image = noise_image(400, 300)
    found = model({"max_keypoints": 50})({"image": torch.from_numpy(image)[None, None] / 255})
    wanted = describe(image, limit=50)
    shapes = {name: tuple(values.shape) for name, values in found.items()}
    vectors = dict.fromkeys(("scores", "scales", "oris"), (1, 50))
    assert shapes == {"keypoints": (1, 50, 2), "descriptors": (1, 128, 50), **vectors}
    np.testing.assert_allclose(found["keypoints"][0], wanted.keypoints.xy, atol=1e-3)
    np.testing.assert_allclose(found["descriptors"][0].T, wanted.descriptors, atol=1e-5)


def test_missing_hloc_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hloc", None)
    with pytest.raises(InputError, match="hloc is not installed"):
        register()


@needs_hloc
@pytest.mark.parametrize("scale", [1, 2])
def test_extract_features_writes_the_features_of_describe(tmp_path: Path, scale: int) -> None:
    """With a scale of 2 hloc halves the image, and returns keypoints in the original."""
    from hloc import extract_features

    image = noise_image(400, 300)
    write_image(tmp_path / "photos" / "a.png", image)
    configuration = register()
    assert extract_features.confs["sdgmnet"] == configuration
    changes = {
        "model": {"name": "sdgmnet", "max_keypoints": 50},
        "preprocessing": {"grayscale": True, "resize_max": 400 // scale},
    }
    path = extract_features.main(configuration | changes, tmp_path / "photos", tmp_path, as_half=False)
    found = read_features(path, "a.png")
    smaller = cv2.resize(image.astype(np.float32), (400 // scale, 300 // scale), interpolation=cv2.INTER_AREA) / 255
    wanted = describe(smaller, limit=50)
    assert found.size == (400, 300)
    np.testing.assert_allclose(found.keypoints.xy, (wanted.keypoints.xy + 0.5) * scale - 0.5, atol=1e-3)
    np.testing.assert_allclose(found.keypoints.sigma, wanted.keypoints.sigma * scale, atol=1e-3)
    np.testing.assert_allclose(found.keypoints.angle, wanted.keypoints.angle, atol=1e-3)
    np.testing.assert_allclose(found.descriptors, wanted.descriptors, atol=1e-5)
