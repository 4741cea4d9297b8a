"""torchrun itself: a rank that is killed, restarts, signals; and describing and matching by several ranks."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from sdgmnet.cli import main
from sdgmnet.data.patchset import PatchSet
from sdgmnet.errors import InputError
from sdgmnet.features import npy
from sdgmnet.features.h5 import names_in
from sdgmnet.features.h5_store import PartWriter, parts_folder, write_part
from sdgmnet.training.log import read_log
from tests.features.samples import groups, noise_image, write_image
from tests.ranks import run_ranks

KILLER = """
import os, signal
from pathlib import Path
from sdgmnet.loss import SDGMLoss

class Killer(SDGMLoss):
    "Rank 1 is killed in the sixth step, once."

    def forward(self, anchor, positive, *, progress=1.0):
        mark = Path("killed")
        if os.environ.get("RANK") == "1" and progress >= 5 / 8 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(anchor, positive, progress=progress)
"""
TRAIN = [
    "train", "--data", "blobs", "--iterations", "8", "--batch-size", "4", "--checkpoint-every", "2", "--threads", "1",
    "--learning-rate", "0.05", "--loss", "killer.py:Killer",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, blobs: PatchSet) -> Path:
    blobs.save(tmp_path / "blobs")
    (tmp_path / "killer.py").write_text(KILLER)
    return tmp_path


def torchrun(folder: Path, *words: str, restarts: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(restarts), "--monitor-interval", "0.1", "-m", "sdgmnet", *words]
    root = str(Path(__file__).parent.parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **streams)


def errors_of(job: subprocess.Popen[str]) -> str:
    """What it wrote until it ended; it is not left behind where it does not end."""
    try:
        return job.communicate(timeout=900)[1]
    except subprocess.TimeoutExpired:
        job.terminate()  # and with it its ranks
        raise


def undisturbed(folder: str) -> int:
    os.chdir(folder)
    return main([*TRAIN, "-o", "whole"])


@pytest.mark.slow
def test_a_killed_rank_is_started_again_and_training_goes_on(folder: Path) -> None:
    assert run_ranks(2, undisturbed, str(folder)) == [0, 0]
    disturbed = torchrun(folder, *TRAIN, "-o", "parts", restarts=1)
    errors = errors_of(disturbed)
    assert disturbed.returncode == 0, errors
    assert (folder / "killed").exists()
    assert errors.count("Resuming at step 4 of 8.") == 1  # said once
    first, second = (load_file(folder / name / "last.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert read_log(folder / "whole/log.jsonl", "epoch") == read_log(folder / "parts/log.jsonl", "epoch")
    assert (folder / "parts/training.png").exists()


@pytest.mark.slow
def test_a_killed_rank_ends_the_job_with_a_reason(folder: Path) -> None:
    job = torchrun(folder, *TRAIN, "-o", "run")
    errors = errors_of(job)
    assert job.returncode != 0
    assert "sdgmnet: training stopped at step 5 of 8: rank 0 of 2 cannot reach another rank" in errors
    assert "start the ranks again with --resume" in errors
    assert "Traceback" not in errors.split("ChildFailedError")[0].split("torch/distributed")[0]
    resumed = torchrun(folder, "train", "-o", "run", "--resume", "--loss", "killer.py:Killer")
    errors = errors_of(resumed)
    assert resumed.returncode == 0, errors
    assert "Resuming at step 4 of 8." in errors


@pytest.mark.slow
def test_ctrl_c_saves_and_the_run_goes_on(folder: Path) -> None:
    (folder / "killed").touch()
    words = ["train", "--data", "blobs", "--iterations", "2000", "--batch-size", "4", "--threads", "1", "-o", "run"]
    job = torchrun(folder, *words)
    deadline = time.monotonic() + 900
    while not (folder / "run/log.jsonl").exists() or not read_log(folder / "run/log.jsonl", "epoch"):
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.1)
    job.send_signal(signal.SIGINT)
    errors = errors_of(job)
    assert "stopped at step" in errors
    step = int(errors.split("stopped at step ")[1].split()[0])
    newest = max((folder / "run/checkpoints").glob("*.pt"))
    assert newest.name == f"checkpoint-{step:09d}.pt"


# ---- describing


def write_photos(folder: Path) -> None:
    for number in range(5):
        write_image(folder / f"{number}.png", noise_image(160, 120, number))
    (folder / "broken.png").write_bytes(b"not an image")


def describe_all(folder: str) -> tuple[list[int], str, str]:
    """Exit codes and what was printed."""
    os.chdir(folder)
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        codes = [
            main(["describe", "photos", "-o", "ranks.h5", "--descriptor", "rootsift"]),
            main(["describe", "blobs", "-o", "ranks.npy"]),
            main(["describe", "blobs", "-o", "ranks.npy"]),
            main(["describe", "nothing", "-o", "none.h5"]),
            main(["describe", "photos", "-o", "none.h5", "--descriptor", "nonsense"]),
        ]
    return codes, out.getvalue(), errors.getvalue()


def test_ranks_describe_what_one_process_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photos(folder / "photos")
    monkeypatch.chdir(folder)
    assert main(["describe", "photos", "-o", "alone.h5", "--descriptor", "rootsift"]) == 0
    assert main(["describe", "blobs", "-o", "alone.npy"]) == 0
    codes, out, errors = zip(*run_ranks(2, describe_all, str(folder)), strict=True)
    assert codes == ([0, 0, 2, 2, 2], [0, 0, 2, 2, 2])
    assert out[0].count("5 images described") == 1 and out[0].count("1 skipped") == 1 and out[1] == ""
    said = "".join(errors)
    assert said.count("broken.png") == 1
    assert said.count("exists already") == 1
    # Options are read before ranks know each other.
    assert said.count("nothing does not exist") == said.count("'nonsense' is not a descriptor") == 2
    assert_same_groups(Path("alone.h5"), Path("ranks.h5"))
    assert Path("alone.npy").read_bytes() == Path("ranks.npy").read_bytes()
    assert np.load("ranks.npy").shape == (180, 128)
    assert not list(folder.glob(".*")), "nothing is left beside the files"


def describe_apart(folder: str) -> tuple[list[int], str]:
    """As on two machines: first the same images, but a place of one's own to write to; then other images, too."""
    own = Path(folder) / str(dist.get_rank())
    own.mkdir()
    os.chdir(own)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        codes = [main(["describe", f"{folder}/photos", "-o", "out.h5", "--descriptor", "rootsift"])]
        shutil.copytree(f"{folder}/photos", "photos")
        Path("photos", f"{dist.get_rank()}.png").unlink()
        codes.append(main(["describe", "photos", "-o", "other.h5", "--descriptor", "rootsift"]))
    return codes, errors.getvalue()


