"""`python -m bench ...`: speed and memory, compared with other implementations and with the machine's matrix product."""

import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import torch
import tyro

from bench import distributed as distributed_speed
from bench import hpatches as hpatches_speed
from bench import speed
from bench.speed import Timing
from sdgmnet.data.synthetic.demo import read_motorcycle
from sdgmnet.encoders import SDGMNet
from sdgmnet.engine import choose_engine
from sdgmnet.errors import InputError
from sdgmnet.features.images import read_gray
from sdgmnet.features.keypoints import detect
from sdgmnet.report import Section, deliver

Rows = list[list[str]]

# N, descriptor, whether the trunk is computed again in the backward pass: one first step each, in a process of its own.
TRAINING_MEMORY = ((256, "ours", False), (1024, "ours", False), (1024, "plain", False), (8192, "ours", True))


@dataclass(frozen=True)
class BenchArguments:
    """Measure the speed of this package, of other implementations and of torch's matrix product, alternating in one run.

    Timings vary between runs, so compare the ratios. Options that a command does not use are ignored.
    """

    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Folder for results.json and table.md; default: only print."""
    repeats: int = 5
    """Number of measurements per implementation; the table has the median."""
    pairs: int = 1024
    """train, loss, distributed: matching pairs per batch."""
    patches: int = 20_000
    """infer: number of patches to describe."""
    memory_patches: int = 200_000
    """infer: number of patches for the measurement of memory."""
    descriptors: int = 10_000
    """match: number of descriptors per image."""
    images: tuple[Path, ...] = ()
    """pictures: two image files; default: the motorcycle pair of scikit-image, at one megapixel."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def train(words: list[str]) -> None:
    _run("train", words, [_train])


def infer(words: list[str]) -> None:
    _run("infer", words, [_infer])


def loss(words: list[str]) -> None:
    _run("loss", words, [_loss])


def data(words: list[str]) -> None:
    _run("data", words, [_data])


def match(words: list[str]) -> None:
    _run("match", words, [_match])


def pictures(words: list[str]) -> None:
    _run("pictures", words, [_pictures])


def hpatches(words: list[str]) -> None:
    _run("hpatches", words, [_hpatches])


def distributed(words: list[str]) -> None:
    _run("distributed", words, [_distributed])


def everything(words: list[str]) -> None:
    _run("all", words, [_data, _loss, _train, _infer, _match, _pictures, _hpatches])


def _run(name: str, words: list[str], parts: Sequence[Any]) -> None:
    arguments = tyro.cli(BenchArguments, prog=f"python -m bench {name}", args=words)
    for field, least in (("repeats", 1), ("pairs", 2), ("patches", 1), ("memory_patches", 1), ("descriptors", 2)):
        if getattr(arguments, field) < least:
            raise InputError(f"--{field.replace('_', '-')} must be at least {least}, not {getattr(arguments, field)}.")
    if len(arguments.images) not in (0, 2):
        raise InputError(f"--images takes two images, not {len(arguments.images)}.")
    for path in arguments.images:
        if not len(detect(read_gray(path), 1).xy):
            raise InputError(f"{path} has no keypoints: take another image.")
    rows: Rows = []
    for part in parts:
        rows += part(arguments)
    engine = choose_engine("auto", SDGMNet())
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, engine {engine}"
    header = ["what", "implementation", "median", "from - to", "ratio"]
    results = {"machine": machine, "header": header, "rows": rows}
    deliver(results, [Section(f"bench {name} ({machine})", "", header, rows)], arguments.out, arguments.json)


def _row(what: str, timing: Timing, unit: str, reference: Timing | None = None) -> list[str]:
    ratio = "" if reference is None or reference is timing else f"{timing.against(reference):.2f} x {reference.name}"
    return [
        what,
        timing.name,
        f"{timing.median:.0f} {unit}",
        f"{min(timing.rates):.0f} - {max(timing.rates):.0f}",
        ratio,
    ]


def _share(what: str, timing: Timing, limit: Timing) -> list[str]:
    return [what, "ours of the limit", f"{100 * timing.against(limit):.0f} %", "", ""]


def _train(arguments: BenchArguments) -> Rows:
    timings = speed.training(arguments.pairs, arguments.repeats)
    what = f"training step, N = {arguments.pairs}"
    rows = [_row(what, timing, "pairs/s", timings["plain"]) for timing in timings.values()]
    rows.append(_share(what, timings["ours"], timings["limit"]))
    for pairs, who, recompute in TRAINING_MEMORY:
        result = speed.training_memory(pairs, who, recompute)
        name = f"{who}, recomputing" if recompute else who
        seconds = f"{result['seconds']:.1f} s"
        rows.append([f"training step, N = {pairs}: memory", name, f"{result['megabytes']:.0f} MB", seconds, ""])
    return rows


def _loss(arguments: BenchArguments) -> Rows:
    rows: Rows = []
    for pairs in sorted({256, arguments.pairs, 4096, 8192}):
        timings = speed.losses(pairs, arguments.repeats if pairs <= 1024 else 3)
        rows += [_row(f"loss and mining, N = {pairs}", one, "pairs/s", timings["plain"]) for one in timings.values()]
    memory = speed.loss_memory(8192)
    share = memory["plain"]["megabytes"] / max(memory["ours"]["megabytes"], 1)
    for name, result in memory.items():
        ratio = f"1/{share:.0f} of plain" if name == "ours" else ""
        rows.append(["loss and mining, N = 8192: memory", name, f"{result['megabytes']:.0f} MB", "", ratio])
    return rows


