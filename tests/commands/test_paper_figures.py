"""`sdgmnet paper ...` from the command line: what is written, what is reused, and what is refused in a sentence."""

import json
from pathlib import Path

import numpy as np
import pytest

from reproduce import benchmarks as paper_benchmarks
from reproduce.modulation_command import loss_of
from sdgmnet.benchmarks.hpatches_tasks import POOLS
from sdgmnet.cli import main
from sdgmnet.commands import evaluate_hpatches as hpatches
from sdgmnet.commands import evaluate_matching as matching
from sdgmnet.data.patchset import PatchSet
from sdgmnet.encoders import SDGMNet, save_encoder
from sdgmnet.training.angles import Angles
from sdgmnet.training.config import TrainConfig
from sdgmnet.training.log import RunLog


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
        powers = {
            "power_pos": 8.0,
            "power_neg": 8.0,
            "running_power_pos": 20.0 / step,
            "running_power_neg": 20.0 / step,
        }
        log.write("epoch", step, learning_rate=1.0, **powers)
    return folder


@pytest.fixture
def weights(tmp_path: Path) -> str:
    save_encoder(SDGMNet(), tmp_path / "weights.safetensors", {})
    return str(tmp_path / "weights.safetensors")


def written(folder: Path, name: str) -> None:
    assert (folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"


def test_figures_of_a_run(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["paper", "fig2", str(run), "-o", str(out)]) == 0
    written(out, "fig2")
    assert json.loads((out / "results.json").read_text())["settings"]["margin"] == 0.5
    table = (out / "table.md").read_text()
    assert (
        "Run run: sdgmnet by sdgm on demo, 20 iterations, N = 8, seed 0." in table
        and "| θʳ | -0.3000 | 0.2500 |" in table
    )
    assert main(["paper", "learning-rate", str(run), "-o", str(out)]) == 0
    written(out, "learning_rate")
    assert json.loads((out / "results.json").read_text())["factor_pos"] == pytest.approx([0.4, 0.8, 1.2])
    assert main(["paper", "released", str(run), "-o", str(out)]) == 0
    written(out, "released")
    assert "| 0.7 |" in (out / "table.md").read_text() and "< 30" in (out / "table.md").read_text()


def test_captions_say_what_kind_of_run_it_is(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    TrainConfig(iterations=20, batch_size=8, loss="hynet", init="weights/older.safetensors").save(run / "config.json")
    assert main(["paper", "fig2", str(run), "-o", str(out)]) == 0
    table = (out / "table.md").read_text()
    assert "20 iterations, begun with the weights older.safetensors, N = 8" in table
    assert "that SDGM's loss would give by the moments of these triplets" in table and "running" not in table
    TrainConfig(iterations=20, batch_size=8, loss_options=("power_adjustment=false",)).save(run / "config.json")
    assert main(["paper", "learning-rate", str(run), "-o", str(out)]) == 2
    assert "without power adjustment" in capsys.readouterr().err


def test_modulation_takes_the_run_and_options(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["paper", "modulation", "sdgm", "tfeat,margin=0.5", "--run", str(run), "--grid", "3", "--pairs", "5"]
    assert main([*words, "-o", str(out)]) == 0
    written(out, "modulation")
    said = capsys.readouterr()
    assert "2 losses, 299 batches of 5 pairs each; angles: 50 triplets" in said.err  # 9 + 240 + 50
    sdgm, tfeat = json.loads((out / "results.json").read_text())["losses"]
    place = sdgm["theta"][2], sdgm["theta"][1]  # θ⁺ = 1.309, θ⁻ = 0.785: beyond any margin
    assert sdgm["plane_positive"][0] == [None] * 3  # θ⁻ below the anti-noise threshold
    assert sdgm["plane_positive"][1][2] > 0 > sdgm["plane_negative"][1][2]
    assert tfeat["plane_positive"][1][2] == pytest.approx(np.cos(place[0] / 2))
    assert tfeat["plane_positive"][2][0] == pytest.approx(0, abs=1e-12)  # d⁻ - d⁺ = 0.96 is more than the margin of 0.5


def test_a_runs_own_loss_has_the_runs_options(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the loss is a file of one's own, which a run keeps by its whole path."""
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
        assert loss_of(text, run).scale == scale


def test_fig1_fig3_and_norms(blobs: PatchSet, weights: str, tmp_path: Path) -> None:
    blobs.save(tmp_path / "set")
    out, data = tmp_path / "out", ["--data", str(tmp_path / "set"), "--weights", weights]
    assert main(["paper", "fig1", *data[:2], "--points", "20", "-o", str(out)]) == 0  # with the weights that ship
    written(out, "fig1")
    assert [one["name"] for one in json.loads((out / "results.json").read_text())["triplets"]] == ["hard", "easy"]
    assert main(["paper", "norms", *data, "--patches", "50", "-o", str(out)]) == 0
    written(out, "norms")
    assert main(["paper", "fig3", weights, "-o", str(out)]) == 0
    written(out, "fig3")


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
    root, out, calls = tmp_path / "root", tmp_path / "out", list[list[str]]()
    (root / "v_a").mkdir(parents=True)
    (root / "v_a/ref.png").write_bytes(b"one")

    def evaluate(words: list[str]) -> None:
        calls.append(words)
        print("the benchmark speaks")
        out.mkdir(exist_ok=True)
        (out / "results.json").write_text(json.dumps(hpatches_results()))

    monkeypatch.setattr(hpatches, "main", evaluate)
    words = ["paper", "fig4", "SIFT=sift", "--root", str(root), "-o", str(out)]
    for _ in range(2):
        assert main(words) == 0
    assert len(calls) == 1 and calls[0][:3] == ["SIFT=sift", "--root", str(root)]
    written(out, "fig4")
    assert "65.12" in (out / "fig4.md").read_text()
    monkeypatch.setattr(paper_benchmarks, "draw_fig4", lambda *_: None)  # slow, and drawn already
    assert main([*words, "--pairs", "10"]) == 0 and len(calls) == 2  # other options
    (root / "v_a/ref.png").write_bytes(b"other")
    assert main([*words, "--pairs", "10"]) == 0 and len(calls) == 3  # other data
    assert main(["paper", "fig4", "--results", str(out), "-o", str(tmp_path / "again")]) == 0 and len(calls) == 3
    assert (tmp_path / "again/fig4.md").read_text() == (out / "fig4.md").read_text()
    capsys.readouterr()
    (root / "v_a/ref.png").write_bytes(b"a third")
    assert main([*words, "--json"]) == 0 and len(calls) == 4
    shown = capsys.readouterr()
    assert json.loads(shown.out) == json.loads((out / "fig4.json").read_text())
    assert "the benchmark speaks" in shown.err and "1 image in 1 folder" in shown.err


def test_fig5_says_what_it_was_measured_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    root.mkdir()

    def evaluate(words: list[str]) -> None:
        out.mkdir()
        (out / "fig5.pdf").write_bytes(b"")
        pairs = [{"sequence": name} for name in ("v_a", "v_a", "i_b")]
        sampled = {"drawn": 200, "draws": 10, "near": [1, 3]}
        lines = [{"label": "SIFT", "sampled": [7.25, 20.0], "pairs": pairs}]
        (out / "results.json").write_text(json.dumps({"sampled": sampled, "lines": lines}))

    monkeypatch.setattr(matching, "main", evaluate)
    assert main(["paper", "fig5", "SIFT=sift", "--root", str(root), "-o", str(out)]) == 0
    text = (out / "fig5.md").read_text()
    assert "mean over 3 pairs of 2 sequences: v_a, i_b; 10 draws" in text and "| SIFT | 7.2 | 20.0 |" in text


def test_table5_of_an_unfinished_benchmark(tmp_path: Path) -> None:
    row = {"set": "Herz-Jesu", "label": "SIFT", "photos": 8, "registered": 8, "points": 7500, "track_length": 4.2}
    (tmp_path / "done/Herz-Jesu/SIFT").mkdir(parents=True)
    (tmp_path / "done/Herz-Jesu/SIFT/summary.json").write_text(json.dumps({**row, "reprojection_error": 0.4}))
    assert main(["paper", "table5", "--results", str(tmp_path / "done"), "-o", str(tmp_path / "out")]) == 0
    written(tmp_path / "out", "table5")
    assert "| 7500 | 8.7K |" in (tmp_path / "out/table5.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fig2", "{tmp}/nowhere"], "not a folder"),
        (["fig2", "{tmp}"], "no angles.npz"),
        (["released", "{tmp}"], "no angles.npz"),
        (["learning-rate", "{tmp}/plain"], "records no powers"),
        (["modulation", "magic"], "a loss is one of"),
        (["modulation", "sdgm", "--run", "{tmp}"], "no angles.npz"),
        (["modulation", "tfeat,speed=2"], "no option 'speed'"),
        (["modulation", "hardnet,min_negative_angle=2"], "hides every negative"),
        (["modulation"], "at least one loss"),
        (["modulation", "sdgm", "sdgm"], "twice"),
        (["modulation", "sdgm", "--pairs", "3"], "--pairs"),
        (["fig1", "--data", "{tmp}/alone"], "no triplet"),
        (["fig1", "--data", "{tmp}/none"], "no such folder"),
        (["norms", "--data", "{tmp}/alone", "--weights", "{tmp}/none"], "does not exist"),
        (["fig3", "{tmp}/none"], "does not exist"),
        (["fig4"], "at least one descriptor"),
        (["fig4", "sift"], "--root"),
        (["fig4", "--results", "{tmp}/none"], "not a folder"),
        (["fig4", "--results", "{tmp}/plain"], "results.json"),
        (["table5", "--results", "{tmp}/plain"], "no results"),
        (["fig5", "sift", "--root", "{tmp}/none"], "--root"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, blobs: PatchSet, capsys: pytest.CaptureFixture[str]
) -> None:
    PatchSet("alone", blobs.patches[::3], blobs.point_id[::3]).save(tmp_path / "alone")
    (tmp_path / "plain").mkdir()
    TrainConfig(loss="hardnet").save(tmp_path / "plain/config.json")
    RunLog(tmp_path / "plain/log.jsonl").write("epoch", 1, learning_rate=1.0, loss=0.5)
    words = [word.replace("{tmp}", str(tmp_path)) for word in words]
    assert main(["paper", *words, "-o", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "out").exists()
