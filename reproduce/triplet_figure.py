"""Fig. 1 from real triplets: their patches, where they lie on the sphere, and how hard each descriptor is pulled and pushed."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdgmnet.data.patchset import PatchSet
from sdgmnet.errors import InputError
from sdgmnet.loss.mining import hardest_in_batch
from sdgmnet.loss.statistics import batch_moments
from sdgmnet.loss.weights import coupled_weight, self_weight
from sdgmnet.plots import COLUMN, NEGATIVE, POSITIVE, SMALL, printed, save_print

ARROW = 0.42  # radii of the sphere for a weight of 1
SHOWN = (("hard", 0.95), ("easy", 0.2))  # quantiles of θʳ


class Triplet(NamedTuple):
    """Of a batch: which patches, their angles in radians and SDGM's weights."""

    name: str
    row: int  # of the batch
    patches: tuple[int, int, int]  # anchor, positive, negative, as numbers of the PatchSet
    theta_pos: float
    theta_neg: float
    theta_other: float  # between positive and negative
    w_pos: float
    w_neg: float


def draw_pairs(patchset: PatchSet, points: int, seed: int) -> np.ndarray:
    """(N, 2) patches: two of each of at most `points` random points, none of which is too near another to be its negative."""
    order = np.argsort(patchset.point_id, kind="stable")
    ids, start, size = np.unique(patchset.point_id[order], return_index=True, return_counts=True)
    several = np.random.default_rng(seed).permutation(np.flatnonzero(size >= 2))
    if len(several) < 2:
        raise InputError(f"{patchset.name} has fewer than two points with two patches: it holds no triplet.")
    near: dict[int, set[int]] = {}
    for one, other in [] if patchset.conflicts is None else np.asarray(patchset.conflicts).tolist():
        near.setdefault(one, set()).add(other)
        near.setdefault(other, set()).add(one)
    chosen: dict[int, int] = {}
    for place in several.tolist():
        if len(chosen) == points:
            break
        if not near.get(int(ids[place]), set()) & chosen.keys():
            chosen[int(ids[place])] = place
    return np.stack([order[start[list(chosen.values())] + view] for view in (0, 1)], axis=1)


def find_triplets(descriptors: np.ndarray, pairs: np.ndarray, margin: float, threshold: float) -> list[Triplet]:
    """A hard and an easy one of a batch: descriptors (N, 2, D) of unit length, pairs (N, 2) as of `draw_pairs`.

    Weights are SDGM's with the statistics of this batch.
    """
    anchor, positive = torch.from_numpy(descriptors).double().unbind(dim=1)
    found = hardest_in_batch(anchor, positive, threshold)
    pos, neg, rel = batch_moments(found.theta_pos, found.theta_neg, found.admissible)
    coupled = coupled_weight(found.theta_rel, rel[0], rel[1], margin)
    weights = [
        coupled * self_weight(theta, *moments) for theta, moments in ((found.theta_pos, pos), (found.theta_neg, neg))
    ]
    seen = np.flatnonzero(found.admissible.numpy())
    if len(seen) < 2:
        raise InputError(
            "fewer than two of the triplets have a negative beyond the anti-noise threshold: give more patches."
        )
    relative = found.theta_rel.numpy()
    triplets = []
    for name, share in SHOWN:
        row = int(seen[np.argmin(abs(relative[seen] - np.quantile(relative[seen], share)))])
        triplets.append(_triplet(name, row, anchor, positive, pairs, float(found.theta_neg[row]), weights))
    return triplets


def _triplet(
    name: str,
    row: int,
    anchor: torch.Tensor,
    positive: torch.Tensor,
    pairs: np.ndarray,
    theta_neg: float,
    weights: Sequence[torch.Tensor],
) -> Triplet:
    """The row seen from the side that the nearest negative is nearest to: that side is drawn as the anchor."""
    sides = torch.stack([anchor, positive], dim=1)  # (N, 2, D)
    cosines = sides[row] @ sides.flatten(0, 1).T  # (2, 2 N)
    cosines[:, 2 * row : 2 * row + 2] = -2
    place = int((cosines - math.cos(theta_neg)).abs().argmin())
    side, other = divmod(place, cosines.shape[1])
    a, p, n = sides[row, side], sides[row, 1 - side], sides.flatten(0, 1)[other]
    theta = [math.acos(max(-1.0, min(1.0, float(x @ y)))) for x, y in ((a, p), (a, n), (p, n))]
    patches = (int(pairs[row, side]), int(pairs[row, 1 - side]), int(pairs.reshape(-1)[other]))
    return Triplet(name, row, patches, theta[0], theta[1], theta[2], *(float(one[row]) for one in weights))


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
    tilt = 0.45  # the anchor a little below the middle, where there is room
    turn = np.array([[1, 0, 0], [0, math.cos(tilt), -math.sin(tilt)], [0, math.sin(tilt), math.cos(tilt)]])
    return np.asarray(np.array(points) @ turn.T)


