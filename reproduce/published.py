"""Numbers printed in the paper, its authors' logs and earlier papers, shown in columns of their own next to measured ones."""

from typing import Literal, NamedTuple

import numpy as np

TABLE1_COLUMNS = ("ND→LIB", "YOS→LIB", "LIB→ND", "YOS→ND", "LIB→YOS", "ND→YOS")


class Printed(NamedTuple):
    cells: tuple[float, ...]  # FPR@95 in %, by TABLE1_COLUMNS
    mean: float  # as printed


# Table 1 (docs/protocols.md 1.8). L2Net's cells give a mean of 2.14 (2.23 if the last is 1.71); see TABLE1_NOTE.
TABLE1 = {
    "sift": Printed((29.84, 29.84, 22.53, 22.53, 27.29, 27.29), 26.55),
    "tfeat": Printed((7.39, 10.13, 3.06, 3.80, 8.06, 7.24), 6.64),
    "l2net": Printed((2.36, 4.70, 0.72, 1.29, 2.57, 1.17), 2.23),
    "hardnet": Printed((1.49, 2.51, 0.53, 0.78, 1.96, 1.84), 1.51),
    "cdfdesc": Printed((1.21, 2.01, 0.39, 0.68, 1.51, 1.29), 1.38),
    "sosnet": Printed((1.08, 2.12, 0.34, 0.67, 1.03, 0.95), 1.03),
    "hardnet+frn": Printed((1.26, 1.76, 0.41, 0.58, 1.16, 1.05), 1.04),
    "hynet": Printed((0.89, 1.37, 0.34, 0.61, 0.88, 0.96), 0.84),
    "sdgmnet": Printed((0.82, 1.41, 0.30, 0.46, 0.80, 0.76), 0.76),
}
TABLE1_NOTE = (
    "Printed in the paper's Table 1: UBC PhotoTour, 100 K pairs per test, full trainings, best epoch chosen on the test pairs. "
    "The printed means of TFeat (6.64), L2Net (2.23), HardNet (1.51) and CDFDesc (1.38) are not the means of their cells "
    "(6.61, 2.14, 1.52 and 1.18)."
)

# Section V-A: ten trainings, the ten best checkpoints of each; mean and std by TABLE1_COLUMNS, then of the mean.
REPRODUCIBILITY = ((0.86, 0.04), (1.55, 0.14), (0.29, 0.02), (0.51, 0.05), (0.88, 0.08), (0.80, 0.06), (0.82, 0.06))

# Section V-D prints [1.02, 0.94, 1.00, 0.95] without names; this order follows from the definitions (docs/protocols.md 2.5).
POWER_RATIOS = {"l2": 1.02, "s": 0.94, "theta": 1.00, "af": 0.95}

MARGIN_SHARE = (0.7, 0.3)  # Section V-B: fewer than 30 % of the triplets with m = 0.7

# HPatches (docs/protocols.md 5.7). The paper's Fig. 4 prints no numbers; its text states differences on split a. The known
# absolute values are of the full set.
HPATCHES_ARTICLE = {  # mAP in %: verification, matching, retrieval
    "sift": ("65.12", "25.47", "31.98"),
    "rootsift": ("58.53", "27.22", "33.56"),
    "tfeat": ("81.90", "32.64", "39.40"),
}
HARDNET_REPOSITORY = {  # mAP in %: matching, retrieval; the augmented models of L2Net and HardNet
    "rootsift": ("27.22", "42.49"),
    "tfeat": ("32.64", "52.03"),
    "l2net": ("45.04", "63.37"),
    "hardnet": ("52.76", "69.66"),
}
HPATCHES_DIFFERENCES = (  # task, better, worse, difference of mAP in points on split a
    ("matching", "sdgmnet", "hardnet+frn", 0.34),
    ("retrieval", "sdgmnet", "hynet", 0.6),
)

STAGES = (30, 70, 110, 150, 190)  # epochs of 200, counted from 0
PAPER_BATCH = 1024
STATISTICS = {
    "theta_rel_mean": "E[θʳ]",
    "theta_rel_std": "Std[θʳ]",
    "theta_pos_mean": "E[θ⁺]",
    "theta_pos_std": "Std[θ⁺]",
    "theta_neg_mean": "E[θ⁻]",
    "theta_neg_std": "Std[θ⁻]",
    "power_pos": "E[P⁺]",
    "power_neg": "E[P⁻]",
}


