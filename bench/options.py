"""The options of all commands. Nothing slow is imported here: help and errors do not wait for torch."""

from dataclasses import dataclass
from pathlib import Path

from sdgmnet.errors import InputError
from sdgmnet.options import Flag, OptionalOut, require_options


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
    """infer: number of patches to describe."""
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
