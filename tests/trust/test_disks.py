"""Full and read-only disks, two processes in one folder: one sentence, exit code 2, and existing files stay."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.trust.jobs import JOBS, Job, unfinished
from tests.trust.nursery import Ended, Nursery, nursery
from tests.trust.reports import record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are watched through /proc"),
]
SIZES = 12
PAGE = 4096
OLD = "an existing file\n"


@contextmanager
def disk(place: Path, size: int) -> Iterator[Path]:
    """A tmpfs of that many bytes."""
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def change(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def used(place: Path) -> int:
    found = os.statvfs(place)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def require_sentence(ended: Ended, *words: str) -> None:
    assert ended.code == 2, ended.said
    assert "Traceback" not in ended.said
    assert any(word in ended.said.lower() for word in words), ended.said


@pytest.mark.parametrize("name", JOBS)
def test_disk_gets_full_at_every_writing_step(name: str, job: Job, runner: Nursery, tmp_path: Path) -> None:
    inputs, most = tmp_path / "inputs", 0
    with disk(tmp_path / "large", 1 << 30) as large:

        def look(so_far: float) -> bool:
            nonlocal most
            most = max(most, used(large))
            return False

        undisturbed = runner.run(job.start(inputs, large / "out"), look)
        assert undisturbed.code == 0, undisturbed.said
        result = job.result(large / "out")
    refused, passed = 0, 0
    pages = {round(most * (number + 0.5) / SIZES) // PAGE for number in range(SIZES)}
    sizes = sorted({PAGE * max(2, count) for count in pages})  # one page for the old file; small jobs have fewer sizes
    try:
        for size in sizes:
            with disk(tmp_path / f"small{size}", size) as small:
                (small / "old.txt").write_text(OLD)
                ended = runner.run(job.start(inputs, small / "out"))
                if ended.code:
                    require_sentence(ended, "disk is full")
                    refused += 1
                if (small / "out").exists():
                    job.whole(small / "out")
                assert (small / "old.txt").read_text() == OLD
                change(small, f"size={most + (64 << 20)}")
                again = runner.run(job.again(inputs, small / "out"))
                assert again.code == 0, again.said
                assert job.result(small / "out") == result
                assert unfinished(small / "out") == []
                passed += 1
    finally:
        remark = f"{refused} of {len(sizes)} sizes were too small; {most / 1e6:.2g} MB are needed"
        record(name, "disk full", passed, len(sizes), remark)
    assert refused >= len(sizes) // 2


@pytest.mark.parametrize("name", JOBS)
def test_read_only_disk(name: str, job: Job, runner: Nursery, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs"
    with disk(tmp_path / "disk", 1 << 28) as place:
        (place / "old.txt").write_text(OLD)
        change(place, "ro")
        require_sentence(runner.run(job.start(inputs, place / "out")), "read-only")
        assert [path.name for path in place.iterdir()] == ["old.txt"]
    record(name, "read-only folder", 1, 1)


@pytest.mark.parametrize("name", JOBS)
def test_two_processes_on_one_folder(name: str, job: Job, runner: Nursery, tmp_path: Path) -> None:
    """Either may be refused, and neither disturbs the other."""
    inputs, out, ends = tmp_path / "inputs", tmp_path / "out", list[Ended]()
    undisturbed = runner.run(job.start(inputs, tmp_path / "undisturbed"))
    assert undisturbed.code == 0, undisturbed.said
    (tmp_path / "other").mkdir()
    with nursery(tmp_path / "other") as second:
        threads = [
            threading.Thread(target=lambda one=one: ends.append(one.run(job.start(inputs, out))))
            for one in (runner, second)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(end.code for end in ends) in ([0, 0], [0, 2]), [end.said for end in ends]
    for end in ends:
        if end.code:
            require_sentence(end, "another", "already")
    assert job.result(out) == job.result(tmp_path / "undisturbed")
    assert unfinished(out) == []
    record(
        name, "two processes at once", 1, 1, "one was refused" if any(end.code for end in ends) else "both ended well"
    )
