"""The options of all commands. Nothing slow is imported here: help and errors do not wait for torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sdgmnet.descriptors import accepted_forms
from sdgmnet.errors import InputError
from sdgmnet.options import AsJson, Option, OptionalOut, Positional, require_options
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
    json: AsJson = False

    def __post_init__(self) -> None:
        require_options(self, repeats=1, pairs=2, patches=1, memory_patches=1, descriptors=2)
        if len(self.images) not in (0, 2):
            raise InputError(f"--images takes two images, not {len(self.images)}.")


LEAST = {
    "keypoints": 1, "threads": 1, "first": 3, "size": 64, "inliers": 1, "kills": 0, "repeats": 1, "neighbours": 1, "counts": 2,
}  # fmt: skip
Descriptor = Annotated[str, Option(help=f"The descriptor: {accepted_forms()}.")]
Descriptors = Annotated[tuple[str, ...], Option(help=f"Descriptors to compare: {accepted_forms()}.")]


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Options that all studies of photos share."""

    out: OptionalOut = None
    """Folder for results.json, table.md and all files in between, which are kept; default: only print."""
    keypoints: int = 2000
    """Maximum number of keypoints per photo, strongest first."""
    threads: int = 2
    """Number of threads."""
    json: AsJson = False

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name, None)
            if not isinstance(value, tuple):
                require_options(self, **({} if value is None else {name: least}))
            elif min(value, default=0) < least:
                raise InputError(f"--{name} takes numbers of at least {least}.")


@dataclass(frozen=True, kw_only=True)
class FolderOptions(StudyOptions):
    photos: Positional[Path]
    """Folder of photos. Sub-folders are included."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.photos.is_dir():
            raise InputError(f"{self.photos} is not a folder of photos.")


@dataclass(frozen=True, kw_only=True)
class StabilityOptions(StudyOptions):
    """Reconstruct copies of photo sets, saved with several JPEG qualities: a stable reconstruction hardly changes.

    For example:

        python -m bench stability photos/church photos/statue --ratios none 0.9

    Per set, descriptor and ratio test, over the copies: fewest registered photos, mean number of points, its spread (largest
    minus smallest, over the mean), mean track length and reprojection error, smallest share of verified matches that are in
    tracks, number of models that needed another attempt, and number of implausible models.
    """

    photos: Positional[tuple[Path, ...]]
    """Folders of photos, one per set."""
    descriptors: Descriptors = (ALIAS,)
    ratios: tuple[str, ...] = ()
    """Ratio tests to compare, such as none 0.9; default: that of sdgmnet reconstruct."""
    qualities: tuple[int, ...] = (95, 92, 90, 88, 85)
    """JPEG qualities of the copies."""
    first: int | None = None
    """Use only so many photos of each set, the first by name; default: all."""


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions(FolderOptions):
    """Match all pairs of photos, and count how many of the verified ones sdgmnet match --pairs retrieval would compare.

    For example:

        python -m bench retrieval photos --descriptors rootsift sdgmnet --neighbours 10 20
    """

    descriptors: Descriptors = (ALIAS,)
    neighbours: tuple[int, ...] = (5, 10, 20)
    """Numbers of neighbours per photo."""
    keypoints: int = 1000
    size: int = 1000
    """Longest side in pixels; larger photos are resized."""
    inliers: int = 30
    """Inliers of a fundamental matrix by which a pair is verified."""


@dataclass(frozen=True, kw_only=True)
class CollectionOptions(FolderOptions):
    """Reconstruct the photos of many scenes from one folder, by retrieval, and each scene alone.

    For example:

        python -m bench collection photos --descriptor sdgmnet-fast --keypoints 2000

    Per scene: number of models, registered photos and points of the largest, together and alone. Models with photos of two
    scenes are counted. An interrupted command continues in the same -o.
    """

    photos: Positional[Path]
    """Folder with a sub-folder of photos per scene."""
    descriptor: Descriptor = ALIAS
    neighbours: int = 20
    """Number of neighbours per photo."""
    size: int = 3200
    """Longest side in pixels; larger photos are resized for detection."""


@dataclass(frozen=True, kw_only=True)
class GrowthOptions(FolderOptions):
    """Match collections of growing size, made from photos by crops and warps: time per photo, memory, and repeated work.

    For example:

        python -m bench growth photos --counts 100 300 1000 1500 --descriptor sdgmnet-fast --kills 2

    Each collection is described and matched by sdgmnet match --pairs retrieval, killed and continued.
    """

    counts: tuple[int, ...] = (100, 300, 1000, 1500)
    """Sizes of the collections."""
    descriptor: Descriptor = ALIAS
    keypoints: int = 600
    size: int = 800
    """Longest side of the photos in pixels."""
    kills: int = 0
    """How often a run is killed and continued."""
    kill_after: float = 30.0
    """Seconds after which it is killed."""
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class ReconstructOptions(FolderOptions):
    """Time and memory of sdgmnet reconstruct against COLMAP's own SIFT pipeline, alternating. It needs an idle machine.

    For example:

        python -m bench reconstruct fountain --descriptors sdgmnet sdgmnet-fast
    """

    photos: Positional[Path]
    """Folder of photos of one scene."""
    descriptors: Descriptors = (ALIAS,)
    keypoints: int = 12_000
    """Maximum number of keypoints per photo, strongest first; COLMAP's pipeline takes its own 8192."""
    repeats: int = 3
    """Number of models per descriptor; the table has the median time."""
