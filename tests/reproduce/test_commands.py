"""`python -m reproduce ...` from the command line: what is written, what is reused, and what is refused."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reproduce import benchmarks
from reproduce.ablation import DASHED, FRAMEWORKS
from reproduce.modulation import make_loss
from sdgmnet.benchmarks import hpatches
from sdgmnet.benchmarks.hpatches import headline
from sdgmnet.benchmarks.hpatches_tasks import POOLS
from sdgmnet.data.patchset import PatchSet
from sdgmnet.descriptors import load_descriptor
from sdgmnet.encoders import SDGMNet, save_encoder
from sdgmnet.report import Section
from sdgmnet.training.angles import Angles
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.log import RunLog
from tests.conftest import blob_patches
from tests.data.test_hpatches_files import write_strips
from tests.features.samples import noise_image, write_image
from tests.reproduce.helpers import assert_fails, is_written, main

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sets")
    for seed in (1, 2, 3):
        blob_patches(30, 3, seed).save(root / f"blobs{seed}")
    return root


def words(folders: Path, out: Path, *more: str) -> list[str]:
    groups = [f"A={folders}/blobs1", f"B={folders}/blobs2", f"C={folders}/blobs3"]
    small = ["--iterations", "2", "--batch-size", "8", "--checkpoint-pairs", "60"]
    return ["--groups", *groups, *small, "-o", str(out), *more]


def trained(out: Path) -> list[Path]:
    return sorted((out / "runs").glob("*/result.json"))


@pytest.mark.slow
def test_table1_and_again_without_training(folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    call = ["table1", *words(folders, out, "--methods", "sift", "tfeat", "--best-seeds", "1")]
    assert main(*call, "--plan") == 0
    shown = capsys.readouterr().err
    assert "Plan: 3 training runs, 0 of them done" in shown and "Estimate: " in shown and "more runs" not in shown
    assert main(*call[:-2], "--plan") == 0
    assert re.search("Then 3 more runs: further seeds .* methods, about", capsys.readouterr().err)
    assert not out.exists()
    assert main(*call) == 0
    content = json.loads((out / "table1.json").read_text())
    assert [row["method"] for row in content["rows"]] == ["SIFT", "TFeat"]
    text = (out / "table1.md").read_text()
    assert "not PhotoTour" in text and "2 iterations" in text and "N = 8" in text and "| TFeat |" in text
    assert is_written(out, "table1")
    before = [path.stat().st_mtime_ns for path in trained(out)]
    capsys.readouterr()
    assert main(*call, "--json") == 0
    assert [path.stat().st_mtime_ns for path in trained(out)] == before and len(before) == 3
    printed = capsys.readouterr()
    assert "all done before" in printed.err and json.loads(printed.out) == content
    assert printed.err.endswith("out: table1.md, table1.json, table1.png, table1.pdf, table.md, results.json.\n")

    assert main("table1", *words(folders, out, "--methods", "tfeat", "hardnet", "--finished")) == 0
    so_far = (out / "table1.md").read_text()
    assert "3 of the 6 runs" in so_far and "| HardNet | - | - | - | 0 |" in so_far and len(trained(out)) == 3
    assert main("table1", *words(folders, out, "--methods", "sift", "--finished")) == 0
    assert main("fig6c", *words(folders, out, "--finished")) == 2
    assert "no finished run" in capsys.readouterr().err


@pytest.mark.slow
def test_table1_with_only_the_loss_changed(folders: Path, tmp_path: Path) -> None:
    """It has its own files; runs that both tables need are trained once."""
    out = tmp_path / "out"
    call = ["table1", *words(folders, out, "--methods", "sosnet", "hardnet+frn", "--best-seeds", "1")]
    assert main(*call) == 0
    usual = (out / "table1.json").read_bytes()
    assert main(*call, "--preset", "sdgm") == 0
    assert (out / "table1.json").read_bytes() == usual
    configs = [json.loads(path.read_text())["config"] for path in trained(out)]
    made = sorted((one["loss"], one["encoder"], one["optimizer"]) for one in configs)
    fair, own = ("sosnet", "sdgmnet", "sgd"), ("sosnet", "l2net", "adam")
    assert made == sorted([("hardnet", "sdgmnet", "sgd"), fair, own] * 3)
    content = json.loads((out / "table1-sdgm.json").read_text())
    assert [row["preset"] for row in content["rows"]] == ["sdgm", "sdgm"]
    assert "only the loss differs: SOSNet, HardNet+FRN." in content["caption"]
    assert "of their own papers" not in content["caption"]


@pytest.mark.slow
def test_figures_of_sdgmnets_runs(folders: Path, tmp_path: Path) -> None:
    """fig6a, reproducibility, fig6b, fig6c, fig7 and table2-4 on tiny runs that they share."""
    out = tmp_path / "out"
    assert main("fig6a", *words(folders, out, "--train", "A")) == 0
    assert main("reproducibility", *words(folders, out, "--train", "A", "--seeds", "1")) == 0
    assert main("fig6b", *words(folders, out, "--margins", "0.6", "0.7", "--alphas", "0.8", "0.9")) == 0
    assert len(trained(out)) == 3  # m = 0.6 and α = 0.9 are the run of fig6a
    assert all(is_written(out, name) for name in ("fig6a", "fig6b", "reproducibility"))
    assert [one["value"] for one in json.loads((out / "fig6b.json").read_text())["alpha"]] == [0.8, 0.9]
    assert main("fig6b", *words(folders, out, "--finished")) == 0
    so_far = json.loads((out / "fig6b.json").read_text())
    assert [one["value"] for one in so_far["margin"]] == [0.6, 0.7] and "6 of the 9 runs" in so_far["caption"]
    assert main("fig6c", *words(folders, out, "--finished", "--train", "A", "B")) == 0
    scores = json.loads((out / "fig6c.json").read_text())["scores"]
    assert scores["af+pa"]["fpr95"]["last"] == []  # of the two groups only A was trained on
    assert main("fig6c", *words(folders, out, "--finished")) == 0
    text = (out / "fig6c.md").read_text()
    assert "9 of the 10 runs" in text and "| &AF +PA |" in text and "| HyNet |" not in text

    assert main("fig6c", *words(folders, out)) == 0
    found = json.loads((out / "fig6c.json").read_text())
    assert list(found["scores"]) == [*FRAMEWORKS, *DASHED]
    (run,) = (out / "runs").glob("sdgmnet-A-*")
    end = json.loads((run / "result.json").read_text())["last"]
    assert found["scores"]["af+pa"]["fpr95"]["last"] == pytest.approx([sum(end.values()) / 2])
    rows = [line for line in (out / "fig6c.md").read_text().splitlines() if line.startswith(("| HyNet", "| &AF +PA"))]
    assert [row.split("|")[-2].strip() for row in rows] == ["0.76", "0.84"]
    assert (out / "results.json").read_bytes() == (out / "fig6c.json").read_bytes()

    strips = tmp_path / "strips"
    for place, name in enumerate(("v_one", "v_two")):
        write_strips(strips / name, count=12, seed=place)
    call = words(folders, out, "--root", str(strips), "--alphas", "0.8", "0.9", "--pairs", "20")
    assert main("fig7", *call) == 0
    fig7 = json.loads((out / "fig7.json").read_text())["alphas"]
    assert [one["alpha"] for one in fig7] == [0.8, 0.9]
    alone = load_descriptor(str(run / "last.safetensors")).describe
    expected = headline(hpatches.run(alone, strips, split="all", pairs=20), "matching")
    assert fig7[1]["matching"]["map"] == pytest.approx(expected)
    for path in (out / "runs").glob("alpha=0.8-A-*/last.safetensors"):
        path.unlink()
    assert main("fig7", *call, "--finished") == 0
    so_far = json.loads((out / "fig7.json").read_text())
    assert [one["alpha"] for one in so_far["alphas"]] == [0.9] and "alpha=0.8" in so_far["caption"]

    assert main("table2-4", run, "-o", out) == 0
    here = json.loads((out / "table2-4.json").read_text())["here"][run.name]
    epochs = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines() if '"epoch"' in line]
    first, second = (line["running_theta_pos_mean"] for line in epochs)
    assert here["values"]["theta_pos_mean"] == [first, first, first, second, second]  # of 2 iterations
    assert main("table2-4", run, run, "-o", out) == 2


def test_a_plan_counts_a_run_once(folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """m = 0.6 and α = 0.9 are the same training."""
    sweep = ["--margins", "0.6", "0.7", "--alphas", "0.9", "1", "--plan"]
    assert main("fig6b", *words(folders, tmp_path / "out", *sweep)) == 0
    shown = capsys.readouterr().err
    assert "Plan: 3 training runs" in shown and "for 3 runs" in shown
    assert "margin=0.6 on A" in shown and "alpha=0.9" not in shown
    assert main("fig6b", *words(folders, tmp_path / "out", *sweep, "--json")) == 0
    lines = json.loads(capsys.readouterr().out)["runs"]
    assert [(one["state"], one["iterations"], one["batch_size"]) for one in lines] == [("to do", 2, 8)] * 3
    assert all(one["seconds"] > 0 for one in lines) and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_command_started_twice_shares_its_runs(folders: Path, tmp_path: Path) -> None:
    """Two real processes at once: each run is trained by one of them, and both write the whole figure."""
    out = tmp_path / "out"
    call = ["fig6b", *words(folders, out, "--margins", "0.6", "0.7", "--alphas", "0.8", "0.9")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    command, pipe = [sys.executable, "-m", "reproduce", *call], subprocess.PIPE
    both = [subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe) for _ in range(2)]
    said = [process.communicate(timeout=300)[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    lines = [line for text in said for line in text.splitlines() if "FPR@95 best" in line]
    here = [line.partition(":")[0] for line in lines if "(trained by another process)" not in line]
    assert len(here) == len(set(here)) == len(trained(out)) == 3
    assert len(json.loads((out / "fig6b.json").read_text())["margin"]) == 2


# Figures of one run, of patches, and of benchmarks.


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    random = np.random.default_rng(0)
    moments = np.array([[0.8, 0.2], [1.1, 0.1], [-0.3, 0.25]])
    Angles(random.normal(0.8, 0.2, 50), random.normal(1.1, 0.1, 50), moments).save(folder / "angles.npz")
    TrainConfig(iterations=20, batch_size=8, loss_options=("margin=0.5",)).save(folder / "config.json")
    log = RunLog(folder / "log.jsonl")
    for step in (1, 2, 3):
        powers = {"power_pos": 8.0, "power_neg": 8.0}
        running = {f"running_{name}": 20.0 / step for name in powers}
        log.write("epoch", step, learning_rate=1.0, **powers, **running)
    return folder


@pytest.mark.slow
def test_figures_of_a_run(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main("fig2", run, "-o", out) == 0 and is_written(out, "fig2")
    assert json.loads((out / "results.json").read_text())["settings"]["margin"] == 0.5
    table = (out / "table.md").read_text()
    assert "Run run: sdgmnet by sdgm on demo, 20 iterations, N = 8, seed 0." in table
    assert "| θʳ | -0.3000 | 0.2500 |" in table
    assert main("learning-rate", run, "-o", out) == 0 and is_written(out, "learning_rate")
    assert json.loads((out / "results.json").read_text())["factor_pos"] == pytest.approx([0.4, 0.8, 1.2])
    assert main("margin-share", run, "-o", out) == 0 and is_written(out, "margin_share")
    assert "| 0.7 |" in (out / "table.md").read_text() and "< 30" in (out / "table.md").read_text()


@pytest.mark.slow
def test_captions_name_the_kind_of_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    TrainConfig(iterations=20, batch_size=8, loss="hynet", init="weights/older.safetensors").save(run / "config.json")
    assert main("fig2", run, "-o", out) == 0
    table = (out / "table.md").read_text()
    assert "20 iterations, initial weights older.safetensors, N = 8" in table
    assert "that SDGM's loss would give by the moments of these triplets" in table and "running" not in table
    TrainConfig(iterations=20, batch_size=8, loss_options=("power_adjustment=false",)).save(run / "config.json")
    assert main("learning-rate", run, "-o", out) == 2
    assert "without power adjustment" in capsys.readouterr().err


@pytest.mark.slow
def test_modulation_takes_the_run_and_options(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    call = ["modulation", "sdgm", "tfeat,margin=0.5", "--run", run, "--grid", 3, "--pairs", 5]
    assert main(*call, "-o", out) == 0 and is_written(out, "modulation")
    assert "2 losses, 299 batches of 5 pairs each; angles: 50 triplets" in capsys.readouterr().err  # 9 + 240 + 50
    sdgm, tfeat = json.loads((out / "results.json").read_text())["losses"]
    assert sdgm["plane_positive"][0] == [None] * 3  # θ⁻ below the anti-noise threshold
    assert sdgm["plane_positive"][1][2] > 0 > sdgm["plane_negative"][1][2]
    assert tfeat["plane_positive"][1][2] == pytest.approx(np.cos(sdgm["theta"][2] / 2))
    assert tfeat["plane_positive"][2][0] == pytest.approx(0, abs=1e-12)  # d⁻ - d⁺ = 0.96 is more than the margin of 0.5


def test_a_runs_own_loss_has_the_runs_options(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the loss is a file, which a run saves by its whole path."""
    source = (
        "from torch import nn\n"
        "class Mine(nn.Module):\n"
        "    def __init__(self, scale: float = 1.0):\n"
        "        super().__init__()\n"
        "        self.scale = scale\n"
        "    def forward(self, anchor, positive, *, progress=1.0):\n"
        "        return -self.scale * (anchor * positive).sum()\n"
    )
    (tmp_path / "mine.py").write_text(source)
    TrainConfig(loss=f"{tmp_path}/mine.py:Mine", loss_options=("scale=3",)).save(run / "config.json")
    monkeypatch.chdir(tmp_path)
    for text, scale in (("mine.py:Mine", 3), ("mine.py:Mine,scale=2", 2)):
        assert make_loss(text, run).scale == scale


