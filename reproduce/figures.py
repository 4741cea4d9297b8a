"""`python -m reproduce fig1`, `fig2` and `fig3`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from reproduce.architecture import draw_fig3, read_layers
from reproduce.captions import caption_of_run, kind_of_moments
from reproduce.modulation_command import angles_of_run
from reproduce.output import FILES, print_written, require_folder
from reproduce.triplet_figure import draw_fig1, draw_pairs, find_triplets
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sources import open_patchsets
from sdgmnet.encoders import ENCODERS, Encoder, load_encoder
from sdgmnet.engine import describe_patches
from sdgmnet.errors import InputError
from sdgmnet.metrics import skewness
from sdgmnet.plots import draw_fig2
from sdgmnet.pretrained import ALIAS
from sdgmnet.report import Out, Section, deliver, print_aside
from sdgmnet.training.config import TrainConfig


@dataclass(frozen=True)
class Fig1Arguments:
    """Fig. 1 from two real triplets of a batch, a hard and an easy one: patches, places on the sphere, modulated gradients.

        python -m reproduce fig1 --data my_patches/dog -o fig1

    The negative of each pair is the nearest one of a batch of random points; the three angles of a triplet are drawn exactly,
    as a triangle on a sphere in space. Arrows are as long as SDGM's weights with the statistics of this batch.
    """

    out: Out
    """Folder for fig1.png, fig1.pdf, results.json and table.md."""
    data: str = "demo"
    """A PatchSet, a PhotoTour folder, or demo."""
    weights: str = ALIAS
    """What ships (sdgmnet), a .safetensors file or the folder of a run."""
    points: int = 256
    """Points of the batch, two patches each."""
    margin: float = 0.6
    """m of Eq. (11)."""
    seed: int = 0
    """Of the choice of points."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def fig1(words: list[str]) -> None:
    arguments = tyro.cli(Fig1Arguments, prog="python -m reproduce fig1", args=words)
    if arguments.points < 2 or not 0 <= arguments.margin < 1:
        raise InputError("--points must be at least 2 and --margin lie in [0, 1).")
    if arguments.seed < 0:
        raise InputError(f"--seed must not be negative, not {arguments.seed}.")
    require_folder(arguments.out)
    patchset = one_patchset(arguments.data)
    encoder = encoder_of(arguments.weights)
    pairs = draw_pairs(patchset, arguments.points, arguments.seed)
    print_aside(f"Fig. 1: {2 * len(pairs)} patches of {patchset.name} are described; seconds.")
    descriptors = unit(describe_patches(encoder, patchset.patches[pairs.ravel()])).reshape(*pairs.shape, -1)
    triplets = find_triplets(descriptors, pairs, arguments.margin, TrainConfig().loss_setting("min_negative_angle"))
    header = ("triplet", "θ⁺", "θ⁻", "θʳ", "w⁺", "w⁻")
    rows = [
        [f"{one.name}, row {one.row}", *(f"{value:.3f}" for value in
         (one.theta_pos, one.theta_neg, one.theta_pos - one.theta_neg, one.w_pos, one.w_neg))]
        for one in triplets
    ]  # fmt: skip
    results = {
        "data": patchset.name,
        "weights": arguments.weights,
        "pairs": len(pairs),
        "triplets": [one._asdict() for one in triplets],
    }
    caption = (
        f"{patchset.name}: {len(pairs)} points, two patches each, described by {Path(arguments.weights).name}; triplets at the "
        "95 % and at the 20 % quantile of θʳ. Weights are SDGM's with the statistics of this batch, "
        f"m = {arguments.margin:g}."
    )
    section = Section("Fig. 1: triplets (radians)", caption, header, rows)
    deliver({"caption": caption, **results}, [section], arguments.out, arguments.json)
    note = f"{patchset.name}, batch of {len(pairs)} pairs; arrows: modulated gradients"
    draw_fig1(patchset, triplets, note, arguments.out / "fig1")
    print_written(arguments.out, (*FILES, "fig1.png", "fig1.pdf"))


