"""Checkpoints: everything a run needs to go on to the same bits. Atomic, the last two kept, never a silent fresh start."""

import io
import zipfile
from pathlib import Path
from typing import Any

import torch

from sdgmnet.errors import InputError
from sdgmnet.storage import new_file, reason_of, require_bounded_zip, require_regular_file

KEPT = 2


def save_checkpoint(folder: Path, step: int, content: dict[str, Any]) -> Path:
    """Write checkpoint-<step>.pt and drop all but the newest two."""
    path = folder / f"checkpoint-{step:09d}.pt"
    serialised = io.BytesIO()  # a full disk then is an OSError of the write, not one of torch's own
    torch.save({"step": step, **content}, serialised)
    with new_file(path) as part:
        part.write_bytes(serialised.getbuffer())
    for old in checkpoints(folder)[:-KEPT]:
        old.unlink()
    return path


def checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("checkpoint-*.pt"))


def load_checkpoint(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The newest whole checkpoint, and a sentence for every damaged one that was passed over."""
    found = checkpoints(folder)
    if not found:
        raise InputError(f"{folder} has no checkpoint to resume from: start the run without --resume.")
    complaints: list[str] = []
    for path in reversed(found):
        try:
            return read_checkpoint(path), complaints
        except InputError as error:
            complaints.append(str(error))
    raise InputError(f"no checkpoint in {folder} is whole: {' '.join(complaints)} Start anew in another folder.")


def read_checkpoint(path: Path) -> dict[str, Any]:
    try:
        require_regular_file(path)
        require_bounded_zip(path)
        with zipfile.ZipFile(path) as archive:  # torch's format is a zip: its checksums find what loading would not
            damaged = archive.testzip()
        if damaged:
            raise zipfile.BadZipFile(f"bad checksum of {damaged}")
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict) or type(content.get("step")) is not int or content["step"] < 0:
            raise ValueError("it does not say its step")
        return content
    except Exception as error:  # torch raises many kinds for a broken file; all mean the same here
        raise InputError(f"{path} is damaged ({reason_of(error)}).") from error


def ranks_of(state: dict[str, Any]) -> int:
    """How many ranks wrote it."""
    return int(state.get("ranks", 1))