@pytest.mark.slow
def test_fig1_fig3_and_norms(blobs: PatchSet, tmp_path: Path) -> None:
    blobs.save(tmp_path / "set")
    weights, out = tmp_path / "weights.safetensors", tmp_path / "out"
    save_encoder(SDGMNet(), weights, {})
    assert main("fig1", "--data", tmp_path / "set", "--points", 20, "-o", out) == 0  # with the shipped weights
    assert [one["name"] for one in json.loads((out / "results.json").read_text())["triplets"]] == ["hard", "easy"]
    assert main("norms", "--data", tmp_path / "set", "--weights", weights, "--patches", 50, "-o", out) == 0
    assert main("fig3", weights, "-o", out) == 0
    assert all(is_written(out, name) for name in ("fig1", "norms", "fig3"))


def hpatches_results() -> dict[str, object]:
    rows = [
        {"task": task, "noise": noise, "subset": subset, "metric": "ap", "value": 0.5}
        for task, subset in (("verification", "inter"), ("matching", "all"), ("retrieval", str(POOLS[-1])))
        for noise in ("easy", "hard", "tough")
    ]
    tasks = {"verification": "drawn", "retrieval": "drawn"}
    counts = {"split": "all", "sequences": ["v_a"], "of": 1, "patches": 9, "queries": 4, "distractors": 7}
    return {**counts, "tasks": tasks, "lines": [{"label": "SIFT", "rows": rows}]}


