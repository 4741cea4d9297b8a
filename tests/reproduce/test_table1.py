from pathlib import Path

import numpy as np
import pytest

from reproduce.ablation import DASHED, FRAMEWORKS, Score, draw_fig6c
from reproduce.checkpoints import spread_of
from reproduce.groups import Group, make_group
from reproduce.methods import METHODS
from reproduce.plan import Budget, plan_method
from reproduce.printed import TABLE1
from reproduce.results import WAYS, Result, best, last, last_ten, top_ten
from reproduce.stages import AUTHORS, STATISTICS, draw_stages, stages_of
from reproduce.sweeps import Curve, draw_fig6b, draw_fig7, sweep_table
from reproduce.table1 import best_methods, columns, draw_table1, fixed_line, learned_line, summary_table, way_table
from sdgmnet.benchmarks.hpatches import TASKS
from sdgmnet.training.config import TrainConfig
from tests.conftest import blob_patches


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    """A has two scenes."""
    sets = [blob_patches(6, 2, seed) for seed in range(4)]
    return [make_group("A", ("a",), sets[:2]), make_group("B", ("b",), sets[2:3]), make_group("C", ("c",), sets[3:])]


def result(rng: np.random.Generator, groups: list[Group], train: str, diverged: str | None = None) -> Result:
    names = [one.name for group in groups if group.name != train for one in group.test]
    checkpoints = [{"step": 10 * step, "fpr95": {name: rng.random() for name in names}} for step in range(1, 13)]
    return Result("run", "0", {}, [], checkpoints, {}, {name: rng.random() for name in names}, {}, 1.0, diverged)


def test_ways_of_counting_by_hand(groups: list[Group]) -> None:
    one = result(np.random.default_rng(0), groups, "C")
    tests = groups[:2]
    a, b = [], []
    for line in one.checkpoints:  # A is the mean of its two scenes, B has one
        a.append((line["fpr95"]["blobs0"] + line["fpr95"]["blobs1"]) / 2)
        b.append(line["fpr95"]["blobs2"])
    means = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
    chosen = means.index(min(means))
    assert best(one, tests) == pytest.approx({"A": a[chosen], "B": b[chosen]})
    assert last_ten(one, tests) == pytest.approx({"A": sum(a[2:]) / 10, "B": sum(b[2:]) / 10})
    ranked = sorted(range(12), key=lambda place: means[place])[:10]
    assert top_ten(one, tests) == pytest.approx(
        {"A": sum(a[i] for i in ranked) / 10, "B": sum(b[i] for i in ranked) / 10}
    )
    assert last(one, tests) == pytest.approx(
        {"A": (one.last["blobs0"] + one.last["blobs1"]) / 2, "B": one.last["blobs2"]}
    )


