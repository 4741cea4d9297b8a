"""Every block of docs/guides/use_with.md runs, in its order, in one folder."""

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import h5py
import numpy as np
import pytest
import torch

from sdgmnet.cli import main
from sdgmnet.descriptors import describe
from sdgmnet.features.describe import Features
from sdgmnet.features.h5 import names_in
from tests.sfm.planes import write_photos

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "use_with.md"
NEEDS = {
    "scikit-image": "skimage",
    "An extractor in hloc": "hloc",
    "vismatch": "vismatch",
    "deep-image-matching": "deep_image_matching",
    "COLMAP": "pycolmap",
    "ONNX": "onnxruntime",
}


class Block(NamedTuple):
    language: str
    code: str


def sections() -> dict[str, list[Block]]:
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = zip(parts[::2], parts[1::2], strict=True)
    return {title: [Block(*one) for one in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)] for title, text in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and a clone, as the page expects them."""
    folder = tmp_path_factory.mktemp("use_with")
    _, second, third, _ = write_photos(folder / "photos", 4)
    for name, path in (("a.jpg", second), ("b.jpg", third)):
        cv2.imwrite(str(folder / name), cv2.imread(str(path)), [cv2.IMWRITE_JPEG_QUALITY, 98])
    (folder / "clone").symlink_to(PAGE.parents[2])
    return folder


def run(block: Block) -> dict[str, Any]:
    """In the present folder, with fewer keypoints; the names that a Python block leaves."""
    names: dict[str, Any] = {}
    if block.language == "python" and "import pycolmap" in block.code:  # which must not be loaded here, nor changed
        if find_spec("pycolmap") is not None:
            shown = "print(pycolmap.TwoViewGeometry(inlier_matches=[[0, 1]]).config == calibrated)"
            code = f"{block.code}\n{shown}"
            names["output"] = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
        return names
    if block.language == "python":
        exec(block.code.replace("limit=2000", "limit=300"), names)
        return names
    for line in block.code.strip().splitlines():
        if line.startswith("sdgmnet "):
            fewer = ["--keypoints", "300"] if line.split()[1] in ("describe", "match") else []
            assert main(shlex.split(line)[1:] + fewer) == 0
        else:
            words = [sys.executable if word == "python" else word for word in shlex.split(line)]
            subprocess.run(words, check=True, capture_output=True)
    return names


@pytest.mark.parametrize("title", sections())
def test_section_runs(title: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if title in NEEDS and find_spec(NEEDS[title]) is None:
        pytest.skip(f"{NEEDS[title]} is not installed")
    monkeypatch.chdir(folder)
    blocks = sections()[title]
    assert blocks and all(block.language in ("python", "sh") for block in blocks)
    check(title, [run(block) for block in blocks])


def check(title: str, left: list[dict[str, Any]]) -> None:
    """The names that the blocks of a section leave, and the files."""
    match title:
        case "OpenCV":
            assert left[0]["inliers"].sum() > 20 and cv2.imread("matches.png").shape == (360, 960, 3)
            assert len(left[1]["keypoints"]) == len(left[1]["descriptors"]) > 100
        case "kornia":
            assert closeness(left[0]["descriptors"][0].numpy(), describe("a.jpg", left[0]["keypoints"])) > 0.999
            assert left[1]["descriptors"].shape == (1, 300, 128) and plausible(
                left[1]["found"]["keypoints0"].numpy(), left[1]["found"]["keypoints1"].numpy()
            )
        case "scikit-image":
            assert left[0]["inlier"].sum() > 30 and plausible(left[0]["xy_a"], left[0]["xy_b"])
        case "hloc":
            assert left[1]["name"] == "00.png" and Path("matches.h5").exists()
            assert left[2].get("output", b"True\n") == b"True\n"
        case "Image Matching Challenge":
            assert plausible(left[1]["xy_a"], left[1]["xy_b"])
        case "An extractor in hloc":
            assert left[0]["features"].name == "feats-sdgmnet-n4096-r1600.h5" and names_in(left[0]["features"])
        case "vismatch":
            assert left[0]["result"]["num_inliers"] > 20 and left[0]["result"]["all_desc0"].shape == (300, 128)
        case "deep-image-matching":
            with h5py.File(left[0]["features"]) as file:
                assert file["00.png/keypoints"].shape == (300, 2) and file["00.png/descriptors"].shape == (128, 300)
        case "COLMAP":
            assert len(left[0]["inliers"]) > 2 and max(left[0]["inliers"].values()) > 30
            for name, features in left[0]["photos"].items():
                np.testing.assert_allclose(left[0]["keypoints"][name].xy, features.keypoints.xy, atol=1e-4)
            assert Path("model/0/images.bin").exists()
        case "ONNX":
            wanted = describe("a.jpg", limit=500)
            assert closeness(left[1]["descriptors"], wanted) > 0.9999
            np.testing.assert_allclose(left[3]["descriptors"], wanted.descriptors, atol=1e-4)
        case "Large collections":
            assert left[0]["small_a"].shape == (300, 128) and left[0]["tiny_a"].shape == (300, 64)
            assert left[0]["tiny_a"].dtype == np.uint8 and len(left[0]["found"].pairs) > 20
        case "torch.hub and the Hugging Face Hub":
            patches = torch.rand(2, 1, 32, 32)
            assert torch.equal(left[0]["encoder"](patches), left[0]["same"](patches)) and left[0]["loss"].alpha == 0.9
        case _:
            raise KeyError(title)


def closeness(descriptors: np.ndarray, features: Features) -> float:
    """The median cosine."""
    assert descriptors.shape == features.descriptors.shape
    return float(np.median((descriptors * features.descriptors).sum(axis=1)))


def plausible(xy_a: np.ndarray, xy_b: np.ndarray) -> bool:
    """Whether matched points of a.jpg and b.jpg agree on a fundamental matrix."""
    _, inlier = cv2.findFundamentalMat(xy_a, xy_b, cv2.USAC_MAGSAC, 1.5)
    return len(xy_a) > 30 and inlier.mean() > 0.8
