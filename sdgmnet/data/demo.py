"""The embedded data set, `--data demo`: patches from the pictures inside the scikit-image wheel. Nothing is downloaded.

Each picture is seen in several views, turned, tilted, scaled and relit. Keypoints are detected anew in every view and
matched by geometry, never by appearance: so positives differ by the detector's own jitter, and no descriptor chose them.
"""

from importlib.resources import files as package_files
from pathlib import Path

import cv2
import numpy as np

from sdgmnet.data.patchset import PatchSet, random_test_pairs
from sdgmnet.errors import InputError
from sdgmnet.features.keypoints import Keypoints, detect
from sdgmnet.features.patches import cut_patches, inside

TRAIN_PICTURES = (
    "astronaut.png", "brick.png", "chelsea.png", "coffee.png", "grass.png", "hubble_deep_field.jpg", "ihc.png",
    "motorcycle_left.png", "retina.jpg", "text.png",
)  # fmt: skip
TEST_PICTURES = ("camera.png", "coins.png", "gravel.png", "moon.png", "rocket.jpg")
VIEWS = 8
MOST_TILT = 3.0
KEYPOINTS_A_VIEW = 1500
TEST_PAIRS = 5000
# A keypoint found in a view is the point carried there when all three agree; points of one picture that agree within the wider
# borders are neither the same nor different (the rule of Brown, Hua and Winder, with positions in units of the patches' size).
SAME = (1.5, 0.5, np.pi / 6)  # sigmas, octaves, radians
UNDECIDED = (4.0, 1.0, np.pi / 3)


def read_demo() -> tuple[PatchSet, PatchSet]:
    """The training and the test set, from disjoint pictures; the same arrays every time."""
    train, test = build("demo-train", TRAIN_PICTURES), build("demo-test", TEST_PICTURES)
    return train, test.with_test_pairs(random_test_pairs(test, TEST_PAIRS))


def build(name: str, pictures: tuple[str, ...]) -> PatchSet:
    patches, ids, conflicts, first_id = [], [], [], 0
    for number, picture in enumerate(pictures):
        gray = read_picture(picture)
        rng = np.random.default_rng([number, len(pictures)])
        picture_patches, picture_ids, reference = patches_of_views(gray, rng)
        patches.append(picture_patches)
        ids.append(picture_ids + first_id)
        conflicts.append(undecided_pairs(reference, np.unique(picture_ids)) + first_id)
        first_id += len(reference.xy)
    origin = {"source": "scikit-image pictures", "pictures": list(pictures), "views": VIEWS}
    return PatchSet(
        name, np.concatenate(patches), np.concatenate(ids), conflicts=np.concatenate(conflicts), origin=origin
    )


def read_picture(name: str) -> np.ndarray:
    """A picture of the scikit-image wheel as gray uint8."""
    try:
        path = Path(str(package_files("skimage"))) / "data" / name
    except ModuleNotFoundError:
        raise InputError("the demo data need scikit-image's pictures: pip install 'sdgmnet[demo]'.") from None
    gray = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if gray is None:
        raise InputError(
            f"{path} is missing or unreadable: reinstall scikit-image (pip install --force-reinstall scikit-image)."
        )
    return gray


def patches_of_views(gray: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, Keypoints]:
    """Patches (M, 64, 64), the number of the reference keypoint each shows (M,), and the reference keypoints."""
    height, width = gray.shape
    reference = visible(detect(gray, KEYPOINTS_A_VIEW), gray)
    patches, ids = [cut_patches(gray, reference)], [np.arange(len(reference.xy))]
    for _ in range(VIEWS - 1):
        homography = random_homography(rng, width, height)
        view = relight(cv2.warpPerspective(gray, homography, (width, height), borderMode=cv2.BORDER_REFLECT_101), rng)
        found = visible(detect(view, KEYPOINTS_A_VIEW), view)
        point, keypoint = same_points(carry(reference, homography), found)
        patches.append(cut_patches(view, found.select(keypoint)))
        ids.append(point)
    all_patches, all_ids = np.concatenate(patches), np.concatenate(ids)
    seen_twice = np.bincount(all_ids, minlength=len(reference.xy))[all_ids] >= 2
    return all_patches[seen_twice], all_ids[seen_twice], reference


