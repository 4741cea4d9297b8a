"""Metrics: pure arrays -> floats, in float64."""

from collections.abc import Callable

import numpy as np

from sdgmnet.errors import InputError

FPR_CONVENTIONS = ("hardnet", "exact")


def fpr_at_recall(
    distances: np.ndarray, labels: np.ndarray, recall: float = 0.95, convention: str = "hardnet"
) -> float:
    """False positive rate at a given recall, the score of UBC PhotoTour (FPR@95), as a fraction.

    distances (P,), small for similar patches; labels (P,), true for matching pairs.

    convention "hardnet" (also that of SDGMNet's authors): sort by distance; k is the first rank at which `recall` of the
    matching pairs are found; the result is the share of negatives ranked before k. Their code leaves the order of ties to
    chance; this is the expectation over all orders, so it does not depend on the order of the pairs. "exact" counts every
    negative that is not farther than the k-th pair, an upper bound under ties.
    """
    distances = np.asarray(distances, dtype=np.float64).ravel()
    matching = np.asarray(labels).ravel().astype(bool)
    if distances.shape != matching.shape:
        raise InputError(f"{len(distances)} distances but {len(matching)} labels.")
    if convention not in FPR_CONVENTIONS:
        raise InputError(f"convention must be one of {', '.join(FPR_CONVENTIONS)}, not {convention!r}.")
    if not 0 < recall <= 1:
        raise InputError(f"recall must lie in (0, 1], not {recall}.")
    if np.isnan(distances).any():
        raise InputError("distances contain NaN: the descriptors are not finite.")
    positive, negative = np.sort(distances[matching]), np.sort(distances[~matching])
    if len(positive) == 0 or len(negative) == 0:
        raise InputError("the false positive rate needs both matching and non-matching pairs.")
    needed = int(np.ceil(recall * len(positive)))
    threshold = positive[needed - 1]
    closer, not_farther = np.searchsorted(negative, threshold, "left"), np.searchsorted(negative, threshold, "right")
    if convention == "exact":
        return float(not_farther / len(negative))
    # Among q negatives and p positives tied at the threshold in random order, r q / (p + 1) negatives are expected
    # before the r-th positive.
    tied_positives = np.searchsorted(positive, threshold, "right") - np.searchsorted(positive, threshold, "left")
    still_needed = needed - np.searchsorted(positive, threshold, "left")
    false_positives = closer + still_needed * (not_farther - closer) / (tied_positives + 1)
    return float(false_positives / len(negative))


def pair_distances(
    describe: Callable[[np.ndarray], np.ndarray], patches: np.ndarray, pairs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distances (P,) float64 and labels (P,) bool of pairs (P, 3): patch, patch, matching. Describes every patch once."""
    if len(pairs) == 0:
        raise InputError("there are no test pairs.")
    needed, position = np.unique(pairs[:, :2], return_inverse=True)
    blocks = range(0, len(needed), 8192)  # all patches of a benchmark are close to a gigabyte
    descriptors = np.concatenate([np.asarray(describe(patches[needed[start : start + 8192]])) for start in blocks])
    first, second = position.reshape(-1, 2).T
    distances = np.empty(len(pairs))
    for start in range(0, len(pairs), 16384):  # memory of a block only
        rows = slice(start, start + 16384)
        difference = descriptors[first[rows]].astype(np.float64) - descriptors[second[rows]]
        distances[rows] = np.linalg.norm(difference, axis=1)
    return distances, pairs[:, 2] == 1


def skewness(values: np.ndarray) -> float:
    """Third standardised moment: 0 for symmetric distributions, positive for a tail to the right."""
    centred = np.asarray(values, dtype=np.float64) - np.mean(values)
    return float(np.mean(centred**3) / np.mean(centred**2) ** 1.5)


def average_precision(scores: np.ndarray, labels: np.ndarray, positives: int | None = None) -> float:
    """Area under the precision-recall curve by trapezoids, as in HPatches' code (others sum steps).

    scores (P,), large for similar patches; labels (P,), true for matching ones; equal scores keep the order of the arrays.
    positives: number of matching ones in the denominator of recall, where some are not among the labels.
    """
    scores, labels = np.asarray(scores, dtype=np.float64).ravel(), np.asarray(labels).ravel().astype(bool)
    if scores.shape != labels.shape:
        raise InputError(f"{len(scores)} scores but {len(labels)} labels.")
    if np.isnan(scores).any():
        raise InputError("scores contain NaN: the descriptors are not finite.")
    total = int(labels.sum()) if positives is None else positives
    if total < labels.sum():
        raise InputError(f"{total} positives in all, but {int(labels.sum())} are labelled.")
    ranks = np.flatnonzero(labels[np.argsort(-scores, kind="stable")]) + 1
    return float(average_precision_of_ranks(ranks, total)) if total else 0.0


def average_precision_of_ranks(ranks: np.ndarray, positives: int) -> np.ndarray:
    r"""The same from the ascending ranks (..., m) of the matching ones, which start at 1.

    .. math:: AP = \frac{1}{P} \sum_j \frac{1}{2} \left(\frac{j - 1}{r_j - 1} + \frac{j}{r_j}\right)

    where the first term is 1 for rank 1.
    """
    ranks = np.asarray(ranks, dtype=np.float64)
    number = np.arange(1, ranks.shape[-1] + 1)
    before = np.where(ranks > 1, (number - 1) / np.maximum(ranks - 1, 1), 1.0)
    return ((before + number / np.maximum(ranks, 1)) / 2).sum(axis=-1) / positives


def roc_auc(positive: np.ndarray, negative: np.ndarray) -> float:
    """Area under the ROC curve from the distances of matching pairs, ascending, and of others: equal ones count against it."""
    if len(positive) == 0 or len(negative) == 0:
        return 0.0
    return float(np.searchsorted(positive, negative, "left").sum() / (len(positive) * len(negative)))


def pose_auc(errors: np.ndarray, threshold: float) -> float:
    """Area under the curve of recall over pose error up to `threshold` degrees, as a fraction of the largest possible.

    errors (P,) degrees, infinite where no pose was found. As in SuperGlue's evaluation: the curve is linear between (0, 0)
    and the sorted errors with recalls i / P, and flat after the last error below the threshold.
    """
    errors = np.sort(np.asarray(errors, dtype=np.float64).ravel())
    if len(errors) == 0 or np.isnan(errors).any():
        raise InputError("the area under the curve needs at least one error, and no NaN.")
    if not 0 < threshold < np.inf:
        raise InputError(f"the threshold must be a positive number of degrees, not {threshold}.")
    below = errors[errors < threshold]
    recall = np.arange(len(below) + 1) / len(errors)
    places = np.concatenate([[0.0], below, [threshold]])
    heights = np.append(recall, recall[-1])
    return float(np.sum(np.diff(places) * (heights[1:] + heights[:-1]) / 2) / threshold)
