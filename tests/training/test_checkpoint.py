from pathlib import Path

import pytest
import torch

from sdgmnet.errors import InputError
from sdgmnet.training.checkpoint import checkpoints, load_checkpoint, save_checkpoint


def test_round_trip_keeps_the_newest_two(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"weights": torch.full((3,), float(step)), "best": {"mean": 0.1}})
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-000000002.pt", "checkpoint-000000003.pt"]
    content, complaints = load_checkpoint(tmp_path)
    assert content["step"] == 3 and complaints == []
    assert torch.equal(content["weights"], torch.full((3,), 3.0))
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_damaged_newest_is_reported_and_the_one_before_used(tmp_path: Path, damage: str) -> None:
    save_checkpoint(tmp_path, 1, {"weights": torch.ones(1000)})
    newest = save_checkpoint(tmp_path, 2, {"weights": torch.full((1000,), 2.0)})
    content = bytearray(newest.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[len(content) // 2] ^= 0xFF
    else:
        content = bytearray()
    newest.write_bytes(content)
    loaded, complaints = load_checkpoint(tmp_path)
    assert loaded["step"] == 1
    assert len(complaints) == 1 and newest.name in complaints[0]


def test_never_a_fresh_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no checkpoint"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, 1, {}).write_bytes(b"nothing")
    with pytest.raises(InputError, match="no checkpoint in"):
        load_checkpoint(tmp_path)
