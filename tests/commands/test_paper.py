"""`sdgmnet paper ...` as a person calls it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from reproduce.ablation import DASHED, FRAMEWORKS
from sdgmnet.benchmarks.hpatches import Row, headline
from sdgmnet.cli import main
from tests.conftest import blob_patches
from tests.data.test_hpatches import write_strips

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


def test_table1_from_folders_to_files_and_again_without_training(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["paper", "table1", *words(folders, tmp_path / "out", "--methods", "sift", "tfeat", "--best-seeds", "1")]
    assert main([*call, "--plan"]) == 0
    shown = capsys.readouterr().err
    assert "Plan: 3 training runs, 0 of them done" in shown and "Estimate: " in shown and "After these" not in shown
    assert main([*call[:-2], "--plan"]) == 0
    assert re.search(
        r"After these, 3 runs more: further seeds .* methods, about .* by the mean", capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()
    assert main(call) == 0
    content = json.loads((tmp_path / "out/table1.json").read_text())
    assert [row["method"] for row in content["rows"]] == ["SIFT", "TFeat"]
    text = (tmp_path / "out/table1.md").read_text()
    assert "not PhotoTour" in text and "2 iterations" in text and "N = 8" in text and "| TFeat |" in text
    assert all((tmp_path / f"out/table1.{kind}").stat().st_size > 5000 for kind in ("png", "pdf"))
    results = sorted((tmp_path / "out/runs").glob("*/result.json"))
    before = [path.stat().st_mtime_ns for path in results]
    capsys.readouterr()
    assert main([*call, "--json"]) == 0
    assert [path.stat().st_mtime_ns for path in results] == before and len(before) == 3
    printed = capsys.readouterr()
    assert "all done before" in printed.err and json.loads(printed.out) == content
    assert printed.err.endswith("out: table1.md, table1.json, table1.png, table1.pdf, table.md, results.json.\n")

    more = ["paper", "table1", *words(folders, tmp_path / "out", "--methods", "tfeat", "hardnet", "--finished")]
    assert main(more) == 0 and len(list((tmp_path / "out/runs").glob("*/result.json"))) == 3
    so_far = (tmp_path / "out/table1.md").read_text()
    assert "Not whole yet: 3 of the 6 runs" in so_far and "| HardNet | - | - | - | 0 |" in so_far
    assert main(["paper", "table1", *words(folders, tmp_path / "none", "--methods", "tfeat", "--finished")]) == 2
    assert "no finished run" in capsys.readouterr().err and not (tmp_path / "none").exists()
    assert main(["paper", "fig6c", *words(folders, tmp_path / "out", "--finished")]) == 2
    assert "no finished run" in capsys.readouterr().err
    assert main(["paper", "table1", *words(folders, tmp_path / "out", "--methods", "sift", "--finished")]) == 0
    assert main(["paper", "table1", *words(folders, tmp_path / "out", "--plan", "--finished")]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_table1_with_nothing_but_the_loss_changed(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of its own, beside the usual one; what both have in common is trained once."""
    out, digests = tmp_path / "out", {}
    call = ["paper", "table1", *words(folders, out, "--methods", "sosnet", "hardnet+frn", "--best-seeds", "1")]
    assert main(call) == 0
    usual = (out / "table1.json").read_bytes()
    assert main([*call, "--preset", "sdgm"]) == 0
    assert (out / "table1.json").read_bytes() == usual
    results = [json.loads(path.read_text()) for path in (out / "runs").glob("*/result.json")]
    made = sorted((one["config"]["loss"], one["config"]["encoder"], one["config"]["optimizer"]) for one in results)
    fair, own = ("sosnet", "sdgmnet", "sgd"), ("sosnet", "l2net", "adam")
    assert made == sorted([("hardnet", "sdgmnet", "sgd"), fair, own] * 3)
    content = json.loads((out / "table1-sdgm.json").read_text())
    assert [row["preset"] for row in content["rows"]] == ["sdgm", "sdgm"]
    assert "only the loss differs: SOSNet, HardNet+FRN." in content["caption"]
    assert "of their own papers" not in content["caption"]

    capsys.readouterr()
    call = ["paper", "table1", *words(folders, out, "--methods", "hynet", "hardnet+frn", "--plan", "--json")]
    for preset in ("sdgm", "native"):
        assert main([*call, "--preset", preset]) == 0
        lines = json.loads(capsys.readouterr().out)["runs"]
        assert {line["state"] for line in lines if line["name"].startswith("hardnet+frn")} == {"done"}
        digests[preset] = {line["folder"] for line in lines if line["name"].startswith("hynet")}
    assert not digests["sdgm"] & digests["native"]


