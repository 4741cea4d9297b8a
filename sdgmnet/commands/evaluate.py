"""`sdgmnet evaluate ...`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from sdgmnet.benchmarks import matching as matching_benchmark
from sdgmnet.benchmarks import phototour as benchmark
from sdgmnet.contenders import Contender, parse_contender
from sdgmnet.data.demo import read_demo
from sdgmnet.data.sequences import read_sequences
from sdgmnet.data.sources import open_tests
from sdgmnet.errors import InputError
from sdgmnet.features import compact
from sdgmnet.handcrafted import SIFT_VARIANT
from sdgmnet.paper.figures import draw_fpr
from sdgmnet.report import deliver


@dataclass(frozen=True)
class PhototourArguments:
    """False positive rate at 95 % recall (FPR@95) on labelled pairs of patches: lower is better.

    Contenders are sift, rootsift, tfeat:FILE, .safetensors files or run folders, each with an optional label in front:

        sdgmnet evaluate phototour sift rootsift mine=runs/liberty --data ubc -o results

    A contender is not tested on a set it was trained on. A label used for several trainings gets a mean over all cells.
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
    contenders = parse_contenders(arguments.contenders)
    patchsets = open_tests(arguments.data)
    lines = benchmark.compare(contenders, patchsets, arguments.convention)
    header, body = benchmark.table(lines)
    results = {
        "convention": arguments.convention,
        "sift": SIFT_VARIANT,
        "lines": [{**line._asdict(), "rows": [row._asdict() for row in line.rows]} for line in lines],
    }
    pairs = ", ".join(f"{row.test}: {row.pairs} pairs" for row in lines[0].rows)
    deliver(results, header, body, arguments.out, arguments.json, title=f"FPR@95 ({pairs})")
    if arguments.out is not None:
        draw_fpr(
            [(line.label, {row.test: row.fpr95 for row in line.rows}) for line in lines], arguments.out / "fpr95.png"
        )


@dataclass(frozen=True)
class MatchingArguments:
    """Matching of whole pictures under known homographies: higher is better.

    Of the strongest DoG keypoints of picture 1, those that have a keypoint at their true place in another picture: the share
    whose nearest descriptor there (no ratio test) is at that place. Averaged over pairs, then over sequences.

        sdgmnet evaluate matching sift rootsift mine=runs/one --root sequences -o results
    """

    contenders: tyro.conf.Positional[tuple[str, ...]]
    """What to compare: [label=]sift | rootsift | tfeat:FILE | FILE.safetensors | RUN_FOLDER."""
    root: Path
    """Folder of sequences in HPatches' layout: 1.png ... 6.png and H_1_2 ... H_1_6 each."""
    sequences: tuple[str, ...] = ()
    """Names of the sequences to use; all where none is given."""
    keypoints: int = matching_benchmark.KEYPOINTS
    """At most so many keypoints a picture, strongest first."""
    near: float = matching_benchmark.NEAR
    """Within so many pixels is the same place."""
    compact: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also as large collections keep them: a byte a number, and 64 bytes by axes fitted to the embedded pictures."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Folder for results.json and table.md."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def matching(words: list[str]) -> None:
    arguments = tyro.cli(MatchingArguments, prog="sdgmnet evaluate matching", args=words)
    contenders = parse_contenders(arguments.contenders)
    if arguments.keypoints < 1 or not 0 < arguments.near < float("inf"):
        raise InputError("--keypoints must be at least 1 and --near a positive number.")
    sequences = read_sequences(arguments.root)
    unknown = set(arguments.sequences) - {one.name for one in sequences}
    if unknown:
        raise InputError(f"{arguments.root} holds no sequence named {', '.join(sorted(unknown))}.")
    sequences = [one for one in sequences if not arguments.sequences or one.name in arguments.sequences]
    if arguments.compact:
        patches = read_demo()[0].patches
        contenders = [form for one in contenders for form in (one, *compact_forms(one, patches))]
    pairs = sum(len(one.others) for one in sequences)
    results = []
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        for one in contenders:
            scores = matching_benchmark.run(
                matching_benchmark.describe_image(one), sequences, arguments.keypoints, arguments.near
            )
            results.append(list(progress.track(scores, total=pairs, description=one.label)))
    header, body = matching_benchmark.table([one.label for one in contenders], results)
    lines = [
        {
            "label": one.label,
            "sequences": matching_benchmark.sequence_scores(scores),
            "pairs": [p._asdict() for p in scores],
        }
        for one, scores in zip(contenders, results, strict=True)
    ]
    content = {"keypoints": arguments.keypoints, "near": arguments.near, "lines": lines}
    title = f"Matching score ({arguments.keypoints} keypoints, {arguments.near:g} px)"
    deliver(content, header, body, arguments.out, arguments.json, title=title)


def compact_forms(contender: Contender, patches: np.ndarray) -> list[Contender]:
    """The contender with a byte a number, and with 64 of them along axes fitted to the patches."""
    projection = compact.fit_projection(compact.unit(contender.describe(patches)))

    def in_bytes(describe: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        return lambda *given: compact.to_bytes(compact.unit(describe(*given)))

    def in_few_bytes(describe: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        return lambda *given: compact.to_bytes(compact.project(projection, compact.unit(describe(*given))))

    return [
        contender._replace(
            label=f"{contender.label}, {name}",
            describe=form(contender.describe),
            describe_image=None if contender.describe_image is None else form(contender.describe_image),
        )
        for name, form in (("bytes", in_bytes), ("64 bytes", in_few_bytes))
    ]


def parse_contenders(texts: tuple[str, ...]) -> list[Contender]:
    if not texts:
        raise InputError(
            "name at least one contender: sift, rootsift, tfeat:FILE, a .safetensors file, the folder of a run."
        )
    return [parse_contender(text) for text in texts]
