from pathlib import Path

import pytest

from sdgmnet.sfm.sparse import alone
from sdgmnet.sfm.stage_timer import Times


def test_times_add_up_over_restarts_and_failures(tmp_path: Path) -> None:
    with Times(tmp_path / "seconds.json").of("dense"):
        pass
    times = Times(tmp_path / "seconds.json")
    before = times.read()
    assert before["seconds"]["dense"] < 5
    assert before["peak_bytes"] > 1e6
    with pytest.raises(KeyboardInterrupt), times.of("correspondence"):
        raise KeyboardInterrupt
    assert set(times.read()["seconds"]) == {"dense", "correspondence"}
    times.peak(10**15, "dense")
    after = times.read()
    assert after["peak_bytes"] == after["peak_bytes_of"]["dense"] == 10**15
    assert 1e6 < after["peak_bytes_of"]["correspondence"] < 10**15


def test_memory_of_a_process_of_its_own_is_its_own(tmp_path: Path) -> None:
    """What the parent holds, or held, is not counted."""
    held = bytearray(b"1" * 400_000_000)
    step = alone("json:loads", tmp_path / "log.txt", s="[1]")
    assert step.result == [1] and len(held) > step.peak_bytes > 1e6