def test_fig4_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    root, out, calls = tmp_path / "root", tmp_path / "out", list[Path]()
    (root / "v_a").mkdir(parents=True)
    (root / "v_a/ref.png").write_bytes(b"one")

    def run_hpatches(arguments: object, root: Path) -> tuple[dict[str, object], list[Section]]:
        calls.append(root)
        return hpatches_results(), [Section("Benchmark", "", ["a"], [["b"]])]

    monkeypatch.setattr(benchmarks, "run_hpatches", run_hpatches)
    call = ["fig4", "SIFT=sift", "--root", root, "-o", out]
    for _ in range(2):
        assert main(*call) == 0
    assert calls == [root] and is_written(out, "fig4") and "65.12" in (out / "fig4.md").read_text()
    assert "Benchmark" in (out / "table.md").read_text()
    monkeypatch.setattr(benchmarks, "draw_fig4", lambda *_, **__: None)  # slow, and drawn already
    assert main(*call, "--pairs", 10) == 0 and len(calls) == 2  # other options
    (root / "v_a/ref.png").write_bytes(b"other")
    assert main(*call, "--pairs", 10) == 0 and len(calls) == 3  # other data
    assert main("fig4", "--results", out, "-o", tmp_path / "again") == 0 and len(calls) == 3
    assert (tmp_path / "again/fig4.md").read_text() == (out / "fig4.md").read_text()
    capsys.readouterr()
    (root / "v_a/ref.png").write_bytes(b"a third")
    assert main(*call, "--json") == 0 and len(calls) == 4
    shown = capsys.readouterr()
    assert json.loads(shown.out) == json.loads((out / "fig4.json").read_text())
    assert "1 image in 1 folder" in shown.err