@pytest.mark.filterwarnings("error:.*(lims|log-scaled):UserWarning")
def test_table_1_by_hand(groups: list[Group], tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    results = {("hynet", train, seed): result(rng, groups, train) for train in "ABC" for seed in (0, 1)}
    results |= {("tfeat", train, 0): result(rng, groups, train, "nan" if train == "B" else None) for train in "ABC"}
    assert columns(groups) == ["B→A", "C→A", "A→B", "C→B", "A→C", "B→C"]
    hynet, tfeat = (learned_line(name, results, groups) for name in ("hynet", "tfeat"))
    cell = [results["hynet", "C", seed].last["blobs2"] for seed in (0, 1)]
    assert hynet.cells["last"]["C→B"] == pytest.approx(cell)
    every = [
        np.mean([hynet.cells["last"][name][seed] for name in columns(groups)]) for seed in (0, 1)
    ]  # mean of six cells, a seed each
    assert hynet.means["last"] == pytest.approx(every)
    header, body = way_table([hynet, tfeat], "last", groups)
    spread = abs(cell[0] - cell[1]) / np.sqrt(2)
    assert body[0][header.index("C→B")] == f"{50 * sum(cell):.2f} ± {100 * spread:.2f}"
    assert body[1][header.index("B→A")] == body[1][-1] == "diverged"
    assert body[1][header.index("A→B")] == f"{100 * results['tfeat', 'A', 0].last['blobs2']:.2f}"
    sift = fixed_line("sift", {"A": 0.3, "B": 0.1, "C": 0.2}, groups)
    assert summary_table([sift])[1][0] == ["SIFT", "20.00", "20.00", "20.00", "-", "26.55", "26.55"]
    assert summary_table([hynet])[1][0][4] == "2"
    assert best_methods([sift, hynet, tfeat]) == ["hynet"]
    del results["tfeat", "C", 0]  # a table so far: what was not trained has not diverged
    (row,) = way_table([learned_line("tfeat", results, groups)], "last", groups)[1]
    assert (row[header.index("C→A")], row[header.index("B→A")]) == ("-", "diverged")
    perfect = fixed_line("sift", dict.fromkeys("ABC", 0.0), groups)
    for path in draw_table1([perfect, tfeat, hynet], tmp_path / "table1", "tests"):
        assert path.stat().st_size > 5000 and path.suffix in (".png", ".pdf")


def test_printed_numbers_are_the_papers() -> None:
    assert list(TABLE1) == list(METHODS)
    means = {name: round(float(np.mean(one.cells)), 2) for name, one in TABLE1.items()}
    slips = {name for name, one in TABLE1.items() if abs(means[name] - one.mean) > 0.031}
    assert slips == {"l2net", "cdfdesc"} and (means["l2net"], means["cdfdesc"]) == (2.14, 1.18)
    for stages, (first, final) in zip(
        AUTHORS, ((281, 294), (281, 294), (284, 297)), strict=True
    ):  # Tables 2-4, corners
        assert round(stages.values["power_pos"][0]) == first and round(stages.values["power_neg"][-1]) == final
        relative = np.subtract(stages.values["theta_pos_mean"], stages.values["theta_neg_mean"])
        assert np.allclose(relative, stages.values["theta_rel_mean"], atol=2e-5)


def test_reproducibility_by_hand(groups: list[Group]) -> None:
    budget, rng = Budget(4, 8, 4, 60), np.random.default_rng(2)
    runs = [plan_method("sdgmnet", group, groups, budget, seed) for seed in (0, 1) for group in groups]
    results = [result(rng, groups, one.train.name) for one in runs]
    spread = spread_of(runs, results, 3)
    assert list(spread) == [*columns(groups), "mean"]
    assert spread["C→B"] == pytest.approx([top_ten(results[place], groups[:2])["B"] for place in (2, 5)])
    first = [value for place in range(3) for value in top_ten(results[place], runs[place].tests).values()]
    assert spread["mean"][0] == pytest.approx(np.mean(first)) and len(spread["mean"]) == 2
    so_far = spread_of(runs[:4], results[:4], 3)  # the second seed on the first group alone
    assert so_far["mean"] == pytest.approx(spread["mean"][:1]) and len(so_far["A→B"]) == 2


def test_stages_are_the_lines_of_the_log(tmp_path: Path) -> None:
    TrainConfig(iterations=400, batch_size=256).save(tmp_path / "config.json")
    lines = [
        {"kind": "epoch", "step": 2 * epoch + 2, **{f"running_{name}": epoch + 0.25 for name in STATISTICS}}
        for epoch in range(200)
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(str(line).replace("'", '"') for line in lines))
    found, config = stages_of(tmp_path)
    assert found.values["theta_rel_std"] == (30.25, 70.25, 110.25, 150.25, 190.25) and found.batch_size == 256
    assert config.iterations == 400


@pytest.mark.filterwarnings("error:.*(lims|log-scaled):UserWarning")
def test_figures_of_the_ablation_and_the_sweeps_can_be_drawn(tmp_path: Path) -> None:
    """Also where a framework diverged, and where HPatches has no retrieval."""
    scores = {name: Score(name, {way: [0.1, 0.2] for way in WAYS}, []) for name in (*FRAMEWORKS, *DASHED)}
    scores["s-pa"] = Score("&s −PA", {way: [] for way in WAYS}, ["diverged"])
    curve: Curve = {
        0.6: {"top ten": [0.1, 0.2], "last ten": [0.2, 0.2], "last": [0.3, 0.3]},
        0.7: {"top ten": [], "last ten": [], "last": []},
    }
    tasks: dict[str, dict[str, float | None]] = {task: {"map": 0.5, "delta": 0.2} for task in TASKS}
    perfect = {name: Score(name, {way: [0.0] for way in WAYS}, []) for name in FRAMEWORKS}
    written = [
        *draw_fig6c(perfect, tmp_path / "perfect"),
        *draw_fig6c(scores, tmp_path / "fig6c"),
        *draw_fig6b({"margin": curve, "alpha": curve}, tmp_path / "fig6b"),
        *draw_fig7({0.9: tasks, 1.0: {**tasks, "retrieval": {"map": None, "delta": None}}}, tmp_path / "fig7"),
        *draw_stages({"one": AUTHORS[0]}, tmp_path / "stages"),
    ]
    assert len(written) == 10 and all(path.stat().st_size > 5000 for path in written)
    body = sweep_table({"margin": curve})[1]
    assert body == [
        ["m = 0.6", "15.00 ± 7.07", "20.00 ± 0.00", "30.00 ± 0.00", "2"],
        ["m = 0.7", *["diverged"] * 3, "0"],
    ]
