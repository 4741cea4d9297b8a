import numpy as np

from sdgmnet.benchmarks.phototour import Line, Row, compare, run, table
from sdgmnet.data.patchset import PatchSet
from sdgmnet.descriptors import Descriptor


def test_run_scores_every_cell_but_the_training_set(blobs: PatchSet, other_blobs: PatchSet) -> None:
    def by_point(patchset: PatchSet) -> dict[bytes, int]:
        return {patch.tobytes(): point for patch, point in zip(patchset.patches, patchset.point_id, strict=True)}

    points = {**by_point(blobs), **{key: 100_000 + value for key, value in by_point(other_blobs).items()}}

    def oracle(patches: np.ndarray) -> np.ndarray:
        return np.array([[points[patch.tobytes()]] for patch in patches], dtype=np.float32)

    def constant(patches: np.ndarray) -> np.ndarray:
        return np.ones((len(patches), 4), dtype=np.float32)

    descriptors = [Descriptor("oracle", oracle), Descriptor("constant", constant, ("blobs1",))]
    perfect, useless = compare(descriptors, [blobs, other_blobs])
    assert perfect == Line("oracle", (), [Row("blobs1", 200, 0.0), Row("blobs2", 200, 0.0)])
    assert useless.rows[0].fpr95 is None
    assert useless.rows[1].fpr95 is not None and 0.9 < useless.rows[1].fpr95 < 0.96
    assert run(constant, [other_blobs], convention="exact") == [Row("blobs2", 200, 1.0)]


def test_table_is_in_per_cent_with_means_over_trainings() -> None:
    lines = [
        Line("net", ("lib",), [Row("nd", 10, 0.01), Row("yos", 10, 0.03), Row("lib", 10, None)]),
        Line("net", ("nd",), [Row("nd", 10, None), Row("yos", 10, 0.02), Row("lib", 10, 0.06)]),
    ]
    header, rows = table(lines)
    assert header == ["descriptor", "trained on", "nd (%)", "yos (%)", "lib (%)", "mean (%)"]
    assert rows == [
        ["net", "lib", "1.00", "3.00", "-", "2.00"],
        ["net", "nd", "-", "2.00", "6.00", "4.00"],
        ["net, all", "", "", "", "", "3.00"],
    ]