def test_figures_of_sdgmnets_runs(folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["paper", "fig6a", *words(folders, out, "--train", "A")]) == 0
    assert main(["paper", "reproducibility", *words(folders, out, "--train", "A", "--seeds", "1")]) == 0
    assert main(["paper", "fig6b", *words(folders, out, "--margins", "0.6", "0.7", "--alphas", "0.9", "1")]) == 0
    assert len(list((out / "runs").glob("*/result.json"))) == 3  # m = 0.6 and α = 0.9 are the run of fig6a
    for name in ("fig6a", "fig6b", "reproducibility"):
        assert all((out / f"{name}.{kind}").exists() for kind in ("md", "json", "png", "pdf"))
    assert [one["value"] for one in json.loads((out / "fig6b.json").read_text())["alpha"]] == [0.9, 1.0]

    assert main(["paper", "fig6b", *words(folders, out, "--finished")]) == 0
    so_far = json.loads((out / "fig6b.json").read_text())
    assert [one["value"] for one in so_far["margin"]] == [0.6, 0.7] and "6 of the 9 runs are missing" in so_far[
        "caption"
    ]
    assert main(["paper", "fig6c", *words(folders, out, "--finished", "--train", "A", "B")]) == 0
    scores = json.loads((out / "fig6c.json").read_text())["scores"]
    assert scores["af+pa"]["fpr95"]["last"] == []  # of the two groups only A was trained on
    assert main(["paper", "fig6c", *words(folders, out, "--finished")]) == 0
    text = (out / "fig6c.md").read_text()
    assert "9 of the 10 runs are missing" in text and "| &AF +PA |" in text and "| HyNet |" not in text
    assert len(list((out / "runs").glob("*/result.json"))) == 3


def test_the_ablation_the_attenuation_on_hpatches_and_the_stages(folders: Path, tmp_path: Path) -> None:
    """fig6c, fig7 and table2-4 from beginning to end, on tiny runs they share."""
    out = tmp_path / "out"
    assert main(["paper", "fig6c", *words(folders, out)]) == 0
    found = json.loads((out / "fig6c.json").read_text())
    assert list(found["scores"]) == [*FRAMEWORKS, *DASHED]
    (run,) = (out / "runs").glob("af+pa-A-*")
    last = json.loads((run / "result.json").read_text())["last"]
    assert found["scores"]["af+pa"]["fpr95"]["last"] == pytest.approx([sum(last.values()) / 2])
    table = (out / "fig6c.md").read_text()
    assert "SDGMNet's network and settings" in table and "| &θ −PA |" in table
    assert [
        line.split("|")[-2].strip() for line in table.splitlines() if line.startswith(("| HyNet", "| &AF +PA"))
    ] == [
        "0.76",
        "0.84",
    ]
    assert (out / "results.json").read_bytes() == (out / "fig6c.json").read_bytes()

    strips = tmp_path / "strips"
    for place, name in enumerate(("v_one", "v_two")):
        write_strips(strips / name, count=12, seed=place)
    call = words(folders, out, "--root", str(strips), "--alphas", "0.8", "0.9", "--pairs", "20")
    assert main(["paper", "fig7", *call]) == 0
    fig7 = json.loads((out / "fig7.json").read_text())["alphas"]
    assert [one["alpha"] for one in fig7] == [0.8, 0.9]
    for one, kind in zip(fig7, ("alpha=0.8", "af+pa"), strict=True):  # the run with 0.9 is the ablation's
        (run,) = (out / "runs").glob(f"{kind}-A-*")
        alone = ["evaluate", "hpatches", str(run / "last.safetensors"), "--root", str(strips), "--split", "all"]
        assert main([*alone, "--pairs", "20", "-o", str(tmp_path / kind)]) == 0
        rows = json.loads((tmp_path / kind / "results.json").read_text())["lines"][0]["rows"]
        assert one["matching"]["map"] == pytest.approx(headline([Row(**row) for row in rows], "matching"))

    for path in (out / "runs").glob("alpha=0.8-A-*/last.safetensors"):
        path.unlink()
    assert main(["paper", "fig7", *call, "--finished"]) == 0
    so_far = json.loads((out / "fig7.json").read_text())
    assert [one["alpha"] for one in so_far["alphas"]] == [0.9]
    assert "not here: alpha=0.8" in so_far["caption"]

    assert main(["paper", "table2-4", str(run), "-o", str(out)]) == 0
    here = json.loads((out / "table2-4.json").read_text())["here"][run.name]
    epochs = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines() if '"epoch"' in line]
    values = [line["running_theta_pos_mean"] for line in epochs]
    assert here["values"]["theta_pos_mean"] == [
        values[0],
        values[0],
        values[0],
        values[1],
        values[1],
    ]  # of 2 iterations
    assert main(["paper", "table2-4", str(run), str(run), "-o", str(out)]) == 2


