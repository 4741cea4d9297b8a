import numpy as np

from sdgmnet.benchmarks.phototour import Cell, run, table
from sdgmnet.contenders import Contender
from sdgmnet.data.patchset import PatchSet


def test_run_scores_every_cell_but_the_training_set(blobs: PatchSet, other_blobs: PatchSet) -> None:
    def by_point(patchset: PatchSet) -> dict[bytes, int]:
        return {patch.tobytes(): point for patch, point in zip(patchset.patches, patchset.point_id, strict=True)}

    points = {**by_point(blobs), **{key: 100_000 + value for key, value in by_point(other_blobs).items()}}

    def oracle(patches: np.ndarray) -> np.ndarray:
        return np.array([[points[patch.tobytes()]] for patch in patches], dtype=np.float32)

    def constant(patches: np.ndarray) -> np.ndarray:
        return np.ones((len(patches), 4), dtype=np.float32)

    contenders = [Contender("oracle", oracle, ()), Contender("constant", constant, ("blobs1",))]
    cells = run(contenders, [blobs, other_blobs])
    assert [(cell.label, cell.test) for cell in cells] == [
        ("oracle", "blobs1"), ("oracle", "blobs2"), ("constant", "blobs1"), ("constant", "blobs2")
    ]  # fmt: skip
    assert cells[0].fpr95 == cells[1].fpr95 == 0
    assert cells[2].fpr95 is None
    assert cells[3].fpr95 is not None and 0.9 < cells[3].fpr95 < 0.96
    assert run(contenders[1:], [other_blobs], convention="exact")[0].fpr95 == 1


def test_table_is_in_per_cent_with_means_over_trainings() -> None:
    cells = [
        Cell("net", ("lib",), "nd", 10, 0.01), Cell("net", ("lib",), "yos", 10, 0.03), Cell("net", ("lib",), "lib", 10, None),
        Cell("net", ("nd",), "nd", 10, None), Cell("net", ("nd",), "yos", 10, 0.02), Cell("net", ("nd",), "lib", 10, 0.06),
    ]  # fmt: skip
    header, rows = table(cells)
    assert header == ["descriptor", "trained on", "nd (%)", "yos (%)", "lib (%)", "mean (%)"]
    assert rows == [
        ["net", "lib", "1.00", "3.00", "-", "2.00"],
        ["net", "nd", "-", "2.00", "6.00", "4.00"],
        ["net, all", "", "", "", "", "3.00"],
    ]
