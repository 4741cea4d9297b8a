"""`sdgmnet evaluate ...`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sdgmnet.benchmarks import phototour as benchmark
from sdgmnet.contenders import parse_contender
from sdgmnet.data.sources import open_patchsets, with_pairs
from sdgmnet.report import deliver


@dataclass(frozen=True)
class PhototourArguments:
    """False positive rate at 95 % recall (FPR@95) on labelled pairs of patches: lower is better.

    Contenders are sift, rootsift, .safetensors files or run folders, each with an optional label in front:
        sdgmnet evaluate phototour sift rootsift mine=runs/liberty --data ubc -o results
    A contender is not tested on a set that it was trained on; a label used for several trainings gets a mean over all cells.
    """

    contenders: tyro.conf.Positional[tuple[str, ...]]
    """What to compare: [label=]sift | rootsift | FILE.safetensors | RUN_FOLDER."""
    data: tuple[str, ...] = ("demo",)
    """Test sets: PatchSets, PhotoTour folders, a folder of these, or "demo"."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Folder for results.json and table.md."""
    convention: Literal["hardnet", "exact"] = "hardnet"
    """How FPR@95 is counted: as HardNet and the authors, or tie-safe."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def phototour(words: list[str]) -> None:
    arguments = tyro.cli(PhototourArguments, prog="sdgmnet evaluate phototour", args=words)
    contenders = [parse_contender(text) for text in arguments.contenders]
    patchsets = [with_pairs(one) for one in open_patchsets(arguments.data) if one.name != "demo-train"]
    cells = benchmark.run(contenders, patchsets, arguments.convention)
    header, rows = benchmark.table(cells)
    results = {"convention": arguments.convention, "cells": [cell._asdict() for cell in cells]}
    pairs = ", ".join(f"{one.name}: {len(one.test_pairs)} pairs" for one in patchsets if one.test_pairs is not None)
    deliver(results, header, rows, arguments.out, arguments.json, title=f"FPR@95 ({pairs})")
