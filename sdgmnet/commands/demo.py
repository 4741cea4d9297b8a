"""`sdgmnet demo`: match a stereo pair with the shipped weights, then train an encoder from scratch."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from sdgmnet.data.sources import Sources, open_sources
from sdgmnet.data.synthetic.demo import read_motorcycle
from sdgmnet.descriptors import load_descriptor
from sdgmnet.errors import InputError
from sdgmnet.features.describe import descriptor_from_encoder
from sdgmnet.options import Out
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import STDERR, Section, print_aside, print_sections, progress_bars, track, write_results
from sdgmnet.training.config import TrainConfig


@dataclass(frozen=True)
class Arguments:
    """Match a stereo pair with the shipped weights, then train the full encoder from scratch; compare both with SIFT.

    Takes three to four minutes on two CPU cores. Training and test images are different. Settings that differ from the
    paper's because the run is short: small batches, learning rate 0.1, dropout 0.1, no augmentation.
    """

    out: Out = Path("demo")
    """Output folder for the table and the figures. The run of an earlier demo in it is replaced."""
    iterations: int = 700
    """Number of training iterations."""
    batch_size: int = 64
    """Matching pairs per batch."""
    seed: int = 0
    """Random seed of the training."""


def main(arguments: Arguments) -> None:
    config = TrainConfig(
        iterations=arguments.iterations,
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        learning_rate=0.1,
        dropout=0.1,
        augmentation="none",
        evaluations=10,
    )
    from sdgmnet.plots import draw_fig2, draw_patches, draw_training
    from sdgmnet.training.fit import train

    began, out, run = time.monotonic(), arguments.out, arguments.out / "run"
    matching = match_motorcycle(out)
    print_aside(f"Drawn in {out}/matches.png and matches_sift.png. Now an encoder is trained from scratch.")
    remove_earlier_run(run)
    print_aside("Cutting patches from the images of scikit-image ...")
    with progress_bars() as on_progress:
        sources = open_sources(config.data, on_progress=on_progress)
    train(config, run, sources=sources, console=STDERR)
    print_aside("Evaluating on all test pairs ...")
    scores = evaluate(config, run, sources, out, matching)
    draw_training(run / "log.jsonl", out / "training.png", scores)
    draw_fig2(run / "angles.npz", out / "fig2.png", config.loss_setting("margin"))
    draw_patches(sources.test[0], out / "patches.png")
    seconds = time.monotonic() - began
    print_aside(f"Figures: {out}/matches.png, training.png, fig2.png, patches.png. {seconds:.0f} s in all.")


def match_motorcycle(out: Path) -> Section:
    """Match two photos of a motorcycle with known disparity: a table, which is printed and returned, and two figures."""
    from sdgmnet.benchmarks import stereo
    from sdgmnet.features.draw import draw_matches

    pair = read_motorcycle()
    descriptors = [load_descriptor(text) for text in ("SIFT=sift", "RootSIFT=rootsift", f"SDGMNet={ALIAS}")]
    with progress_bars() as on_progress:
        scores = [stereo.score(one, pair) for one in track(descriptors, "matching a stereo pair", on_progress)]
    heading = f"Matches of a stereo pair, correct within {stereo.NEAR:g} pixels"
    section = Section(heading, "", *stereo.table(scores))
    print_sections([section])
    for one, name in ((scores[0], "matches_sift.png"), (scores[-1], "matches.png")):
        title = f"{one.label}: {int(one.correct.sum())} of {len(one.correct)} matches are correct"
        draw_matches((pair.left, pair.right), one.xy, one.correct, out / name, title)
    return section


def remove_earlier_run(run: Path) -> None:
    """Remove the run of an earlier demo, and nothing else."""
    if (run / "config.json").exists() and TrainConfig.load(run / "config.json").data == ("demo",):
        shutil.rmtree(run)
    elif run.exists():
        raise InputError(f"{run} exists and is not the run of a demo: choose another -o.")


def evaluate(config: TrainConfig, run: Path, sources: Sources, out: Path, matching: Section) -> dict[str, float]:
    """FPR@95 of the encoder before and after training, of SIFT and of RootSIFT; returns those of the latter two.

    results.json and table.md are written, the latter with the table of the matching.
    """
    import torch

    from sdgmnet.benchmarks import phototour
    from sdgmnet.encoders import SDGMNet, load_encoder

    torch.manual_seed(config.seed)
    untrained, (trained, _) = SDGMNet().eval(), load_encoder(run / "last.safetensors")
    handcrafted = [load_descriptor(text) for text in ("SIFT=sift", "RootSIFT=rootsift")]
    descriptors = [
        descriptor_from_encoder(untrained, "untrained encoder"),
        *handcrafted,
        descriptor_from_encoder(trained, f"SDGMNet, {config.iterations} iterations"),
    ]
    with progress_bars() as on_progress:
        lines = phototour.compare(descriptors, sources.test, on_progress=on_progress)
    results = {
        "iterations": config.iterations,
        "batch_size": config.batch_size,
        "lines": phototour.lines_content(lines),
    }
    header, rows = phototour.table(lines)
    columns = (0, 2)  # label and score: there is one test set
    shown = [header[i] for i in columns], [[row[i] for i in columns] for row in rows]
    section = Section("FPR@95, lower is better", "", *shown)
    print_sections([section])
    write_results(results, [matching, section], out)
    return {line.label: line.rows[0].fpr95 or 0.0 for line in lines[1:3]}
