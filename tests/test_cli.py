"""The commands: help, bad input, and a round trip."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from sdgmnet.benchmarks import BENCHMARKS
from sdgmnet.cli import COMMANDS, main
from sdgmnet.data.patchset import PatchSet
from sdgmnet.descriptors import accepted_forms
from sdgmnet.options import parameters
from sdgmnet.registry import load
from sdgmnet.version import __version__
from tests.features.samples import noise_image, write_image

PROGRAMS = {"sdgmnet": "sdgmnet.cli", "python -m reproduce": "reproduce.__main__", "python -m bench": "bench.__main__"}


def test_overview_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown and command.summary in shown for name, command in COMMANDS.items())
    assert all(f"evaluate {name}" in COMMANDS for name in BENCHMARKS)
    for word in ("--version", "version", "-v", "-V"):
        assert main([word]) == 0
        assert capsys.readouterr().out.strip() == __version__
    assert main(["data", "--help"]) == 0
    assert "data phototour" in capsys.readouterr().out
    assert main(["data"]) == 2
    assert "data phototour" in capsys.readouterr().err


def test_help_of_a_command_by_the_word(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["help", "match"], ["match", "--help"], ["match", "-h"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith("usage: sdgmnet match IMAGE ...")
    assert main(["help"]) == main(["help", "data"]) == 0
    assert "data photos" in capsys.readouterr().out


UGLY = re.compile(r"None\}|\{None|<class|\(default: \)|\[\[|\bSTR\b|NoneType|default: None|\bINT\b|\(\)")


WITHOUT_OUT = (
    "data pairs",
    "doctor",
    "completion",
    "app",
)  # the first writes into the sets it is given, the others nothing


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_help_reads_well(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    commands = import_module(PROGRAMS[program]).COMMANDS
    for name in commands:
        with pytest.raises(SystemExit) as ended:
            main([*name.split(), "--help"], commands, program)
        shown = capsys.readouterr().out
        text = " ".join(shown.split())
        assert ended.value.code == 0
        assert text.startswith(f"usage: {program} {name}")
        assert "-q, --quiet" in shown and "-v, --verbose" in shown
        assert "--out" in shown or name in WITHOUT_OUT
        assert not UGLY.findall(shown), name
        assert max(map(len, shown.splitlines())) <= 128
        if "DESCRIPTOR" in shown:
            assert accepted_forms() in text, name
        known = parameters(load(commands[name].options))
        assert all(one.option.help for one in known), name  # no option without a word about it


QUICK = """
import sys
from importlib import import_module
from sdgmnet.cli import main
program, place = sys.argv[1:]
commands = import_module(place).COMMANDS
for name in commands:
    assert main([*name.split(), "--nosuchoption"], commands, program) == 2, name
    try:
        main([*name.split(), "--help"], commands, program)
    except SystemExit:
        pass
assert main(["mach"], commands, program) == main(["help", "mach"], commands, program) == 2
slow = {"torch", "matplotlib", "h5py", "scipy", "kornia", "pycolmap", "skimage"} & set(sys.modules)
sys.exit(f"slow imports: {slow}" if slow else 0)
"""


@pytest.mark.parametrize(("program", "place"), PROGRAMS.items())
def test_help_and_wrong_options_need_no_slow_library(program: str, place: str) -> None:
    done = subprocess.run([sys.executable, "-c", QUICK, program, place], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--nosuchoption is not an option of" in done.stderr


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("match -q --verbose", "--quiet and --verbose"),
        ("fly", "'fly'; sdgmnet --help"),
        ("trian", "did you mean train?"),
        ("mach", "did you mean match"),
        ("match a.jpg b.jpg --keypoint 5", "did you mean --keypoints?"),
        ("describe a.jpg -o {tmp}/f.h5 --keypoints points.txt", "--keypoints-from"),
        ("describe a.jpg -o {tmp}/features.txt", "features.h5"),
        ("export onnx sdgmnet -o {tmp}/model.pt", "model.onnx"),
        ("describe {tmp}/a.png -o /proc/none/f.h5", "/proc/none/f.h5 cannot be written (No such file or directory)"),
        ("match a.jpg b.jpg -o /proc/m.png", "/proc/m.png cannot be written"),
        ("demo -o {tmp}/set/set.json/demo", "set.json is a file"),
        ("train -o {tmp}/run --data demo --recipe hinet", "did you mean hynet?"),
        ("train -o {tmp}/run --data demo --loss sdgn", "did you mean sdgm?"),
        ("train -o {tmp}/run", "--data demo"),
        ("evaluate match", "did you mean evaluate matching?"),
        ("evaluate hpathces", "did you mean evaluate hpatches?"),
        ("train -o {tmp}/run --data {tmp}/nowhere", "nowhere"),
        ("train -o {tmp}/run --data {tmp}/empty", "empty"),
        ("train -o {tmp}/run --resume", "run"),
        ("train --data demo -o {tmp}/run --iterations 0", "iterations"),
        ("train -o {tmp}/run --speed 9", "--speed"),
        ("train -o {tmp}/run --data {tmp}/set {tmp}/set", "set"),
        ("train -o {tmp}/run --data {tmp}/set --learning-rate inf", "learning"),
        ("train -o {tmp}/run --data {tmp}/set --device meta", "meta"),
        ("train --data demo -o {tmp}/run --loss magic", "sdgm"),
        ("train --data demo -o {tmp}/run --recipe=", "--recipe"),
        ("train --data demo -o {tmp}/run --preset=", "--preset"),
        ("train --data demo -o {tmp}/run --loss sosnet --loss-options second_order=-1", "second_order"),
        ("train --data demo -o {tmp}/run --loss hynet --loss-options alpha=-1", "alpha"),
        ("train -o {tmp}/set/set.json --data {tmp}/set --batch-size 8", "set.json"),
        ("evaluate phototour hog --data {tmp}/set", "'hog'"),
        ("evaluate phototour {tmp}/none.safetensors --data {tmp}/set", "none.safetensors"),
        ("evaluate phototour --data {tmp}/set", "at least one descriptor"),
        ("demo -o {tmp}/demo --iterations -1", "iterations"),
        ("data phototour {tmp}/nowhere -o {tmp}/out", "nowhere"),
        ("data export {tmp} -o {tmp}/out", "PatchSet"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(
    line: str, named: str, tmp_path: Path, blobs: PatchSet, capsys: pytest.CaptureFixture[str]
) -> None:
    blobs.save(tmp_path / "set")
    (tmp_path / "empty").mkdir()
    write_image(tmp_path / "a.png", blobs.patches[0])
    try:
        code = main(line.replace("{tmp}", str(tmp_path)).split())
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    shown = capsys.readouterr()
    assert code == 2
    assert named in shown.err + shown.out and "Traceback" not in shown.err


def test_train_evaluate_export_round_trip(
    tmp_path: Path, blobs: PatchSet, other_blobs: PatchSet, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of a whole afternoon, in seconds."""
    for one in (blobs, other_blobs):
        one.save(tmp_path / "sets" / one.name)
    sets, out = str(tmp_path / "sets"), tmp_path / "run"
    assert main(["train", "--data", sets, "--holdout", "blobs2", "--iterations", "4", "--batch-size", "8",
                 "--evaluations", "1", "--evaluation-pairs", "40", "-o", str(out)]) == 0  # fmt: skip
    for name in ("training.png", "fig2.png", "triplets.png"):
        assert (out / name).stat().st_size > 10_000, name
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