def test_a_plan_counts_a_run_once(folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """m = 0.6 and α = 0.9 are the same training."""
    sweep = ["--margins", "0.6", "0.7", "--alphas", "0.9", "1", "--plan"]
    assert main(["paper", "fig6b", *words(folders, tmp_path / "out", *sweep)]) == 0
    shown = capsys.readouterr().err
    assert "Plan: 3 training runs" in shown and "for what is missing of 3" in shown
    assert "margin=0.6 on A" in shown and "alpha=0.9" not in shown
    assert main(["paper", "fig6b", *words(folders, tmp_path / "out", *sweep, "--json")]) == 0
    lines = json.loads(capsys.readouterr().out)["runs"]
    assert [(one["state"], one["iterations"], one["batch_size"]) for one in lines] == [("to do", 2, 8)] * 3
    assert all(one["seconds"] > 0 for one in lines) and not (tmp_path / "out").exists()


def test_a_command_started_twice_shares_its_runs(folders: Path, tmp_path: Path) -> None:
    """Two real processes at once: each run is trained by one of them, and both end with the whole figure."""
    out = tmp_path / "out"
    call = ["paper", "fig6b", *words(folders, out, "--margins", "0", "0.6", "0.7", "--alphas", "0.8", "0.9", "1")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "sdgmnet", *call], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=300)[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    lines = [line for text in said for line in text.splitlines() if "FPR@95 best" in line]
    here = [line.partition(":")[0] for line in lines if "(trained by another process)" not in line]
    assert len(here) == len(set(here)) == len(list((out / "runs").glob("*/result.json"))) == 5
    assert len(json.loads((out / "fig6b.json").read_text())["margin"]) == 3


@pytest.mark.parametrize(
    ("command", "change", "said"),
    [
        ("table1", ["--methods", "superpoint"], "--methods superpoint: no such method"),
        ("table1", ["--groups", "A={0}/blobs1"], "two groups of scenes at least"),
        ("table1", ["--groups", "A={0}/blobs1", "B={0}/blobs2,{0}/blobs1"], "blobs1 is in A and in B"),
        (
            "table1",
            ["--groups", "A={0}/blobs1,{0}/gone", "B={0}/blobs2"],
            "--groups A: {0}/gone: there is no such folder",
        ),
        ("table1", ["--groups", "A={0}/blobs1", "A={0}/blobs2"], "two groups are called A"),
        ("table1", ["--groups", "{0}/blobs1", "B={0}/blobs2"], "NAME=FOLDER,FOLDER"),
        ("table1", ["--phototour", "{0}"], "either --groups or --phototour"),
        ("table1", ["--iterations", "0"], "--iterations must be at least 2"),
        ("table1", ["--seeds", "0"], "--seeds must be at least 1"),
        ("table1", ["--batch-size", "5000"], "group A: "),
        ("fig6c", ["--train", "Z"], "no such group; there are A, B, C"),
        ("fig6b", ["--margins", "1", "0.5"], "m lies in [0, 1)"),
        ("fig6b", ["--train", "A", "B"], "--train A B: this figure is of runs on one group"),
        ("fig6c", ["--seeds", "0"], "--seeds must be at least 1"),
        ("fig7", [], "--hpatches needs a folder"),
        ("fig7", ["--root", "{0}/blobs1"], "holds no patch strips"),
        ("fig7", ["--root", "{0}", "--pairs", "0"], "--pairs must be at least 1"),
        ("fig6b", ["-o", "{0}/blobs1/set.json"], "set.json is a file: give the name of a folder"),
    ],
)
def test_bad_input_ends_in_one_sentence(
    folders: Path, tmp_path: Path, command: str, change: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["paper", command, *words(folders, tmp_path / "out"), *(word.format(folders) for word in change)]
    assert main(call) == 2
    shown = capsys.readouterr().err
    assert said.format(folders) in shown and "Traceback" not in shown
    assert not list(tmp_path.rglob("result.json"))


def test_tables_2_to_4_need_a_run_of_sdgm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "table2-4", str(tmp_path / "no"), "-o", str(tmp_path)]) == 2
    assert "no is not a folder: give the folder of a run" in capsys.readouterr().err
    assert main(["paper", "table2-4", "-o", str(tmp_path)]) == 2
    assert main(["paper", "table2-4", str(tmp_path), "-o", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err
