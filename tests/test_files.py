"""Nothing half-written, nothing left behind."""

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sdgmnet.errors import InputError
from sdgmnet.storage import is_disk_full, new_file, new_folder, read_json, remove_unfinished, write_json, write_text

FAILURES = (ValueError, OSError, KeyboardInterrupt, SystemExit)


def content(folder: Path) -> dict[str, str]:
    """Every file below the folder, hidden ones as well."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def entries(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_new_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    with new_file(tmp_path / "deep" / "er" / "a.txt") as part:
        assert part.parent == tmp_path / "deep" / "er"  # the same disk, or the renaming would copy
        part.write_text("whole")
        assert not (tmp_path / "deep" / "er" / "a.txt").exists()
    assert content(tmp_path) == {"deep/er/a.txt": "whole"}


def test_new_file_replaces_at_the_end_only(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with new_file(str(target)) as part:
        part.write_text("new")
        assert target.read_text() == "old"
    assert content(tmp_path) == {"a.txt": "new"}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("existing", [True, False])
def test_failure_leaves_files_as_they_were(tmp_path: Path, failure: type[BaseException], existing: bool) -> None:
    target = tmp_path / "a.txt"
    if existing:
        target.write_text("old")
    with pytest.raises(failure), new_file(target) as part:
        part.write_text("half")
        raise failure
    assert content(tmp_path) == ({"a.txt": "old"} if existing else {})


def test_new_file_that_nobody_wrote_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), new_file(tmp_path / "a.txt"):
        pass
    assert entries(tmp_path) == []


def test_new_file_does_not_replace_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError), new_file(tmp_path / "a") as part:
        part.write_text("new")
    assert entries(tmp_path) == ["a"]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    with new_file(tmp_path / "a.txt") as first:
        first.write_text("first")
        with new_file(tmp_path / "a.txt") as second:
            assert second != first
            second.write_text("second")
        assert content(tmp_path)["a.txt"] == "second"
    assert content(tmp_path) == {"a.txt": "first"}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked at in /proc")
def test_what_a_killed_writer_left_is_swept_though_nobody_has_waited_for_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as writer:
        left = tmp_path / f".a.db.{writer.pid}-0123abcd.part"
        left.write_text("half")
        remove_unfinished(tmp_path / "a.db")
        assert left.exists()
        writer.kill()
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays listed
        remove_unfinished(tmp_path / "a.db")
        assert not left.exists()


def test_what_a_killed_writer_left_is_swept_with_its_companions(tmp_path: Path) -> None:
    """A database killed at work leaves more files than its own; those of a living process, and anybody's, stay."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    stale = [f".a.db.{gone.pid}-0123abcd.part{suffix}" for suffix in ("", "-wal", "-shm", "-journal", ".pairs.txt")]
    kept = [f".a.db.{os.getpid()}-0123abcd.part-wal", ".a.db.mine.part", f".b.db.{gone.pid}-0123abcd.part-wal"]
    for name in (*stale, *kept):
        (tmp_path / name).touch()
    with new_file(tmp_path / "a.db") as part:
        part.write_text("whole")
    assert entries(tmp_path) == sorted([*kept, "a.db"])


def test_a_failed_writer_leaves_no_companions(tmp_path: Path) -> None:
    with pytest.raises(ValueError), new_file(tmp_path / "a.db") as part:
        part.with_name(f"{part.name}-wal").touch()
        raise ValueError
    assert entries(tmp_path) == []


def test_a_full_disk_is_known_behind_its_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the disk is full") as caught, new_file(tmp_path / "a.db"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert is_disk_full(caught.value)
    assert not is_disk_full(InputError("another"))


@pytest.mark.parametrize("existing", [True, False])
def test_new_folder_appears_when_it_is_whole(tmp_path: Path, existing: bool) -> None:
    target = tmp_path / "out"
    if existing:
        target.mkdir()
    with new_folder(target) as part:
        assert list(part.iterdir()) == []
        (part / "a.txt").write_text("whole")
        assert not (target / "a.txt").exists()
    assert content(tmp_path) == {"out/a.txt": "whole"}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("existing", [True, False])
