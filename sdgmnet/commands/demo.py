"""`sdgmnet demo`: SDGMNet learning before your eyes, from pictures that come with the installation."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from sdgmnet.benchmarks import phototour as benchmark
from sdgmnet.cli import fail
from sdgmnet.contenders import Contender, parse_contender
from sdgmnet.data.demo import read_demo
from sdgmnet.encoders import SDGMNet
from sdgmnet.inference import describe_patches
from sdgmnet.paper.figures import draw_fig2, draw_patches, draw_training
from sdgmnet.report import deliver
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.loop import Interrupted, train


@dataclass(frozen=True)
class DemoArguments:
    """Train the full encoder from nothing on embedded pictures, measure it beside SIFT, and draw what happened.

    Takes about four minutes on two CPU cores. The training pictures and the test pictures are different ones. A run of
    minutes needs settings of its own: small batches, learning rate 0.1, dropout 0.1, and no augmentation, since the views
    of the pictures differ enough as they are. The rest is the paper's.
    """

    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("demo")
    """Folder for the table and the pictures."""
    iterations: int = 380
    """Length of the training; more is better."""
    batch_size: int = 64
    seed: int = 0


def main(words: list[str]) -> int:
    arguments = tyro.cli(DemoArguments, prog="sdgmnet demo", args=words)
    console, began = Console(stderr=True), time.monotonic()
    run = arguments.out / "run"
    shutil.rmtree(run, ignore_errors=True)  # a demo starts from nothing each time
    config = TrainConfig(
        iterations=arguments.iterations,
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        learning_rate=0.1,
        dropout=0.1,
        augment=False,
        evaluations=10,
        evaluation_pairs=1000,
    )
    console.print("Cutting patches from scikit-image's pictures ...")
    try:
        train(config, run, console=console)
    except Interrupted:
        return fail(f"stopped; what was trained so far is in {run}.", 130)
    trained_for = time.monotonic() - began
    console.print("Measuring on all test pairs ...")
    _, test = read_demo()
    torch.manual_seed(config.seed)
    untrained = SDGMNet().eval()
    contenders = [
        Contender("untrained net", lambda patches: describe_patches(untrained, patches), ()),
        parse_contender("SIFT=sift"),
        parse_contender("RootSIFT=rootsift"),
        parse_contender(f"SDGMNet, {arguments.iterations} iterations={run / 'last.safetensors'}"),
    ]
    cells = benchmark.run(contenders, [test])
    header, rows = benchmark.table(cells)
    results = {
        "iterations": config.iterations,
        "batch_size": config.batch_size,
        "cells": [cell._asdict() for cell in cells],
    }
    deliver(
        results, header[:-1], [row[:-1] for row in rows], arguments.out, as_json=False, title="FPR@95, lower is better"
    )
    references = {
        cell.label: cell.fpr95 for cell in cells if cell.label in ("SIFT", "RootSIFT") and cell.fpr95 is not None
    }
    draw_training(run / "log.jsonl", arguments.out / "training.png", references)
    draw_fig2(run / "angles.npz", arguments.out / "fig2.png", config.margin)
    draw_patches(test, arguments.out / "patches.png")
    console.print(
        f"Pictures: {arguments.out}/training.png, fig2.png, patches.png. "
        f"Data and training took {trained_for:.0f} s, all of it {time.monotonic() - began:.0f} s."
    )
    return 0
