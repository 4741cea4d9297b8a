"""`python -m reproduce fig1`: two real triplets, their patches, their places on the sphere, and the modulated gradients."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reproduce.arguments import Fig1Arguments
from reproduce.output import draw_arrow
from sdgmnet import sphere
from sdgmnet.data.patchset import PatchSet
from sdgmnet.data.sources import open_patchsets
from sdgmnet.encoders import load_encoder
from sdgmnet.engine import describe_patches
from sdgmnet.errors import InputError
from sdgmnet.loss.mining import hardest_in_batch
from sdgmnet.loss.statistics import batch_moments
from sdgmnet.loss.weights import coupled_weight, self_weight
from sdgmnet.plots.style import COLUMN, NEGATIVE, POSITIVE, SMALL, printed, save_print
from sdgmnet.report import Section, print_aside, progress_bars
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.triplets import draw_pairs, locate

ARROW = 0.42  # radii of the sphere for a weight of 1
SHOWN = (("hard", 0.95), ("easy", 0.2))  # quantiles of θʳ


def fig1(arguments: Fig1Arguments) -> None:
    if arguments.points < 2 or not 0 <= arguments.margin < 1:
        raise InputError("--points must be at least 2 and --margin in [0, 1).")
    if arguments.seed < 0:
        raise InputError(f"--seed must not be negative, not {arguments.seed}.")
    patchset, encoder = open_patchset(arguments.data), load_encoder(arguments.weights)[0]
    pairs = draw_pairs(patchset, arguments.points, arguments.seed)
    if len(pairs) < 2:
        raise InputError(f"{patchset.name} has fewer than two points with two patches, so no triplet.")
    print_aside(f"Fig. 1: describing {2 * len(pairs)} patches of {patchset.name}.")
    with progress_bars():
        descriptors = np.asarray(describe_patches(encoder, patchset.patches[pairs.ravel()]))
    descriptors = descriptors / np.maximum(np.linalg.norm(descriptors, axis=-1, keepdims=True), 1e-12)
    threshold = TrainConfig().loss_setting("min_negative_angle")
    triplets = find_triplets(descriptors.reshape(*pairs.shape, -1), pairs, arguments.margin, threshold)
    rows = []
    for one in triplets:
        numbers = (one.theta_pos, one.theta_neg, one.theta_pos - one.theta_neg, one.w_pos, one.w_neg)
        rows.append([f"{one.name}, row {one.row}", *(f"{value:.3f}" for value in numbers)])
    caption = (
        f"{patchset.name}: {len(pairs)} points, two patches each, described by {Path(arguments.weights).name}; triplets at the "
        "95 % and at the 20 % quantile of θʳ. Weights are SDGM's with the statistics of this batch, "
        f"m = {arguments.margin:g}."
    )
    results = {
        "caption": caption,
        "data": patchset.name,
        "weights": arguments.weights,
        "pairs": len(pairs),
        "triplets": [one._asdict() for one in triplets],
    }
    section = Section("Fig. 1: triplets (radians)", caption, ("triplet", "θ⁺", "θ⁻", "θʳ", "w⁺", "w⁻"), rows)
    note = f"{patchset.name}, batch of {len(pairs)} pairs; arrows: modulated gradients"
    arguments.deliver("fig1", results, [section], lambda stem: draw_fig1(patchset, triplets, note, stem))


def open_patchset(data: str) -> PatchSet:
    """The only set of this name; for demo, its test images."""
    found = [one for one in open_patchsets([data]) if one.name != "demo-train"]
    if len(found) != 1:
        names = ", ".join(one.name for one in found)
        raise InputError(f"--data {data} contains several sets ({names}): give the folder of one.")
    return found[0]


class Triplet(NamedTuple):
    """Of a batch: its patches, their angles in radians and SDGM's weights."""

    name: str
    row: int  # of the batch
    patches: tuple[int, int, int]  # anchor, positive, negative, as indices of the PatchSet
    theta_pos: float
    theta_neg: float
    theta_other: float  # between positive and negative
    w_pos: float
    w_neg: float


