"""Every reader reads its valid files, and a short run of the fuzzer."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from sdgmnet.errors import InputError
from sdgmnet.training.checkpoint import read_checkpoint, save_checkpoint
from tests.trust.fuzz import fuzz, table, write_valid
from tests.trust.mutations import mutate_bytes
from tests.trust.readers import TARGETS

needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is bounded by what /proc says")


@pytest.mark.parametrize("name", TARGETS)
def test_valid_files_are_read(name: str, tmp_path: Path) -> None:
    write_valid(name, tmp_path)
    TARGETS[name].read(tmp_path)


@needs_proc
def test_short_run_of_the_fuzzer() -> None:
    tallies = fuzz(count=400, seed=11)
    escapes = [escape for tally in tallies for escape in tally.escapes]
    assert not escapes, "\n".join(f"{one.target} {one.number}: {one.reason}" for one in escapes)
    assert sum(tally.inputs for tally in tallies) >= 390
    assert sum(tally.refused for tally in tallies) > 100
    assert sum(tally.read for tally in tallies) > 20  # some mutations are harmless
    assert "| all |" in table(tallies)


def forever() -> None:
    while True:
        pass


@needs_proc
@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda folder: int("x"), "ValueError"),
        (lambda folder: np.empty(3 << 30, dtype=np.uint8), "MemoryError"),
        (lambda folder: Path("/tmp/sdgmnet-escape").write_text("x"), "Forbidden"),
        (lambda folder: (folder / "H_1_2").rename("/tmp/sdgmnet-escape"), "Forbidden"),
        (lambda folder: __import__("os").system("true"), "Forbidden"),
        (lambda folder: __import__("ctypes").string_at(0), "SIGSEGV"),
        (lambda folder: forever(), "Hang"),
        (lambda folder: sum(iter(int, 1)), "no alarm ends"),
    ],
)
def test_fuzzer_detects_every_kind_of_escape(read: object, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "homography", TARGETS["homography"]._replace(read=read))
    monkeypatch.setattr("tests.trust.fuzz.SECONDS_PER_INPUT", 0.3)
    if said == "no alarm ends":  # the others may be slow on a busy machine
        monkeypatch.setattr("tests.trust.fuzz.SECONDS_WITHOUT_NEWS", 3.0)
    [tally] = fuzz(count=1, seed=0, names=["homography"])
    assert [said in escape.reason for escape in tally.escapes] == [True], tally
    assert not Path("/tmp/sdgmnet-escape").exists()


def test_any_changed_byte_of_a_checkpoint_is_detected_or_harmless(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 3, {"weights": torch.arange(5.0)})
    whole = path.read_bytes()
    for number in range(60):
        path.write_bytes(mutate_bytes(whole, Random(number)))
        try:
            found = read_checkpoint(path)
        except InputError:
            continue
        assert torch.equal(found["weights"], torch.arange(5.0)) and found["step"] == 3
