"""Atomic files leave nothing half-written, JSON from elsewhere is checked, locks really exclude."""

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdgmnet.errors import InputError
from sdgmnet.storage import (
    changes_in_words,
    is_disk_full,
    new_file,
    new_folder,
    only_worker,
    read_json,
    read_record,
    reason_of,
    remove_unfinished,
    try_lock,
    write_json,
    write_text,
)

FAILURES = (ValueError, OSError, KeyboardInterrupt, SystemExit)


def content(folder: Path) -> dict[str, str]:
    """Every file below the folder, hidden ones as well."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def entries(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Atomic files


def test_new_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "a.txt"
    for text in ("first", "second"):
        before = content(tmp_path)
        with new_file(target) as part:
            assert part.parent == target.parent  # the same disk, or the renaming would copy
            part.write_text(text)
            assert content(tmp_path) == {**before, str(part.relative_to(tmp_path)): text}
        assert content(tmp_path) == {"deep/er/a.txt": text}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("existing", [True, False])
def test_failure_leaves_files_as_they_were(tmp_path: Path, failure: type[BaseException], existing: bool) -> None:
    target = tmp_path / "a.db"
    if existing:
        target.write_text("old")
    with pytest.raises(failure), new_file(target) as part:
        part.write_text("half")
        part.with_name(f"{part.name}-wal").touch()
        raise failure
    assert content(tmp_path) == ({"a.db": "old"} if existing else {})


def test_new_file_that_nobody_wrote_or_that_is_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), new_file(tmp_path / "a.txt"):
        pass
    assert entries(tmp_path) == []
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
def test_files_of_a_zombie_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as writer:
        left = tmp_path / f".a.db.{writer.pid}-0123abcd.part"
        left.write_text("half")
        remove_unfinished(tmp_path / "a.db")
        assert left.exists()
        writer.kill()
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays listed
        remove_unfinished(tmp_path / "a.db")
        assert not left.exists()


def test_files_of_a_killed_writer_are_removed_with_their_companions(tmp_path: Path) -> None:
    """A database killed at work leaves more files than its own; those of a living process, and anybody's, stay."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    stale = [f".a.db.{gone.pid}-0123abcd.part{suffix}" for suffix in ("", "-wal", "-shm", "-journal", ".pairs.txt")]
    kept = [f".a.db.{os.getpid()}-0123abcd.part-wal", ".a.db.mine.part", f".b.db.{gone.pid}-0123abcd.part-wal"]
    for name in (*stale, *kept):
        (tmp_path / name).touch()
    with new_file(tmp_path / "a.db") as part:
        part.write_text("complete")
    assert entries(tmp_path) == sorted([*kept, "a.db"])


@pytest.mark.parametrize("existing", [True, False])
def test_new_folder_appears_when_it_is_complete(tmp_path: Path, existing: bool) -> None:
    target = tmp_path / "out"
    if existing:
        target.mkdir()
    with new_folder(target) as part:
        assert list(part.iterdir()) == []
        (part / "a.txt").write_text("complete")
        assert not (target / "a.txt").exists()
    assert content(tmp_path) == {"out/a.txt": "complete"}


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
    with pytest.raises(failure), new_folder(tmp_path / "new" / "sets" / "a"):
        raise failure
    assert not (tmp_path / "new").exists()


def test_changes_are_named_with_both_values() -> None:
    before = {"ratio": 0.9, "photos": ["a"], "upright": False, "seed": 0}
    now = {"ratio": None, "photos": ["b"], "upright": True, "seed": 0}
    assert changes_in_words(before, now) == "ratio 0.9 (now none), other photos, upright no (now yes)"
    assert changes_in_words(now, now) == ""


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_new_folder_never_replaces(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out"
    if kind == "folder":
        target.mkdir()
    (target / ".hidden" if kind == "folder" else target).write_text("precious")
    before = content(tmp_path)
    with pytest.raises(InputError, match=str(target)), new_folder(target):
        pytest.fail("there must be no folder to fill")
    assert content(tmp_path) == before


def test_a_folder_that_another_process_created_meanwhile_is_kept(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="set"), new_folder(tmp_path / "set") as part:
        (part / "a").write_text("ours")
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / "a").write_text("theirs")
    assert content(tmp_path) == {"set/a": "theirs"}


def test_a_full_disk_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the disk is full") as caught, new_file(tmp_path / "a.db"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert is_disk_full(caught.value)
    assert not is_disk_full(InputError("another"))


