import json
import subprocess
import sys
from pathlib import Path

import pytest

from sdgmnet.cli import COMMANDS, main
from sdgmnet.data.patchset import PatchSet
from sdgmnet.version import __version__


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "sdgmnet", *words], capture_output=True, text=True, check=False)


def test_overview_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__
    assert main(["data", "--help"]) == 0
    assert "data phototour" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0
    if name != "data pairs":  # which writes into the sets it is given
        assert "--out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fly"], "no command 'fly'"),
        (["paper", "fig6"], "no command 'paper fig6'; did you mean paper fig6a or paper fig6b or paper fig6c?"),
        (["paper", "fig99"], "no command 'paper fig99': these are all that begin so."),
        (["train", "-o", "{tmp}/run", "--data", "{tmp}/nowhere"], "no such folder"),
        (["train", "-o", "{tmp}/run", "--data", "{tmp}"], "neither a PatchSet"),
        (["train", "-o", "{tmp}/run", "--resume"], "no run to resume"),
        (["train", "-o", "{tmp}/run", "--iterations", "0"], "--iterations"),
        (["evaluate", "phototour", "hog", "--data", "{tmp}/set"], "no descriptor"),
        (["evaluate", "phototour", "{tmp}/none.safetensors", "--data", "{tmp}/set"], "does not exist"),
        (["evaluate", "phototour", "--data", "{tmp}/set"], "at least one descriptor"),
        (["train", "-o", "{tmp}/run", "--data", "{tmp}/set", "{tmp}/set"], "more than once"),
        (["train", "-o", "{tmp}/run", "--data", "{tmp}/set", "--learning-rate", "inf"], "finite"),
        (["train", "-o", "{tmp}/run", "--data", "{tmp}/set", "--device", "meta"], "not supported"),
        (["train", "-o", "{tmp}/run", "--loss", "magic"], "one of sdgm"),
        (["train", "-o", "{tmp}/run", "--recipe="], "--recipe must be one of paper, photos"),
        (["train", "-o", "{tmp}/run", "--preset="], "--preset must be one of native, sdgm"),
        (
            ["train", "-o", "{tmp}/run", "--loss", "hardnet", "--loss-options", "min_negative_angle=9"],
            "min_negative_angle is in radians",
        ),
        (["train", "-o", "{tmp}/run", "--loss", "sosnet", "--loss-options", "second_order=-1"], "must not be negative"),
        (["train", "-o", "{tmp}/run", "--loss", "hynet", "--loss-options", "alpha=-1"], "alpha must not be negative"),
        (["paper", "fig1", "--seed", "-1", "-o", "{tmp}/run"], "--seed must not be negative"),
        (["train", "-o", "{tmp}/set/set.json", "--data", "{tmp}/set", "--batch-size", "8"], "is a file"),
        (["demo", "-o", "{tmp}/", "--iterations", "-1"], "--iterations"),
        (["data", "phototour", "{tmp}/nowhere", "-o", "{tmp}/out"], "not a folder"),
        (["data", "export", "{tmp}", "-o", "{tmp}/out"], "not a PatchSet"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(
    words: list[str], said: str, tmp_path: Path, blobs: PatchSet, capsys: pytest.CaptureFixture[str]
) -> None:
    blobs.save(tmp_path / "other" / "set")
    (tmp_path / "set").symlink_to(tmp_path / "other" / "set")
    words = [word.replace("{tmp}/", f"{tmp_path}/").replace("{tmp}", str(tmp_path / "other/set/..")) for word in words]
    if said == "neither a PatchSet":
        (tmp_path / "empty").mkdir()
        words[-1] = str(tmp_path / "empty")
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    shown = capsys.readouterr()
    assert code == 2
    assert said in shown.err + shown.out
    assert "Traceback" not in shown.err


def test_unknown_option_is_code_2() -> None:
    done = run("train", "-o", "x", "--speed", "9")
    assert done.returncode == 2
    assert "--speed" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_train_evaluate_export_round_trip(
    tmp_path: Path, blobs: PatchSet, other_blobs: PatchSet, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of a whole afternoon, in seconds."""
    for one in (blobs, other_blobs):
        one.save(tmp_path / "sets" / one.name)
    sets, out = str(tmp_path / "sets"), tmp_path / "run"
    assert main(["train", "--data", sets, "--holdout", "blobs2", "--iterations", "4", "--batch-size", "8",
                 "--evaluations", "1", "--evaluation-pairs", "40", "-o", str(out)]) == 0  # fmt: skip
    assert (out / "training.png").stat().st_size > 10_000
    assert (out / "fig2.png").stat().st_size > 10_000
    capsys.readouterr()
    words = ["evaluate", "phototour", "sift", "rootsift", f"mine={out}", "--data", sets]
    assert main([*words, "-o", str(tmp_path / "results")]) == 0
    assert "mine" in capsys.readouterr().out
    lines = json.loads((tmp_path / "results/results.json").read_text())["lines"]
    unseen = [(line["label"], row["test"]) for line in lines for row in line["rows"] if row["fpr95"] is None]
    assert unseen == [("mine", "blobs1")]
    assert "| mine | blobs1 |" in (tmp_path / "results/table.md").read_text()
    assert (tmp_path / "results/fpr95.png").stat().st_size > 5_000
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == lines
    exported = tmp_path / "exported"
    assert main(["data", "export", f"{sets}/blobs1", "-o", str(exported), "--contiguous-ids"]) == 0
    assert main(["data", "phototour", str(exported), "-o", str(tmp_path / "again")]) == 0
    again = PatchSet.open(tmp_path / "again/exported")
    assert (again.patches == blobs.patches).all()
    assert again.point_id.max() == 59


def test_a_run_with_another_loss_ends_well(tmp_path: Path) -> None:
    words = ["train", "--data", "demo", "--loss", "hardnet", "--iterations", "3", "--batch-size", "8"]
    assert main([*words, "--evaluations", "1", "--evaluation-pairs", "50", "-o", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run/training.png").exists()
    assert not (tmp_path / "run/fig2.png").exists()


@pytest.mark.parametrize(
    "words", [["--repeats", "0"], ["--pairs", "1"], ["--patches", "0"], ["--memory-patches", "-1"]]
)
def test_bench_refuses_nonsense(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "data", *words]) == 2
    assert "must be at least" in capsys.readouterr().err
