from pathlib import Path

import pytest

from sdgmnet.reconstruction.times import Times


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