def _infer(arguments: BenchArguments) -> Rows:
    timings = speed.inference(arguments.patches, arguments.repeats)
    reference = timings["kornia HyNet, 512"]
    rows = [_row("inference, float32", timing, "patches/s", reference) for timing in timings.values()]
    rows.append(_share("inference, float32", timings["ours"], timings["limit"]))
    starts = [speed.cold_start() for _ in range(min(3, arguments.repeats))]
    for name in starts[0]:
        seconds = sorted(start[name]["seconds"] for start in starts)
        ratio = sorted(start["kornia HyNet, 512"]["seconds"] / start[name]["seconds"] for start in starts)
        shown = "" if name.startswith("kornia") else f"{ratio[len(ratio) // 2]:.2f} x kornia HyNet, 512"
        spread = f"{seconds[0]:.2f} - {seconds[-1]:.2f}"
        rows.append(["4000 patches, fresh process", name, f"{seconds[len(seconds) // 2]:.2f} s", spread, shown])
    memory = speed.describing_memory(arguments.memory_patches)
    what = f"memory to describe {arguments.memory_patches} patches"
    return [*rows, [what, "ours", f"{memory['megabytes']:.0f} MB", "", "beyond the arrays"]]


def _data(arguments: BenchArguments) -> Rows:
    timings = speed.batches(arguments.pairs, arguments.repeats)
    return [_row(f"making a batch, N = {arguments.pairs}", timings["ours"], "pairs/s")]


def _match(arguments: BenchArguments) -> Rows:
    count = arguments.descriptors
    timings = speed.matching(count, arguments.repeats)
    rows = []
    for name, timing in timings.items():
        seconds = [1 / rate for rate in timing.rates]
        product = 1 / timing.against(timings["product"])
        ratio = "" if name == "product" else f"{product:.2f} times as long as product"
        spread = f"{min(seconds):.3f} - {max(seconds):.3f}"
        rows.append([f"matching {count} x {count}", name, f"{1 / timing.median:.3f} s", spread, ratio])
    rows[0][-1] += f", 1/{timings['ours'].against(timings['OpenCV']):.1f} of OpenCV"
    memory = speed.matching_memory(count)
    return [*rows, [f"matching {count} x {count}: memory", "ours", f"{memory['megabytes']:.0f} MB", "", ""]]


def _pictures(arguments: BenchArguments) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        paths = (arguments.images[0], arguments.images[1]) if arguments.images else _megapixel_pair(Path(folder))
        stages, script, keypoints = speed.pictures(paths, arguments.repeats)
    rest = np.sum([times for name, times in stages.items() if name != "describing"], axis=0)
    what = f"two images, {keypoints} keypoints"
    rows = [[what, name, *_seconds(times), ""] for name, times in stages.items()]
    ratio = f"{np.median(rest / np.array(script)):.2f} x OpenCV"
    rate = keypoints / float(np.median(stages["describing"]))
    return [
        *rows,
        [what, "all but describing", *_seconds(rest.tolist()), ratio],
        [what, "OpenCV's SIFT, brute force", *_seconds(script), ""],
        [what, "describing, rate", f"{rate:.0f} patches/s", "", ""],
    ]


def _hpatches(arguments: BenchArguments) -> Rows:
    runs = [hpatches_speed.ours() for _ in range(min(3, arguments.repeats))]
    theirs = hpatches_speed.official_way()
    rows = []
    for task in hpatches_speed.TASKS:
        seconds = [run[task] for run in runs]
        ratio = f"1/{theirs[task] / np.median(seconds):.0f} of the official way"
        rows.append([f"HPatches {task}, full size", "ours", *_seconds(seconds), ratio])
        rows.append([f"HPatches {task}, full size", "official way, carried over", f"{theirs[task]:.0f} s", "", ""])
    totals = [sum(run[task] for task in hpatches_speed.TASKS) for run in runs]
    ratio = f"1/{sum(theirs.values()) / np.median(totals):.0f} of the official way"
    rows.append(["HPatches, three tasks", "ours", *_seconds(totals), ratio])
    memory = max(run["megabytes"] for run in runs)
    return [
        *rows,
        ["HPatches, three tasks: memory", "ours", f"{memory:.0f} MB", "", "the descriptors' 422 MB among them"],
    ]


def _distributed(arguments: BenchArguments) -> Rows:
    timings, traffic = distributed_speed.scaling(arguments.pairs, min(3, arguments.repeats))
    what, one = f"training, N = {arguments.pairs}", timings[distributed_speed.JOBS[0]]
    rows = [_row(what, timing, "pairs/s", one) for timing in timings.values()]
    for job, bytes_of in traffic.items():
        if job.processes > 1:
            said = ", ".join(f"{key} {bytes_of[key] / 1e6:.3f} MB" for key in ("gathered", "summed"))
            rows.append([f"{what}: bytes a step", job.name, said, f"seen on lo {bytes_of['seen'] / 1e6:.3f} MB", ""])
    return rows


def _seconds(times: Sequence[float]) -> list[str]:
    return [f"{np.median(times):.3f} s", f"{min(times):.3f} - {max(times):.3f}"]


def _megapixel_pair(folder: Path) -> tuple[Path, Path]:
    """The motorcycle of scikit-image, enlarged to a megapixel."""
    pair = read_motorcycle()
    paths = folder / "left.png", folder / "right.png"
    for image, path in zip((pair.left, pair.right), paths, strict=True):
        larger = (1_000_000 / (image.shape[0] * image.shape[1])) ** 0.5
        bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        cv2.imwrite(str(path), cv2.resize(bgr, None, fx=larger, fy=larger, interpolation=cv2.INTER_CUBIC))
    return paths