def tangent(here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Unit direction from `here` along the sphere towards `there`."""
    along = there - (here @ there) * here
    return np.asarray(along / max(float(np.linalg.norm(along)), 1e-12))


def draw_fig1(patchset: PatchSet, triplets: Sequence[Triplet], note: str, stem: Path | str) -> list[Path]:
    """A row a triplet: patches left; right, the sphere from the front with the arcs θ⁺, θ⁻ and the modulated gradients."""
    row_height, bottom = 1.36, 0.22
    height = row_height * len(triplets) + bottom
    with printed():
        figure = Figure(figsize=(COLUMN, height))
        for line, triplet in enumerate(triplets):
            base = bottom + (len(triplets) - 1 - line) * row_height
            for column, (patch, letter, colour) in enumerate(
                zip(triplet.patches, "apn", ("black", POSITIVE, NEGATIVE), strict=True)
            ):
                place = (0.05 + 0.62 * column) / COLUMN, (base + 0.55) / height, 0.56 / COLUMN, 0.56 / height
                axis = figure.add_axes(place)
                axis.imshow(patchset.patches[patch], cmap="gray", vmin=0, vmax=255)
                axis.set(xticks=(), yticks=())
                for spine in axis.spines.values():
                    spine.set(color=colour, linewidth=1.2)
                axis.set_title(rf"$\boldsymbol{{{letter}}}_{{{triplet.row}}}$", pad=3.5)
            told = (
                rf"$\theta^+$ = {triplet.theta_pos:.2f}   $\theta^-$ = {triplet.theta_neg:.2f}   "
                rf"$\theta^r$ = {triplet.theta_pos - triplet.theta_neg:.2f}"
            )
            figure.text(0.05 / COLUMN, (base + 0.37) / height, told, fontsize=SMALL)
            told = (
                rf"$w^+$ = {triplet.w_pos:.2f}   $w^-$ = {triplet.w_neg:.2f}"
                if triplet.w_pos + triplet.w_neg > 0
                else "$w^+ = w^- = 0$: below the margin"
            )
            figure.text(0.05 / COLUMN, (base + 0.19) / height, f"{triplet.name}: {told}", fontsize=SMALL)
            sphere = figure.add_axes((2.08 / COLUMN, (base + 0.02) / height, 1.32 / COLUMN, 1.32 / height))
            draw_sphere(sphere, triplet)
        figure.text(0.5, 0.06 / height, note, ha="center", fontsize=SMALL - 1, parse_math=False)
        return save_print(figure, stem)


def draw_sphere(axis: Axes, triplet: Triplet) -> None:
    angle = np.linspace(0, 2 * np.pi, 200)
    axis.plot(np.cos(angle), np.sin(angle), color="0.6", linewidth=0.8)
    for lift in (-0.5, 0.0, 0.5):  # a few parallels, so that it looks round
        radius = math.sqrt(1 - lift**2)
        axis.plot(radius * np.cos(angle), lift + 0.25 * radius * np.sin(angle), color="0.92", linewidth=0.5, zorder=0)
    anchor, positive, negative = points = on_sphere(triplet)
    for end, colour, name in ((positive, POSITIVE, r"$\theta^+$"), (negative, NEGATIVE, r"$\theta^-$")):
        theta = math.acos(max(-1.0, min(1.0, float(anchor @ end))))
        steps = np.linspace(0, theta, 50)[:, None]
        arc = np.cos(steps) * anchor + np.sin(steps) * tangent(anchor, end)
        axis.plot(arc[:, 0], arc[:, 1], color=colour, linewidth=0.9, linestyle="--")
        beside = arc[25, :2] + 0.13 * np.array([-1.0 if end is positive else 1.0, -0.5])
        axis.text(beside[0], beside[1], name, color=colour, fontsize=SMALL, ha="center", va="center")
    moves = (
        (anchor, tangent(anchor, positive), triplet.w_pos, POSITIVE),
        (positive, tangent(positive, anchor), triplet.w_pos, POSITIVE),
        (anchor, -tangent(anchor, negative), triplet.w_neg, NEGATIVE),
        (negative, -tangent(negative, anchor), triplet.w_neg, NEGATIVE),
    )
    for here, direction, weight, colour in moves:
        if weight > 0:
            tip = here + ARROW * weight * direction
            style = {
                "arrowstyle": "-|>",
                "color": colour,
                "linewidth": 1.3,
                "mutation_scale": 6,
                "shrinkA": 0,
                "shrinkB": 0,
            }
            axis.annotate("", xy=tuple(tip[:2]), xytext=tuple(here[:2]), arrowprops=style)
    for point, letter, colour in zip(points, "apn", ("black", POSITIVE, NEGATIVE), strict=True):
        axis.plot(point[0], point[1], "o", color=colour, markersize=3.2)
        offset = {"a": (0.14, -0.1), "p": (-0.17, 0.08), "n": (0.17, -0.06)}[letter]
        axis.text(
            point[0] + offset[0],
            point[1] + offset[1],
            rf"$\boldsymbol{{{letter}}}$",
            color=colour,
            ha="center",
            va="center",
        )
    axis.set(xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), aspect="equal")
    axis.axis("off")