def test_ranks_that_do_not_see_the_same_folders_are_told(folder: Path) -> None:
    write_photos(folder / "photos")
    (first, said), (second, _) = run_ranks(2, describe_apart, str(folder))
    assert (first, second) == ([2, 2], [2, 2])
    assert "out.h5: what other ranks described is missing" in said
    assert "images of rank 0 and of rank 1 differ" in said


def assert_same_groups(first: Path, second: Path, kind: Literal["features", "matches"] = "features") -> None:
    with h5py.File(first) as one, h5py.File(second) as other:
        assert kind == "matches" or one.attrs["sdgmnet"] == other.attrs["sdgmnet"]
    one, other = ({name: {key: (array.dtype, array.tolist()) for key, array in arrays.items()}
                   for name, arrays in groups(path).items()} for path in (first, second))  # fmt: skip
    assert one == other


MATCH = ["match", "photos", "--descriptor", "rootsift", "--pairs", "retrieval", "--neighbours", "2", "-o"]


def match_all(folder: str) -> tuple[list[int], str, str]:
    os.chdir(folder)
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        codes = [
            main([*MATCH, "ranks/matches.h5"]),
            main([*MATCH, "ranks/matches.h5"]),
            main([*MATCH, "ranks/matches.h5", "--ratio", "0.7"]),
            main([*MATCH, "ranks/other.h5", "--pairs", "none.txt"]),
        ]
    return codes, out.getvalue(), errors.getvalue()