def find_triplets(descriptors: np.ndarray, pairs: np.ndarray, margin: float, threshold: float) -> list[Triplet]:
    """A hard and an easy one of a batch: descriptors (N, 2, D) of unit length, pairs (N, 2) of `training.triplets.draw_pairs`.

    Weights are SDGM's with the statistics of this batch.
    """
    anchor, positive = torch.from_numpy(descriptors).double().unbind(dim=1)
    found = hardest_in_batch(anchor, positive, threshold)
    pos, neg, rel = batch_moments(found.theta_pos, found.theta_neg, found.admissible)
    coupled = coupled_weight(found.theta_rel, rel[0], rel[1], margin)
    w_pos, w_neg = coupled * self_weight(found.theta_pos, *pos), coupled * self_weight(found.theta_neg, *neg)
    seen = np.flatnonzero(found.admissible.numpy())
    if len(seen) < 2:
        raise InputError("fewer than two triplets have a negative beyond the anti-noise threshold: give more patches.")
    relative = found.theta_rel.numpy()
    sides = torch.stack([anchor, positive], dim=1)  # (N, 2, D)
    triplets = []
    for name, quantile in SHOWN:
        row = int(seen[np.argmin(abs(relative[seen] - np.quantile(relative[seen], quantile)))])
        located = locate(sides, pairs, row, float(found.theta_neg[row]))
        triplets.append(Triplet(name, row, *located, float(w_pos[row]), float(w_neg[row])))
    return triplets


def on_sphere(triplet: Triplet) -> np.ndarray:
    """(3, 3): anchor, positive and negative on the sphere in space, with exactly their three angles; the anchor in front."""
    cos_pos, cos_neg, cos_other = (math.cos(one) for one in (triplet.theta_pos, triplet.theta_neg, triplet.theta_other))
    sin_pos, sin_neg = math.sin(triplet.theta_pos), math.sin(triplet.theta_neg)
    corner = math.acos(max(-1.0, min(1.0, (cos_other - cos_pos * cos_neg) / max(sin_pos * sin_neg, 1e-12))))
    left, right = math.pi / 2 + corner / 2, math.pi / 2 - corner / 2  # azimuths
    points = [
        (0.0, 0.0, 1.0),
        (sin_pos * math.cos(left), sin_pos * math.sin(left), cos_pos),
        (sin_neg * math.cos(right), sin_neg * math.sin(right), cos_neg),
    ]
    tilt = 0.45  # the anchor slightly below the middle, which leaves room above
    turn = np.array([[1, 0, 0], [0, math.cos(tilt), -math.sin(tilt)], [0, math.sin(tilt), math.cos(tilt)]])
    return np.asarray(np.array(points) @ turn.T)


