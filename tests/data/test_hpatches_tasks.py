"""HPatches' tasks: drawn as the official generator draws, read from its files."""

import os
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.data.hpatches.splits import SPLITS
from sdgmnet.data.hpatches.tasks import (
    DISTRACTORS,
    QUERIES,
    draw_retrieval,
    draw_verification,
    read_retrieval,
    read_verification,
)
from sdgmnet.errors import InputError

COUNTS = [5, 9, 2, 30]


def test_verification_is_drawn_in_the_official_order() -> None:
    """The order of draws as PROTOCOL states it: sequences, pairs of patches, pairs of images, and then those of inter."""
    random = np.random.RandomState(42)
    s = random.choice([f"s{k}" for k in range(4)], 300)
    patches = [random.choice(np.arange(COUNTS[int(name[1])]), 2, replace=False) for name in s]
    images = [random.choice(np.arange(5), 2, replace=False) for _ in s]
    inter = random.choice([f"s{k}" for k in range(4)], 300)
    inter_patches = [random.randint(COUNTS[int(name[1])]) for name in inter]
    drawn = draw_verification(COUNTS, 300)
    for row in range(300):
        number, (p0, p1), (t0, t1) = int(s[row][1]), patches[row], images[row]
        assert drawn.positive[row].tolist() == [number, t0, p0, number, t1, p0]
        assert drawn.intra[row].tolist() == [number, t0, p0, number, t1, p1]
        assert drawn.inter[row].tolist() == [number, t0, p0, int(inter[row][1]), t1, inter_patches[row]]


def test_verification_obeys_its_rules() -> None:
    """Also in the benchmark's own documentation: split a begins with these sequences in this order."""
    drawn = draw_verification(COUNTS, 2000)
    for rows in drawn:
        assert rows[:, [1, 4]].max() == 4  # the fifth image is never drawn
        assert (rows[:, 1] != rows[:, 4]).all()
    assert (drawn.intra[:, 2] != drawn.intra[:, 5]).all()
    first = draw_verification([3000] * 40, 4).positive[:, 0]
    assert [SPLITS["a"][number] for number in first] == ["v_birdwoman", "v_strand", "i_salon", "i_zion"]
    with pytest.raises(InputError, match="sequence 1 "):
        draw_verification([5, 1], 10)


@pytest.mark.skipif("SDGMNET_DATA" not in os.environ, reason="SDGMNET_DATA names no folder with the official files")
@pytest.mark.parametrize("split", ["a", "full"])
def test_official_queries_follow_the_draws_of_names(split: str) -> None:
    """Flat patches and repetitions were left out, so the file's names are some of the drawn names, in their order."""
    random = np.random.RandomState(42)
    drawn = iter(random.choice(SPLITS[split], 4 * QUERIES))
    path = Path(os.environ["SDGMNET_DATA"]) / "hpatches_tasks" / f"retr_queries_split-{split}.csv"
    official = [line.split(",")[0] for line in path.read_text().splitlines()[1:]]
    assert len(official) == QUERIES
    assert all(name in drawn for name in official)  # consumes the draws: a subsequence


@pytest.mark.skipif("SDGMNET_DATA" not in os.environ, reason="SDGMNET_DATA names no folder with the official files")
def test_official_retrieval_files_are_read() -> None:
    folder, names = Path(os.environ["SDGMNET_DATA"]) / "hpatches_tasks", SPLITS["a"]
    read = read_retrieval(folder, "a", names, [10_000] * 40)
    assert read is not None
    assert (read.queries.shape, read.distractors.shape) == ((QUERIES, 2), (DISTRACTORS, 2))
    assert names[read.queries[0, 0]] == "v_birdwoman"
    assert read.queries[0, 1] == 3
    few = read_retrieval(folder, "a", names[:3], [10_000] * 3)
    assert few is not None
    assert 0 < len(few.queries) < QUERIES
    assert read_verification(folder, "a", names, [10_000] * 40) is None


