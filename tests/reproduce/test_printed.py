"""What the paper prints, typed a second time in its own order, against what stands beside measured numbers."""

import numpy as np
import pytest

from reproduce.ablation import ratio_table
from reproduce.methods import ABLATION
from reproduce.printed import REPRODUCIBILITY, TABLE1, TABLE1_COLUMNS
from reproduce.stages import AUTHORS

# Table 1: two cells a test set, LIB, ND, YOS; then the mean
TABLE_1 = """
SIFT        29.84 29.84  22.53 22.53  27.29 27.29  26.55
TFeat        7.39 10.13   3.06  3.80   8.06  7.24   6.64
L2Net        2.36  4.70   0.72  1.29   2.57  1.17   2.23
HardNet      1.49  2.51   0.53  0.78   1.96  1.84   1.51
CDFDesc      1.21  2.01   0.39  0.68   1.51  1.29   1.38
SOSNet       1.08  2.12   0.34  0.67   1.03  0.95   1.03
HardNet+FRN  1.26  1.76   0.41  0.58   1.16  1.05   1.04
HyNet        0.89  1.37   0.34  0.61   0.88  0.96   0.84
SDGMNet      0.82  1.41   0.30  0.46   0.80  0.76   0.76
"""
# Tables 2-4: rows as in `stages.STATISTICS`, columns epochs 30, 70, 110, 150, 190; in the units of the last line
TABLES_2_TO_4 = (
    """
-2.86 -3.13 -3.30 -3.39 -3.43
2.37 2.31 2.25 2.21 2.18
8.53 8.39 8.31 8.28 8.26
2.24 2.16 2.11 2.04 2.03
1.14 1.15 1.16 1.16 1.17
7.78 7.97 8.09 8.15 8.14
281 280 280 279 279
299 297 295 294 294
""",
    """
-3.13 -3.40 -3.57 -3.65 -3.69
2.33 2.25 2.20 2.15 2.13
8.26 8.14 8.06 8.02 8.01
2.18 2.09 2.01 1.96 1.95
1.14 1.15 1.16 1.17 1.17
8.66 8.60 8.60 8.60 8.60
281 281 281 281 281
298 297 295 295 294
""",
    """
-3.61 -3.86 -4.00 -4.07 -4.11
2.46 2.41 2.36 2.33 2.31
8.10 7.97 7.89 7.85 7.84
2.36 2.30 2.24 2.21 2.19
1.17 1.18 1.19 1.19 1.19
6.50 6.65 6.81 6.90 6.97
284 282 280 280 279
304 301 300 298 297
""",
)
SCALES = (10, 10, 10, 10, 1, 100, 1, 1)
UNITS = (0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 1, 1)  # of the last digit


def test_table_1() -> None:
    assert TABLE1_COLUMNS == ("ND→LIB", "YOS→LIB", "LIB→ND", "YOS→ND", "LIB→YOS", "ND→YOS")
    for line in TABLE_1.strip().splitlines():
        name, *numbers = line.split()
        assert [*TABLE1[name.lower()].cells, TABLE1[name.lower()].mean] == [float(one) for one in numbers]


def test_reproducibility_and_ratios_of_powers() -> None:
    text = "0.86±0.04 1.55±0.14 0.29±0.02 0.51±0.05 0.88±0.08 0.80±0.06 0.82±0.06"
    assert [f"{mean:.2f}±{std:.2f}" for mean, std in REPRODUCIBILITY] == text.split()
    rows = ratio_table({kind: [] for kind in ABLATION}, {kind: [] for kind in ABLATION})[1]
    printed = {row[0]: float(row[-1]) for row in rows}
    assert sorted(printed.values()) == sorted([1.02, 0.94, 1.00, 0.95])
    assert printed["&θ −PA"] == 1 < printed["&l₂ −PA"] and printed["&s −PA"] < printed["&AF −PA"] < 1


def test_the_authors_logs_are_nearly_tables_2_to_4() -> None:
    """As the note beside them says."""
    off = []
    for stages, text in zip(AUTHORS, TABLES_2_TO_4, strict=True):
        for row, numbers, scale, unit in zip(
            text.strip().splitlines(), stages.values.values(), SCALES, UNITS, strict=True
        ):
            off += list(abs(np.array([float(one) for one in row.split()]) - scale * np.array(numbers)) / unit)
    ranked = np.sort(off)
    assert len(off) == 120 and (ranked <= 1 + 1e-9).sum() == 111
    assert ranked[-2] < 2 and ranked[-1] == pytest.approx(3.5, abs=0.01)
