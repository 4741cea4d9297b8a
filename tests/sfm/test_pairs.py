from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdgmnet.errors import InputError
from sdgmnet.features.pairs import in_blocks, sequential_pairs
from sdgmnet.sfm.pairs import PairSelection, pairs_by_shared_points, select_pairs
from sdgmnet.sfm.photo_import import Photo

PHOTOS = [Photo(name=f"{n:02d}.jpg", source=f"{n:02d} .jpg", width=4, height=3, focal=None) for n in range(30)]
NAMES = [photo["name"] for photo in PHOTOS]
SHARED = np.column_stack([np.arange(40), np.arange(40)])


def rounds(inliers: Mapping[Any, np.ndarray] | None = None, **options: Any) -> list[list[tuple[str, str]]]:
    selection = PairSelection(**options)
    chosen = selection.rounds(PHOTOS, lambda: inliers or {}, lambda count: [("00.jpg", f"{count:02d}.jpg")])
    found = [(pairs.total, list(pairs.names)) for pairs in chosen]
    assert all(total == len(pairs) == len(set(pairs)) for total, pairs in found)
    return [pairs for _, pairs in found]


def test_all_sequential_and_listed_pairs() -> None:
    assert rounds() == rounds(method="shared points", all_pairs=30) == [list(combinations(NAMES, 2))]
    (near,) = rounds(method="sequential", neighbours=2)
    assert near[:4] == [("00.jpg", f"{step:02d}.jpg") for step in (1, 2, 4, 8)]
    assert ("00.jpg", "03.jpg") not in near
    pair_list = (("03 .jpg", "01 .jpg"), ("gone.jpg", "01 .jpg"), ("02 .jpg", "05 .jpg"))
    assert rounds(method="list", pair_list=pair_list) == [[("01.jpg", "03.jpg"), ("02.jpg", "05.jpg")]]
    assert rounds(method="retrieval", neighbours=7) == [[("00.jpg", "07.jpg")]]


def test_the_choice_of_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default it depends on the number of photos; what is recorded of `exhaustive` is the word of earlier versions."""
    names = [f"{number}.jpg" for number in range(61)]
    assert select_pairs(None, None, names[:60]) == select_pairs("exhaustive", None, names) == PairSelection()
    assert select_pairs(None, None, names) == PairSelection("retrieval", 20)
    assert select_pairs("sequential", None, names) == PairSelection("sequential", 10)
    assert select_pairs("retrieval", 7, names[:3]) == PairSelection("retrieval", 7)
    assert PairSelection().described() == {"pairs": "all", "neighbours": 10}
    assert not capsys.readouterr().err
    assert select_pairs("all", None, names) == PairSelection()
    assert "--pairs exhaustive" in capsys.readouterr().err
    (tmp_path / "pairs.txt").write_text("3.jpg 1.jpg\n")
    assert select_pairs(str(tmp_path / "pairs.txt"), None, names).pair_list == (("3.jpg", "1.jpg"),)
    with pytest.raises(InputError, match="exhaustiv does not exist: give exhaustive, sequential, retrieval"):
        select_pairs("exhaustiv", None, names)


def test_sequential_pairs_close_a_walk() -> None:
    pairs = sequential_pairs(50, 3)
    assert {(0, 1), (0, 3), (0, 6), (0, 12), (0, 48), (47, 49)} <= set(pairs)
    assert (0, 4) not in pairs and all(first < second < 50 for first, second in pairs)


def test_pairs_by_shared_points() -> None:
    verified = {("a", "b"): SHARED, ("b", "c"): SHARED, ("c", "d"): SHARED[:10], ("d", "e"): SHARED[::-1]}
    assert pairs_by_shared_points(verified, {("a", "b"), ("b", "c")}, 5, 30) == [("a", "c")]
    assert pairs_by_shared_points(verified, {("a", "b"), ("b", "c"), ("a", "c")}, 5, 30) == []
    few = {("a", "b"): SHARED[:18], ("b", "c"): SHARED[4:22]}
    assert pairs_by_shared_points(few, set(few), 5, 14) == [("a", "c")]
    assert pairs_by_shared_points(few, set(few), 5, 15) == []


def test_rounds_do_not_depend_on_where_a_run_was_stopped() -> None:
    """The second round is chosen from the first one's pairs, even if later ones are in the database."""
    before = {("00.jpg", "01.jpg"): SHARED, ("01.jpg", "05.jpg"): SHARED}
    options: dict[str, Any] = {"method": "shared points", "all_pairs": 5, "neighbours": 1}
    first, second = rounds(before, **options)[:2]
    assert ("00.jpg", "05.jpg") not in first and second == [("00.jpg", "05.jpg")]
    assert rounds({**before, ("00.jpg", "07.jpg"): SHARED, ("00.jpg", "10.jpg"): SHARED}, **options)[1] == second


def test_retrieval_goes_on_by_shared_points() -> None:
    """Photos that see points of a third one together are compared, though they do not look alike."""
    alike = [("00.jpg", "07.jpg"), ("07.jpg", "09.jpg")]
    verified = dict.fromkeys(alike, SHARED[:20])
    found = PairSelection("retrieval", neighbours=8).rounds(PHOTOS, lambda: verified, lambda count: alike)
    assert [list(one.names) for one in found] == [alike, [("00.jpg", "09.jpg")]]


def test_blocks_read_each_image_few_times() -> None:
    pairs = list(combinations([f"{number:02}" for number in range(64)], 2))
    ordered = in_blocks(pairs, 16)
    assert sorted(ordered) == pairs

    def reads(some: list[tuple[str, str]]) -> int:
        read = lru_cache(16)(str)
        for one, two in some:
            read(one), read(two)
        return read.cache_info().misses

    assert reads(ordered) <= 16 * 8 * 9 // 2 < reads(pairs)


def test_few_pairs() -> None:
    assert in_blocks([], 32) == []
    assert in_blocks([("b", "a")], 1) == [("b", "a")]
