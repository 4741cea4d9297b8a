"""What the studies of photos share: their folder, their descriptors' sources and their results."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.options import StudyOptions
from sdgmnet.report import Section, deliver
from sdgmnet.sfm.feature_sources import DescribedPhotos, descriptor_source


@contextmanager
def folder_or_temporary(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


def source_of(descriptor: str, keypoints: int, size: int = 3200) -> DescribedPhotos:
    """The feature source that `sdgmnet reconstruct` would use."""
    return descriptor_source(descriptor, keypoints, contrast=0.02, size=size)


def deliver_study(options: StudyOptions, results: dict[str, Any], sections: Sequence[Section]) -> None:
    """The results with the options that they depend on."""
    settings = {key: value for key, value in asdict(options).items() if key not in ("photos", "out", "json")}
    deliver({"options": settings, **results}, sections, options.out, options.json)
