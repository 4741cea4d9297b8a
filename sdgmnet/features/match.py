"""Descriptors of two images -> index pairs, by exact nearest neighbours; with keypoints also by FGINN and AdaLAM of kornia.

    nearest neighbours -> mutual ones -> matcher -> ratio test

A matcher refines the nearest neighbours before the ratio test. A new one is a function and a line in `MATCHERS`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from sdgmnet.errors import InputError, suggestion
from sdgmnet.features.describe import Features

LONGEST = 1e18  # squared distances of longer descriptors overflow in float32
BLOCK = 1024  # pairs whose distances are computed at once
RATIO = 0.9  # docs/decisions/default-matcher.md
SAME_STRUCTURE = 10.0  # pixels: FGINN's second nearest neighbour is at least so far from the nearest; kornia's default
LARGEST_SCORE = 0.999  # AdaLAM sorts by number of the neighbourhood plus score, which must be below 1


class Matches(NamedTuple):
    """Pairs of keypoints, ordered by the keypoint of the first image."""

    pairs: np.ndarray  # (M, 2) int64: index in the first image, index in the second
    distance: np.ndarray  # (M,) float32, Euclidean
    ratio: np.ndarray  # (M,) float32: distance over that of the second nearest; 1 if there is only one descriptor

    def __repr__(self) -> str:
        if not len(self.pairs):
            return "Matches(no pairs)"
        near, median, far = np.quantile(self.distance, (0, 0.5, 1))
        return (
            f"Matches({len(self.pairs)} pairs, distance {near:.2f} to {far:.2f}, median {median:.2f}, "
            f"median ratio {np.median(self.ratio):.2f})"
        )


def first_inconsistent_ratio(first: Features, second: Features, nearest: Matches, is_mutual: np.ndarray) -> Matches:
    """FGINN: the second nearest neighbour of the ratio is the first of ten that is not at the location of the nearest.

    Keypoints at one location, such as those of several orientations, then do not compete with each other. The ratio is 0
    where all ten are there.
    """
    import torch
    from kornia.feature import match_fginn

    from sdgmnet.features.kornia import to_lafs

    a, b = (torch.from_numpy(as_floats(one.descriptors)) for one in (first, second))
    lafs = to_lafs(first.keypoints), to_lafs(second.keypoints)
    ratio = np.ones(len(nearest.pairs), dtype=np.float32)
    for start in range(0, len(ratio), BLOCK):
        rows = torch.from_numpy(nearest.pairs[start : start + BLOCK, 0])
        found, pairs = match_fginn(a[rows], b, lafs[0][:, rows], lafs[1], th=float("inf"), spatial_th=SAME_STRUCTURE)
        ratio[start + pairs[:, 0].numpy()] = found[:, 0].numpy()
    return nearest._replace(ratio=np.minimum(ratio, 1))


def locally_affine(first: Features, second: Features, nearest: Matches, is_mutual: np.ndarray) -> Matches:
    """AdaLAM: matches that agree with those around them on an affine transformation.

    As in kornia, if there is no neighbourhood to start from, those with a ratio up to 0.97 are kept.
    """
    import torch
    from kornia.feature import get_laf_center, get_laf_orientation, get_laf_scale
    from kornia.feature.adalam import AdalamFilter

    from sdgmnet.features.kornia import to_lafs

    lafs = [to_lafs(one.keypoints.select(nearest.pairs[:, k])) for k, one in enumerate((first, second))]
    (k1, o1, s1), (k2, o2, s2) = (
        (get_laf_center(one)[0], get_laf_orientation(one).reshape(-1), get_laf_scale(one).reshape(-1)) for one in lafs
    )
    # Squared: AdaLAM's thresholds are for squared distances. Row i of both images is match i.
    scores = torch.from_numpy(np.minimum(np.square(nearest.ratio), LARGEST_SCORE).astype(np.float32))
    kept: Any = AdalamFilter().filter_matches(
        k1, k2, torch.arange(len(scores)), scores, torch.from_numpy(is_mutual), first.size, second.size, o1, o2, s1, s2
    )
    which = np.unique(kept[:, 0].numpy())
    return Matches(*(column[which] for column in nearest))


class Matcher(NamedTuple):
    what: str
    # first, second, nearest neighbours (at least one), which of them are mutual -> matches before the ratio test
    refine: Callable[[Features, Features, Matches, np.ndarray], Matches] | None = None


MATCHERS = {
    "nearest": Matcher("by descriptors alone"),
    "fginn": Matcher("the ratio test ignores neighbours at the location of the nearest", first_inconsistent_ratio),
    "adalam": Matcher("only matches that agree with those around them on an affine transformation", locally_affine),
}
MATCHER_HELP = (
    f"How nearest neighbours are chosen. {'; '.join(f'{name}: {one.what}' for name, one in MATCHERS.items())}. "
    "--mutual and --ratio apply to all."
)
if TYPE_CHECKING:
    MatcherName = str
else:
    MatcherName = Literal[tuple(MATCHERS)]


def match(
    first: Features | np.ndarray,
    second: Features | np.ndarray,
    *,
    mutual: bool = True,
    ratio: float | None = RATIO,
    matcher: MatcherName = "nearest",
) -> Matches:
    """Match each descriptor of the first image to its nearest neighbour in the second, by Euclidean distance.

    Args:
        first, second: features of two images, or their descriptors (N, D), floats or integers of any length.
        mutual: keep only mutual nearest neighbours.
        ratio: keep only pairs whose distance is below `ratio` times the distance to the second nearest neighbour; None
            keeps all.
        matcher: "nearest"; "fginn", for which neighbours at one location do not compete in the ratio test; or "adalam", which
            keeps pairs that agree with those around them on an affine transformation. The last two need features, not
            descriptors alone. AdaLAM as published: mutual=False, ratio=None.
    """
    from sdgmnet.native.nearest import two_nearest_and_back  # loads torch

    require_matcher(matcher, ratio)
    a, b = (one.descriptors if isinstance(one, Features) else np.asarray(one) for one in (first, second))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise InputError(f"descriptors must be (N, D) with the same D for both images, not {a.shape} and {b.shape}.")
    a, b = as_floats(a), as_floats(b)
    found = two_nearest_and_back(a, b)
    kept = np.flatnonzero(found.nearest >= 0)
    is_mutual = found.back[found.nearest[kept]] == kept
    if mutual:
        kept, is_mutual = kept[is_mutual], is_mutual[is_mutual]
    pairs = np.column_stack([kept, found.nearest[kept]])
    distance, to_second = distances(a, b, pairs), distances(a, b, np.column_stack([kept, found.second[kept]]))
    # Rounding may have exchanged two almost equal distances, and both may be 0.
    share = np.ones_like(distance)
    np.divide(distance, to_second, out=share, where=(to_second > distance) & np.isfinite(to_second))
    result, refine = Matches(pairs, distance, share), MATCHERS[matcher].refine
    if refine is not None:
        if not (isinstance(first, Features) and isinstance(second, Features)):
            raise InputError(f"matcher {matcher} needs keypoints: give Features of both images, not their descriptors.")
        result = refine(first, second, result, is_mutual) if len(kept) else result
    return result if ratio is None else Matches(*(column[result.ratio < ratio] for column in result))


def require_matcher(matcher: str, ratio: float | None) -> None:
    if matcher not in MATCHERS:
        raise InputError(
            f"matcher must be one of {', '.join(MATCHERS)}, not {matcher!r}{suggestion(matcher, MATCHERS)}"
        )
    if ratio is not None and not 0 < ratio <= 1:
        raise InputError(f"ratio must be in (0, 1], not {ratio}.")


def require_effect(matcher: str, ratio: float | None) -> None:
    """For commands that count matches: FGINN changes nothing but the ratio of each."""
    if matcher == "fginn" and ratio is None:
        raise InputError("the matcher fginn changes the ratio test alone: give --ratio, such as 0.9.")


def matching_in_words(mutual: bool, ratio: float | None, matcher: str) -> str:
    """For headings: mutual nearest neighbours, no ratio test."""
    words = [f"{'mutual' if mutual else 'one-way'} nearest neighbours"]
    words.append("no ratio test" if ratio is None else f"ratio {ratio:g}")
    return ", ".join(words + [f"matcher: {matcher}"] * (matcher != "nearest"))


def as_floats(descriptors: np.ndarray) -> np.ndarray:
    """(N, D) float32, finite."""
    if descriptors.dtype.kind not in "fiu":
        raise InputError(f"descriptors must be floats or integers, not {descriptors.dtype}.")
    floats = np.ascontiguousarray(descriptors, dtype=np.float32)
    # The squared length is NaN or infinite where any number of the row is.
    if not (np.einsum("nd,nd->n", floats, floats) < LONGEST**2).all():
        raise InputError("the descriptors contain NaN, infinite or too large values.")
    return floats


def distances(a: np.ndarray, b: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Euclidean distances (P,) float32 of pairs (P, 2), infinite where the second index is -1.

    Computed from differences, so that small distances keep their digits.
    """
    found = np.full(len(pairs), np.inf, dtype=np.float32)
    for start in range(0, len(pairs), BLOCK):
        i, j = pairs[start : start + BLOCK].T
        difference = a[i] - b[j]
        norms = np.sqrt(np.einsum("nd,nd->n", difference, difference))
        found[start : start + BLOCK] = np.where(j >= 0, norms, np.inf)
    return found
