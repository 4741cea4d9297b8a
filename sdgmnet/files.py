"""Nothing half-written: every file and folder is made beside its place and renamed when it is whole."""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdgmnet.errors import InputError


def _beside(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")


@contextmanager
def new_file(target: Path | str) -> Iterator[Path]:
    """Yield a path to write to; on success it is flushed to disk and renamed to `target`, otherwise removed."""
    target = Path(target)
    part = _beside(target)
    try:
        yield part
        with open(part, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(target: Path | str) -> Iterator[Path]:
    """Yield an empty folder to fill; on success it is renamed to `target`, which must not hold anything yet."""
    target = Path(target)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(f"{target} already exists and is not empty: choose another folder or remove it first.")
    part = _beside(target)
    part.mkdir()
    try:
        yield part
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_text(target: Path | str, text: str) -> None:
    with new_file(target) as part:
        part.write_text(text, encoding="utf-8")


def write_json(target: Path | str, content: Any) -> None:
    write_text(target, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(source: Path | str) -> Any:
    try:
        return json.loads(Path(source).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{source} does not exist.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{source} is not valid JSON ({error}): it may be cut off; write it again.") from error
