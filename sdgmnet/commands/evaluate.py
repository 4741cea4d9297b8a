"""`sdgmnet evaluate ...`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sdgmnet.benchmarks import phototour as benchmark
from sdgmnet.data.sources import open_tests
from sdgmnet.descriptors import Descriptor, load_descriptor
from sdgmnet.errors import InputError
from sdgmnet.features.sift import SIFT_VARIANT
from sdgmnet.plots import draw_fpr
from sdgmnet.report import Section, deliver


@dataclass(frozen=True)
class PhototourArguments:
    """False positive rate at 95 % recall (FPR@95) on labelled pairs of patches: lower is better.

    Descriptors are sift, rootsift, tfeat:FILE, .safetensors files or run folders, each with an optional label in front:

        sdgmnet evaluate phototour sift rootsift mine=runs/liberty --data ubc -o results

    A descriptor is not tested on a set it was trained on. A label used for several trainings gets a mean over all cells.
    """

    contenders: tyro.conf.Positional[tuple[str, ...]]
    """What to compare: [label=]sift | rootsift | tfeat:FILE | FILE.safetensors | RUN_FOLDER."""
    data: tuple[str, ...] = ("demo",)
    """Test sets: PatchSets, PhotoTour folders, a folder of these, or "demo"."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Folder for results.json, table.md and fpr95.png."""
    convention: Literal["hardnet", "exact"] = "hardnet"
    """How FPR@95 is counted: as HardNet and the authors, or tie-safe."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def phototour(words: list[str]) -> None:
    arguments = tyro.cli(PhototourArguments, prog="sdgmnet evaluate phototour", args=words)
    contenders = parse_descriptors(arguments.contenders)
    patchsets = open_tests(arguments.data)
    lines = benchmark.compare(contenders, patchsets, arguments.convention)
    header, body = benchmark.table(lines)
    results = {
        "convention": arguments.convention,
        "sift": SIFT_VARIANT,
        "lines": [{**line._asdict(), "rows": [row._asdict() for row in line.rows]} for line in lines],
    }
    pairs = ", ".join(f"{row.test}: {row.pairs} pairs" for row in lines[0].rows)
    deliver(results, [Section(f"FPR@95 ({pairs})", "", header, body)], arguments.out, arguments.json)
    if arguments.out is not None:
        draw_fpr(
            [(line.label, {row.test: row.fpr95 for row in line.rows}) for line in lines], arguments.out / "fpr95.png"
        )


def parse_descriptors(texts: tuple[str, ...]) -> list[Descriptor]:
    if not texts:
        raise InputError(
            "name at least one descriptor: sift, rootsift, tfeat:FILE, a .safetensors file, the folder of a run."
        )
    return [load_descriptor(text) for text in texts]


def require_labels(contenders: list[Descriptor]) -> None:
    """Each its own, since lines of a table go by them."""
    labels = [one.label for one in contenders]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise InputError(f"two descriptors are called {repeated[0]!r}: put labels in front, as in one=... two=...")