@pytest.mark.parametrize(("free", "raised"), [(4096, InputError), (1 << 30, MemoryError)])
def test_other_errors_of_a_full_disk(
    free: int, raised: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free, total=1 << 40))
    words = "disk is full" if raised is InputError else "bad_alloc"
    with pytest.raises(raised, match=words), new_folder(tmp_path / "a"):
        raise MemoryError("bad_alloc")
    with pytest.raises(InputError, match="a reason of its own"), new_file(tmp_path / "b"):
        raise InputError("a reason of its own")
    assert entries(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_refusal_is_reported_as_what_it_is(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where little space is free: on a system without any, every error was called a full disk."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0, total=1 << 40))
    target = tmp_path / "features.h5"
    with pytest.raises(InputError, match=os.strerror(number)) as caught, new_file(target) as part:
        raise OSError(number, os.strerror(number), str(part))
    assert str(target) in str(caught.value) and "full" not in str(caught.value) and ".part" not in str(caught.value)
    with pytest.raises(FileNotFoundError), new_file(target):  # about another file
        (tmp_path / "elsewhere" / "photo.jpg").read_bytes()
    assert entries(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write to")
@pytest.mark.parametrize("open_target", [new_file, new_folder])
def test_a_file_system_that_refuses_writing(open_target: Callable[[Path], AbstractContextManager[Path]]) -> None:
    with (
        pytest.raises(InputError, match=r"/proc/none/a cannot be written \(No such file"),
        open_target(Path("/proc/none/a")),
    ):
        pass


# JSON


def test_text_and_json_round_trip(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "θ⁺\nend")
    assert (tmp_path / "a.txt").read_bytes().decode("utf-8") == "θ⁺\nend"
    value = {
        "θ": [1, 2.5, None, True],
        "path": os.fsdecode(b"\xff.png"),
        "large": [1e300, 10**23],
        "face": "é\U0001f600",
    }
    write_json(tmp_path / "a.json", value)
    assert read_json(str(tmp_path / "a.json")) == value
    assert (tmp_path / "a.json").read_text(encoding="utf-8").endswith("}\n")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_outside_json_are_not_written(tmp_path: Path, value: float) -> None:
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"new": [1.0, value]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"old": 1}
    assert entries(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    "damaged",
    [b"", b'{"a": [1, 2', b"not json", b'{"a": "\xff\xfe"}', b'["\\ud800"]', b"[NaN]", b"[1e999]", b"9" * 400,
     b"[" * 100_000, None],
)  # fmt: skip
def test_damaged_or_missing_json_is_named(tmp_path: Path, damaged: bytes | None) -> None:
    path = tmp_path / "card.json"
    if damaged is not None:
        path.write_bytes(damaged)
    with pytest.raises(InputError, match=str(path)):
        read_json(path)


SHAPE = {"size": int, "names": [str], "broken": [(str, int)], "focal": int | float | None}
RECORD: dict[str, Any] = {"size": 3, "names": ["a"], "broken": [["a", 1]], "focal": None, "more": [1]}


def test_records_that_match_come_back(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", RECORD)
    assert read_record(tmp_path / "a.json", SHAPE) == RECORD


@pytest.mark.parametrize(
    "content",
    [*(RECORD | changed for changed in (
        {"size": "3"}, {"size": None}, {"names": "a"}, {"names": [1]}, {"broken": [["a"]]}, {"broken": [["a", "b"]]},
        {"broken": {}}, {"focal": "1"})),
     [], None, 3, {}, {key: RECORD[key] for key in ("size", "names", "broken")}],
)  # fmt: skip
def test_records_that_do_not_match_are_refused(content: Any, tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", content)
    with pytest.raises(InputError, match=r"a\.json"):
        read_record(tmp_path / "a.json", SHAPE)


def test_reason_of_an_error() -> None:
    assert reason_of(RuntimeError("[../gloo/tcp/pair.cc:534] Connection closed\n by  peer.")) == (
        "RuntimeError: Connection closed by peer"
    )


# Locks

HOLDER = (
    "import sys, time; from pathlib import Path; from sdgmnet.storage import only_worker\n"
    "with only_worker(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
)


def test_a_second_process_is_refused_and_a_kill_frees_the_folder(tmp_path: Path) -> None:
    place = tmp_path / "scene"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(place)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another process is working on .*scene"), only_worker(place):
            pytest.fail("the folder was held")
        holder.kill()
        holder.wait()
    with only_worker(place):
        pass


def test_a_folder_removed_by_its_holder_is_locked_anew(tmp_path: Path) -> None:
    with only_worker(tmp_path / "scene"):
        shutil.rmtree(tmp_path / "scene")
    with only_worker(tmp_path / "scene"), pytest.raises(InputError), only_worker(tmp_path / "scene"):
        pytest.fail("the folder was held")


def test_a_link_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="lock"), only_worker(tmp_path):
        pytest.fail("the file of the lock is a link")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOLCK])
def test_without_locks_the_work_goes_on(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(code, "not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with try_lock(tmp_path / "new" / "a") as first, try_lock(tmp_path / "new" / "a") as second:
        assert first and second
