"""Homographies estimated from matches, judged by where they send the corners of the reference image (DeTone et al.)."""

from collections.abc import Sequence

import numpy as np

from sdgmnet.benchmarks.geometry import Size, through

ACCURACY_AT = (1, 3, 5)  # pixels
AREA_TO = (3, 5, 10)  # pixels


def corner_error(estimate: np.ndarray | None, homography: np.ndarray, size: Size) -> float:
    """Mean distance in pixels of the four corners sent by the estimate from those sent by the true homography, both (3, 3).

    Infinite where nothing was estimated, or the estimate sends a corner to infinity.
    """
    if estimate is None or not np.isfinite(estimate).all():
        return float("inf")
    right, bottom = size[0] - 1.0, size[1] - 1.0
    corners = np.array([[0, 0], [right, 0], [0, bottom], [right, bottom]])
    if (np.abs(np.column_stack([corners, np.ones(4)]) @ estimate[2]) < 1e-12).any():
        return float("inf")
    return float(np.linalg.norm(through(estimate, corners) - through(homography, corners), axis=1).mean())


def accuracy(errors: Sequence[float], threshold: float) -> float:
    """Share of the errors that are at most the threshold."""
    return float(np.mean(np.asarray(errors) <= threshold))


def area(errors: Sequence[float], threshold: float) -> float:
    """Area under the share of errors of at most t pixels, for t from 0 to the threshold, over the threshold.

    The share is a step function of t, so that an error e adds exactly max(0, 1 - e / threshold) / N; programs that join the
    steps' corners by straight lines differ by up to 1 / (2 N).
    """
    return float(np.mean(np.maximum(0.0, 1 - np.asarray(errors) / threshold)))


def table(labels: Sequence[str], results: Sequence[dict[str, list[float]]]) -> tuple[list[str], list[list[str]]]:
    """A line for each descriptor and kind of sequence, from the corner errors of the pairs."""
    header = [
        "descriptor",
        "sequences",
        "pairs",
        *(f"within {threshold} px" for threshold in ACCURACY_AT),
        *(f"AUC {threshold} px" for threshold in AREA_TO),
        "failed",
    ]
    body = []
    for label, kinds in zip(labels, results, strict=True):
        for kind, errors in kinds.items():
            numbers = [accuracy(errors, one) for one in ACCURACY_AT] + [area(errors, one) for one in AREA_TO]
            failed = str(int(np.isinf(errors).sum()))
            body.append([label, kind, str(len(errors)), *(f"{number:.3f}" for number in numbers), failed])
    return header, body
