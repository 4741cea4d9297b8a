"""Train, evaluate and describe over and over in one process: does memory or the number of open files grow?

    python -m tests.trust.soak --minutes 20

A line is fitted to the memory after each round, without the first quarter; its slope is given with a 95 % interval. The number
of open descriptors must be the same after the last round as after the second.
"""

import argparse
import gc
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from scipy.stats import linregress

from sdgmnet.cli import main as sdgmnet
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.fit import train
from tests.conftest import blob_patches
from tests.sfm.planes import write_photos
from tests.trust.reports import FOLDER, record


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def one_round(inputs: Path, folder: Path) -> None:
    sets = [str(inputs / name) for name in ("blobs1", "blobs2")]
    config = TrainConfig(
        data=tuple(sets), holdout=("blobs2",), iterations=4, batch_size=8, evaluations=2, evaluation_pairs=40, threads=1,
        checkpoint_every=2,
    )  # fmt: skip
    train(config, folder / "run", console=Console(quiet=True))
    weights = str(folder / "run/last.safetensors")
    assert sdgmnet(["evaluate", "phototour", "sift", weights, "--data", *sets, "-o", str(folder / "evaluated")]) == 0
    assert sdgmnet(["describe", str(inputs / "photos"), "-o", str(folder / "f.h5"), "--descriptor", weights]) == 0


def soak(minutes: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hours, megabytes and open descriptors after each round."""
    rows, began = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sdgmnet-soak-") as folder:
        inputs = Path(folder) / "inputs"
        for seed in (1, 2):
            blob_patches(points=30, views=3, seed=seed).save(inputs / f"blobs{seed}")
        write_photos(inputs / "photos", count=2, width=160, height=120)
        while len(rows) < 4 or time.monotonic() - began < 60 * minutes:
            with tempfile.TemporaryDirectory(dir=folder) as place:
                one_round(inputs, Path(place))
            gc.collect()
            rows.append(((time.monotonic() - began) / 3600, memory_mb(), descriptors()))
    hours, megabytes, files = np.array(rows).T
    return hours, megabytes, files


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trust.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    saved, silence = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # no tables of a thousand rounds
    errors = os.dup(2)
    os.dup2(silence, 2)
    try:
        hours, megabytes, files = soak(given.minutes)
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.dup2(errors, 2)
    settled = slice(len(hours) // 4, None)
    memory, opened = (linregress(hours[settled], values[settled]) for values in (megabytes, files))
    flat = files[-1] == files[1] and memory.slope - 1.96 * memory.stderr <= 0
    said = {
        "rounds": len(hours), "minutes": round(60 * float(hours[-1]), 1), "megabytes": [megabytes[0], megabytes[-1]],
        "memory_mb_an_hour": memory.slope, "memory_interval_95": 1.96 * memory.stderr, "descriptors": [files[1], files[-1]],
        "descriptors_an_hour": opened.slope, "descriptors_interval_95": 1.96 * opened.stderr,
    }  # fmt: skip
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "soak.json").write_text(json.dumps(said, indent=2) + "\n")
    sentence = (
        f"{len(hours)} rounds in {60 * hours[-1]:.1f} min; memory {memory.slope:+.1f} ± {1.96 * memory.stderr:.1f} MB/h "
        f"({megabytes[0]:.0f} to {megabytes[-1]:.0f} MB), descriptors "
        f"{opened.slope:+.2f} ± {1.96 * opened.stderr:.2f} per hour ({files[1]:.0f} to {files[-1]:.0f})"
    )
    record("train + evaluate + describe", f"soak of {given.minutes:g} minutes", int(flat), 1, sentence)
    print(sentence)
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
