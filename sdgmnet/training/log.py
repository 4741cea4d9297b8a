"""log.jsonl: one JSON object per line, with the statistics of Tables 2-4 per epoch, and every evaluation."""

import json
import os
from pathlib import Path
from typing import Any

from sdgmnet.errors import InputError
from sdgmnet.storage import has_shape, parse_json, read_text


class RunLog:
    """Appends lines to `path`. A resumed run first truncates it to `keep_bytes`, its length at the checkpoint.

    path: None on ranks other than 0: nothing is written.
    """

    def __init__(self, path: Path | None, keep_bytes: int | None = None) -> None:
        self.path = path
        if path is None:
            return
        if path.is_symlink() or (path.exists() and not path.is_file()):  # writing would follow the link
            raise InputError(f"{path} is a link or not a file: a run keeps its log in its own folder; remove it.")
        if keep_bytes is None:
            path.write_bytes(b"")
        else:
            if not path.exists() or path.stat().st_size < keep_bytes:
                raise InputError(f"{path} is shorter than at its checkpoint: it was changed; start in another folder.")
            with open(path, "rb+") as file:
                file.truncate(keep_bytes)

    def write(self, kind: str, step: int, **fields: Any) -> None:
        if self.path is None:
            return
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **fields}, allow_nan=False) + "\n")

    def synced_size(self) -> int:
        """Bytes written so far, flushed to disk: a checkpoint must not be newer than its log."""
        assert self.path is not None
        with open(self.path, "rb+") as file:
            os.fsync(file.fileno())
        return self.path.stat().st_size


def read_log(path: Path | str, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind: "epoch" or "evaluation"."""
    text = read_text(path, "give the log.jsonl of a run")
    try:
        lines = [parse_json(line) for line in text.splitlines()]
    except ValueError as error:
        raise InputError(f"{path} is not the log of a run ({error}): give the log.jsonl of a run.") from error
    if not all(map(is_line, lines)):
        raise InputError(f"{path} is not the log of a run: a line is not an epoch or evaluation of sdgmnet train.")
    return [line for line in lines if line["kind"] == kind]


def is_line(content: Any) -> bool:
    """Whether parsed JSON has what every line of a log has, and in an evaluation the scores of all sets and their mean."""
    if not has_shape(content, {"kind": str, "step": int}):
        return False
    if content["kind"] != "evaluation":
        return True
    scores = content.get("fpr95")
    return has_shape(scores, {"mean": int | float}) and all(isinstance(one, int | float) for one in scores.values())