def test_ranks_match_what_one_process_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    write_photos(folder / "photos")
    monkeypatch.chdir(folder)
    assert main([*MATCH, "alone/matches.h5"]) == 0
    codes, out, errors = zip(*run_ranks(2, match_all, str(folder)), strict=True)
    assert codes == ([0, 0, 2, 2], [0, 0, 2, 2])
    count = len(Path("alone/matches_pairs.txt").read_text().splitlines())
    assert f"{count} pairs matched" in out[0] and f"{count} in the file already" in out[0] and out[1] == ""
    assert "".join(errors).count("ratio 0.9 (now 0.7)") == 1
    assert "".join(errors).count("none.txt does not exist") == 2  # options are read before ranks know each other
    assert sorted(path.name for path in Path("ranks").iterdir()) == ["features.h5", "matches.h5", "matches_pairs.txt"]
    assert Path("alone/matches_pairs.txt").read_text() == Path("ranks/matches_pairs.txt").read_text()
    assert_same_groups(Path("alone/features.h5"), Path("ranks/features.h5"))
    assert_same_groups(Path("alone/matches.h5"), Path("ranks/matches.h5"), "matches")


def test_torchrun_starts_the_ranks_that_match(folder: Path) -> None:
    write_photos(folder / "photos")
    job = torchrun(folder, "match", "photos", "--descriptor", "rootsift", "-o", "matches.h5")
    errors = errors_of(job)
    assert job.returncode == 0, errors
    assert len(names_in(folder / "matches.h5", "matches")) == 10
    job = torchrun(folder, "match", "photos/0.png", "photos/1.png", "-o", "both.png")
    assert "only for a folder" in errors_of(job) and job.returncode != 0 and not (folder / "both.png").exists()


def test_pairs_that_a_rank_matched_before_it_was_killed_are_not_matched_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photos(folder / "photos")
    monkeypatch.chdir(folder)
    words = ["match", "photos", "--descriptor", "rootsift", "--features", "features.h5", "-o"]
    assert main([*words, "whole.h5"]) == 0
    with h5py.File("whole.h5") as file:
        note, kept = json.loads(file.attrs["sdgmnet"]), names_in(Path("whole.h5"), "matches")[3:7]
        groups = {name: {key: values[:] for key, values in file[name].items()} for name in kept}
    writer = PartWriter(Path("again.h5"), note, pause=3600)
    for name, arrays in groups.items():
        writer.add(name, arrays)
    assert not parts_folder(Path("again.h5")).exists()  # they wait in memory
    writer.write()
    assert main([*words, "again.h5"]) == 0
    assert "6 pairs matched" in capsys.readouterr().out
    assert sorted(names_in(Path("again.h5"), "matches")) == sorted(names_in(Path("whole.h5"), "matches"))


def test_what_a_rank_described_before_it_was_killed_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files lie beside the store's own: one process, or another number of ranks, goes on from there."""
    write_photos(folder / "photos")
    monkeypatch.chdir(folder)
    words = ["describe", "photos", "--descriptor", "rootsift", "-o"]
    assert main([*words, "alone.h5"]) == 0
    with h5py.File("alone.h5") as file:
        note = json.loads(file.attrs["sdgmnet"])
        arrays = {key: values[:] for key, values in file["3.png"].items()}
    arrays["scores"] = arrays["scores"] + 1  # to be recognised
    write_part(Path("again.h5"), note, {"3.png": arrays})
    assert list(parts_folder(Path("again.h5")).glob("*.h5"))
    assert main([*words, "again.h5"]) == 0
    with h5py.File("again.h5") as file:
        assert np.array_equal(file["3.png/scores"], arrays["scores"])
    assert sorted(names_in(Path("again.h5"))) == sorted(names_in(Path("alone.h5")))
    assert not parts_folder(Path("again.h5")).exists()


def test_a_patchset_is_described_alone_and_into_an_array(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for words, sentence in (
        (["blobs", "-o", "out.h5"], "npy file"),
        (["blobs", "blobs", "-o", "out.npy"], "one PatchSet at a time"),
        (["blobs", "-o", "out.npy", "--keypoints", "3"], "leave out the options for images"),
    ):
        assert main(["describe", *words]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["describe", "blobs", "-o", "out.npy", "--descriptor", "sift"]) == 0
    assert np.load("out.npy").shape == (180, 128)


def test_parts_of_a_patchset_are_not_left_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes on with them: they are made anew."""
    monkeypatch.chdir(folder)

    def fail(*arguments: Any, **named: Any) -> None:
        raise InputError("broken.")

    monkeypatch.setattr(npy, "_concatenate", fail)
    assert main(["describe", "blobs", "-o", "out.npy"]) == 2
    assert not list(folder.glob(".*"))