def tangent(here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Unit direction from `here` along the sphere towards `there`."""
    along = there - (here @ there) * here
    return np.asarray(along / max(float(np.linalg.norm(along)), 1e-12))


def draw_fig1(patchset: PatchSet, triplets: Sequence[Triplet], note: str, stem: Path | str) -> list[Path]:
    """One row per triplet: patches left; right, the sphere from the front with the arcs θ⁺, θ⁻ and the modulated gradients."""
    row_height, bottom = 1.36, 0.22
    height = row_height * len(triplets) + bottom
    with printed():
        figure = Figure(figsize=(COLUMN, height))
        for line, one in enumerate(triplets):
            base = bottom + (len(triplets) - 1 - line) * row_height
            for column, (patch, letter, colour) in enumerate(
                zip(one.patches, "apn", ("black", POSITIVE, NEGATIVE), strict=True)
            ):
                place = (0.05 + 0.62 * column) / COLUMN, (base + 0.55) / height, 0.56 / COLUMN, 0.56 / height
                axis = figure.add_axes(place)
                axis.imshow(patchset.patches[patch], cmap="gray", vmin=0, vmax=255)
                axis.set(xticks=(), yticks=())
                for spine in axis.spines.values():
                    spine.set(color=colour, linewidth=1.2)
                axis.set_title(rf"$\boldsymbol{{{letter}}}_{{{one.row}}}$", pad=3.5)
            angles = rf"$\theta^+$ = {one.theta_pos:.2f}   $\theta^-$ = {one.theta_neg:.2f}"
            angles += rf"   $\theta^r$ = {one.theta_pos - one.theta_neg:.2f}"
            weights = "$w^+ = w^- = 0$: below the margin"
            if one.w_pos + one.w_neg > 0:
                weights = rf"$w^+$ = {one.w_pos:.2f}   $w^-$ = {one.w_neg:.2f}"
            figure.text(0.05 / COLUMN, (base + 0.37) / height, angles, fontsize=SMALL)
            figure.text(0.05 / COLUMN, (base + 0.19) / height, f"{one.name}: {weights}", fontsize=SMALL)
            draw_sphere(figure.add_axes((2.08 / COLUMN, (base + 0.02) / height, 1.32 / COLUMN, 1.32 / height)), one)
        figure.text(0.5, 0.06 / height, note, ha="center", fontsize=SMALL - 1, parse_math=False)
        return save_print(figure, stem)


def draw_sphere(axis: Axes, triplet: Triplet) -> None:
    angle = np.linspace(0, 2 * np.pi, 200)
    axis.plot(np.cos(angle), np.sin(angle), color="0.6", linewidth=0.8)
    for lift in (-0.5, 0.0, 0.5):  # a few parallels, so that it looks round
        radius = math.sqrt(1 - lift**2)
        axis.plot(radius * np.cos(angle), lift + 0.25 * radius * np.sin(angle), color="0.92", linewidth=0.5, zorder=0)
    anchor, positive, negative = points = on_sphere(triplet)
    for end, side, colour, name in (
        (positive, -1.0, POSITIVE, r"$\theta^+$"),
        (negative, 1.0, NEGATIVE, r"$\theta^-$"),
    ):
        steps = np.linspace(0, float(sphere.angle(torch.from_numpy(anchor), torch.from_numpy(end))), 50)[:, None]
        arc = np.cos(steps) * anchor + np.sin(steps) * tangent(anchor, end)
        axis.plot(arc[:, 0], arc[:, 1], color=colour, linewidth=0.9, linestyle="--")
        label = arc[25, :2] + 0.13 * np.array([side, -0.5])
        axis.text(label[0], label[1], name, color=colour, fontsize=SMALL, ha="center", va="center")
    moves = (
        (anchor, tangent(anchor, positive), triplet.w_pos, POSITIVE),
        (positive, tangent(positive, anchor), triplet.w_pos, POSITIVE),
        (anchor, -tangent(anchor, negative), triplet.w_neg, NEGATIVE),
        (negative, -tangent(negative, anchor), triplet.w_neg, NEGATIVE),
    )
    for here, direction, weight, colour in moves:
        if weight > 0:
            tip = here + ARROW * weight * direction
            draw_arrow(axis, tuple(here[:2]), tuple(tip[:2]), colour, linewidth=1.3, head=6)
    offsets = ((0.14, -0.1), (-0.17, 0.08), (0.17, -0.06))
    for point, letter, colour, (x, y) in zip(points, "apn", ("black", POSITIVE, NEGATIVE), offsets, strict=True):
        axis.plot(point[0], point[1], "o", color=colour, markersize=3.2)
        text = rf"$\boldsymbol{{{letter}}}$"
        axis.text(point[0] + x, point[1] + y, text, color=colour, ha="center", va="center")
    axis.set(xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), aspect="equal")
    axis.axis("off")
