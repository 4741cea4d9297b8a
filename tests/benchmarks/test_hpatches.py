"""The HPatches benchmark as a whole: missing and broken sequences, the cache, CSV files, the command."""

import errno
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from sdgmnet.benchmarks.hpatches import Report, Row, compare, gap, headline, mean_of, run
from sdgmnet.cli import main
from sdgmnet.data.hpatches.files import TYPES, write_descriptors
from sdgmnet.descriptors import Descriptor, load_descriptor
from sdgmnet.errors import InputError

NAMES = ("i_books", "v_bees", "v_dogman")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three small sequences of 40, 39 and 38 patches; noise grows from easy to tough."""
    random = np.random.default_rng(0)
    for number, name in enumerate(NAMES):
        (tmp_path / "strips" / name).mkdir(parents=True)
        base = 255 * cv2.GaussianBlur(random.random((65, 65, 40 - number)), (0, 0), 6).transpose(2, 0, 1)
        base = np.clip((base - 127) * 6 + 127, 0, 255)
        for kind in TYPES:
            level = {"r": 0, "e": 5, "h": 150, "t": 600}[kind[0]]
            noisy = np.clip(base + level * random.normal(size=base.shape), 0, 255).astype(np.uint8)
            cv2.imwrite(str(tmp_path / "strips" / name / f"{kind}.png"), noisy.reshape(-1, 65))
    return tmp_path / "strips"


def pixels(patches: np.ndarray) -> np.ndarray:
    """A plain descriptor: the patch at 6 x 6 pixels."""
    small = np.array([cv2.resize(patch, (6, 6), interpolation=cv2.INTER_AREA) for patch in patches], dtype=np.float32)
    return small.reshape(len(patches), -1)


PIXELS = Descriptor("pixels", pixels)


def compare_all(root: Path, *descriptors: Descriptor, **options: object) -> Report:
    return compare(descriptors or [PIXELS], root, split="all", pairs=50, **options)  # type: ignore[arg-type]


def test_all_rows_of_a_describing_function(root: Path) -> None:
    rows = run(pixels, root, split="full", pairs=200)
    assert all(0 <= row.value <= 1 for row in rows)
    assert len([row for row in rows if row.task == "verification"]) == 3 * 2 * 2
    assert {row.subset for row in rows if row.task == "matching"} == {"illum", "view", "all"}
    assert {row.subset for row in rows if row.task == "retrieval"} >= {"100", "20000"}
    assert headline(rows, "matching", "easy") > headline(rows, "matching", "tough")
    assert gap(rows, "matching") == headline(rows, "matching", "easy") - headline(rows, "matching", "tough")
    assert run(pixels, root, split="full", pairs=200) == rows


def test_the_means_are_the_stated_ones() -> None:
    rows = [
        *(Row("verification", "easy", subset, "ap", value) for subset, value in (("inter", 0.2), ("intra", 0.4))),
        Row("verification", "easy", "inter", "auc", 0.9),
        Row("matching", "easy", "illum", "ap", 0.5),
        Row("matching", "easy", "all", "ap", 0.7),
        *(Row("retrieval", "easy", pool, "ap", value) for pool, value in (("100", 0.9), ("20000", 0.3))),
    ]
    assert headline(rows, "verification") == pytest.approx(0.3)
    assert headline(rows, "matching") == pytest.approx(0.7)
    assert headline(rows, "retrieval") == pytest.approx(0.3)
    assert mean_of(rows, "retrieval") == pytest.approx(0.6)
    assert mean_of(rows, "retrieval", noise="tough") is None


def test_a_partial_split_is_reported(root: Path) -> None:
    report = compare([PIXELS], root, split="a", pairs=50)
    assert report.choice.label == "split a, 2 of 40 sequences"
    assert len(report.missing) == 38 and not report.left_out


def spoil(folder: Path, how: str) -> None:
    """Make a sequence unusable."""
    if how in ("h2", "ref"):
        (folder / f"{how}.png").unlink()
    elif how == "width":
        cv2.imwrite(str(folder / "h2.png"), np.zeros((65, 64), dtype=np.uint8))
    elif how == "bytes":
        (folder / "h2.png").write_bytes(b"no image")
    else:
        for kind in TYPES:
            cv2.imwrite(str(folder / f"{kind}.png"), np.full((65, 65), 100, dtype=np.uint8))


@pytest.mark.parametrize("how", ["h2", "ref", "width", "bytes", "one patch"])
def test_a_broken_sequence_is_named_and_the_others_stay(root: Path, how: str) -> None:
    spoil(root / "v_bees", how)
    report = compare_all(root)
    assert report.choice.names == ("i_books", "v_dogman")
    assert len(report.left_out) == 1 and "v_bees" in report.left_out[0]
    shutil.rmtree(root / "v_bees")
    assert compare_all(root).lines == report.lines


def test_no_usable_sequence(root: Path) -> None:
    for name in NAMES:
        (root / name / "e1.png").unlink()
    with pytest.raises(InputError, match=r"strips.*e1\.png"):
        compare_all(root)


def test_csv_files_give_the_same_numbers(root: Path, tmp_path: Path) -> None:
    first = compare_all(root, csv=tmp_path / "csv")
    read = load_descriptor(str(tmp_path / "csv" / "pixels"))
    assert read.csv_folder == tmp_path / "csv" / "pixels"
    second = compare_all(root, PIXELS, read)
    assert second.lines[0][1] == second.lines[1][1] == first.lines[0][1]
    with pytest.raises(InputError, match="evaluate hpatches"):
        read.describe(np.zeros((1, 64, 64), dtype=np.uint8))


@pytest.mark.parametrize("size", [(38, 4), (39, 1)], ids=["other count", "other length"])
def test_csv_files_that_do_not_match_leave_their_sequence_out(
    root: Path, tmp_path: Path, size: tuple[int, int]
) -> None:
    sizes = {"i_books": (40, 4), "v_bees": size, "v_dogman": (38, 4)}
    random = np.random.default_rng(0)
    made = ((name, random.random((16, *size)).astype(np.float32)) for name, size in sizes.items())
    write_descriptors(tmp_path / "csv", made)
    report = compare_all(root, PIXELS, load_descriptor(f"theirs={tmp_path / 'csv'}"))
    assert report.choice.names == ("i_books", "v_dogman") and "v_bees" in report.left_out[0]


def test_folders_for_csv_files_are_checked_first(root: Path, tmp_path: Path) -> None:
    (tmp_path / "csv" / "a-b" / "old").mkdir(parents=True)
    never = Descriptor("a b", lambda patches: pytest.fail("described before the check"))
    with pytest.raises(InputError, match="a-b"):
        compare_all(root, never, csv=tmp_path / "csv")
    with pytest.raises(InputError, match="other/a-b"):
        compare_all(root, never, never._replace(label="a-b"), csv=tmp_path / "other")


def test_descriptors_and_tasks_are_cached(root: Path, tmp_path: Path) -> None:
    calls = []

    def describe(patches: np.ndarray) -> np.ndarray:
        calls.append(len(patches))
        return pixels(patches)

    def evaluate(fingerprint: str) -> list[Row]:
        report = compare_all(root, Descriptor("mine", describe, fingerprint=fingerprint), cache=tmp_path / "c")
        return report.lines[0][1]

    first, count = evaluate("mine 1"), len(calls)
    assert evaluate("mine 1") == first and len(calls) == count > 0
    evaluate("mine 2")
    assert len(calls) == 2 * count
    assert np.load(next((tmp_path / "c").rglob("v_bees-*.npy"))).dtype == np.float32
    for damage in (b"", b"PK nothing"):  # damaged files are written again
        for path in [*(tmp_path / "c").rglob("*.npy"), *(tmp_path / "c").rglob("*.npz")]:
            path.write_bytes(damage or path.read_bytes()[:200])
        assert evaluate("mine 1") == first
    described = len(calls)
    cv2.imwrite(str(root / "v_bees" / "h2.png"), np.full((65 * 39, 65), 7, dtype=np.uint8))
    evaluate("mine 1")  # other strips under the same name are described again
    assert len(calls) == described + count // 3


@pytest.mark.parametrize("shape", [(None, 4), (1, 4)], ids=["NaN", "one row"])
def test_bad_descriptors(root: Path, shape: tuple[int | None, int]) -> None:
    def describe(patches: np.ndarray) -> np.ndarray:
        return np.full((shape[0] or len(patches), shape[1]), np.nan)

    with pytest.raises(InputError, match="mine returns"):
        compare_all(root, Descriptor("mine", describe))


def test_no_retrieval_without_distractors(root: Path) -> None:
    for name in NAMES[1:]:
        shutil.rmtree(root / name)
    rows = compare_all(root).lines[0][1]
    assert headline(rows, "retrieval") is None and gap(rows, "retrieval") is None
    assert headline(rows, "matching") is not None


def test_a_full_disk_is_not_a_broken_sequence(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(InputError, match="disk is full"):
        compare_all(root, cache=tmp_path / "c")


def test_command_writes_its_results(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, label = tmp_path / "out", r"$\foo$ [/x]"
    words = ["evaluate", "hpatches", f"{label}=sift", "root=rootsift", "--root", str(root), "--pairs", "100"]
    assert main([*words, "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert "distractors in all" in printed.out and "split a, 2 of 40 sequences" in printed.out
    assert "38 sequences of split a are missing" in printed.err
    assert "data:image/png;base64" in (out / "index.html").read_text()
    results = json.loads((out / "results.json").read_text())
    assert [line["label"] for line in results["lines"]] == [label, "root"]
    assert set(results["lines"][0]["map"]) == {"verification", "matching", "retrieval"}
    assert "Retrieval" in (out / "table.md").read_text()
    assert cv2.imread(str(out / "fig4.png")).std() > 10
