"""The order in which pairs are matched."""

from functools import lru_cache
from itertools import combinations

from sdgmnet.features.pairs import in_blocks


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