def test_what_is_left_out_or_drawn_is_said_and_a_finished_run_stays(
    tmp_path: Path, blobs: PatchSet, other_blobs: PatchSet, capsys: pytest.CaptureFixture[str]
) -> None:
    church = replace(blobs, name="church", test_pairs=None)
    views = replace(blobs, name="church-views", test_pairs=None, origin={"scene": "church"})
    for one in (church, views, other_blobs):
        one.save(tmp_path / "sets" / one.name)
    run = ["train", "-o", str(tmp_path / "run")]
    settings = ["--holdout", "church", "--iterations", "2", "--batch-size", "8", "--evaluations", "1"]
    assert main([*run, "--data", str(tmp_path / "sets"), *settings]) == 0
    said = capsys.readouterr().err
    assert said.startswith("Loading torch and the data ...\n")
    assert "church-views is not trained on: it shows the held-out scene church." in said
    assert re.search(r"church has no test pairs: \d+ were drawn \(seed 0\)\.", said)
    assert "step 2: evaluating on" in said and "Are the labels right" not in said
    assert said.endswith(f"Weights, log and results are in {tmp_path / 'run'}.\n")
    results = (tmp_path / "run/results.json").stat().st_mtime_ns
    assert main([*run, "--resume"]) == 0
    assert capsys.readouterr().err == f"{tmp_path / 'run'} is finished (2 of 2 iterations).\n"
    assert (tmp_path / "run/results.json").stat().st_mtime_ns == results
    (tmp_path / "run/training.png").unlink()
    assert main([*run, "--resume"]) == 0 and (tmp_path / "run/training.png").exists()
    assert main([*run, "--resume", "--seed", "5"]) == 2
    assert main(["evaluate", "phototour", "sift", "--data", str(tmp_path / "sets/church")]) == 0
    assert "church has no test pairs" in capsys.readouterr().err


def test_a_run_with_another_loss_has_no_fig2(tmp_path: Path, blobs: PatchSet) -> None:
    blobs.save(tmp_path / "set")
    words = ["train", "--data", str(tmp_path / "set"), "--loss", "hardnet", "--iterations", "3", "--batch-size", "8"]
    assert main([*words, "--evaluations", "1", "--evaluation-pairs", "50", "-o", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run/training.png").exists()
    assert not (tmp_path / "run/fig2.png").exists()


def test_quiet_leaves_results_and_errors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The second image is empty, which is a remark, and an error if it does not exist."""
    paths = [write_image(tmp_path / "a.png", noise_image(200, 160)), tmp_path / "b.png"]
    write_image(paths[1], np.full((90, 80), 7, dtype=np.uint8))
    words = ["match", *map(str, paths), "--descriptor", "sift", "--json"]
    assert main(words) == 0
    loud = capfd.readouterr()
    assert "b.png" in loud.err and json.loads(loud.out)["counts"]["keypoints_second"] == 0
    assert main([*words, "--quiet"]) == 0
    quiet = capfd.readouterr()
    assert quiet.err == "" and json.loads(quiet.out)["counts"] == json.loads(loud.out)["counts"]
    assert main([*words, "-v"]) == 0
    verbose = capfd.readouterr()
    assert __version__ in verbose.err and "engine on this CPU" in verbose.err and " s in all" in verbose.err
    paths[1].unlink()
    for option, traced in (("-q", False), ("-v", True)):
        assert main([*words, option]) == 2
        error = capfd.readouterr().err
        assert "b.png does not exist" in error and ("Traceback" in error) == traced
    assert main([*words, "--", "-q"]) == 2  # a third image


def test_quiet_training_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "train --data demo --iterations 2 --batch-size 8 --evaluations 1 --evaluation-pairs 50 -q -o"
    assert main([*words.split(), str(tmp_path / "run")]) == 0
    assert capfd.readouterr() == ("", "") and (tmp_path / "run" / "results.json").exists()
