"""Which photos are compared: all pairs, neighbours by name or by retrieval, a list, or those that share points."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sdgmnet.features.images import plain_name
from sdgmnet.features.pairs import NEIGHBOURS, Method, Pair, choose_method, ordered_pairs, read_pairs
from sdgmnet.features.retrieval import require_faiss
from sdgmnet.sfm.photo_import import Photo
from sdgmnet.storage import digest

# Keypoints of one photo that two others see: then these two are compared as well.
MIN_SHARED = {"shared points": 30, "retrieval": 10}
MIN_INLIERS = 15  # verified matches of two photos, to count as neighbours
ROUNDS = 2  # of pairs by shared points

Inliers = Callable[[], Mapping[Pair, np.ndarray]]  # (M, 2) verified matches of the pairs compared so far
Retrieve = Callable[[int], Sequence[Pair]]  # number of neighbours -> pairs of photos that look alike


class Pairs(NamedTuple):
    """Names of copies, each pair in alphabetical order. An iterable: the pairs of many photos need not fit in memory."""

    total: int
    names: Iterable[Pair]
    exhaustive: bool = False


@dataclass(frozen=True)
class PairSelection:
    method: Method | Literal["shared points"] = "exhaustive"
    """shared points: all pairs of up to `all_pairs` photos; beyond, `sequential`, then photos that share points."""
    neighbours: int = NEIGHBOURS["sequential"]
    """sequential: photos before and after in the order of names; retrieval: photos that look alike."""
    all_pairs: int = 40
    pair_list: tuple[Pair, ...] = ()
    """Names of the original photos."""
    digest: str = ""
    """Of the file of the list."""

    def described(self) -> dict[str, Any]:
        """For the record of what a model was made from."""
        # "all": so recorded since version 0.1
        recorded = {"list": f"list {self.digest}", "exhaustive": "all", "retrieval": "retrieval, then shared points"}
        described = {"pairs": recorded.get(self.method, self.method), "neighbours": self.neighbours}
        return described | ({"all_pairs": self.all_pairs} if self.method == "shared points" else {})

    def rounds(self, photos: Sequence[Photo], inliers: Inliers, retrieve: Retrieve) -> Iterator[Pairs]:
        """Pairs to match and verify; each round is taken after the one before was verified."""
        names = [photo["name"] for photo in photos]
        every = math.comb(len(names), 2)
        if self.method == "exhaustive":
            yield Pairs(every, combinations(names, 2), exhaustive=True)
        elif self.method == "shared points" and len(names) <= self.all_pairs:
            yield Pairs(every, combinations(names, 2))
        elif self.method == "list":
            yield listed_pairs(photos, self.pair_list)
        elif self.method == "retrieval":
            alike = retrieve(self.neighbours)
            yield Pairs(len(alike), alike)
            yield from self._by_shared_points(alike, inliers, max(1, self.neighbours // 2))
        else:
            near = ordered_pairs("sequential", names, self.neighbours)
            yield Pairs(len(near), near)
            if self.method == "shared points":
                yield from self._by_shared_points(near, inliers, 2 * self.neighbours)

    def _by_shared_points(self, compared: Sequence[Pair], inliers: Inliers, max_per_photo: int) -> Iterator[Pairs]:
        known = set(compared)
        for _ in range(ROUNDS):
            # After a restart, the database may hold pairs of later rounds.
            verified = {pair: matches for pair, matches in inliers().items() if pair in known}
            new = pairs_by_shared_points(verified, known, max_per_photo, MIN_SHARED[self.method])
            if not new:
                break
            yield Pairs(len(new), new)
            known |= set(new)


def select_pairs(choice: str | None, neighbours: int | None, names: Sequence[str]) -> PairSelection:
    """What --pairs and --neighbours choose for photos of these names."""
    method = choose_method(choice, len(names))
    count = NEIGHBOURS.get(method, NEIGHBOURS["sequential"]) if neighbours is None else neighbours
    if method == "retrieval":
        require_faiss()
    if method != "list":
        return PairSelection(method, count)
    pair_list = read_pairs(Path(str(choice)), {plain_name(name) for name in names})
    return PairSelection("list", count, pair_list=tuple(pair_list), digest=digest(str(choice)))


def listed_pairs(photos: Sequence[Photo], pair_list: Sequence[Pair]) -> Pairs:
    """Without the pairs of photos that cannot be read."""
    copy_of = {photo["source"]: photo["name"] for photo in photos}
    readable = [(copy_of[one], copy_of[two]) for one, two in pair_list if one in copy_of and two in copy_of]
    return Pairs(len(readable), sorted((min(pair), max(pair)) for pair in readable))


def pairs_by_shared_points(
    verified: Mapping[Pair, np.ndarray], known: Iterable[Pair], max_per_photo: int, min_shared: int
) -> list[Pair]:
    """Pairs not known yet that see at least `min_shared` of the same keypoints of some third photo.

    verified: (M, 2) indices of keypoints that two photos share.
    """
    seen: dict[str, dict[str, np.ndarray]] = {}
    for (first, second), matches in verified.items():
        if len(matches) >= MIN_INLIERS:
            seen.setdefault(first, {})[second] = np.unique(matches[:, 0])
            seen.setdefault(second, {})[first] = np.unique(matches[:, 1])
    shared: dict[Pair, int] = {}
    compared = set(known)
    for around in seen.values():
        for pair in combinations(sorted(around), 2):
            if pair not in compared:
                common = len(np.intersect1d(around[pair[0]], around[pair[1]], assume_unique=True))
                shared[pair] = max(shared.get(pair, 0), common)
    chosen: list[Pair] = []
    count: dict[str, int] = {}
    for pair, common in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        if common >= min_shared and all(count.get(photo, 0) < max_per_photo for photo in pair):
            chosen.append(pair)
            for photo in pair:
                count[photo] = count.get(photo, 0) + 1
    return sorted(chosen)
