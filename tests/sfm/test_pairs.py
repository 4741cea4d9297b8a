from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from sdgmnet.sfm.pairs import PairSelection, pairs_by_shared_points, sequential_pairs
from sdgmnet.sfm.photo_import import Photo

PHOTOS = [Photo(name=f"{n:02d}.jpg", source=f"{n:02d} .jpg", width=4, height=3, focal=None) for n in range(30)]
NAMES = [photo["name"] for photo in PHOTOS]
SHARED = np.column_stack([np.arange(40), np.arange(40)])


def rounds(inliers: Mapping[Any, np.ndarray] | None = None, **options: Any) -> list[list[tuple[str, str]]]:
    found = [
        (pairs.total, list(pairs.names)) for pairs in PairSelection(**options).rounds(PHOTOS, lambda: inliers or {})
    ]
    assert all(total == len(pairs) == len(set(pairs)) for total, pairs in found)
    return [pairs for _, pairs in found]


def test_all_sequential_and_listed_pairs() -> None:
    assert rounds() == rounds(method="shared points", all_pairs=30) == [list(combinations(NAMES, 2))]
    (near,) = rounds(method="sequential", neighbours=2)
    assert near[:4] == [("00.jpg", f"{step:02d}.jpg") for step in (1, 2, 4, 8)]
    assert ("00.jpg", "03.jpg") not in near
    pair_list = (("03 .jpg", "01 .jpg"), ("gone.jpg", "01 .jpg"), ("02 .jpg", "05 .jpg"))
    assert rounds(method="list", pair_list=pair_list) == [[("01.jpg", "03.jpg"), ("02.jpg", "05.jpg")]]


def test_sequential_pairs_close_a_walk() -> None:
    pairs = sequential_pairs(50, 3)
    assert {(0, 1), (0, 3), (0, 6), (0, 12), (0, 48), (47, 49)} <= set(pairs)
    assert (0, 4) not in pairs and all(first < second < 50 for first, second in pairs)


def test_pairs_by_shared_points() -> None:
    verified = {("a", "b"): SHARED, ("b", "c"): SHARED, ("c", "d"): SHARED[:10], ("d", "e"): SHARED[::-1]}
    assert pairs_by_shared_points(verified, {("a", "b"), ("b", "c")}, 5) == [("a", "c")]
    assert pairs_by_shared_points(verified, {("a", "b"), ("b", "c"), ("a", "c")}, 5) == []


def test_rounds_do_not_depend_on_where_a_run_was_stopped() -> None:
    """The second round is chosen from the first one's pairs, even if later ones are in the database."""
    before = {("00.jpg", "01.jpg"): SHARED, ("01.jpg", "05.jpg"): SHARED}
    options: dict[str, Any] = {"method": "shared points", "all_pairs": 5, "neighbours": 1}
    first, second = rounds(before, **options)[:2]
    assert ("00.jpg", "05.jpg") not in first and second == [("00.jpg", "05.jpg")]
    assert rounds({**before, ("00.jpg", "07.jpg"): SHARED, ("00.jpg", "10.jpg"): SHARED}, **options)[1] == second