def test_fig4_and_fig5_from_data(tmp_path: Path) -> None:
    for place, name in enumerate(("v_one", "v_two")):
        write_strips(tmp_path / "strips" / name, count=12, seed=place)
    call = ["fig4", "sift", "--root", tmp_path / "strips", "--split", "all", "--pairs", 20, "-o", tmp_path / "fig4"]
    assert main(*call) == 0
    assert is_written(tmp_path / "fig4", "fig4") and (tmp_path / "fig4/results.json").exists()
    sequence = tmp_path / "sequences/v_shift"
    image = noise_image(320, 240)
    write_image(sequence / "1.png", image)
    for number in range(2, 7):
        write_image(sequence / f"{number}.png", np.roll(image, number, axis=1))
        (sequence / f"H_1_{number}").write_text(f"1 0 {number}\n0 1 0\n0 0 1\n")
    assert main("fig5", "SIFT=sift", "--root", tmp_path / "sequences", "-o", tmp_path / "fig5") == 0
    assert is_written(tmp_path / "fig5", "fig5") and (tmp_path / "fig5/results.json").exists()
    assert "mean over 5 pairs of 1 sequences: v_shift; 10 draws" in (tmp_path / "fig5/fig5.md").read_text()


def test_table5_of_an_unfinished_benchmark(tmp_path: Path) -> None:
    row = {"set": "Herz-Jesu", "label": "SIFT", "photos": 8, "registered": 8, "points": 7500, "track_length": 4.2}
    (tmp_path / "done/Herz-Jesu/SIFT").mkdir(parents=True)
    (tmp_path / "done/Herz-Jesu/SIFT/summary.json").write_text(json.dumps({**row, "reprojection_error": 0.4}))
    assert main("table5", "--results", tmp_path / "done", "-o", tmp_path / "out") == 0
    assert is_written(tmp_path / "out", "table5")
    assert "| 7500 | 8.7K |" in (tmp_path / "out/table5.md").read_text()


