"""Every figure that a command draws."""

from sdgmnet.plots.benchmarks import (
    ImagePair,
    draw_fig4,
    draw_fig5,
    draw_fpr,
    draw_mma,
    draw_reconstruction,
)
from sdgmnet.plots.patches import draw_easy_and_hard, draw_patches
from sdgmnet.plots.style import (
    COLOURS,
    COLUMN,
    DPI,
    FURTHER_COLOURS,
    NEGATIVE,
    PAGE,
    POSITIVE,
    RELATIVE,
    SMALL,
    colour_of,
    marker_of,
    method_of,
    new_figure,
    printed,
    save_figure,
    save_print,
)
from sdgmnet.plots.training import draw_fig2, draw_training

__all__ = [
    "COLOURS",
    "COLUMN",
    "DPI",
    "FURTHER_COLOURS",
    "NEGATIVE",
    "PAGE",
    "POSITIVE",
    "RELATIVE",
    "SMALL",
    "ImagePair",
    "colour_of",
    "draw_easy_and_hard",
    "draw_fig2",
    "draw_fig4",
    "draw_fig5",
    "draw_fpr",
    "draw_mma",
    "draw_patches",
    "draw_reconstruction",
    "draw_training",
    "marker_of",
    "method_of",
    "new_figure",
    "printed",
    "save_figure",
    "save_print",
]