@dataclass(frozen=True)
class Fig2Arguments:
    """Fig. 2: the self weights, the probabilistic margin and their product, over the angles at the end of a run.

    python -m reproduce fig2 runs/one -o fig2
    """

    run: tyro.conf.Positional[Path]
    """Folder of a finished run."""
    out: Out
    """Folder for fig2.png, fig2.pdf, results.json and table.md."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def fig2(words: list[str]) -> None:
    arguments = tyro.cli(Fig2Arguments, prog="python -m reproduce fig2", args=words)
    require_folder(arguments.out)
    angles = angles_of_run(arguments.run)
    config = TrainConfig.load(arguments.run / "config.json")
    print_aside(f"Fig. 2: from {len(angles.theta_pos)} triplets of {arguments.run}; seconds.")
    settings = {name: config.sdgm_setting(name) for name in ("margin", "self_weight", "coupled_weight")}
    margin = settings["margin"]
    for kind in ("png", "pdf"):
        draw_fig2(arguments.run / "angles.npz", arguments.out / f"fig2.{kind}", *settings.values())
    would = "" if config.loss == "sdgm" else " that SDGM's loss would give"
    caption = (
        f"{caption_of_run(arguments.run)} Angles of {len(angles.theta_pos)} triplets after its last step; weights{would} by "
        f"{kind_of_moments(config)}, m = {margin:g}: {100 * angles.active_share(margin):.1f} % of these triplets "
        "lie beyond the margin."
    )
    samples = {"θ⁺": angles.theta_pos, "θ⁻": angles.theta_neg, "θʳ": angles.theta_pos - angles.theta_neg}
    rows = [
        [name, *(f"{value:.4f}" for value in (*moments, sample.mean(), sample.std(ddof=1), skewness(sample)))]
        for (name, sample), moments in zip(samples.items(), angles.moments, strict=True)
    ]
    results = {
        "caption": caption,
        "run": arguments.run.resolve().name,
        "settings": settings,
        "moments": dict(zip(("theta_pos", "theta_neg", "theta_rel"), angles.moments.tolist(), strict=True)),
        **angles.summary(config),
    }
    running = (
        ("running mean", "running std") if config.loss == "sdgm" else ("mean of the weights", "std of the weights")
    )
    header = ("angle (rad)", *running, "mean of the triplets", "std of the triplets", "skewness")
    deliver(results, [Section("Fig. 2", caption, header, rows)], arguments.out, arguments.json)
    print_written(arguments.out, (*FILES, "fig2.png", "fig2.pdf"))


@dataclass(frozen=True)
class Fig3Arguments:
    """Fig. 3: an encoder, layer by layer, with all that is drawn read from the module.

    python -m reproduce fig3 sdgmnet -o fig3
    """

    out: Out
    """Folder for fig3.png, fig3.pdf, results.json and table.md."""
    encoder: tyro.conf.Positional[str] = ALIAS
    """sdgmnet | l2net | tfeat, as they are before training, or weights: a .safetensors file or the folder of a run."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of a table."""


def fig3(words: list[str]) -> None:
    arguments = tyro.cli(Fig3Arguments, prog="python -m reproduce fig3", args=words)
    require_folder(arguments.out)
    known = ENCODERS.get(arguments.encoder)
    encoder = encoder_of(arguments.encoder) if known is None else known()
    print_aside("Fig. 3: two patches go through the encoder; seconds.")
    layers = read_layers(encoder)
    rows = [[one.text, "×".join(map(str, one.shape)), str(one.parameters)] for one in layers]
    results = {"encoder": type(encoder).__name__, "layers": [one._asdict() for one in layers]}
    section = Section(type(encoder).__name__, "", ("layer", "shape", "parameters"), rows)
    deliver(results, [section], arguments.out, arguments.json)
    draw_fig3(type(encoder).__name__, layers, arguments.out / "fig3")
    print_written(arguments.out, (*FILES, "fig3.png", "fig3.pdf"))


def one_patchset(data: str) -> PatchSet:
    """The set of this name; of demo, its test images."""
    found = [one for one in open_patchsets([data]) if one.name != "demo-train"]
    if len(found) != 1:
        names = ", ".join(one.name for one in found)
        raise InputError(f"--data {data} holds several sets ({names}): give the folder of one.")
    return found[0]


def encoder_of(weights: str) -> Encoder:
    return load_encoder(weights)[0]


def unit(descriptors: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(descriptors, axis=-1, keepdims=True)
    return np.asarray(descriptors / np.maximum(length, 1e-12))
