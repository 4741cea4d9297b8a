"""Pairs by retrieval against all pairs: which of the pairs that exhaustive matching verifies are among the neighbours."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from bench.options import RetrievalOptions
from bench.stability import folder_or_temporary
from sdgmnet.descriptors import load_descriptor
from sdgmnet.engine import use_threads
from sdgmnet.features.collection import DescribeOptions, MatchOptions, describe_images, match_pairs
from sdgmnet.features.h5 import read_features, read_matches
from sdgmnet.features.images import find_images
from sdgmnet.features.pairs import Pair
from sdgmnet.features.retrieval import retrieve_pairs
from sdgmnet.report import OnProgress, Section, deliver, progress_bars

HEADER = ["descriptor", "neighbours", "photos", "verified pairs", "recall", "compared pairs", "share", "seconds"]


def retrieval(options: RetrievalOptions) -> None:
    images = find_images([options.photos])
    use_threads(options.threads)
    results: list[dict[str, Any]] = []
    with progress_bars() as on_progress, folder_or_temporary(options.out) as place:
        for descriptor in options.descriptors:
            folder = place / descriptor.replace("/", "_")
            names, verified = match_exhaustively(folder, images, descriptor, options, on_progress)
            for neighbours in options.neighbours:
                figures = measure(folder / "features.h5", names, verified, neighbours)
                results.append({"descriptor": descriptor, **figures})
    settings = {key: value for key, value in asdict(options).items() if key not in ("photos", "out", "json")}
    section = Section(f"Pairs with {options.inliers} inliers that retrieval keeps", "", HEADER, table(results))
    deliver({"options": settings, "results": results}, [section], options.out, options.json)


def match_exhaustively(
    folder: Path, images: dict[str, Path], descriptor: str, options: RetrievalOptions, on_progress: OnProgress
) -> tuple[list[str], set[Pair]]:
    """The images that can be described, and those of their pairs that are verified by a fundamental matrix."""
    features, matches = folder / "features.h5", folder / "matches.h5"
    describing = DescribeOptions(options.keypoints, size=options.size)
    described = describe_images(features, images, load_descriptor(descriptor), describing, on_progress=on_progress)
    names = [name for name in images if name in described.names]
    pairs = list(combinations(names, 2))
    match_pairs(matches, features, pairs, MatchOptions(verify="fundamental"), on_progress=on_progress)
    return names, {pair for pair in pairs if len(read_matches(matches, *pair)[0]) >= options.inliers}


def measure(features: Path, names: Sequence[str], verified: set[Pair], neighbours: int) -> dict[str, Any]:
    def descriptors_of(name: str) -> np.ndarray:
        return read_features(features, name).descriptors

    began = time.perf_counter()
    found = set(retrieve_pairs(names, descriptors_of, neighbours))
    return {
        "neighbours": neighbours,
        "photos": len(names),
        "verified": len(verified),
        "recall": len(found & verified) / max(len(verified), 1),
        "compared": len(found),
        "share": len(found) / max(len(names) * (len(names) - 1) / 2, 1),
        "seconds": time.perf_counter() - began,
    }


def table(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            one["descriptor"],
            str(one["neighbours"]),
            str(one["photos"]),
            str(one["verified"]),
            f"{100 * one['recall']:.1f} %",
            str(one["compared"]),
            f"{100 * one['share']:.1f} %",
            f"{one['seconds']:.1f}",
        ]
        for one in results
    ]
