"""Small jobs of some seconds that are interrupted: how each is started, continued, and what it writes."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import h5py
import numpy as np
import torch
from safetensors.numpy import load_file

from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.phototour import write_phototour
from sdgmnet.training.checkpoint import checkpoints, read_checkpoint
from tests.conftest import blob_patches
from tests.sfm.planes import write_photos

STEPS = 8


class Job(NamedTuple):
    """start: arguments of the command; again: arguments after an interruption.

    result: everything that must be equal at the end, by name. whole: raises if a file under its final name is incomplete.
    """

    prepare: Callable[[Path], None]  # writes the inputs
    start: Callable[[Path, Path], list[Any]]  # inputs, out
    again: Callable[[Path, Path], list[Any]]
    result: Callable[[Path], dict[str, Any]]
    whole: Callable[[Path], None]


def visible(folder: Path) -> list[Path]:
    """Files under their final names: neither they nor a folder above them is hidden."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in visible(folder)
    }


def unfinished(folder: Path) -> list[str]:
    """Temporary files that were left behind."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*.part*")]


def require_whole_files(folder: Path) -> None:
    """Every file under its final name can be read to its end."""
    for path in visible(folder):
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".safetensors":
            load_file(path)
        elif path.suffix == ".png":
            assert cv2.imread(str(path)) is not None, path
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                assert all(arrays[name].size >= 0 for name in arrays.files)
        elif path.name.startswith("checkpoint-"):
            read_checkpoint(path)


# Training


def prepare_training(inputs: Path) -> None:
    for seed in (1, 2):
        blob_patches(points=30, views=3, seed=seed).save(inputs / f"blobs{seed}")


def start_training(inputs: Path, out: Path) -> list[Any]:
    sizes = ["--iterations", STEPS, "--batch-size", 4, "--checkpoint-every", 2]
    sizes += ["--evaluations", 2, "--evaluation-pairs", 20]
    kind = ["--engine", "eager", "--threads", 1, "--seed", 3]
    return ["train", "--data", inputs / "blobs1", inputs / "blobs2", "--holdout", "blobs2", *sizes, *kind, "-o", out]


def resume_training(inputs: Path, out: Path) -> list[Any]:
    """--resume if the run exists; otherwise start it."""
    return ["train", "-o", out, "--resume"] if (out / "config.json").exists() else start_training(inputs, out)


def results_of_training(out: Path) -> dict[str, Any]:
    """All files; checkpoints by content, since pickle also records which equal strings are one object."""
    held = {str(path.relative_to(out)): content_of(read_checkpoint(path)) for path in checkpoints(out / "checkpoints")}
    return digests(out) | held


def content_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), hashlib.sha256(value.numpy().tobytes()).hexdigest()[:16]
    if isinstance(value, dict):
        return {key: content_of(one) for key, one in value.items()}
    return [content_of(one) for one in value] if isinstance(value, list | tuple) else value


def newest_step(out: Path) -> int | None:
    found = checkpoints(out / "checkpoints")
    return max((read_checkpoint(path)["step"] for path in found), default=None)


# PatchSets


def prepare_phototour(inputs: Path) -> None:
    some = blob_patches(points=700, views=3, seed=4)
    ids = np.concatenate([some.point_id + 10_000 * turn for turn in range(5)])
    write_phototour(PatchSet("small", np.tile(some.patches, (5, 1, 1)), ids, some.test_pairs), inputs / "small")


def convert(inputs: Path, out: Path) -> list[Any]:
    return ["data", "phototour", inputs / "small", "-o", out]


def require_whole_sets(out: Path) -> None:
    require_whole_files(out)
    for card in out.glob("[!.]*/set.json"):
        opened = PatchSet.open(card.parent)
        assert np.asarray(opened.patches).shape == (len(opened), 64, 64)


# Images


def prepare_images(inputs: Path) -> None:
    write_photos(inputs / "photos", count=5, width=240, height=180)


def describe(inputs: Path, out: Path) -> list[Any]:
    return ["describe", inputs / "photos", "-o", out / "features.h5", "--descriptor", "sift"]


def features(out: Path) -> dict[str, Any]:
    """Arrays by name; the stamp of a file differs from run to run."""
    found: dict[str, Any] = {}

    def visit(name: str, one: Any) -> None:
        if isinstance(one, h5py.Dataset):
            found[name] = hashlib.sha256(np.asarray(one).tobytes()).hexdigest()

    with h5py.File(out / "features.h5", "r") as file:
        file.visititems(visit)
    return found


def require_whole_features(out: Path) -> None:
    if (out / "features.h5").exists():
        assert features(out)


def make_patches(inputs: Path, out: Path) -> list[Any]:
    sizes = ["--size", 240, "--dense-size", 120, "--keypoints", 500, "--threads", 1]
    return ["data", "photos", inputs / "photos", "-o", out, "--from", "tracks", *sizes]


def patches(out: Path) -> dict[str, Any]:
    """The set and its sheet. Tables contain seconds, which differ."""
    return {name: one for name, one in digests(out).items() if not name.startswith(("results.json", "table.md"))}


# Evaluation


def evaluate(inputs: Path, out: Path) -> list[Any]:
    return ["evaluate", "phototour", "sift", "rootsift", "--data", inputs / "blobs1", inputs / "blobs2", "-o", out]


JOBS: dict[str, Job] = {
    "train": Job(prepare_training, start_training, resume_training, results_of_training, require_whole_files),
    "data phototour": Job(prepare_phototour, convert, convert, digests, require_whole_sets),
    "describe": Job(prepare_images, describe, describe, features, require_whole_features),
    "data photos": Job(prepare_images, make_patches, make_patches, patches, require_whole_sets),
    "evaluate": Job(prepare_training, evaluate, evaluate, digests, require_whole_files),
}
