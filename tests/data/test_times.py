from pathlib import Path

import pytest

from sdgmnet.data.times import Times


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
