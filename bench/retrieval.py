"""Pairs by retrieval against all pairs: which of the pairs that exhaustive matching verifies are among the neighbours."""

import time
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench.options import RetrievalOptions
from bench.study import deliver_study, folder_or_temporary
from sdgmnet.descriptors import load_descriptor
from sdgmnet.engine import use_threads
from sdgmnet.features.collection import DescribeOptions, MatchOptions, describe_images, match_pairs
from sdgmnet.features.h5 import pair_name, read_features, read_matches
from sdgmnet.features.images import find_images
from sdgmnet.features.match import Matches
from sdgmnet.features.pairs import Pair
from sdgmnet.features.retrieval import retrieve_pairs
from sdgmnet.features.verify import verify
from sdgmnet.report import OnProgress, Section, progress_bars, track

HEADER = ["descriptor", "neighbours", "photos", "verified pairs", "recall", "recall of any", "compared pairs", "share"]
HEADER += ["seconds"]


def retrieval(options: RetrievalOptions) -> None:
    images = find_images([options.photos])
    use_threads(options.threads)
    results: list[dict[str, Any]] = []
    with progress_bars() as on_progress, folder_or_temporary(options.out) as place:
        folder_of = {descriptor: place / descriptor.replace("/", "_") for descriptor in options.descriptors}
        matched = {
            descriptor: match_exhaustively(folder, images, descriptor, options, on_progress)
            for descriptor, folder in folder_of.items()
        }
        by_any = set().union(*(verified for _, verified in matched.values()))
        for descriptor, (names, verified) in matched.items():
            for neighbours in options.neighbours:
                figures = measure(folder_of[descriptor] / "features.h5", names, verified, by_any, neighbours)
                results.append({"descriptor": descriptor, **figures})
    note = "recall of any: of the pairs that are verified with at least one of the descriptors."
    section = Section(f"Pairs with {options.inliers} inliers that retrieval keeps", note, HEADER, table(results))
    deliver_study(options, {"results": results}, [section])


def match_exhaustively(
    folder: Path, images: dict[str, Path], descriptor: str, options: RetrievalOptions, on_progress: OnProgress
) -> tuple[list[str], set[Pair]]:
    """The images that can be described, and those of their pairs that are verified by a fundamental matrix."""
    features, matches = folder / "features.h5", folder / "matches.h5"
    describing = DescribeOptions(options.keypoints, size=options.size)
    described = describe_images(features, images, load_descriptor(descriptor), describing, on_progress=on_progress)
    names = [name for name in images if name in described.names]
    pairs = list(combinations(names, 2))
    match_pairs(matches, features, pairs, MatchOptions(), on_progress=on_progress)
    with h5py.File(matches) as file:  # opened once, not once per pair
        enough = [
            pair
            for pair in track(pairs, "counting matches", on_progress)
            if np.count_nonzero(file[pair_name(*pair)]["matches0"][()] >= 0) >= options.inliers
        ]
    read = lru_cache(32)(partial(read_features, features))
    verified = set()
    for pair in track(enough, "verifying", on_progress):
        first, second = read(pair[0]), read(pair[1])
        found, scores = read_matches(matches, *pair)
        inlier = verify(first, second, Matches(found, scores, scores), "fundamental").inlier
        verified |= {pair} if inlier.sum() >= options.inliers else set()
    return names, verified


def measure(
    features: Path, names: Sequence[str], verified: set[Pair], by_any: set[Pair], neighbours: int
) -> dict[str, Any]:
    def descriptors_of(name: str) -> np.ndarray:
        return read_features(features, name).descriptors

    began = time.perf_counter()
    found = set(retrieve_pairs(names, descriptors_of, neighbours))
    return {
        "neighbours": neighbours,
        "photos": len(names),
        "verified": len(verified),
        "recall": len(found & verified) / max(len(verified), 1),
        "recall_of_any": len(found & by_any) / max(len(by_any), 1),
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
            f"{100 * one['recall_of_any']:.1f} %",
            str(one["compared"]),
            f"{100 * one['share']:.1f} %",
            f"{one['seconds']:.1f}",
        ]
        for one in results
    ]