def visible(keypoints: Keypoints, image: np.ndarray) -> Keypoints:
    return keypoints.select(inside(keypoints, image.shape[1], image.shape[0]))


def random_homography(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """A view of the picture: turned by up to 45 degrees, scaled by up to 1.5, foreshortened up to threefold, in perspective."""
    centre = np.array([width / 2, height / 2])
    tilt_axis, turn = rng.uniform(0, np.pi), rng.uniform(-np.pi / 4, np.pi / 4)
    scale, tilt = 1.5 ** rng.uniform(-1, 1), MOST_TILT ** rng.uniform(0, 1)
    shape = scale * rotation(turn) @ rotation(tilt_axis) @ np.diag([tilt**0.5, tilt**-0.5]) @ rotation(-tilt_axis)
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], dtype=np.float64)
    moved = (corners - centre) @ shape.T + centre + rng.uniform(-0.1, 0.1, (4, 2)) * [width, height]
    return cv2.getPerspectiveTransform(corners.astype(np.float32), moved.astype(np.float32))


def rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def relight(gray: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Another exposure of the same view: gamma, a light from one side, contrast, brightness, defocus, noise."""
    height, width = gray.shape
    picture = (gray / 255.0) ** (2 ** rng.uniform(-1, 1))
    shade = cv2.resize(rng.uniform(0.4, 1.0, (6, 6)), (width, height), interpolation=cv2.INTER_CUBIC)
    picture = picture * shade * rng.uniform(0.8, 1.6) + rng.uniform(-0.1, 0.2)
    picture = np.asarray(cv2.GaussianBlur(picture, (0, 0), rng.uniform(0.3, 1.5)), dtype=np.float64)
    picture += rng.normal(0, rng.uniform(0, 0.045), picture.shape)
    return np.clip(picture * 255 + 0.5, 0, 255).astype(np.uint8)


def carry(keypoints: Keypoints, homography: np.ndarray) -> Keypoints:
    """Keypoints as they must look through the homography: places mapped, scales and angles by its local derivative."""
    x, y = keypoints.xy.T
    mapped = np.column_stack([x, y, np.ones_like(x)]) @ homography.T
    depth = mapped[:, 2]
    xy = mapped[:, :2] / depth[:, None]
    jacobian = (homography[None, :2, :2] - xy[:, :, None] * homography[None, 2:, :2]) / depth[:, None, None]
    direction = np.stack([np.cos(keypoints.angle), np.sin(keypoints.angle)], axis=1)
    turned = np.einsum("nij,nj->ni", jacobian, direction)
    sigma = keypoints.sigma * np.sqrt(np.abs(np.linalg.det(jacobian)))
    return Keypoints(xy, sigma, np.arctan2(turned[:, 1], turned[:, 0]), keypoints.response)


def agreement(a: Keypoints, b: Keypoints, borders: tuple[float, float, float]) -> np.ndarray:
    """How far apart (A, B) keypoints are as a share of the borders: at most 1 within all three, inf outside any."""
    place = np.linalg.norm(a.xy[:, None] - b.xy[None], axis=2) / np.maximum(a.sigma, 1e-9)[:, None]
    octaves = np.abs(np.log2(a.sigma[:, None] / b.sigma[None]))
    turn = np.abs((a.angle[:, None] - b.angle[None] + np.pi) % (2 * np.pi) - np.pi)
    share = np.maximum(np.maximum(place / borders[0], octaves / borders[1]), turn / borders[2])
    return np.where(share <= 1, share, np.inf)


def same_points(carried: Keypoints, found: Keypoints) -> tuple[np.ndarray, np.ndarray]:
    """Index pairs (carried, found) that are each other's best agreement."""
    if not len(carried.xy) or not len(found.xy):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    share = agreement(carried, found, SAME)
    best = share.argmin(axis=1)
    point = np.arange(len(best))
    mutual = np.isfinite(share[point, best]) & (share.argmin(axis=0)[best] == point)
    return point[mutual], best[mutual]


def undecided_pairs(keypoints: Keypoints, points: np.ndarray) -> np.ndarray:
    """Pairs (C, 2) of `points` too close to be negatives of each other."""
    close = np.isfinite(agreement(keypoints.select(points), keypoints.select(points), UNDECIDED))
    first, second = np.nonzero(np.triu(close | close.T, k=1))
    return np.column_stack([points[first], points[second]])
