"""`sdgmnet demo`: match two pairs with the shipped weights, then train an encoder from scratch; a page shows both."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sdgmnet.data.sources import Sources, open_sources
from sdgmnet.data.synthetic.demo import HARD_CHANGES, TEST_IMAGES, TRAIN_IMAGES, read_hard_pair, read_motorcycle
from sdgmnet.descriptors import load_descriptors
from sdgmnet.errors import InputError
from sdgmnet.features.describe import descriptor_from_encoder
from sdgmnet.options import Out
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import (
    STDERR,
    Section,
    print_aside,
    print_sections,
    progress_bars,
    track,
    write_page,
    write_results,
)
from sdgmnet.training.config import TrainConfig

TITLE = "SDGMNet: the demo"
HANDCRAFTED = ("SIFT=sift", "RootSIFT=rootsift")
UNFINISHED = "An encoder is being trained from scratch: see the terminal, and load this page again in a few minutes."
NEXT = Section(
    "What to try next",
    "With your own images and photos:",
    code="sdgmnet match a.jpg b.jpg -o matches.png --verify homography\n"
    "sdgmnet reconstruct photos -o model\n"
    "sdgmnet data photos my_photos -o my_patches\n"
    "sdgmnet train --recipe photos --data my_patches -o runs/mine\n"
    "sdgmnet app",
)


@dataclass(frozen=True)
class Arguments:
    """Match a pair that SIFT cannot match, then train an encoder from scratch; OUT/index.html shows both.

    Takes a few minutes on two CPU cores; the matched pairs are on the page before training starts. Training and test images are
    different. Settings that differ from the paper's because the run is short: the fast encoder, small
    batches, learning rate 0.5 with a cosine schedule, no dropout.
    """

    out: Out = Path("demo")
    """Output folder for the page, the tables and the figures. The run of an earlier demo in it is replaced."""
    iterations: int = 1000
    """Number of training iterations."""
    batch_size: int = 256
    """Matching pairs per batch."""
    seed: int = 0
    """Random seed of the training."""


def main(arguments: Arguments) -> None:
    config = TrainConfig(
        iterations=arguments.iterations,
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        encoder="fast",
        learning_rate=0.5,
        schedule="cosine",
        dropout=0.0,
        evaluations=10,
    )
    from sdgmnet.plots.patches import draw_patches
    from sdgmnet.plots.training import draw_fig2, draw_training
    from sdgmnet.training.fit import train

    began, out, run = time.monotonic(), arguments.out, arguments.out / "run"
    print_aside("Part 1 of 2: two image pairs, matched with the shipped weights and with SIFT.")
    first = [match_hard_pair(out), match_motorcycle(out)]
    write_page(out / "index.html", TITLE, [*first, Section("Training", UNFINISHED), NEXT])
    print_aside(f"Open {out}/index.html: the first results, after {time.monotonic() - began:.0f} s.")
    print_aside("Part 2 of 2: an encoder is trained from scratch.")
    remove_earlier_run(run)
    print_aside("Cutting patches from the images of scikit-image ...")
    with progress_bars() as on_progress:
        sources = open_sources(config.data, on_progress=on_progress)
    train(config, run, sources=sources, console=STDERR)
    print_aside("Evaluating on all test pairs ...")
    trained, scores = evaluate(config, run, sources, out, first)
    draw_training(run / "log.jsonl", out / "training.png", scores)
    draw_fig2(run / "angles.npz", out / "fig2.png", config.loss_setting("margin"))
    draw_patches(sources.test[0], out / "patches.png")
    write_page(out / "index.html", TITLE, [*first, trained._replace(image=out / "training.png"), NEXT])
    seconds = time.monotonic() - began
    print_aside(f"{out}/index.html now has all results; the figures are beside it. {seconds:.0f} s in all.")


def match_hard_pair(out: Path) -> Section:
    """Match a pair that SIFT cannot match: a section, whose table is printed, with a figure."""
    from sdgmnet.benchmarks.demo_pairs import MIN_INLIERS, compare_warped, warped_table
    from sdgmnet.features.draw import draw_matches, stack_images

    pair = read_hard_pair()
    descriptors = load_descriptors((*HANDCRAFTED, f"SDGMNet={ALIAS}"))
    with progress_bars() as on_progress:
        scores = compare_warped(descriptors, pair, on_progress=on_progress)
    section = Section(f"A hard pair, matched if it has {MIN_INLIERS} inliers", "", *warped_table(scores))
    print_sections([section])
    drawn = []
    for one, name in ((scores[0], "hard_sift.png"), (scores[-1], "hard.png")):
        outcome = "matched" if one.is_matched else "not matched"
        title = f"{one.label}: {outcome}, {int(one.inlier.sum())} inliers of {len(one.inlier)} matches"
        draw_matches((pair.first, pair.second), one.xy, one.inlier, out / name, title)
        drawn.append(out / name)
    stack_images(drawn, out / "hard_pair.jpg")
    text = (
        f"The second image is the first one, changed: {HARD_CHANGES}. All descriptors have the same keypoints, the same ratio "
        f"test and the same verification (one homography by MAGSAC++, within 3 pixels). A pair counts as matched from "
        f"{MIN_INLIERS} inliers, as in COLMAP. The change was chosen so that SIFT fails; with other ratio tests, or none, it "
        "fails too. "
        "Inliers are correct if they agree with the known change."
    )
    return section._replace(text=text, image=out / "hard_pair.jpg")


def match_motorcycle(out: Path) -> Section:
    """Match two photos of a motorcycle with known disparity: a section, whose table is printed, and two figures."""
    from sdgmnet.benchmarks.demo_pairs import NEAR, score_stereo, stereo_table
    from sdgmnet.features.draw import draw_matches

    pair = read_motorcycle()
    descriptors = load_descriptors((*HANDCRAFTED, f"SDGMNet={ALIAS}"))
    with progress_bars() as on_progress:
        scores = [score_stereo(one, pair) for one in track(descriptors, "matching a stereo pair", on_progress)]
    heading = f"Matches of a stereo pair, correct within {NEAR:g} pixels"
    section = Section(heading, "", *stereo_table(scores))
    print_sections([section])
    for one, name in ((scores[0], "matches_sift.png"), (scores[-1], "matches.png")):
        title = f"{one.label}: {int(one.correct.sum())} of {len(one.correct)} matches are correct"
        draw_matches((pair.left, pair.right), one.xy, one.correct, out / name, title)
    return section._replace(
        text="Two real photos, an easy pair: every descriptor matches it.", image=out / "matches.png"
    )


def remove_earlier_run(run: Path) -> None:
    """Remove the run of an earlier demo, and nothing else."""
    if (run / "config.json").exists() and TrainConfig.load(run / "config.json").data == ("demo",):
        shutil.rmtree(run)
    elif run.exists():
        raise InputError(f"{run} exists and is not the run of a demo: choose another -o.")


def evaluate(
    config: TrainConfig, run: Path, sources: Sources, out: Path, matching: Sequence[Section]
) -> tuple[Section, dict[str, float]]:
    """FPR@95 of the encoder before and after training, of SIFT and of RootSIFT: a section, and the latter two by label.

    results.json and table.md are written, the latter with the tables of the matching.
    """
    import torch

    from sdgmnet.benchmarks import phototour
    from sdgmnet.encoders import load_encoder
    from sdgmnet.registry import ENCODERS, load

    torch.manual_seed(config.seed)
    untrained, (trained, _) = load(ENCODERS[config.encoder])().eval(), load_encoder(run / "last.safetensors")
    handcrafted = load_descriptors(HANDCRAFTED)
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
    section = Section("FPR@95 after training from scratch, lower is better", "", *shown)
    print_sections([section])
    write_results(results, [*matching, section], out)
    text = (
        f"The fast encoder after {config.iterations} iterations of {config.batch_size} pairs, trained on "
        f"{len(sources.train[0])} patches from {len(TRAIN_IMAGES)} images of scikit-image, tested on {len(TEST_IMAGES)} "
        "others. Numbers in %: the share of non-matching pairs that are accepted when 95 % of the matching ones are."
    )
    return section._replace(text=text), {line.label: line.rows[0].fpr95 or 0.0 for line in lines[1:3]}
