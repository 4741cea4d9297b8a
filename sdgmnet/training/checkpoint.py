"""Checkpoints: all that a run needs to continue with the same bits. Atomic writes; the last two are kept."""

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sdgmnet.data.patchset import PatchSet, batch_groups, scene_of
from sdgmnet.data.sources import Sources
from sdgmnet.errors import InputError
from sdgmnet.pretrained import find_weights
from sdgmnet.registry import WINDOW
from sdgmnet.storage import digest as digest_of_file
from sdgmnet.storage import new_file, reason_of, require_bounded_zip, require_regular_file
from sdgmnet.training.folder import checkpoints

KEPT = 2


def save_checkpoint(folder: Path, step: int, content: dict[str, Any]) -> Path:
    """Write checkpoint-<step>.pt and delete all but the newest two."""
    path = folder / f"checkpoint-{step:09d}.pt"
    serialised = io.BytesIO()  # in memory first: torch has errors of its own for a full disk
    torch.save({"step": step, **content}, serialised)
    with new_file(path) as part:
        part.write_bytes(serialised.getbuffer())
    for old in checkpoints(folder)[:-KEPT]:
        old.unlink()
    return path


def load_checkpoint(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The newest valid checkpoint, and a message for every damaged one that is newer."""
    found = checkpoints(folder)
    if not found:
        raise InputError(f"{folder} has no checkpoint to resume from: start the run without --resume.")
    complaints: list[str] = []
    for path in reversed(found):
        try:
            return read_checkpoint(path), complaints
        except InputError as error:
            complaints.append(str(error))
    raise InputError(f"no checkpoint in {folder} is valid: {' '.join(complaints)} Start again in another folder.")


def read_checkpoint(path: Path) -> dict[str, Any]:
    try:
        require_regular_file(path)
        require_bounded_zip(path)
        with zipfile.ZipFile(path) as archive:  # torch's format is a zip file: its checksums find more damage
            damaged = archive.testzip()
        if damaged:
            raise zipfile.BadZipFile(f"bad checksum of {damaged}")
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or type(content.get("step")) is not int or content["step"] < 0:
            raise ValueError("it has no step")
        return content
    except Exception as error:  # torch raises many kinds of errors for a damaged file
        raise InputError(f"{path} is damaged ({reason_of(error)}).") from error


def ranks_of(state: dict[str, Any]) -> int:
    """The number of ranks that wrote a checkpoint."""
    return int(state.get("ranks", 1))


def fingerprints(sources: Sources, teacher: str | None = None) -> list[list[str]]:
    """Of all training and test sets, and of a teacher's weights: a run can only be resumed with the same."""
    taught = [] if teacher is None else [["teacher", digest_of_file(find_weights(teacher))]]
    return [[patchset.name, fingerprint(patchset)] for patchset in [*sources.train, *sources.test]] + taught


def fingerprint(patchset: PatchSet) -> str:
    """A digest of the small arrays and of a thousand patches: enough to recognise another set."""
    digest = hashlib.sha256(f"{len(patchset)}".encode())
    if patchset.window != WINDOW:  # runs begun before sets had a window can be resumed
        digest.update(f"window {patchset.window:g}".encode())
    for array in (patchset.point_id, patchset.test_pairs, patchset.conflicts):
        digest.update(b"none" if array is None else np.ascontiguousarray(array).tobytes())
    if patchset.observations is not None:  # which patches may share a batch, and which were detected
        digest.update(f"{scene_of(patchset)}".encode(errors="surrogateescape"))
        digest.update(np.ascontiguousarray(batch_groups(patchset)).tobytes())
        if "detected" in (patchset.observations.dtype.names or ()):
            digest.update(np.ascontiguousarray(patchset.observations["detected"]).tobytes())
    for row in np.linspace(0, len(patchset) - 1, min(1000, len(patchset)), dtype=np.int64):
        digest.update(np.ascontiguousarray(patchset.patches[row]).tobytes())
    return digest.hexdigest()[:16]
