"""The options of all commands. Nothing slow is imported here: help and errors do not wait for torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sdgmnet.descriptors import accepted_forms
from sdgmnet.errors import InputError
from sdgmnet.options import Flag, Option, OptionalOut, Positional, require_options
from sdgmnet.pretrained import ALIAS


@dataclass(frozen=True)
class Options:
    """Measure the speed of this package, of other implementations and of torch's matrix product, alternating in one run.

    Timings vary between runs, so compare the ratios. Options that a command does not use are ignored.
    """

    out: OptionalOut = None
    """Folder for results.json and table.md; default: only print."""
    repeats: int = 5
    """Number of measurements per implementation; the table has the median."""
    pairs: int = 1024
    """train, loss, data, distributed: matching pairs per batch."""
    patches: int = 20_000
    """infer, kernels: number of patches to describe."""
    memory_patches: int = 200_000
    """infer: number of patches for the measurement of memory."""
    descriptors: int = 10_000
    """match: number of descriptors per image."""
    images: tuple[Path, ...] = ()
    """images: two image files; default: the motorcycle pair of scikit-image, at one megapixel."""
    json: Flag = False
    """Print JSON instead of a table."""

    def __post_init__(self) -> None:
        require_options(self, repeats=1, pairs=2, patches=1, memory_patches=1, descriptors=2)
        if len(self.images) not in (0, 2):
            raise InputError(f"--images takes two images, not {len(self.images)}.")


@dataclass(frozen=True)
class StabilityOptions:
    """Reconstruct copies of photo sets, saved with several JPEG qualities: a stable reconstruction hardly changes.

    For example:

        python -m bench stability photos/church photos/statue --ratios none 0.9

    Per set, descriptor and ratio test, over the copies: fewest registered photos, mean number of points, its spread (largest
    minus smallest, over the mean), mean track length and reprojection error, smallest share of verified matches that are in
    tracks, number of models that needed another attempt, and number of implausible models.
    """

    photos: Positional[tuple[Path, ...]]
    """Folders of photos, one per set."""
    out: OptionalOut = None
    """Folder for results.json, table.md and the workspaces, which are kept; default: only print."""
    descriptors: Annotated[tuple[str, ...], Option(help=f"Descriptors to compare: {accepted_forms()}.")] = (ALIAS,)
    ratios: tuple[str, ...] = ()
    """Ratio tests to compare, such as none 0.9; default: that of sdgmnet reconstruct."""
    qualities: tuple[int, ...] = (95, 92, 90, 88, 85)
    """JPEG qualities of the copies."""
    first: int | None = None
    """Use only so many photos of each set, the first by name; default: all."""
    keypoints: int = 2000
    """Maximum number of keypoints per photo, strongest first."""
    threads: int = 2
    """Number of threads."""
    json: Flag = False
    """Print JSON instead of a table."""

    def __post_init__(self) -> None:
        require_options(self, keypoints=1, threads=1, first=3)


@dataclass(frozen=True)
class RetrievalOptions:
    """Match all pairs of photos, and count how many of the verified ones sdgmnet match --pairs retrieval would compare.

    For example:

        python -m bench retrieval photos --descriptors rootsift sdgmnet --neighbours 10 20
    """

    photos: Positional[Path]
    """Folder of photos. Sub-folders are included."""
    out: OptionalOut = None
    """Folder for results.json, table.md, features and matches, which are kept; default: only print."""
    descriptors: Annotated[tuple[str, ...], Option(help=f"Descriptors to compare: {accepted_forms()}.")] = (ALIAS,)
    neighbours: tuple[int, ...] = (5, 10, 20)
    """Numbers of neighbours per photo."""
    keypoints: int = 1000
    """Maximum number of keypoints per photo, strongest first."""
    size: int = 1000
    """Longest side in pixels; larger photos are resized."""
    inliers: int = 30
    """Inliers of a fundamental matrix by which a pair is verified."""
    threads: int = 2
    """Number of threads."""
    json: Flag = False
    """Print JSON instead of a table."""

    def __post_init__(self) -> None:
        require_options(self, keypoints=1, size=64, inliers=1, threads=1)
        if not self.photos.is_dir():
            raise InputError(f"{self.photos} is not a folder of photos.")
        if not self.neighbours or min(self.neighbours) < 1:
            raise InputError("--neighbours takes numbers of at least 1.")