class Stages(NamedTuple):
    """The running statistics at the epochs of STAGES. Powers are those of a batch of `batch_size`."""

    label: str
    batch_size: int
    values: dict[str, tuple[float, ...]]  # by STATISTICS


def _log(label: str, *rows: tuple[float, ...]) -> Stages:
    return Stages(label, PAPER_BATCH, dict(zip(STATISTICS, rows, strict=True)))


AUTHORS_NOTE = (
    "Epoch means over batches, from the training logs published with the authors' code. Tables 2-4 print nearly these: 111 of "
    "their 120 cells agree within one unit of the last digit, the others within two, except one (three and a half)."
)
AUTHORS = (
    _log(
        "authors' log, Liberty (Table 2)",
        (-0.28594, -0.31378, -0.33025, -0.33868, -0.34339),
        (0.23675, 0.23063, 0.22552, 0.22129, 0.21852),
        (0.85313, 0.83891, 0.83129, 0.82835, 0.82655),
        (0.22445, 0.21672, 0.20988, 0.20515, 0.20213),
        (1.13907, 1.15269, 1.16153, 1.16702, 1.16994),
        (0.07815, 0.07972, 0.08090, 0.08149, 0.08138),
        (281.19, 280.05, 280.33, 280.19, 279.16),
        (299.06, 296.84, 296.04, 295.13, 293.66),
    ),
    _log(
        "authors' log, Notredame (Table 3)",
        (-0.31369, -0.34019, -0.35673, -0.36494, -0.36908),
        (0.23287, 0.22457, 0.21836, 0.21494, 0.21249),
        (0.82627, 0.81348, 0.80554, 0.80253, 0.80072),
        (0.21804, 0.20830, 0.20083, 0.19665, 0.19388),
        (1.13996, 1.15367, 1.16227, 1.16747, 1.16980),
        (0.08658, 0.08601, 0.08602, 0.08599, 0.08614),
        (280.93, 281.43, 281.27, 281.24, 280.85),
        (297.50, 296.60, 295.36, 294.77, 293.90),
    ),
    _log(
        "authors' log, Yosemite (Table 4)",
        (-0.36148, -0.38580, -0.40007, -0.40728, -0.41066),
        (0.24632, 0.24129, 0.23613, 0.23286, 0.23089),
        (0.81012, 0.79696, 0.78931, 0.78551, 0.78365),
        (0.23573, 0.22976, 0.22427, 0.22073, 0.21870),
        (1.17160, 1.18276, 1.18937, 1.19278, 1.19430),
        (0.06502, 0.06656, 0.06813, 0.06900, 0.06970),
        (283.61, 281.75, 280.31, 279.54, 278.63),
        (304.22, 301.45, 299.15, 297.85, 296.54),
    ),
)
# Mean and std of θ⁺, θ⁻, θʳ in the authors' last epoch on Liberty (docs/protocols.md 2.4).
LAST_MOMENTS = np.array([[0.827, 0.202], [1.170, 0.081], [-0.343, 0.218]])


Presets = Literal["table", "native", "sdgm"]  # "table": the preset of each method in METHODS


class Method(NamedTuple):
    label: str
    recipe: str | None  # None: hand-crafted, nothing to train
    preset: str


# Rows in the order of Table 1. The FRN rows differ only in their loss; the others are as in their own papers.
METHODS = {
    "sift": Method("SIFT", None, ""),
    "tfeat": Method("TFeat", "tfeat", "native"),
    "l2net": Method("L2Net", "l2net", "native"),
    "hardnet": Method("HardNet", "hardnet", "native"),
    "cdfdesc": Method("CDFDesc", "cdfdesc", "native"),
    "sosnet": Method("SOSNet", "sosnet", "native"),
    "hardnet+frn": Method("HardNet+FRN", "hardnet+frn", "sdgm"),
    "hynet": Method("HyNet", "hynet", "sdgm"),
    "sdgmnet": Method("SDGMNet", "sdgmnet", "sdgm"),
}
