"""What can be seen without torch is answered without waiting for it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.data.patchset import PatchSet
from tests.features.samples import noise_image, write_image

RUN = """
import json, sys
from sdgmnet.cli import main
for words in json.load(sys.stdin):
    code = main(words)
    slow = {"torch", "h5py", "matplotlib", "kornia"} & set(sys.modules)
    assert code == 2 and not slow, (words, code, slow)
"""
CASES = [
    ("match {tmp}/a.png {tmp}/b.png --descriptor kornia:Foo", "kornia:Foo is not known"),
    ("match {tmp}/a.png {tmp}/b.png --descriptor kornia:HardNet:{tmp}/none", "none does not exist"),
    ("match {tmp}/a.png {tmp}/b.png --descriptor tfeat:{tmp}/none", "none does not exist"),
    ("match {tmp}/a.png {tmp}/b.png --descriptor {tmp}/none.onnx", "none.onnx does not exist"),
    ("match {tmp}/a.png {tmp}/b.png --tolerance 3", "--tolerance needs --verify"),
    ("match {tmp}/a.png {tmp}/zero.png", "zero.png is empty"),
    ("match {tmp}/a.png {tmp}/text.png", "text.png is not a supported image"),
    ("match {tmp}/empty -o {tmp}/m.h5", "empty contains no images"),
    ("match {tmp}/set -o {tmp}/m.h5", "set is a PatchSet (patches, not photos)"),
    ("match {tmp}/sets -o {tmp}/m.h5", "sets holds PatchSets"),
    ("match {tmp}/one -o {tmp}/m.h5", "one holds one image"),
    ("describe {tmp}/a.png -o {tmp}/f.h5 --descriptor kornia:Foo", "kornia:Foo is not known"),
    ("describe {tmp}/empty -o {tmp}/f.h5", "empty contains no images"),
    ("describe {tmp}/zero.png -o {tmp}/f.h5", "zero.png is empty"),
    ("describe {tmp}/zero.png {tmp}/text.png -o {tmp}/f.h5", "none of the 2 files can be read"),
    ("describe {tmp}/a.png -o {tmp}/f.h5 --keypoints-from {tmp}/none.txt", "--keypoints-from"),
    ("describe {tmp}/a.png -o {tmp}/f.h5 --keypoints-from {tmp}/text.png --keypoints 9", "--keypoints is for detected"),
    ("describe {tmp}/set -o {tmp}/f.h5", "-o f.npy"),
    ("describe {tmp}/sets -o {tmp}/f.h5", "sets holds PatchSets: describe one of them"),
    ("data views {tmp}/set -o {tmp}/views", "set is a PatchSet (patches, not photos)"),
]

TRAINING_CASES = [
    ("train --data {tmp}/nothere -o {tmp}/new", "nothere does not exist"),
    ("train --data {tmp}/photos -o {tmp}/new", "photos: not a data set"),
    ("train --data {tmp}/sets --holdout chruch -o {tmp}/new", "--data gives church; did you mean church?"),
    ("train --data {tmp}/sets --loss {tmp}/none.py:Loss -o {tmp}/new", "none.py does not exist"),
    ("train --data {tmp}/sets --init {tmp}/nothere -o {tmp}/new", "nothere does not exist"),
    ("train --data {tmp}/nothere -o {tmp}/run", "run already holds a run"),
    ("train --data {tmp}/nothere -o {tmp}/file", "file is a file"),
    ("train -o {tmp}/run --resume --batch-size 32", "--batch-size is 1024, not 32; leave it out"),
    ("train -o {tmp}/run --resume --no-reprojected --seed 1", "--seed is 0, not 1 and --reprojected is on, not off"),
    ("demo --iterations 0 -o {tmp}/new", "--iterations must be at least 1, not 0."),
    ("demo --batch-size 1 -o {tmp}/new", "so that each pair has a negative, not 1."),
    ("export onnx sift -o {tmp}/new.onnx", "SIFT has no weights to export"),
    ("export onnx {tmp}/nothere -o {tmp}/new.onnx", "(sdgmnet, sdgmnet-wide, "),
    ("export weights {tmp}/nothere -o {tmp}/new", "nothere does not exist"),
    ("evaluate phototour sift --data {tmp}/photos", "photos: not a data set"),
    ("evaluate phototour {tmp}/runs/none --data {tmp}/sets", "runs/none does not exist"),
    ("evaluate phototour {tmp}/none.onnx --data {tmp}/sets", "none.onnx does not exist"),
    ("evaluate phototour {tmp}/photos --data {tmp}/sets", "photos/best.safetensors does not exist"),
    ("evaluate phototour surf --data {tmp}/sets", "'surf' is not a descriptor; did you mean sift?"),
    ("evaluate phototour stif --data {tmp}/sets", "did you mean sift?"),
    ("evaluate phototour kornia:Hardnet --data {tmp}/sets", "did you mean kornia:HardNet?"),
    ("evaluate phototour tfeat:{tmp}/none.params --data {tmp}/sets", "none.params does not exist"),
    ("evaluate hpatches sift --root {tmp}/photos", "photos contains no HPatches strips"),
    ("evaluate matching sift --root {tmp}/photos", "photos contains no sequence"),
    ("evaluate reconstruction sift --root {tmp}/photos -o {tmp}/new", "photos contains no photos"),
    ("data hpatches {tmp}/photos -o {tmp}/new", "photos contains no sequence"),
    ("data photos {tmp}/photos -o {tmp}/new", "contain no photos"),
    ("data pairs {tmp}/sets/chruch", "has church; did you mean church?"),
    ("data pairs {tmp}/nothere", "nothere does not exist: make PatchSets with sdgmnet data photos"),
]


def test_torch_is_not_loaded_for_wrong_paths_and_options(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "one/a.png"):
        write_image(tmp_path / name, noise_image(60, 50))
    (tmp_path / "zero.png").touch()
    (tmp_path / "text.png").write_text("text")
    (tmp_path / "empty").mkdir()
    for place in ("set", "sets/set"):
        PatchSet("set", np.zeros((2, 64, 64), np.uint8), np.zeros(2, np.int64)).save(tmp_path / place)
    before = sorted(tmp_path.rglob("*"))
    answer(tmp_path, CASES)
    assert sorted(tmp_path.rglob("*")) == before


def test_training_and_evaluation_answer_as_quickly(tmp_path: Path) -> None:
    PatchSet("church", np.zeros((2, 64, 64), np.uint8), np.zeros(2, np.int64)).save(tmp_path / "sets/church")
    for folder in ("photos", "run"):
        (tmp_path / folder).mkdir()
    (tmp_path / "run/config.json").write_text("{}")
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    answer(tmp_path, TRAINING_CASES)
    assert sorted(tmp_path.rglob("*")) == before


def test_reconstruct_answers_as_quickly(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed: pip install 'sdgmnet[sfm]'")
    for name in ("few/0.png", *(f"photos/{number}.png" for number in range(3))):
        write_image(tmp_path / name, noise_image(60, 50))
    cases = [
        ("reconstruct {tmp}/few -o {tmp}/model", "few: a model needs at least 3 overlapping photos: 1 found."),
        ("reconstruct {tmp}/photos -o {tmp}/model --pairs {tmp}/none.txt", "none.txt does not exist"),
        ("reconstruct {tmp}/photos -o {tmp}/few", "few holds other files and is left as it is: give -o"),
        ("reconstruct {tmp}/photos -o {tmp}/model --descriptor kornia:Foo", "kornia:Foo is not known"),
    ]
    answer(tmp_path, cases)
    assert not (tmp_path / "model").exists()


def answer(folder: Path, cases: list[tuple[str, str]]) -> None:
    words = [text.replace("{tmp}", str(folder)).split() for text, _ in cases]
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, input=json.dumps(words), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(cases)
    for line, (_, said) in zip(lines, cases, strict=True):
        assert said in line, line
