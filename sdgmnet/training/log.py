"""The run's log: one JSON object a line, every statistic of Tables 2-4 an epoch, every evaluation."""

import json
import os
from pathlib import Path
from typing import Any

from sdgmnet.errors import InputError
from sdgmnet.storage import parse_json, read_text


class RunLog:
    """Appends lines to `path`; a resumed run first cuts off what was written after its checkpoint."""

    def __init__(self, path: Path, keep_bytes: int | None = None) -> None:
        self.path = path
        if path.is_symlink() or (path.exists() and not path.is_file()):  # it is written in place, wherever a link leads
            raise InputError(f"{path} is a link or no file: a run keeps its log in its own folder; remove it.")
        if keep_bytes is None:
            path.write_bytes(b"")
        else:
            if not path.exists() or path.stat().st_size < keep_bytes:
                raise InputError(
                    f"{path} is shorter than its checkpoint says: it was changed; start anew in another folder."
                )
            with open(path, "rb+") as file:
                file.truncate(keep_bytes)

    def write(self, kind: str, step: int, **fields: Any) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **fields}, allow_nan=False) + "\n")

    def synced_size(self) -> int:
        """Bytes written so far, safely on disk: a checkpoint must not be newer than its log."""
        with open(self.path, "rb+") as file:
            os.fsync(file.fileno())
        return self.path.stat().st_size


def read_log(path: Path | str, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind: "epoch" or "evaluation"."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist: give the log.jsonl of a run.")
    try:
        lines = [parse_json(line) for line in read_text(path).splitlines()]
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not the log of a run ({error}): give the log.jsonl of a run.") from error
    if not all(isinstance(line, dict) and {"kind", "step"} <= set(line) for line in lines):
        raise InputError(f"{path} is not the log of a run: a line is an object with its kind and its step.")
    return [line for line in lines if line["kind"] == kind]