def test_failure_leaves_no_folder(tmp_path: Path, failure: type[BaseException], existing: bool) -> None:
    if existing:
        (tmp_path / "out").mkdir()
    with pytest.raises(failure), new_folder(tmp_path / "out") as part:
        (part / "deep").mkdir()
        (part / "deep" / "a.txt").write_text("half")
        raise failure
    assert entries(tmp_path) == (["out"] if existing else [])


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_new_folder_never_replaces(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out"
    if kind == "folder":
        target.mkdir()
        (target / ".hidden").write_text("precious")
    else:
        target.write_text("precious")
    before = content(tmp_path)
    with pytest.raises(InputError, match="choose another folder") as caught, new_folder(target):
        pytest.fail("there must be no folder to fill")
    assert str(target) in str(caught.value)
    assert content(tmp_path) == before


@pytest.mark.parametrize(("free", "raised"), [(4096, InputError), (1 << 30, MemoryError)])
def test_other_words_for_a_full_disk(
    free: int, raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with (
        pytest.raises(raised, match="disk is full" if raised is InputError else "bad_alloc"),
        new_folder(tmp_path / "a"),
    ):
        raise MemoryError("bad_alloc")
    with pytest.raises(InputError, match="a reason of its own"), new_file(tmp_path / "b"):
        raise InputError("a reason of its own")
    assert entries(tmp_path) == []


def test_text_and_json_round_trip(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "θ⁺\nend")
    assert (tmp_path / "a.txt").read_bytes().decode("utf-8") == "θ⁺\nend"
    value = {"θ": [1, 2.5, None, True], "nested": {"path": "Größe"}}
    write_json(tmp_path / "a.json", value)
    assert read_json(str(tmp_path / "a.json")) == value
    assert (tmp_path / "a.json").read_text(encoding="utf-8").endswith("}\n")


def test_half_a_character_is_refused_and_bytes_of_a_file_name_are_not(tmp_path: Path) -> None:
    named = os.fsdecode(b"\xff.png")
    write_json(tmp_path / "a.json", [named, "é\U0001f600"])
    assert read_json(tmp_path / "a.json") == [named, "é\U0001f600"]
    (tmp_path / "b.json").write_text('["\\ud800"]')
    with pytest.raises(InputError, match=r"b\.json is not valid JSON"):
        read_json(tmp_path / "b.json")


@pytest.mark.parametrize("digits", ["1e999", "-1e999", "9" * 400])
def test_numbers_beyond_any_float_are_refused(digits: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f'{{"seconds": {digits}}}')
    with pytest.raises(InputError, match="too large a number"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"seconds": 1e300, "bytes": 12345678901234567890123}')
    assert read_json(tmp_path / "a.json") == {"seconds": 1e300, "bytes": 12345678901234567890123}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_know_are_refused(tmp_path: Path, value: float) -> None:
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"new": [1.0, value]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"old": 1}
    assert entries(tmp_path) == ["a.json"]


@pytest.mark.parametrize("damaged", [b"", b'{"a": [1, 2', b"not json", b'{"a": "\xff\xfe"}'])
def test_damaged_json_is_named(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "card.json"
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="not valid JSON") as caught:
        read_json(path)
    assert str(path) in str(caught.value)


def test_missing_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist") as caught:
        read_json(tmp_path / "card.json")
    assert str(tmp_path / "card.json") in str(caught.value)


def test_a_folder_that_another_process_made_meanwhile_is_kept(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another process"), new_folder(tmp_path / "set") as part:
        (part / "a").write_text("ours")
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / "a").write_text("theirs")
    assert (tmp_path / "set" / "a").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_unfinished_files_of_processes_that_are_gone_can_be_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for process in (gone.pid, os.getpid()):
        (tmp_path / f".a.json.{process}-0123abcd.part").write_text("{")
    remove_unfinished(tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == [f".a.json.{os.getpid()}-0123abcd.part"]