PLANS = [  # a command on the groups A, B and C of the folder {0}, and what is added
    ("table1", ["--methods", "superpoint"], "--methods superpoint"),
    ("table1", ["--groups", "A={0}/blobs1"], "at least two groups"),
    ("table1", ["--groups", "A={0}/blobs1", "B={0}/blobs2,{0}/blobs1"], "blobs1 is in A and in B"),
    ("table1", ["--groups", "A={0}/blobs1,{0}/gone", "B={0}/blobs2"], "--groups A: {0}/gone"),
    ("table1", ["--groups", "A={0}/blobs1", "A={0}/blobs2"], "two groups are named A"),
    ("table1", ["--groups", "{0}/blobs1", "B={0}/blobs2"], "NAME=FOLDER,FOLDER"),
    ("table1", ["--phototour", "{0}"], "either --groups or --phototour"),
    ("table1", ["--iterations", "0"], "--iterations must be at least 2"),
    ("table1", ["--seeds", "0"], "--seeds must be at least 1"),
    ("table1", ["--batch-size", "5000"], "group A: "),
    ("table1", ["--methods", "tfeat", "--finished"], "no finished run"),
    ("table1", ["--plan", "--finished"], "--plan and --finished"),
    ("fig6c", ["--train", "Z"], "no such group; there are A, B, C"),
    ("fig6b", ["--margins", "1", "0.5"], "--margins"),
    ("fig6b", ["--train", "A", "B"], "--train A B"),
    ("fig6c", ["--seeds", "0"], "--seeds must be at least 1"),
    ("fig7", [], "--hpatches needs a folder"),
    ("fig7", ["--root", "{0}/blobs1"], "blobs1"),
    ("fig7", ["--root", "{0}", "--pairs", "0"], "--pairs must be at least 1"),
    ("fig6b", ["-o", "{0}/blobs1/set.json"], "set.json is a file"),
]


