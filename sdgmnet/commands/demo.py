"""`sdgmnet demo`: SDGMNet matching and learning before your eyes, from images that come with the installation."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from sdgmnet.benchmarks import phototour as benchmark
from sdgmnet.benchmarks import stereo
from sdgmnet.data.sources import Sources, open_sources
from sdgmnet.data.synthetic.demo import read_motorcycle
from sdgmnet.descriptors import Descriptor, load_descriptor
from sdgmnet.encoders import SDGMNet, load_encoder
from sdgmnet.engine import describe_patches
from sdgmnet.errors import InputError
from sdgmnet.features.draw import draw_matches
from sdgmnet.plots import draw_fig2, draw_patches, draw_training
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import Section, deliver, print_table
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.fit import train


@dataclass(frozen=True)
class DemoArguments:
    """Match a stereo pair by the weights that ship; then train the full encoder from nothing. Both beside SIFT, both drawn.

    Takes three to four minutes on two CPU cores. The training images and the test images are different ones. A run of
    minutes needs settings of its own: small batches, learning rate 0.1, dropout 0.1, and no augmentation, since the views
    of the images differ enough as they are. The rest is the paper's.
    """

    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("demo")
    """Folder for the table and the images. An earlier demo's run in it is replaced."""
    iterations: int = 700
    """Length of the training; more is better."""
    batch_size: int = 64
    """Matching pairs in a batch."""
    seed: int = 0
    """Another seed, another run."""


def main(words: list[str]) -> None:
    arguments = tyro.cli(DemoArguments, prog="sdgmnet demo", args=words)
    config = TrainConfig(
        iterations=arguments.iterations,
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        learning_rate=0.1,
        dropout=0.1,
        augmentation="none",
        evaluations=10,
    )
    console, began = Console(stderr=True), time.monotonic()
    run = arguments.out / "run"
    match_motorcycle(arguments.out)
    console.print(
        f"{arguments.out}/matches.png and matches_sift.png show them. Now a net that knows nothing yet learns."
    )
    remove_earlier_run(run)
    console.print("Cutting patches from scikit-image's images ...")
    sources = open_sources(config.data)
    train(config, run, sources=sources, console=console)
    console.print("Measuring on all test pairs ...")
    scores = measure(config, run, sources, arguments.out)
    draw_training(run / "log.jsonl", arguments.out / "training.png", scores)
    draw_fig2(run / "angles.npz", arguments.out / "fig2.png", config.loss_setting("margin"))
    draw_patches(sources.test[0], arguments.out / "patches.png")
    console.print(
        f"Images: {arguments.out}/matches.png, training.png, fig2.png, patches.png. {time.monotonic() - began:.0f} s in all."
    )


def match_motorcycle(out: Path) -> None:
    """Two photos of a motorcycle whose true disparity is known: a table and an image of the matches."""
    pair = read_motorcycle()
    contenders = [load_descriptor(text) for text in ("SIFT=sift", "RootSIFT=rootsift", f"SDGMNet={ALIAS}")]
    scores = [stereo.score(contender, pair) for contender in contenders]
    header, body = stereo.table(scores)
    print_table(header, body, title="Matches of a stereo pair, right within 3 pixels")
    for one, name in ((scores[0], "matches_sift.png"), (scores[-1], "matches.png")):
        title = f"{one.label}: {int(one.right.sum())} of {len(one.right)} matches are right"
        draw_matches((pair.left, pair.right), one.places, one.right, out / name, title)


def remove_earlier_run(run: Path) -> None:
    """A demo starts from nothing each time, but only a demo's run may be in its way."""
    if (run / "config.json").exists() and TrainConfig.load(run / "config.json").data == ("demo",):
        shutil.rmtree(run)
    elif run.exists():
        raise InputError(f"{run} is there already and is not the run of a demo: choose another -o.")


def measure(config: TrainConfig, run: Path, sources: Sources, out: Path) -> dict[str, float]:
    """FPR@95 of the net before and after, and of SIFT and RootSIFT; returns those of the latter two."""
    torch.manual_seed(config.seed)
    untrained, (trained, _) = SDGMNet().eval(), load_encoder(run / "last.safetensors")
    contenders = [
        Descriptor("untrained net", lambda patches: describe_patches(untrained, patches), ()),
        load_descriptor("SIFT=sift"),
        load_descriptor("RootSIFT=rootsift"),
        Descriptor(f"SDGMNet, {config.iterations} iterations", lambda patches: describe_patches(trained, patches), ()),
    ]
    lines = benchmark.compare(contenders, sources.test)
    header, body = benchmark.table(lines)
    results = {
        "iterations": config.iterations,
        "batch_size": config.batch_size,
        "lines": [{**line._asdict(), "rows": [row._asdict() for row in line.rows]} for line in lines],
    }
    keep = [0, 2]  # one test set: its column says all
    shown = [header[i] for i in keep], [[row[i] for i in keep] for row in body]
    deliver(results, [Section("FPR@95, lower is better", "", *shown)], out, as_json=False)
    return {line.label: line.rows[0].fpr95 or 0.0 for line in lines if line.label in ("SIFT", "RootSIFT")}
