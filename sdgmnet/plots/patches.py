"""Contact sheets of patch sets: a row per point, with its patches."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from sdgmnet.data.hpatches.files import TYPES, read_strip
from sdgmnet.data.patchset import PatchSet
from sdgmnet.errors import InputError
from sdgmnet.plots.style import new_figure, save_figure
from sdgmnet.storage import new_file, read_arrays

GAP = 4  # pixels between patches
CANDIDATES = 2000  # points among which easy and hard ones are chosen


class Points(NamedTuple):
    """Patches ordered by point."""

    order: np.ndarray  # (N,) indices of patches
    start: np.ndarray  # (P,) first of a point in `order`
    size: np.ndarray  # (P,) patches of a point

    @staticmethod
    def of(patchset: PatchSet) -> "Points":
        order = np.argsort(patchset.point_id, kind="stable")
        _, start, size = np.unique(patchset.point_id[order], return_index=True, return_counts=True)
        return Points(order, start, size)

    def patches(self, point: int, most: int) -> np.ndarray:
        """Indices of the first patches of a point."""
        return self.order[self.start[point] : self.start[point] + min(self.size[point], most)]

    def seen_often(self, count: int) -> np.ndarray:
        """Points with `count` patches, or with as many as the upper tenth of the points has."""
        return np.flatnonzero(self.size >= min(count, np.quantile(self.size, 0.9)))


def draw_patches(patchset: PatchSet, path: Path | str, points: int = 8, most: int = 8) -> None:
    """Points evenly spaced among those with the most patches."""
    by_point = Points.of(patchset)
    often = by_point.seen_often(most)
    chosen = often[np.linspace(0, len(often) - 1, min(points, len(often)), dtype=np.int64)]
    rows = [by_point.patches(point, most) for point in chosen]
    _save_sheet(patchset, rows, most, f"{patchset.name}: each row one point, as the views show it", path)


def draw_easy_and_hard(patchset: PatchSet, path: Path | str, points: int = 12, most: int = 10, seed: int = 0) -> None:
    """Half easy and half hard points by the similarity of their patches, the easiest on top.

    Easy is the upper, hard the lower tenth of the mean correlation of a point's patches, among points seen often.
    """
    by_point = Points.of(patchset)
    rng = np.random.default_rng(seed)
    often = np.sort(rng.permutation(by_point.seen_often(4))[:CANDIDATES])
    similar = np.array([similarity(patchset.patches[by_point.patches(point, most)]) for point in often])
    ranked = often[np.argsort(-similar, kind="stable")]
    tenth = max(len(ranked) // 10, min(len(ranked), points))
    easy = np.sort(rng.permutation(tenth)[: points // 2])
    hard = len(ranked) - 1 - np.sort(rng.permutation(tenth)[: points - points // 2])[::-1]
    chosen = ranked[np.unique(np.concatenate([easy, hard]))]
    rows = [by_point.patches(point, most) for point in chosen]
    _save_sheet(patchset, rows, most, f"{patchset.name}: each row one point, easy ones above, hard ones below", path)


def similarity(patches: np.ndarray) -> float:
    """Mean correlation of all pairs of patches (N, 64, 64), N >= 2."""
    flat = patches.reshape(len(patches), -1).astype(np.float64)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9)
    return float((flat @ flat.T)[np.triu_indices(len(flat), 1)].mean())


def _save_sheet(patchset: PatchSet, rows: list[np.ndarray], most: int, title: str, path: Path | str) -> None:
    cell = patchset.patches.shape[1] + GAP
    sheet = np.full((len(rows) * cell - GAP, most * cell - GAP), 255, dtype=np.uint8)
    for row, patches in enumerate(rows):
        for column, patch in enumerate(patches):
            y, x = row * cell, column * cell
            sheet[y : y + cell - GAP, x : x + cell - GAP] = patchset.patches[patch]
    figure, axes = new_figure(1, 1, 7, 7 * sheet.shape[0] / sheet.shape[1] + 0.3)
    axes[0, 0].imshow(sheet, cmap="gray", vmin=0, vmax=255)
    axes[0, 0].set_axis_off()
    axes[0, 0].set_title(title, fontsize="small")
    save_figure(figure, path)


class SavedTriplets(NamedTuple):
    """The hardest triplets that a training run has kept."""

    patches: np.ndarray  # (T, 3, S, S) uint8: anchor, positive, negative
    angles: np.ndarray  # (T, 2): θ⁺ and θ⁻ in radians
    step: int


def read_triplets(path: Path | str) -> SavedTriplets:
    content = read_arrays(path, ["patches", "angles", "step"])
    triplets, angles, step = (content[name] for name in ("patches", "angles", "step"))
    are_patches = triplets.ndim == 4 and triplets.shape[1] == 3 and triplets.dtype == np.uint8 and triplets.size
    are_angles = angles.shape == (len(triplets), 2) and angles.dtype.kind == "f" and np.isfinite(angles).all()
    if not are_patches or not are_angles or step.shape != (1,) or step.dtype.kind != "i":
        raise InputError(f"{path} does not hold the triplets of a training run.")
    return SavedTriplets(triplets, angles, int(step[0]))


def draw_triplets(saved: Path | str, path: Path | str) -> None:
    """Anchor, positive and negative of the hardest triplets that a training run has kept, with their angles."""
    triplets, angles, step = read_triplets(saved)
    lines = -(-len(triplets) // 2)
    figure, axes = new_figure(lines, 2, 7, 1.25 * lines + 0.5)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, patches, (theta_pos, theta_neg) in zip(axes.flat, triplets, angles, strict=False):
        gap = np.full((patches.shape[1], GAP), 255, dtype=np.uint8)
        axis.imshow(np.hstack([patches[0], gap, patches[1], gap, patches[2]]), cmap="gray", vmin=0, vmax=255)
        title = f"θ⁺ = {theta_pos:.2f}   θ⁻ = {theta_neg:.2f}   θʳ = {theta_pos - theta_neg:.2f}"
        axis.set_title(title, fontsize="small")
    figure.suptitle(f"Hardest held-out triplets at iteration {step}: anchor, positive, negative", fontsize="small")
    save_figure(figure, path)


def draw_strips(folder: Path, sequences: Sequence[str], most: int = 12, patches: int = 6) -> None:
    """folder/sheet.png: patches of HPatches sequences, evenly spread; one column per strip, one row per patch."""

    def spread(count: int, limit: int) -> list[int]:
        return np.unique(np.linspace(0, count - 1, min(count, limit)).round().astype(int)).tolist()

    bands = []
    for sequence in (sequences[number] for number in spread(len(sequences), most)):
        columns = []
        for name in TYPES:
            strip = read_strip(folder / sequence / f"{name}.png")
            title = sequence if name == TYPES[0] else name
            cells = np.pad(strip[spread(len(strip), patches)], ((0, 0), (0, 2), (0, 2)), constant_values=255)
            columns.append(np.concatenate([_title(title, cells.shape[2]), *cells]))
        bands.append(np.concatenate(columns, axis=1))
    with new_file(folder / "sheet.png") as part:
        part.write_bytes(cv2.imencode(".png", np.concatenate(bands))[1].tobytes())


def _title(text: str, width: int, height: int = 18) -> np.ndarray:
    box = np.full((height, width), 255, dtype=np.uint8)
    plain = text.encode("ascii", "replace").decode()
    size = min(0.4, 0.4 * width / max(1, cv2.getTextSize(plain, cv2.FONT_HERSHEY_SIMPLEX, 0.4, 1)[0][0]))
    cv2.putText(box, plain, (1, height - 6), cv2.FONT_HERSHEY_SIMPLEX, size, 0, 1, cv2.LINE_AA)
    return box