@pytest.mark.parametrize(("command", "more", "said"), PLANS)
def test_invalid_plans(
    folders: Path, tmp_path: Path, command: str, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [command, *words(folders, tmp_path / "out"), *(word.format(folders) for word in more)]
    assert_fails(call, said.format(folders), tmp_path / "out", capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fig2", "{tmp}/nowhere"], "nowhere is not a folder"),
        (["fig2", "{tmp}"], "no angles.npz"),
        (["margin-share", "{tmp}"], "no angles.npz"),
        (["learning-rate", "{tmp}/plain"], "log.jsonl has no powers"),
        (["table2-4", "{tmp}/nowhere"], "nowhere is not a folder"),
        (["table2-4", "{tmp}"], "config.json"),
        (["table2-4"], "at least one folder"),
        (["modulation", "magic"], "magic"),
        (["modulation", "sdgm", "--run", "{tmp}"], "no angles.npz"),
        (["modulation", "tfeat,speed=2"], "'speed'"),
        (["modulation", "hardnet,min_negative_angle=2"], "min_negative_angle"),
        (["modulation"], "at least one loss"),
        (["modulation", "sdgm", "sdgm"], "twice"),
        (["modulation", "sdgm", "--pairs", "3"], "--pairs"),
        (["fig1", "--data", "{tmp}/alone"], "no triplet"),
        (["fig1", "--data", "{tmp}/none"], "{tmp}/none"),
        (["norms", "--data", "{tmp}/alone", "--weights", "{tmp}/none"], "{tmp}/none"),
        (["fig3", "{tmp}/none"], "{tmp}/none"),
        (["fig4"], "at least one descriptor"),
        (["fig4", "sift"], "--root"),
        (["fig4", "--results", "{tmp}/none"], "not a folder"),
        (["fig4", "--results", "{tmp}/plain"], "results.json"),
        (["table5", "--results", "{tmp}/plain"], "no results"),
        (["fig5", "sift", "--root", "{tmp}/none"], "--root"),
    ],
)
def test_invalid_input(
    words: list[str], said: str, tmp_path: Path, blobs: PatchSet, capsys: pytest.CaptureFixture[str]
) -> None:
    PatchSet("alone", blobs.patches[::3], blobs.point_id[::3]).save(tmp_path / "alone")
    (tmp_path / "plain").mkdir()
    TrainConfig(loss="hardnet").save(tmp_path / "plain/config.json")
    RunLog(tmp_path / "plain/log.jsonl").write("epoch", 1, learning_rate=1.0, loss=0.5)
    call = [word.replace("{tmp}", str(tmp_path)) for word in (*words, "-o", "{tmp}/out")]
    assert_fails(call, said.replace("{tmp}", str(tmp_path)), tmp_path / "out", capsys)