def test_retrieval_obeys_the_official_rule() -> None:
    random = np.random.default_rng(0)
    contrasts = [random.uniform(0, 40, size=count) for count in (200, 300, 80)]
    drawn = draw_retrieval(contrasts)
    usable = sum(int((one > 10).sum()) for one in contrasts)
    asked, pool = ({tuple(row) for row in rows.tolist()} for rows in drawn)
    assert len(asked) == len(drawn.queries) == usable // 3
    assert len(pool) == len(drawn.distractors)
    assert not asked & pool
    assert len(asked | pool) > 0.97 * usable  # a few are never drawn
    assert all(contrasts[s][p] > 10 for s, p in asked | pool)
    assert all(len(rows) == 0 for rows in draw_retrieval([np.zeros(10)]))


def test_retrieval_is_drawn_in_the_official_order() -> None:
    contrasts = [np.full(400, 20.0), np.full(700, 20.0)]
    contrasts[0][::3] = 5
    drawn = draw_retrieval(contrasts, queries=50, distractors=90)
    random = np.random.RandomState(42)
    lists = []
    for draws in (200, 900):
        s = random.choice(["0", "1"], draws)
        rows = [(int(name), random.randint(len(contrasts[int(name)]))) for name in s]
        lists.append(list(dict.fromkeys(row for row in rows if contrasts[row[0]][row[1]] > 10)))
    asked = lists[0][:50]
    assert [tuple(row) for row in drawn.queries.tolist()] == asked
    assert [tuple(row) for row in drawn.distractors.tolist()] == [row for row in lists[1] if row not in asked][:90]


def write_tasks(folder: Path, **content: str) -> None:
    for name, text in content.items():
        (folder / f"{name}_split-a.csv").write_text(text)


HEADER = "s1,t1,idx1,s2,t2,idx2\n"


def test_verification_files(tmp_path: Path) -> None:
    rows = "i_one,0,1,i_one,4,1\nv_two,1,0,v_two,2,0\n"
    more = f"v_two,1,0,i_one,2,0\n{rows}"
    write_tasks(tmp_path, verif_pos=HEADER + rows, verif_neg_intra=HEADER + rows, verif_neg_inter=HEADER + more)
    read = read_verification(tmp_path, "a", ["i_one", "v_two"], [2, 1])
    assert read is not None
    assert read.positive.tolist() == read.intra.tolist() == [[0, 0, 1, 0, 4, 1], [1, 1, 0, 1, 2, 0]]
    assert read.inter.tolist() == [[1, 1, 0, 0, 2, 0], [0, 0, 1, 0, 4, 1]]  # as many of each
    only = read_verification(tmp_path, "a", ["v_two"], [1])
    assert only is not None and only.inter.tolist() == [[0, 1, 0, 0, 2, 0]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("s,idx\n", "begins with"),
        (HEADER + "i_one,0,1,i_one,4\n", "line 2 has 5 columns"),
        (HEADER + "i_one,0,x,i_one,4,1\n", "x"),
        (HEADER + "i_one,0,2,i_one,4,1\n", "patch 2 of i_one"),
        (HEADER + "i_one,0,1,i_one,4,-1\n", "patch -1 of i_one"),
        (HEADER + "i_one,0,1,i_one,6,1\n", "image beyond"),
        (HEADER + "i_one,0,99999999999,i_one,4,1\n", "beyond any patch"),
        (HEADER + f"i_one,0,{10**30},i_one,4,1\n", "beyond any patch"),
    ],
)
def test_bad_verification_files_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    good = HEADER + "i_one,0,1,i_one,4,1\n"
    write_tasks(tmp_path, verif_pos=good, verif_neg_intra=text, verif_neg_inter=good)
    with pytest.raises(InputError, match=sentence) as caught:
        read_verification(tmp_path, "a", ["i_one"], [2])
    assert "verif_neg_intra_split-a.csv" in str(caught.value)


def test_files_that_belong_together(tmp_path: Path) -> None:
    write_tasks(tmp_path, verif_pos=HEADER, retr_queries="s,idx\n")
    with pytest.raises(InputError, match="verif_neg_intra_split-a.csv"):
        read_verification(tmp_path, "a", [], [])
    with pytest.raises(InputError, match="retr_distractors_split-a.csv"):
        read_retrieval(tmp_path, "a", [], [])
    assert read_retrieval(tmp_path, "b", [], []) is None
